"""Follow a value of a compiled program: its origin, its readers, and how often loops run."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from orchestrator.proving.hlo.program import Array, Computation, HloProgram, Instruction

# They yield their operand, elsewhere in memory or in another shape.
_MOVES = frozenset(
    {"bitcast", "copy", "copy-start", "copy-done", "reshape", "transpose"}
    | {"optimization-barrier", "slice-start", "slice-done", "add-dependency"}
    | {"all-gather-done", "all-reduce-done", "collective-permute-done", "reduce-scatter-done"}
)
# They end with the result of the computation that an asynchronous call began.
_CALL_ENDS = frozenset({"call-done", "async-done"})
_CROP = "ZeroCrop"  # a custom call that rounds a size up to whole tiles
_CALLS = {"fusion", "call", "while"}
RENDEZVOUS = "_xla_host_transfer_rendezvous"


@dataclass(frozen=True)
class HloValue:
    """The result of an instruction, or one element of a tuple that it yields."""

    computation: str
    name: str
    element: int | None = None


@dataclass(frozen=True)
class Dataflow:
    program: HloProgram

    def instruction(self, value: HloValue) -> Instruction:
        return self._where(value).instructions[value.name]

    def array(self, value: HloValue) -> Array:
        return self.instruction(value).arrays[value.element or 0]

    # --- backwards

    def sources(self, value: HloValue, also: frozenset[str] = frozenset()) -> list[HloValue]:
        """The values that this one is, if its instruction, or one of `also`, only moves them."""
        where, instruction = self._where(value), self.instruction(value)
        opcode = instruction.opcode
        if opcode in _CALL_ENDS | _CALLS:
            is_end = opcode in _CALL_ENDS
            inner = self._inner(where.operand(instruction, 0) if is_end else instruction)
            return [HloValue(inner.name, inner.root.name, value.element)]
        if opcode in _MOVES or opcode in also or _is_crop(instruction):
            return [HloValue(where.name, instruction.operands[0], value.element)]
        if opcode == "get-tuple-element":
            return [HloValue(where.name, instruction.operands[0], _index(instruction))]
        if opcode == "tuple" and value.element is not None:
            return [HloValue(where.name, instruction.operands[value.element])]
        if opcode == "parameter":
            return self._given(where, int(instruction.arguments), value.element)
        return []

    def origins(self, value: HloValue, also: frozenset[str] = frozenset()) -> list[HloValue]:
        """The values that this one is, back through all that only moves them."""
        walk = _walk([value], lambda at: self.sources(at, also))
        return [at for at in walk if not self.sources(at, also)]

    def ancestors(
        self, value: HloValue, stop: Callable[[Instruction], bool] = lambda _: False
    ) -> Iterator[Instruction]:
        """Everything that a value depends on, the nearest first, up to what `stop` accepts."""

        def further(at: HloValue) -> list[HloValue]:
            if stop(self.instruction(at)):
                return []
            return self.sources(at) or self._operands(at)

        return map(self.instruction, _walk([value], further))

    # --- forwards

    def readers(self, value: HloValue) -> list[tuple[Instruction, int]]:
        return self._readers[value.computation, value.name]

    def through(self, value: HloValue, reader: Instruction, place: int) -> list[HloValue]:
        """The value as the reader passes it on, in any type, or as the reader's inside sees it."""
        here = HloValue(value.computation, reader.name, value.element)
        if (reader.opcode in _MOVES | _CALL_ENDS | {"convert"} or _is_crop(reader)) and place == 0:
            return [here]
        if reader.opcode == "get-tuple-element":
            return (
                [HloValue(here.computation, here.name)] if _index(reader) == value.element else []
            )
        if reader.opcode == "tuple":
            return [HloValue(here.computation, here.name, place)]
        if reader.opcode not in _CALLS:
            return []
        inner = self._inner(reader)
        inside = HloValue(inner.name, inner.parameters[place].name, value.element)
        return [here, inside] if reader.opcode == "while" else [inside]

    def to_callers(self, value: HloValue) -> list[HloValue]:
        """The same value in the callers, if it is the result of its computation."""
        where = self._where(value)
        if where.root.name != value.name:
            return []
        values = []
        for caller, call in self._callers[where.name]:
            values.append(HloValue(caller.name, call.name, value.element))
            if call.opcode == "while":  # the next round begins with it
                values.append(HloValue(where.name, where.parameters[0].name, value.element))
        return values

    def copies(self, value: HloValue) -> Iterator[HloValue]:
        """The value wherever it is moved, into computations and out of them."""

        def further(at: HloValue) -> list[HloValue]:
            passed_on = [
                new for reader, i in self.readers(at) for new in self.through(at, reader, i)
            ]
            return [*passed_on, *self.to_callers(at)]

        return _walk([value], further)

    def loop_results(self, value: HloValue) -> list[HloValue]:
        """The values that loops leave in place of this value, where it is part of their state."""
        return [
            HloValue(self._inner(reader).name, self._inner(reader).root.name, at.element)
            for at in self.copies(value)
            for reader, _ in self.readers(at)
            if reader.opcode == "while"
        ]

    # --- the program's structure

    def _where(self, value: HloValue) -> Computation:
        return self.program.computations[value.computation]

    def _inner(self, caller: Instruction) -> Computation:
        if caller.opcode == "while":
            return self.program.computations[_body(caller)]
        [called] = self.program.called(caller)
        return called

    def _given(self, where: Computation, number: int, element: int | None) -> list[HloValue]:
        """What callers pass as that parameter; a loop passes its state to the next round."""
        values = []
        for caller, call in self._callers[where.name]:
            if call.opcode == "while":
                values.append(HloValue(caller.name, call.operands[0], element))
                if _body(call) == where.name:
                    values.append(HloValue(where.name, where.root.name, element))
            elif number < len(call.operands):
                values.append(HloValue(caller.name, call.operands[number], element))
        return values

    def _operands(self, value: HloValue) -> list[HloValue]:
        """The operands of an instruction. Each result of a collective has one operand."""
        instruction = self.instruction(value)
        operands = instruction.operands
        if instruction.opcode == "recv":  # its own operand is a token: it depends on what is sent
            return self._sent[instruction.quoted(RENDEZVOUS)]
        if value.element is not None and len(operands) == len(instruction.arrays):
            operands = (operands[value.element],)
        return [HloValue(value.computation, operand) for operand in operands]

    @cached_property
    def _callers(self) -> dict[str, list[tuple[Computation, Instruction]]]:
        callers: dict[str, list[tuple[Computation, Instruction]]] = defaultdict(list)
        for where, instruction in self.program.instructions():
            for called in instruction.called:
                callers[called].append((where, instruction))
        return callers

    @cached_property
    def _sent(self) -> dict[str, list[HloValue]]:
        """What is sent to the host, by the name under which it meets what is received."""
        sent: dict[str, list[HloValue]] = defaultdict(list)
        for where, instruction in self.program.instructions():
            if instruction.opcode == "send":
                name = instruction.quoted(RENDEZVOUS)
                sent[name].append(HloValue(where.name, instruction.operands[0]))
        return sent

    @cached_property
    def _readers(self) -> dict[tuple[str, str], list[tuple[Instruction, int]]]:
        readers: dict[tuple[str, str], list[tuple[Instruction, int]]] = defaultdict(list)
        for where, instruction in self.program.instructions():
            for place, operand in enumerate(instruction.operands):
                readers[where.name, operand].append((instruction, place))
        return readers


