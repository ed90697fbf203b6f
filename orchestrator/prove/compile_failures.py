"""Prove room: the compiler's failures in words.

libtpu ends the process when one of its checks fails; what is left then is what it wrote.
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


def is_out_of_memory(failed: CompileFailure) -> bool:
    return failed.said.startswith(OUT_OF_MEMORY)


def sentence(failed: CompileFailure) -> str:
    """What the compiler said, without its code."""
    return failed.said.splitlines()[0].partition(": ")[2]


def no_compiler(platform: str, machine: str) -> ProofUnavailable:
    return ProofUnavailable(
        f"cannot prove: libtpu, the TPU compiler, is not installed ({platform} {machine})\n"
        "It exists for Linux on x86-64 alone; there, `make setup` installs it. A plan can be run"
        " without a proof: orch submit --no-prove"
    )


def failure(plan: Plan, failed: CompileFailure) -> OrchError:
    """The error for a compilation that came to no verdict."""
    if failed.by == "trainer":
        return SpecError(f"the trainer refuses the plan: {failed.said}")
    if option := UNKNOWN_OPTION.search(failed.said):
        return SpecError(
            f"experiment.compiler_options: {option[1]} is no option of this TPU compiler"
        )
    if failed.exit_code is not None:
        return _died(failed)
    if "topology" in failed.said.lower():
        return SpecError(
            f"the TPU compiler knows no {plan.chip} slice {plan.topology}: {_first_line(failed)}"
        )
    if check := INTERNAL.search(failed.said):
        return ProofUnavailable(_check_text(check[1], check[2], failed.said))
    return ProofUnavailable(f"cannot prove: the TPU compiler failed: {_first_line(failed)}")


def _died(failed: CompileFailure) -> ProofUnavailable:
    """The process ended before it answered."""
    assert failed.exit_code is not None
    if check := CHECK.search(failed.said):
        return ProofUnavailable(_check_text(check[1], check[2], failed.said))
    if failed.exit_code > 0:
        return ProofUnavailable(f"cannot prove: {_raised(failed.said)}")
    name = Signals(-failed.exit_code).name
    why = ": most likely the machine ran out of memory" if name == "SIGKILL" else ""
    return ProofUnavailable(f"cannot prove: the TPU compiler was ended by {name}{why}")


def _raised(said: str) -> str:
    """What Python raised, and the line that is nearest to it."""
    lines = said.strip().splitlines() or ["the process ended without a word"]
    places = FRAME.findall(said)
    where = f" (at {places[-1][0]}:{places[-1][1]})" if places else ""
    return f"{lines[-1]}{where}"


def _check_text(place: str, check: str, said: str) -> str:
    """One of the compiler's own checks failed: which, and on which operation."""
    after = said[said.find(check) :]
    named = [found[1] for pattern in OPERATIONS if (found := pattern.search(after))]
    where = f"\nIt was at the operation {named[0]}." if named else ""
    return (
        "cannot prove: a check inside the TPU compiler failed, which is a bug of its own\n"
        f"  {place.rsplit('/', 1)[-1]}: {check.strip()}{where}\n"
        "Another mesh, remat or number of microbatches often avoids it: orch plan --alternatives 5"
    )


def _first_line(failed: CompileFailure) -> str:
    return failed.said.strip().splitlines()[0] if failed.said.strip() else "it said nothing"
