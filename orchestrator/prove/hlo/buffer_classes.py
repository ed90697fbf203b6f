"""Sort the buffers that are alive at the peak by class, and name them by the trainer's lines.

parameters, optimizer, other state, batch    arguments, by the trainer's names for them
compute copies                 a parameter in another type or order
gradients                      of a parameter's shape, and made by the step
kept activations               one of each layer, and none of the above
working set                    everything else
"""

import re
from collections import defaultdict
from functools import cached_property

from orchestrator.prove.hlo.buffer_liveness import LiveBuffer, Peak
from orchestrator.prove.hlo.dataflow import Dataflow, Value
from orchestrator.prove.hlo.program import Array, Instruction
from orchestrator.types.proof import Buffer

PARAMETERS, OPTIMIZER, STATE, BATCH = "parameters", "optimizer", "other state", "batch"
COPIES, GRADIENTS, KEPT, WORKING = (
    "compute copies", "gradients", "kept activations", "working set",
)  # fmt: skip
CLASSES = (PARAMETERS, OPTIMIZER, STATE, BATCH, COPIES, GRADIENTS, KEPT, WORKING)
PATH = re.compile(r"(state|batch)((?:\[[^\]]*\]|\.\w+)*)")
MOST = 12
# What a scan does to its slices says nothing about what is in them.
PLUMBING = {"broadcast_in_dim", "dynamic_slice", "dynamic_update_slice", "reshape", "while"}
CHANGES_NOTHING = frozenset({"convert"})


class BufferClasses:
    """What is alive at the peak of a program with that many layers."""

    def __init__(self, flow: Dataflow, peak: Peak, layers: int) -> None:
        self.flow, self.peak, self.layers = flow, peak, layers

    def sizes(self) -> dict[str, float]:
        """Bytes by class; they add up to the peak."""
        total: dict[str, float] = dict.fromkeys(CLASSES, 0.0)
        for buffer in self.peak.buffers:
            total[self.class_of(buffer)] += buffer.bytes
        return total

    def largest(self) -> tuple[Buffer, ...]:
        """The largest buffers, those alike together."""
        alike: dict[tuple[str, str], float] = defaultdict(float)
        for buffer in self.peak.buffers:
            alike[self.name_of(buffer), str(self._array(buffer))] += buffer.bytes
        ordered = sorted(alike.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST]
        return tuple(Buffer(name=n, shape=s, bytes=size) for (n, s), size in ordered)

    def peak_at(self) -> str:
        """The trainer's line that runs at the peak."""
        computation, running = self.peak.at
        for instruction in self.flow.ancestors(Value(computation, running)):
            if name := self._name(instruction):
                return name
        return running

    def class_of(self, buffer: LiveBuffer) -> str:
        argument = self._argument(buffer).split(".")[0]
        if argument:
            return argument if argument in CLASSES else STATE
        dimensions = self._array(buffer).dimensions
        if self._is_copy(buffer):
            return COPIES
        if dimensions in self._parameter_shapes:
            return GRADIENTS
        return KEPT if len(dimensions) > 1 and dimensions[0] == self.layers else WORKING

    def name_of(self, buffer: LiveBuffer) -> str:
        """An argument's path, or the trainer's line that makes what is in the buffer."""
        argument = self._argument(buffer)
        if argument:
            return argument
        value = self._value(buffer)
        for made in [*self.flow.loop_results(value)[:1], value]:
            for instruction in self.flow.ancestors(made):
                if name := self._name(instruction):
                    return name
        return buffer.instruction

    def _name(self, instruction: Instruction) -> str:
        """The trainer's line that makes it; empty where jax's loops only pass it on."""
        if path := _path(instruction):
            return f"copy of {path}"
        operation = instruction.op_name.rsplit("/", 1)[-1]
        line = self.flow.program.sources.trainer_line(instruction.frame)
        return f"{line} {operation}" if line and operation not in PLUMBING else ""

    def _instruction(self, buffer: LiveBuffer) -> Instruction:
        return self.flow.program.computations[buffer.computation].instructions[buffer.instruction]

    def _array(self, buffer: LiveBuffer) -> Array:
        return self._instruction(buffer).arrays[buffer.element]

    def _value(self, buffer: LiveBuffer) -> Value:
        several = len(self._instruction(buffer).arrays) > 1
        return Value(buffer.computation, buffer.instruction, buffer.element if several else None)

    def _argument(self, buffer: LiveBuffer) -> str:
        instruction = self._instruction(buffer)
        is_entry = buffer.computation == self.flow.program.entry.name
        return _path(instruction) if is_entry and instruction.opcode == "parameter" else ""

    def _is_copy(self, buffer: LiveBuffer) -> bool:
        """Whether the buffer holds a parameter only."""
        origins = map(
            self.flow.instruction, self.flow.origins(self._value(buffer), CHANGES_NOTHING)
        )
        return all(_path(origin).startswith(PARAMETERS) for origin in origins)

    @cached_property
    def _parameter_shapes(self) -> set[tuple[int, ...]]:
        entry = self.flow.program.entry
        return {
            parameter.arrays[0].dimensions
            for parameter in entry.parameters.values()
            if _path(parameter).startswith(PARAMETERS)
        }


def _path(instruction: Instruction) -> str:
    r"""`state[\'parameters\'][\'layers\'][\'up\']` as `parameters.layers.up`."""
    match = PATH.match(instruction.op_name)
    if not match:
        return ""
    keys = re.findall(r"\w+", match[2])
    return ".".join([BATCH, *keys] if match[1] == BATCH else keys)