def _is_crop(instruction: Instruction) -> bool:
    is_call = instruction.opcode == "custom-call"
    return is_call and instruction.quoted("custom_call_target") == _CROP


def _index(instruction: Instruction) -> int:
    return int(instruction.attribute("index"))


def _body(loop: Instruction) -> str:
    return loop.attribute("body")[1:]


def _walk(
    start: list[HloValue], further: Callable[[HloValue], list[HloValue]]
) -> Iterator[HloValue]:
    """Every value that is reached, the nearest first, each once."""
    seen, todo = set(start), deque(start)
    while todo:
        value = todo.popleft()
        yield value
        new = [reached for reached in further(value) if reached not in seen]
        seen |= set(new)
        todo += dict.fromkeys(new)


# Count how often each computation runs in one step. TPU programs have no trip counts. A loop
# counts in one slot of its state: from the slot's value before the loop, by what the body adds to
# it, up to what the condition compares it with.

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


def visits(program: HloProgram) -> Iterator[Visit]:
    """Every instruction that runs, with its computation and how often; every branch counts."""
    count: dict[str, int] = defaultdict(int)

    def visit(computation: Computation, repeats: int) -> None:
        count[computation.name] += repeats
        for instruction in computation.instructions.values():
            if instruction.opcode in _COMBINES | _CONTINUES or not instruction.called:
                continue
            if instruction.opcode == "while":
                trips = trip_count(program, computation, instruction)
                visit(program.computations[_body(instruction)], repeats * trips)
            else:
                for called in program.called(instruction):
                    visit(called, repeats)

    visit(program.entry, 1)
    for name, times in count.items():
        computation = program.computations[name]
        for instruction in computation.instructions.values():
            yield computation, instruction, times


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
    # The two sides of the condition, also inside a fusion, and how they are compared.
    inside, test = condition, condition.root
    if test.opcode == "fusion":
        [inside] = program.called(test)
        test = inside.root
    if test.opcode != "compare":
        raise UnknownTrips(f"{condition.name} ends in {test.opcode}")
    direction = test.attribute("direction")
    left, right = (_value(program, inside, inside.operand(test, place)) for place in (0, 1))
    if inside is not condition:
        left, right = (_outside(program, condition, condition.root, side) for side in (left, right))
    if _step(program, body, left) == 0:
        left, right, direction = right, left, _MIRRORED[direction]
    step = _step(program, body, left)
    if step == 0 or _step(program, body, right) != 0:
        raise UnknownTrips(f"{loop.name} compares no counter with a constant limit")
    ends = []
    for side in (left, right):  # before the first round
        value = side
        if side.slot is not None:
            given = where.operand(before, side.slot) if before.opcode == "tuple" else before
            value = _value(program, where, given)
            if value.slot is not None:
                raise UnknownTrips(f"{given.name} is not known before the program runs")
            value = _LoopValue(value.offset + side.offset)
        ends.append(value.offset)
    start, limit = ends
    return max(0, ceil((limit + _HOLDS[direction] - start) / step))


