"""Run the compiler in a process of its own, which never outlives the call."""

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from signal import Signals

from orchestrator.errors import OrchError, ProofUnavailable, SpecError
from orchestrator.processes import MODULE, deepen_compiler_stacks, without_device_settings
from orchestrator.proving.compiled import CompileFailure, CompileRequest, CompileResult
from orchestrator.proving.platforms import platform_of
from orchestrator.values import codec
from orchestrator.values.program import AnyPlan, ServedProgram

# Without these libtpu asks the machine which TPU it is, or cannot be loaded twice at a time, and
# the plugin for GPUs looks for CUDA.
_SETTINGS = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    settings = without_device_settings(inherited) | _SETTINGS
    deepen_compiler_stacks(settings)
    return settings


_COMMAND = (*MODULE, "orchestrator.proving.compile_process")
OnStage = Callable[[str], None]
_running: set["subprocess.Popen[bytes]"] = set()


def end_all() -> None:
    """End every compilation of this process; the threads that wait for them go on without it."""
    for process in list(_running):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def compile_request(plan: AnyPlan, text_path: str | None = None) -> CompileRequest:
    platform = platform_of(plan)
    topology, options = platform.target(plan)
    return CompileRequest(
        plan=codec.to_json(plan).decode(),
        serves=isinstance(plan, ServedProgram),
        platform=platform.jax_name,
        packages=platform.packages,
        topology=topology,
        topology_options=options,
        rates=platform.rates(plan),
        options=dict(platform.options),
        text_path=text_path,
    )


def compile_plan(request: CompileRequest, on_stage: OnStage) -> CompileResult:
    """What the process answers, or why it died; `on_stage` receives the stages on the way."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=_environment(os.environ),
            start_new_session=True,
        )
        _running.add(process)
        try:
            if result := _result(process, request, on_stage):
                return result
            exit_code = process.wait()
            stderr.seek(0)
            message = stderr.read().decode("utf-8", "replace")
            failure = CompileFailure(message=message, by="compiler", exit_code=exit_code)
            return CompileResult(failure=failure)
        finally:
            _running.discard(process)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in filter(None, (process.stdin, process.stdout)):
                with suppress(BrokenPipeError):  # a request that the process never read
                    stream.close()


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


# The errors for compilations that end without a verdict.

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_UNKNOWN_OPTION = re.compile(r"No such compile option: '([^']*)'")
# F1120 12:00:00.000000  123 file.cc:45] Check failed: ...
_CHECK = re.compile(r"^F\d{4} \S+\s+\d+ ([^:]+:\d+)\] (.*)$", re.MULTILINE)
_FRAME = re.compile(r'File "[^"]*?((?:trainers|orchestrator)/[^"]*)", line (\d+)')
_INTERNAL = re.compile(r"RET_CHECK failure \(([^)]*)\) (.*)")
# Where the text names no operation, the pass that visited one does: its stack says which kind.
_OPERATIONS = (
    re.compile(r'op_name="([^"]*)"'),
    re.compile(r"%([\w.\-]+) = "),
    re.compile(r"Visitor::Handle(\w+)\(\)"),
)


def error_of(plan: AnyPlan, failure: CompileFailure) -> OrchError:
    title = platform_of(plan).title
    if failure.by == "trainer":
        return SpecError(f"the trainer refuses the plan: {failure.message}")
    if option := _UNKNOWN_OPTION.search(failure.message):
        return SpecError(
            f"experiment.compiler_options: {option[1]} is not an option of this {title}"
        )
    if failure.exit_code is not None:
        # The error for a process that ended before it answered.
        if check := _CHECK.search(failure.message):
            return ProofUnavailable(_check_text(title, check[1], check[2], failure.message))
        if failure.exit_code > 0:  # what Python raised, and the innermost line of the project
            lines = failure.message.strip().splitlines() or ["the process ended without a word"]
            places = _FRAME.findall(failure.message)
            where = f" (at {places[-1][0]}:{places[-1][1]})" if places else ""
            return ProofUnavailable(f"cannot prove: {lines[-1]}{where}")
        name = Signals(-failure.exit_code).name
        why = ": most likely the machine ran out of memory" if name == "SIGKILL" else ""
        return ProofUnavailable(f"cannot prove: the {title} was ended by {name}{why}")
    if "topology" in failure.message.lower():
        return SpecError(
            f"the {title} knows no {plan.chip} slice {plan.topology}: {_first_line(failure)}"
        )
    if check := _INTERNAL.search(failure.message):
        return ProofUnavailable(_check_text(title, check[1], check[2], failure.message))
    return ProofUnavailable(f"cannot prove: the {title} failed: {_first_line(failure)}")


def _check_text(title: str, place: str, check: str, message: str) -> str:
    after = message[message.find(check) :]
    operations = [match[1] for pattern in _OPERATIONS if (match := pattern.search(after))]
    where = f"\nIt was at the operation {operations[0]}." if operations else ""
    return (
        f"cannot prove: a check inside the {title} failed, which is a bug of its own\n"
        f"  {place.rsplit('/', 1)[-1]}: {check.strip()}{where}\n"
        "Another mesh, remat or number of microbatches often avoids it: orch plan --alternatives 5"
    )


def _first_line(failure: CompileFailure) -> str:
    return next(iter(failure.message.strip().splitlines()), "no message")
