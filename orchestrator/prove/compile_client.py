"""Run the compiler in a process of its own, which never outlives the call."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from orchestrator.prove.compiled import CompileFailure, CompileRequest, CompileResult
from orchestrator.prove.schedule_rates import schedule_rates
from orchestrator.prove.targets import environment, target
from orchestrator.types import codec
from orchestrator.types.plan import Plan

COMMAND = (sys.executable, "-m", "orchestrator.prove.compile_process")
OnStage = Callable[[str], None]


def compile_request(plan: Plan, text_path: str | None = None) -> CompileRequest:
    """The input of the process for a plan."""
    topology, options = target(plan)
    return CompileRequest(
        plan=codec.to_json(plan).decode(),
        topology=topology,
        topology_options=options,
        rates=schedule_rates(plan),
        text_path=text_path,
    )


def compile_plan(request: CompileRequest, on_stage: OnStage) -> CompileResult:
    """What the process answers, or why it died; `on_stage` receives the stages on the way."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(os.environ),
            start_new_session=True,
        )
        try:
            result = _result(process, request, on_stage)
            return result or CompileResult(failure=_death(process.wait(), stderr))
        finally:
            _kill(process)


def _result(
    process: subprocess.Popen[bytes], request: CompileRequest, on_stage: OnStage
) -> CompileResult | None:
    """Send the request and follow the process; None if it dies before it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(codec.to_json(request) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    for line in process.stdout:
        message = json.loads(line)
        if "result" in message:
            return codec.from_json(message["result"], CompileResult)
        on_stage(message["stage"])
    return None


def _death(exit_code: int, stderr: IO[bytes]) -> CompileFailure:
    stderr.seek(0)
    message = stderr.read().decode("utf-8", "replace")
    return CompileFailure(message=message, by="compiler", exit_code=exit_code)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
