"""The errors for compilations that end without a verdict.

libtpu ends the process when one of its checks fails; all that is left then is what it wrote.
"""

import re
from signal import Signals

from orchestrator.errors import OrchError, ProofUnavailable, SpecError
from orchestrator.prove.compiled import CompileFailure
from orchestrator.types.plan import Plan

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
UNKNOWN_OPTION = re.compile(r"No such compile option: '([^']*)'")
# F1120 12:00:00.000000  123 file.cc:45] Check failed: ...
CHECK = re.compile(r"^F\d{4} \S+\s+\d+ ([^:]+:\d+)\] (.*)$", re.MULTILINE)
FRAME = re.compile(r'File "[^"]*?((?:trainers|orchestrator)/[^"]*)", line (\d+)')
INTERNAL = re.compile(r"RET_CHECK failure \(([^)]*)\) (.*)")
# Where the text names no operation, the pass that visited one does: its stack says which kind.
OPERATIONS = (
    re.compile(r'op_name="([^"]*)"'),
    re.compile(r"%([\w.\-]+) = "),
    re.compile(r"Visitor::Handle(\w+)\(\)"),
)


def is_out_of_memory(failure: CompileFailure) -> bool:
    return failure.message.startswith(OUT_OF_MEMORY)


def message_of(failure: CompileFailure) -> str:
    """The compiler's message without its code."""
    return failure.message.splitlines()[0].partition(": ")[2]


def no_compiler(platform: str, machine: str) -> ProofUnavailable:
    return ProofUnavailable(
        f"cannot prove: libtpu, the TPU compiler, is not installed ({platform} {machine})\n"
        "It exists for Linux on x86-64 alone; there, `make setup` installs it. A plan can be run"
        " without a proof: orch submit --no-prove"
    )


def error_of(plan: Plan, failure: CompileFailure) -> OrchError:
    """The error for a compilation without a verdict."""
    if failure.by == "trainer":
        return SpecError(f"the trainer refuses the plan: {failure.message}")
    if option := UNKNOWN_OPTION.search(failure.message):
        return SpecError(
            f"experiment.compiler_options: {option[1]} is no option of this TPU compiler"
        )
    if failure.exit_code is not None:
        return _exit_error(failure, failure.exit_code)
    if "topology" in failure.message.lower():
        return SpecError(
            f"the TPU compiler knows no {plan.chip} slice {plan.topology}: {_first_line(failure)}"
        )
    if check := INTERNAL.search(failure.message):
        return ProofUnavailable(_check_text(check[1], check[2], failure.message))
    return ProofUnavailable(f"cannot prove: the TPU compiler failed: {_first_line(failure)}")


def _exit_error(failure: CompileFailure, exit_code: int) -> ProofUnavailable:
    """The error for a process that ended before it answered."""
    if check := CHECK.search(failure.message):
        return ProofUnavailable(_check_text(check[1], check[2], failure.message))
    if exit_code > 0:
        return ProofUnavailable(f"cannot prove: {_python_error(failure.message)}")
    name = Signals(-exit_code).name
    why = ": most likely the machine ran out of memory" if name == "SIGKILL" else ""
    return ProofUnavailable(f"cannot prove: the TPU compiler was ended by {name}{why}")


def _python_error(traceback: str) -> str:
    """What Python raised, and the innermost line of the project."""
    lines = traceback.strip().splitlines() or ["the process ended without a word"]
    places = FRAME.findall(traceback)
    where = f" (at {places[-1][0]}:{places[-1][1]})" if places else ""
    return f"{lines[-1]}{where}"


def _check_text(place: str, check: str, message: str) -> str:
    """Which of the compiler's own checks failed, and on which operation."""
    after = message[message.find(check) :]
    operations = [match[1] for pattern in OPERATIONS if (match := pattern.search(after))]
    where = f"\nIt was at the operation {operations[0]}." if operations else ""
    return (
        "cannot prove: a check inside the TPU compiler failed, which is a bug of its own\n"
        f"  {place.rsplit('/', 1)[-1]}: {check.strip()}{where}\n"
        "Another mesh, remat or number of microbatches often avoids it: orch plan --alternatives 5"
    )


def _first_line(failure: CompileFailure) -> str:
    return next(iter(failure.message.strip().splitlines()), "no message")
