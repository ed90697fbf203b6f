"""Sort the buffers that are alive at the peak by class, and name them by the trainer's lines.
Arguments go by the trainer's names. Compute copies are parameters in another type or order;
gradients have a parameter's shape; kept activations exist once for each layer, or each pass of a
pipeline; all else is working set.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.proving.hlo.dataflow import Dataflow, HloValue
from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction
from orchestrator.values.proof import Buffer

_FORWARDS = {"bitcast", "get-tuple-element", "tuple", "optimization-barrier", "while"}
_FORWARDS |= {"copy-done", "slice-done", "send-done", "recv-done", "async-done", "add-dependency"}
_HOLDS_NOTHING = {"after-all", "constant", "partition-id", "replica-id"}
_SHARED = re.compile(r'"aliasing_operands":\{"lists":\[((?:\{"indices":\[[^\]]*\]\},?)*)\]')
_DECLARED = re.compile(r"\{(\d*)\}: \((\d+), \{\}\)")
_INDICES = re.compile(r"\[([^\]]*)\]")
_STARTS = {"copy-start": {1: 0}, "slice-start": {0: 0}, "send": {0: 0}}


@dataclass(frozen=True)
class _LiveBuffer:
    """A buffer in HBM, by the instruction that first writes it."""

    computation: str
    instruction: str
    element: int
    bytes: float


@dataclass(frozen=True)
class _Peak:
    """The most bytes at once, their buffers, and the instruction that runs then."""

    bytes: float
    buffers: tuple[_LiveBuffer, ...]
    at: tuple[str, str] = ("", "")


_Buffers = tuple[_LiveBuffer | None, ...]


def peak(program: HloProgram) -> _Peak:
    """The peak of a step. Arguments are alive throughout."""
    entry = program.entry
    arguments = {number: _new(entry, parameter) for number, parameter in entry.parameters.items()}
    always = tuple(buffer for buffers in arguments.values() for buffer in buffers if buffer)
    # The results of the step take the place of the donated arguments, in order.
    donated: _Buffers = ()
    if entry.root.opcode == "tuple":
        ordered = [buffers[0] for _, buffers in sorted(arguments.items())]
        donated = tuple(ordered[: len(entry.root.operands)])
    inside = _LivenessPass(program, entry, arguments, donated).peak()
    total = sum(buffer.bytes for buffer in always) + inside.bytes
    return _Peak(total, (*always, *inside.buffers), inside.at)


def _new(where: Computation, instruction: Instruction) -> _Buffers:
    """A buffer of its own for each array in HBM."""
    return tuple(
        _LiveBuffer(where.name, instruction.name, element, array.padded_bytes)
        if array.is_in_hbm and array.padded_bytes
        else None
        for element, array in enumerate(instruction.arrays)
    )


class _LivenessPass:
    """One pass over a computation: `given` are the buffers of its parameters by number, `results`
    those in which its results must end, as a loop's state must.
    """

    def __init__(
        self, program: HloProgram, where: Computation, given: dict[int, _Buffers], results: _Buffers
    ) -> None:
        self.program, self.where, self.given = program, where, given
        self.outside = {buffer for buffers in given.values() for buffer in buffers}
        self.of: dict[str, _Buffers] = {}
        for instruction in where.instructions.values():
            self.of[instruction.name] = self._assigned(instruction)
        # Put the results of the computation where they must end.
        moved = {
            new: old
            for new, old in zip(self.of[where.root.name], results, strict=False)
            if new and old and new.computation == where.name and new not in self.outside
        }
        for name, buffers in self.of.items():
            self.of[name] = tuple(moved.get(b, b) if b else None for b in buffers)

    def peak(self) -> _Peak:
        """The peak, with what called computations need."""
        order = list(self.where.instructions.values())
        last: dict[_LiveBuffer, int] = {}  # the place of the last instruction that reads it
        for at, instruction in enumerate(order):
            if instruction.opcode in _FORWARDS and instruction.opcode != "while":
                continue
            for operand in instruction.operands:
                last.update(dict.fromkeys((b for b in self.of[operand] if b), at))
        ends = (buffer for buffer in self.of[self.where.root.name] if buffer)
        last.update(dict.fromkeys(ends, len(order)))
        live: set[_LiveBuffer] = set()
        worst = _Peak(0.0, ())
        for at, instruction in enumerate(order):
            live |= {b for b in self.of[instruction.name] if b and b not in self.outside}
            # Bytes that a loop or a call needs in addition to its inputs.
            if instruction.opcode == "while":
                state = self.of[instruction.name]
                body = self.program.computations[instruction.attribute("body")[1:]]
                inner = _LivenessPass(self.program, body, {0: state}, state).peak()
            elif instruction.opcode == "call":
                given = {i: self.of[name] for i, name in enumerate(instruction.operands)}
                [called] = self.program.called(instruction)
                inner = _LivenessPass(self.program, called, given, ()).peak()
            else:
                inner = _Peak(0.0, ())
            total = sum(buffer.bytes for buffer in live) + inner.bytes
            if total > worst.bytes:
                running = inner.at if inner.bytes else (self.where.name, instruction.name)
                worst = _Peak(total, (*live, *inner.buffers), running)
            live = {buffer for buffer in live if last.get(buffer, at) > at}
        return worst

    def _assigned(self, instruction: Instruction) -> _Buffers:
        """The buffers of its results: its own, or those of operands that it passes on."""
        opcode, count = instruction.opcode, len(instruction.arrays)
        if opcode == "parameter":
            return self.given[int(instruction.arguments)]
        if opcode in _HOLDS_NOTHING:
            return (None,) * count
        if opcode == "tuple":
            places = range(len(instruction.operands))
            return tuple(self._operand(instruction, place) for place in places)
        if opcode in _FORWARDS:
            source = self.of[instruction.operands[0]]
            if opcode == "get-tuple-element":
                return (source[int(instruction.attribute("index"))],)
            return (source[1],) if opcode == "slice-done" else source[:count]
        buffers = list(_new(self.where, instruction))
        for element, operand in self._shared(instruction):
            buffers[element] = self._operand(instruction, operand)
        return tuple(buffers)

    def _operand(self, instruction: Instruction, place: int) -> _LiveBuffer | None:
        buffers = self.of[instruction.operands[place]]
        return buffers[0] if buffers else None

    def _shared(self, instruction: Instruction) -> Iterator[tuple[int, int]]:
        """Pairs of a result and the operand whose place it takes; operands are numbered first."""
        yield from _STARTS.get(instruction.opcode, {}).items()
        for result, operand in _DECLARED.findall(instruction.braced("output_to_operand_aliasing")):
            yield int(result or 0), int(operand)
        shared = _SHARED.search(instruction.rest)
        count = len(instruction.operands)
        for indices in _INDICES.findall(shared[1]) if shared else []:
            sharing = [int(index.strip('"')) for index in indices.split(",")]
            operands = [index for index in sharing if index < count]
            yield from ((i - count, operands[0]) for i in sharing if operands and i >= count)


_PARAMETERS, _OPTIMIZER, _STATE, _BATCH = "parameters", "optimizer", "other state", "batch"
_CACHE = "cache"  # of a program that serves
_COPIES, _GRADIENTS = "compute copies", "gradients"
_KEPT, _WORKING = "kept activations", "working set"
_CLASSES = (
    _PARAMETERS, _OPTIMIZER, _CACHE, _STATE, _BATCH, _COPIES, _GRADIENTS, _KEPT, _WORKING,
)  # fmt: skip
_PATH = re.compile(r"(state|batch)((?:\[[^\]]*\]|\.\w+)*)")
_MOST = 12
# A scan's own slicing says nothing about the contents.
_PLUMBING = {"broadcast_in_dim", "dynamic_slice", "dynamic_update_slice", "reshape", "while"}
_CHANGES_NOTHING = frozenset({"convert"})


class BufferClasses:
    """What is alive at the peak of a program that keeps activations of so many layers, or passes
    of a pipeline.
    """

    def __init__(self, flow: Dataflow, peak: _Peak, kept: int) -> None:
        self.flow, self.peak, self.kept = flow, peak, kept
        arguments = flow.program.entry.parameters.values()
        self.parameter_shapes = {
            argument.arrays[0].dimensions
            for argument in arguments
            if _path(argument).startswith(_PARAMETERS)
        }

    def sizes(self) -> dict[str, float]:
        """Bytes by class; they add up to the peak."""
        total: dict[str, float] = dict.fromkeys(_CLASSES, 0.0)
        for buffer in self.peak.buffers:
            total[self._class_of(buffer)] += buffer.bytes
        return total

    def largest(self) -> tuple[Buffer, ...]:
        alike: dict[tuple[str, str], float] = defaultdict(float)
        for buffer in self.peak.buffers:
            value, argument = self._value(buffer)
            made = [*self.flow.loop_results(value)[:1], value] if not argument else []
            name = argument or self._nearest_line(made) or buffer.instruction
            alike[name, str(self.flow.array(value))] += buffer.bytes
        ordered = sorted(alike.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST]
        return tuple(Buffer(name=n, shape=s, bytes=size) for (n, s), size in ordered)

    def peak_at(self) -> str:
        computation, running = self.peak.at
        return self._nearest_line([HloValue(computation, running)]) or running

    def _class_of(self, buffer: _LiveBuffer) -> str:
        value, argument = self._value(buffer)
        if argument:
            kind = argument.split(".")[0]
            return kind if kind in _CLASSES else _STATE
        origins = map(self.flow.instruction, self.flow.origins(value, _CHANGES_NOTHING))
        if all(_path(origin).startswith(_PARAMETERS) for origin in origins):
            return _COPIES
        dimensions = self.flow.array(value).dimensions
        if dimensions in self.parameter_shapes:
            return _GRADIENTS
        return _KEPT if len(dimensions) > 1 and dimensions[0] == self.kept else _WORKING

    def _value(self, buffer: _LiveBuffer) -> tuple[HloValue, str]:
        """What is in the buffer, and its path if it is an argument of the program."""
        value = HloValue(buffer.computation, buffer.instruction)
        instruction = self.flow.instruction(value)
        if len(instruction.arrays) > 1:
            value = HloValue(buffer.computation, buffer.instruction, buffer.element)
        is_entry = buffer.computation == self.flow.program.entry.name
        is_argument = is_entry and instruction.opcode == "parameter"
        return value, _path(instruction) if is_argument else ""

    def _nearest_line(self, made: list[HloValue]) -> str:
        """The trainer's line that makes them, where jax's loops do not only pass them on."""
        for instruction in (source for value in made for source in self.flow.ancestors(value)):
            if path := _path(instruction):
                return f"copy of {path}"
            operation = instruction.op_name.rsplit("/", 1)[-1]
            line = self.flow.program.sources.trainer_line(instruction.frame)
            if line and operation not in _PLUMBING:
                return f"{line} {operation}"
        return ""


def _path(instruction: Instruction) -> str:
    r"""`state[\'parameters\'][\'layers\'][\'up\']` as `parameters.layers.up`."""
    match = _PATH.match(instruction.op_name)
    if not match:
        return ""
    keys = re.findall(r"\w+", match[2])
    return ".".join([_BATCH, *keys] if match[1] == _BATCH else keys)
