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
from typing import Any

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.catalog.published import shared_efficiency
from orchestrator.errors import OrchError, ProofUnavailable, SpecError
from orchestrator.planning.step_work import ICI_RATE
from orchestrator.planning.time import peak
from orchestrator.planning.torus import HOP_S, cluster_rate, make_torus
from orchestrator.processes import MODULE, deepen_compiler_stacks, without_device_settings
from orchestrator.proving.compiled import CompileFailure, CompileRequest, CompileResult
from orchestrator.values import codec
from orchestrator.values.codec import MatmulType
from orchestrator.values.plan import Plan
from orchestrator.values.proof import ComputeRates, ScheduleRates, SliceTorus, TransferRates

# Without these libtpu asks the machine which TPU it is, or cannot be loaded twice at a time.
_SETTINGS = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def target(plan: Plan) -> tuple[str, dict[str, Any]]:
    """Name and options of the plan's topology, as `get_topology_desc` takes them."""
    names = catalog.chip_of(plan).libtpu
    if names is None:
        known = ", ".join(name for name in catalog.chips() if catalog.chip(name).libtpu)
        raise ProofUnavailable(
            f"cannot prove: the TPU compiler knows {known}, and no {plan.chip}\n"
            "A plan can be run without a proof: orch submit --no-prove"
        )
    options: dict[str, Any] = {}
    if names.chip_config:
        options["chip_config_name"] = names.chip_config
    if plan.chips == plan.pods:  # hosts have four chips unless one is set
        options["chips_per_host_bounds"] = [1, 1, 1]
    if plan.pods > 1:
        options["num_slices"] = plan.pods
    return f"{names.topology}:{plan.topology}", options


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    settings = without_device_settings(inherited) | _SETTINGS
    deepen_compiler_stacks(settings)
    return settings


# The rates that price a compiled program's schedule: the catalog's, as one device has them.

_LINKS = 2  # of a chip on each torus axis, one each way


def schedule_rates(plan: Plan) -> ScheduleRates | None:
    """Return None where the catalog has no clock for the chip: cycles are then no seconds."""
    chip = catalog.chip_of(plan)
    return rates_of(chip, catalog.topology(chip, plan.topology), plan.precision.compute)


def rates_of(chip: Chip, topology: Topology, compute: MatmulType) -> ScheduleRates | None:
    """Return the rates of one device of a slice that multiplies in that type."""
    if chip.clock_hz is None:
        return None
    efficiency = catalog.efficiency(chip.name, compute)
    torus = make_torus(chip, topology)
    host = chip.host_link_bytes_per_s
    return ScheduleRates(
        compute=ComputeRates(
            clock_hz=chip.clock_hz.value,
            peak_flops_per_s=peak(chip, compute).value / chip.devices,
            kernel_share=shared_efficiency("attention").value,
            product_share=efficiency.matmul.value if efficiency else 1.0,
        ),
        transfers=TransferRates(
            hbm_bytes_per_s=chip.hbm_bytes_per_s.value / chip.devices,
            host_bytes_per_s=host.value / chip.devices if host else None,
            dcn_bytes_per_s=cluster_rate(chip),
        ),
        torus=SliceTorus(
            lengths=tuple(axis.length for axis in torus.axes),
            wraps=tuple(axis.wraps for axis in torus.axes),
            link_bytes_per_s=tuple(ICI_RATE * axis.bytes_per_s / _LINKS for axis in torus.axes),
            devices_per_chip=chip.devices,
            hop_s=HOP_S,
        ),
    )


def other_options(plan: Plan) -> list[dict[str, bool | int | float | str]]:
    """Return further settings of the options that a plan has from its chip's file."""
    libtpu = catalog.chip_of(plan).libtpu
    options = libtpu.options if libtpu else {}
    return [
        {name: other}
        for name, option in options.items()
        if plan.compiler_options.get(name) == option.value
        for other in option.others
    ]


_COMMAND = (*MODULE, "orchestrator.proving.compile_process")
OnStage = Callable[[str], None]
_running: set["subprocess.Popen[bytes]"] = set()


def end_all() -> None:
    """End every compilation of this process; the threads that wait for them go on without it."""
    for process in list(_running):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def compile_request(plan: Plan, text_path: str | None = None) -> CompileRequest:
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


def error_of(plan: Plan, failure: CompileFailure) -> OrchError:
    if failure.by == "trainer":
        return SpecError(f"the trainer refuses the plan: {failure.message}")
    if option := _UNKNOWN_OPTION.search(failure.message):
        return SpecError(
            f"experiment.compiler_options: {option[1]} is not an option of this TPU compiler"
        )
    if failure.exit_code is not None:
        # The error for a process that ended before it answered.
        if check := _CHECK.search(failure.message):
            return ProofUnavailable(_check_text(check[1], check[2], failure.message))
        if failure.exit_code > 0:  # what Python raised, and the innermost line of the project
            lines = failure.message.strip().splitlines() or ["the process ended without a word"]
            places = _FRAME.findall(failure.message)
            where = f" (at {places[-1][0]}:{places[-1][1]})" if places else ""
            return ProofUnavailable(f"cannot prove: {lines[-1]}{where}")
        name = Signals(-failure.exit_code).name
        why = ": most likely the machine ran out of memory" if name == "SIGKILL" else ""
        return ProofUnavailable(f"cannot prove: the TPU compiler was ended by {name}{why}")
    if "topology" in failure.message.lower():
        return SpecError(
            f"the TPU compiler knows no {plan.chip} slice {plan.topology}: {_first_line(failure)}"
        )
    if check := _INTERNAL.search(failure.message):
        return ProofUnavailable(_check_text(check[1], check[2], failure.message))
    return ProofUnavailable(f"cannot prove: the TPU compiler failed: {_first_line(failure)}")


def _check_text(place: str, check: str, message: str) -> str:
    """Which of the compiler's own checks failed, and on which operation."""
    after = message[message.find(check) :]
    operations = [match[1] for pattern in _OPERATIONS if (match := pattern.search(after))]
    where = f"\nIt was at the operation {operations[0]}." if operations else ""
    return (
        "cannot prove: a check inside the TPU compiler failed, which is a bug of its own\n"
        f"  {place.rsplit('/', 1)[-1]}: {check.strip()}{where}\n"
        "Another mesh, remat or number of microbatches often avoids it: orch plan --alternatives 5"
    )


def _first_line(failure: CompileFailure) -> str:
    return next(iter(failure.message.strip().splitlines()), "no message")
