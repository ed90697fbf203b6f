"""Count how often each computation of a compiled program runs in one step."""

from collections import defaultdict
from collections.abc import Iterator

from orchestrator.prove.hlo.program import Computation, HloProgram, Instruction
from orchestrator.prove.hlo.trip_counts import trip_count

# Their computations combine two numbers, element by element: there is nothing to count in them.
COMBINES = {"all-reduce", "all-reduce-start", "reduce", "reduce-scatter", "reduce-window"}
COMBINES |= {"scatter", "select-and-scatter", "sort", "map"}

# They may name the computation that their start names.
CONTINUES = {"async-update", "async-done"}

Visit = tuple[Computation, Instruction, int]


def execution_counts(program: HloProgram) -> dict[str, int]:
    """Computation → how often it runs. Each branch of a conditional counts as taken."""
    count: dict[str, int] = defaultdict(int)

    def visit(computation: Computation, repeats: int) -> None:
        count[computation.name] += repeats
        for instruction in computation.instructions.values():
            for called, each in _calls(program, computation, instruction):
                visit(called, repeats * each)

    visit(program.entry, 1)
    return dict(count)


def _calls(
    program: HloProgram, where: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, int]]:
    if instruction.opcode in COMBINES | CONTINUES or not instruction.called:
        return
    if instruction.opcode == "while":
        yield (
            program.computations[instruction.attribute("body")[1:]],
            trip_count(program, where, instruction),
        )
        return
    for called in program.called(instruction):
        yield called, 1


def visits(program: HloProgram) -> Iterator[Visit]:
    """Every instruction that runs, with its computation and how often."""
    for name, count in execution_counts(program).items():
        computation = program.computations[name]
        for instruction in computation.instructions.values():
            yield computation, instruction, count
