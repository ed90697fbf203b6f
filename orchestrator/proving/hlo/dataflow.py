"""Follow a value of a compiled program: where it comes from, and who reads it."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from orchestrator.proving.hlo.program import Array, Computation, HloProgram, Instruction

# They yield their operand, elsewhere in memory or in another shape.
_MOVES = frozenset(
    {"bitcast", "copy", "copy-start", "copy-done", "reshape", "transpose"}
    | {"optimization-barrier", "slice-start", "slice-done", "add-dependency"}
    | {"all-gather-done", "all-reduce-done", "collective-permute-done"}
)
# They end with the result of the computation that an asynchronous call began.
_CALL_ENDS = frozenset({"call-done", "async-done"})
_CROP = "ZeroCrop"  # a custom call that rounds a size up to whole tiles
_CALLS = {"fusion", "call"}
RENDEZVOUS = "_xla_host_transfer_rendezvous"


@dataclass(frozen=True)
class Value:
    """The result of an instruction, or one element of a tuple that it yields."""

    computation: str
    name: str
    element: int | None = None


@dataclass(frozen=True)
class Dataflow:
    program: HloProgram

    def instruction(self, value: Value) -> Instruction:
        return self._where(value).instructions[value.name]

    def array(self, value: Value) -> Array:
        return self.instruction(value).arrays[value.element or 0]

    # --- backwards

    def sources(self, value: Value, also: frozenset[str] = frozenset()) -> list[Value]:
        """The values that this one is, if its instruction only moves them; else none.

        `also` are further opcodes that count as moving.
        """
        where, instruction = self._where(value), self.instruction(value)
        opcode = instruction.opcode
        if opcode in _CALL_ENDS:
            [called] = self.program.called(where.operand(instruction, 0))
            return [Value(called.name, called.root.name, value.element)]
        if opcode in _MOVES or opcode in also or _is_crop(instruction):
            return [Value(where.name, instruction.operands[0], value.element)]
        if opcode == "get-tuple-element":
            return [Value(where.name, instruction.operands[0], _index(instruction))]
        if opcode == "tuple" and value.element is not None:
            return [Value(where.name, instruction.operands[value.element])]
        if opcode == "parameter":
            return self._given(where, int(instruction.arguments), value.element)
        if opcode == "while":
            return [Value(_body(instruction), self._root(_body(instruction)), value.element)]
        if opcode in _CALLS:
            [called] = self.program.called(instruction)
            return [Value(called.name, called.root.name, value.element)]
        return []

    def origins(self, value: Value, also: frozenset[str] = frozenset()) -> list[Value]:
        """The values that this one is, back through all that only moves them."""
        walk = _walk([value], lambda at: self.sources(at, also))
        return [at for at in walk if not self.sources(at, also)]

    def ancestors(
        self, value: Value, stop: Callable[[Instruction], bool] = lambda _: False
    ) -> Iterator[Instruction]:
        """Everything that a value depends on, the nearest first, up to what `stop` accepts."""

        def further(at: Value) -> list[Value]:
            if stop(self.instruction(at)):
                return []
            return self.sources(at) or self._operands(at)

        return map(self.instruction, _walk([value], further))

    # --- forwards

    def readers(self, value: Value) -> list[tuple[Instruction, int]]:
        """The instructions of its computation that read the value, and as which operand."""
        return self._readers[value.computation, value.name]

    def through(self, value: Value, reader: Instruction, place: int) -> list[Value]:
        """The value as the reader passes it on, in any type, or as the reader's inside sees it."""
        here = Value(value.computation, reader.name, value.element)
        if (reader.opcode in _MOVES | _CALL_ENDS | {"convert"} or _is_crop(reader)) and place == 0:
            return [here]
        if reader.opcode == "get-tuple-element":
            return [Value(here.computation, here.name)] if _index(reader) == value.element else []
        if reader.opcode == "tuple":
            return [Value(here.computation, here.name, place)]
        if reader.opcode == "while":
            return [here, Value(_body(reader), self._state(_body(reader)), value.element)]
        if reader.opcode in _CALLS:
            [called] = self.program.called(reader)
            return [Value(called.name, called.parameters[place].name, value.element)]
        return []

    def to_callers(self, value: Value) -> list[Value]:
        """The same value in the callers, if it is the result of its computation."""
        where = self._where(value)
        if where.root.name != value.name:
            return []
        values = []
        for caller, call in self._callers[where.name]:
            values.append(Value(caller.name, call.name, value.element))
            if call.opcode == "while":  # the next round begins with it
                values.append(Value(where.name, self._state(where.name), value.element))
        return values

    def copies(self, value: Value) -> Iterator[Value]:
        """The value wherever it is moved, into computations and out of them."""

        def further(at: Value) -> list[Value]:
            passed_on = [
                new for reader, i in self.readers(at) for new in self.through(at, reader, i)
            ]
            return [*passed_on, *self.to_callers(at)]

        return _walk([value], further)

    def loop_results(self, value: Value) -> list[Value]:
        """The values that loops leave in place of this value, where it is part of their state."""
        return [
            Value(_body(reader), self._root(_body(reader)), at.element)
            for at in self.copies(value)
            for reader, _ in self.readers(at)
            if reader.opcode == "while"
        ]

    # --- the program's structure

    def _where(self, value: Value) -> Computation:
        return self.program.computations[value.computation]

    def _root(self, computation: str) -> str:
        return self.program.computations[computation].root.name

    def _state(self, body: str) -> str:
        return self.program.computations[body].parameters[0].name

    def _given(self, where: Computation, number: int, element: int | None) -> list[Value]:
        """What callers pass as that parameter; a loop passes its state to the next round."""
        values = []
        for caller, call in self._callers[where.name]:
            if call.opcode == "while":
                values.append(Value(caller.name, call.operands[0], element))
                if _body(call) == where.name:
                    values.append(Value(where.name, where.root.name, element))
            elif number < len(call.operands):
                values.append(Value(caller.name, call.operands[number], element))
        return values

    def _operands(self, value: Value) -> list[Value]:
        """The operands of an instruction. Each result of a collective has one operand."""
        instruction = self.instruction(value)
        operands = instruction.operands
        if instruction.opcode == "recv":  # its own operand is a token: it depends on what is sent
            return self._sent[instruction.quoted(RENDEZVOUS)]
        if value.element is not None and len(operands) == len(instruction.arrays):
            operands = (operands[value.element],)
        return [Value(value.computation, operand) for operand in operands]

    @cached_property
    def _callers(self) -> dict[str, list[tuple[Computation, Instruction]]]:
        callers: dict[str, list[tuple[Computation, Instruction]]] = defaultdict(list)
        for where in self.program.computations.values():
            for instruction in where.instructions.values():
                for called in instruction.called:
                    callers[called].append((where, instruction))
        return callers

    @cached_property
    def _sent(self) -> dict[str, list[Value]]:
        """What is sent to the host, by the name under which it meets what is received."""
        sent: dict[str, list[Value]] = defaultdict(list)
        for where in self.program.computations.values():
            for instruction in where.instructions.values():
                if instruction.opcode == "send":
                    name = instruction.quoted(RENDEZVOUS)
                    sent[name].append(Value(where.name, instruction.operands[0]))
        return sent

    @cached_property
    def _readers(self) -> dict[tuple[str, str], list[tuple[Instruction, int]]]:
        readers: dict[tuple[str, str], list[tuple[Instruction, int]]] = defaultdict(list)
        for where in self.program.computations.values():
            for instruction in where.instructions.values():
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


def _walk(start: list[Value], further: Callable[[Value], list[Value]]) -> Iterator[Value]:
    """Every value that is reached, the nearest first, each once."""
    seen, todo = set(start), deque(start)
    while todo:
        value = todo.popleft()
        yield value
        new = [one for one in further(value) if one not in seen]
        seen |= set(new)
        todo += dict.fromkeys(new)
