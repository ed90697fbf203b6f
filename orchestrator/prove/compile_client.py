"""Prove room: the compiler in a process of its own, so that what it does to itself stays there."""

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
from orchestrator.prove.targets import environment
from orchestrator.types import codec

CHILD = (sys.executable, "-m", "orchestrator.prove.compile_process")
OnStage = Callable[[str], None]


def compile_plan(asked: CompileRequest, stage: OnStage) -> CompileResult:
    """What the child answers; it never outlives this call, however the call ends."""
    with tempfile.TemporaryFile() as noise:
        child = subprocess.Popen(
            CHILD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment(os.environ),
            start_new_session=True,
        )
        try:
            answer = _answer(child, asked, stage)
            return answer or CompileResult(failed=_died(child.wait(), noise))
        finally:
            _end(child)


def _answer(
    child: subprocess.Popen[bytes], asked: CompileRequest, stage: OnStage
) -> CompileResult | None:
    """Hand over what is asked, then follow the child; None when it dies unheard."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(codec.to_json(asked) + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return None
    for line in child.stdout:
        message = json.loads(line)
        if "answer" in message:
            return codec.from_json(message["answer"], CompileResult)
        stage(message["stage"])
    return None


def _died(exit_code: int, noise: IO[bytes]) -> CompileFailure:
    noise.seek(0)
    return CompileFailure(
        said=noise.read().decode("utf-8", "replace"), by="compiler", exit_code=exit_code
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()