def _step(program: HloProgram, body: Computation, side: _LoopValue) -> int:
    """What a round of the loop adds to one side of the comparison."""
    if side.slot is None:
        return 0
    state = body.root if body.root.opcode != "tuple" else body.operand(body.root, side.slot)
    after = _value(program, body, state)
    if after.slot != side.slot:
        raise UnknownTrips(f"{body.name} leaves {after} in slot {side.slot}")
    return after.offset


def _outside(
    program: HloProgram, where: Computation, fusion: Instruction, value: _LoopValue
) -> _LoopValue:
    """A value inside a fusion, with the fusion's operand in place of its parameter."""
    if value.slot is None:
        return value
    given = _value(program, where, where.operand(fusion, value.slot))
    return _LoopValue(given.offset + value.offset, given.slot)


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
    if instruction.opcode == "fusion":
        [fused] = program.called(instruction)
        return _outside(program, where, instruction, _value(program, fused, fused.root))
    if instruction.opcode not in {"add", "subtract"}:
        raise UnknownTrips(f"{instruction.name} is a {instruction.opcode}")
    left, right = (_value(program, where, where.operand(instruction, i)) for i in (0, 1))
    sign = 1 if instruction.opcode == "add" else -1
    if left.slot is not None and right.slot is not None:
        raise UnknownTrips(f"{instruction.name} adds two slots")
    if right.slot is not None and sign < 0:
        raise UnknownTrips(f"{instruction.name} counts from a constant down")
    slot = left.slot if left.slot is not None else right.slot
    return _LoopValue(left.offset + sign * right.offset, slot)
