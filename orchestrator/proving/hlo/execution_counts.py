"""Count how often each computation of a compiled program runs in one step.

TPU programs have no trip counts. A loop counts in one slot of its state: from the slot's value
before the loop, by what the body adds to it, up to what the condition compares it with.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction

# Their computations combine two numbers, element by element: there is nothing to count in them.
_COMBINES = {"all-reduce", "all-reduce-start", "reduce", "reduce-scatter", "reduce-window"}
_COMBINES |= {"scatter", "select-and-scatter", "sort", "map"}

# They may name the computation that their start names.
_CONTINUES = {"async-update", "async-done"}

Visit = tuple[Computation, Instruction, int]

_SAME = {"bitcast", "bitcast-convert", "convert", "copy", "reshape", "optimization-barrier"}
# What each comparison adds to the limit, with the counter on the left.
_HOLDS = {"LT": 0, "LE": 1, "GT": 0, "GE": -1, "NE": 0}
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def _execution_counts(program: HloProgram) -> dict[str, int]:
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
    if instruction.opcode in _COMBINES | _CONTINUES or not instruction.called:
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
    for name, count in _execution_counts(program).items():
        computation = program.computations[name]
        for instruction in computation.instructions.values():
            yield computation, instruction, count


# --- trips of a loop


class UnknownTrips(ValueError):
    """This reader does not know how the loop counts."""


@dataclass(frozen=True)
class _LoopValue:
    """A whole number, or the value in a slot of the loop's state plus a whole number."""

    offset: int
    slot: int | None = None


def trip_count(program: HloProgram, where: Computation, loop: Instruction) -> int:
    """How often the body of a `while` in that computation runs."""
    condition, body = (
        program.computations[loop.attribute(key)[1:]] for key in ("condition", "body")
    )
    before = where.operand(loop, 0)
    left, right, direction = _comparison(program, condition)
    if _step(program, body, left) == 0:
        left, right, direction = right, left, _MIRRORED[direction]
    step = _step(program, body, left)
    if step == 0 or _step(program, body, right) != 0:
        raise UnknownTrips(f"{loop.name} compares no counter with a constant limit")
    start, limit = (_at_start(program, where, before, side) for side in (left, right))
    return max(0, ceil((limit + _HOLDS[direction] - start) / step))


def _comparison(program: HloProgram, condition: Computation) -> tuple[_LoopValue, _LoopValue, str]:
    """The two sides of the condition, and how they are compared."""
    where, test = _inside(program, condition, condition.root)
    if test.opcode != "compare":
        raise UnknownTrips(f"{condition.name} ends in {test.opcode}")
    left, right = (_value(program, where, where.operand(test, place)) for place in (0, 1))
    left, right = (_outside(program, condition, where, side) for side in (left, right))
    return left, right, test.attribute("direction")


def _step(program: HloProgram, body: Computation, side: _LoopValue) -> int:
    """What a round of the loop adds to one side of the comparison."""
    if side.slot is None:
        return 0
    after = _value(program, body, _next_state(body, side.slot))
    if after.slot != side.slot:
        raise UnknownTrips(f"{body.name} leaves {after} in slot {side.slot}")
    return after.offset


def _at_start(
    program: HloProgram, where: Computation, before: Instruction, side: _LoopValue
) -> int:
    """One side of the comparison before the first round."""
    if side.slot is None:
        return side.offset
    given = where.operand(before, side.slot) if before.opcode == "tuple" else before
    value = _value(program, where, given)
    if value.slot is not None:
        raise UnknownTrips(f"{given.name} is not known before the program runs")
    return value.offset + side.offset


def _inside(
    program: HloProgram, where: Computation, root: Instruction
) -> tuple[Computation, Instruction]:
    """The comparison itself, also inside a fusion."""
    if root.opcode == "fusion":
        [fused] = program.called(root)
        return fused, fused.root
    return where, root


def _outside(
    program: HloProgram, condition: Computation, where: Computation, value: _LoopValue
) -> _LoopValue:
    """The value of a fusion's parameter in the condition that contains the fusion."""
    if where is condition or value.slot is None:
        return value
    given = _value(program, condition, condition.operand(condition.root, value.slot))
    return _LoopValue(given.offset + value.offset, given.slot)


def _next_state(body: Computation, slot: int) -> Instruction:
    """The instruction that yields a slot of the loop's next state."""
    return body.root if body.root.opcode != "tuple" else body.operand(body.root, slot)


def _value(program: HloProgram, where: Computation, instruction: Instruction) -> _LoopValue:
    """An integer as a constant, or as a slot and a constant."""
    if instruction.opcode in _SAME:
        return _value(program, where, where.operand(instruction, 0))
    if instruction.opcode == "constant":
        return _LoopValue(int(instruction.arguments))
    if instruction.opcode == "parameter":
        return _LoopValue(0, int(instruction.arguments))
    if instruction.opcode == "get-tuple-element":
        return _LoopValue(0, int(instruction.attribute("index")))
    if instruction.opcode in {"add", "subtract"}:
        return _sum(program, where, instruction)
    if instruction.opcode == "fusion":
        # The result of a fusion, with its operands in place of its parameters.
        [fused] = program.called(instruction)
        inner = _value(program, fused, fused.root)
        if inner.slot is None:
            return inner
        given = _value(program, where, where.operand(instruction, inner.slot))
        return _LoopValue(given.offset + inner.offset, given.slot)
    raise UnknownTrips(f"{instruction.name} is a {instruction.opcode}")


def _sum(program: HloProgram, where: Computation, instruction: Instruction) -> _LoopValue:
    left, right = (_value(program, where, where.operand(instruction, i)) for i in (0, 1))
    sign = 1 if instruction.opcode == "add" else -1
    if left.slot is not None and right.slot is not None:
        raise UnknownTrips(f"{instruction.name} adds two slots")
    if right.slot is not None and sign < 0:
        raise UnknownTrips(f"{instruction.name} counts from a constant down")
    slot = left.slot if left.slot is not None else right.slot
    return _LoopValue(left.offset + sign * right.offset, slot)
