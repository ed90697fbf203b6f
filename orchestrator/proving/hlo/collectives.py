"""The collectives of a compiled program, as the trainer means them and as the compiler runs them.

The compiler writes some collectives as others. A reduce-scatter becomes an all-reduce of which each
device keeps its slice, an all-gather an all-reduce of what each device sets into zeros: both take
twice the bytes. A ring of permutes around a matrix product is a gather or a scatter too, with the
same bytes. The compiler may pad what it reduce-scatters, so that every device's part has a size
that suits it; further permutes then move each part into place, and are no collective of the
trainer. Who makes the operand and who reads the result tells the meaning.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from orchestrator.proving.hlo.dataflow import RENDEZVOUS, Dataflow, Value
from orchestrator.proving.hlo.execution_counts import Visit
from orchestrator.proving.hlo.program import Instruction, numbers

# The mesh axes in which the devices of a collective differ.


_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_GROUPS = "replica_groups="
_NO_GROUPS = "replica_groups={}"  # all partitions are one
# A mesh of the compiler's own, whose axes need not be the trainer's: mesh['a'=2,'b'=4] {'b'}.
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_CHOSEN = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")  # 'b':(2)4 is 4 of what is left after 2
_PASSES = "source_target_pairs="
_PAIRS = re.compile(r"\{(\d+),(\d+)\}")


@dataclass(frozen=True)
class DeviceMesh:
    """Sizes of the mesh axes of one slice, and the place of each partition in that mesh."""

    axes: dict[str, int]
    places: tuple[int, ...] | None = None

    def axes_of(self, partitions: tuple[int, ...]) -> tuple[str, ...]:
        """The axes in which the partitions differ; no partitions mean the whole slice."""
        at = np.array(partitions or range(prod(self.axes.values())))
        places = np.array(self.places)[at] if self.places else at
        indices = np.unravel_index(places, tuple(self.axes.values()))
        return tuple(
            name for name, index in zip(self.axes, indices, strict=True) if np.ptp(index) > 0
        )


def first_group(collective: Instruction, partitions: int) -> tuple[int, ...]:
    """The partitions of the first group; the others are alike."""
    if counted := _COUNTED.search(collective.rest):
        return _counted(*counted.groups())
    if listed := _LISTED.search(collective.rest):
        return numbers(listed[1])
    if mesh := _MESH.search(collective.rest):
        return _along_axes(*mesh.groups())
    if _GROUPS in collective.rest and _NO_GROUPS not in collective.rest:
        raise ValueError(f"{collective.name} has groups of another form: {collective.rest[:200]}")
    return tuple(range(partitions))


@dataclass(frozen=True)
class _Chain:
    """Partitions that pass their data on to one another, from the first; a ring is closed."""

    members: tuple[int, ...]
    is_ring: bool


def chain(permute: Instruction) -> _Chain:
    """The chain of a permute. The pairs of permutes fill most of a large program's text."""
    return _chain(pairs_text(permute))


def pairs_text(permute: Instruction) -> str:
    """Its senders and receivers, as written."""
    start = permute.rest.index(_PASSES)
    return permute.rest[start : permute.rest.index("}}", start) + 1]


@lru_cache(maxsize=256)
def _chain(text: str) -> _Chain:
    pairs = [(int(source), int(target)) for source, target in _PAIRS.findall(text)]
    after = dict(pairs)
    members = [min(after)]
    seen = set(members)
    while (following := after.get(members[-1], members[0])) not in seen:
        members.append(following)
        seen.add(following)
    return _Chain(tuple(members), is_ring=set(after) == set(after.values()))


def _counted(shape: str, counted: str, order: str | None) -> tuple[int, ...]:
    """`[groups, size]<=[a, b]T(1, 0)`: an iota of a x b, transposed, cut into groups."""
    sizes = numbers(counted)
    iota = np.arange(prod(sizes)).reshape(sizes)
    if order:
        iota = iota.transpose(numbers(order))
    groups = iota.reshape(numbers(shape))
    return tuple(int(partition) for partition in groups[0])


def _along_axes(axes: str, counted: str | None, order: str | None, chosen: str) -> tuple[int, ...]:
    """Partitions that differ only along the chosen axes, the first of them outermost."""
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    parts = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in _CHOSEN.findall(chosen)
    ]
    pieces = [
        (name, at, end // at)
        for name, whole in sizes.items()
        for at, end in pairwise(_cuts(whole, [part[1:] for part in parts if part[0] == name]))
    ]
    tiles = numbers(counted) if counted else (prod(sizes.values()),)
    iota = np.arange(prod(tiles)).reshape(tiles).transpose(numbers(order) if order else None)
    devices = iota.reshape([size for _, _, size in pieces])
    along = [
        number
        for name, before, size in parts
        for number, (axis, at, _) in enumerate(pieces)
        if axis == name and before <= at < before * size
    ]
    others = [number for number in range(len(pieces)) if number not in along]
    first = devices.transpose(others + along)[(0,) * len(others)]
    return tuple(int(partition) for partition in first.flat)


def _cuts(whole: int, parts: list[tuple[int, int]]) -> list[int]:
    """Where an axis is cut so that each part is made of whole pieces."""
    return sorted({1, whole} | {end for at, size in parts for end in (at, at * size)})


GATHER, SCATTER, _REDUCE = "all-gather", "reduce-scatter", "all-reduce"
PERMUTE, _ALL_TO_ALL = "collective-permute", "all-to-all"
KINDS = {GATHER, SCATTER, _REDUCE, PERMUTE, _ALL_TO_ALL}
_PART = re.compile(r'"async_collective_fusion_config":\{"flag_start":"(-?\d+)"')
_FIRST_PART = "-1"
_CHAIN = re.compile(r'chain_id="\d+"')  # one number for all parts of a collective
_DONE = "AsyncCollectiveDone"
_SLICES = frozenset({"slice", "dynamic-slice"})
SCATTERS = "all-reduce-scatter"  # begins the name of a fusion that is a reduce-scatter


@dataclass(frozen=True, kw_only=True)
class CollectivePayload:
    """One operand of a collective: the trainer's kind, and what runs. Bytes of one execution."""

    name: str
    kind: str
    axes: tuple[str, ...]
    dtype: str
    payload_bytes: float
    executed_kind: str
    executed_bytes: float
    times: int


def sent_bytes(kind: str, volume: float, ways: int) -> float:
    """Bytes that one device sends for a collective of that volume over `ways` devices."""
    if kind == PERMUTE:
        return volume
    return volume * (ways - 1) / ways * (2 if kind == _REDUCE else 1)


def logical_payloads(flow: Dataflow, mesh: DeviceMesh, visit: Visit) -> Iterator[CollectivePayload]:
    """The payload of a collective inside a slice; nothing for other instructions."""
    where, instruction, times = visit
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS or is_further_part(instruction):
        return
    group = _group(flow, instruction, kind)
    for place, operand in enumerate(instruction.operands):
        given = Value(where.name, operand)
        result = Value(
            where.name, instruction.name, place if len(instruction.operands) > 1 else None
        )
        runs = SCATTER if where.name.startswith(SCATTERS) else kind
        logical = _logical_kind(flow, runs, given, result)
        array = flow.array(given)
        volume = array.bytes * (len(group) if kind == GATHER else 1)
        # The volume without padding; nothing for a permute that puts padded parts in place.
        if where.name.startswith(SCATTERS) and where.parameters:
            arrays = [one.arrays[0] for one in where.parameters.values()]
            size = sum(array.bytes for array in arrays if array.dtype == flow.array(given).dtype)
            unpadded = min(volume, size) or volume
        else:
            unpadded = 0.0 if logical == SCATTER and _is_put_in_place(flow, given) else volume
        yield CollectivePayload(
            name=instruction.name,
            kind=logical,
            axes=mesh.axes_of(group),
            dtype=array.dtype,
            payload_bytes=sent_bytes(PERMUTE if runs == PERMUTE else logical, unpadded, len(group)),
            executed_kind=runs,
            executed_bytes=sent_bytes(runs, volume, len(group)),
            times=times,
        )


def is_further_part(instruction: Instruction) -> bool:
    """Whether it continues a collective: its start, its middle and its end all name it."""
    part = _PART.search(instruction.rest)
    return part is not None and part[1] != _FIRST_PART


def _group(flow: Dataflow, instruction: Instruction, kind: str) -> tuple[int, ...]:
    if kind == PERMUTE:
        return chain(instruction).members
    return first_group(instruction, flow.program.partitions)


def _logical_kind(flow: Dataflow, runs: str, given: Value, result: Value) -> str:
    """The kind of collective that the trainer means."""
    if runs == PERMUTE:
        if _is_put_in_place(flow, given):
            return SCATTER
        if not chain(flow.instruction(result)).is_ring:
            return PERMUTE
        return SCATTER if _is_added_to(flow, result) else GATHER
    if runs != _REDUCE:
        return runs
    made = [flow.instruction(end) for end in flow.origins(given)]
    if all(instruction.opcode == "dynamic-update-slice" for instruction in made) and all(
        _fills(flow, end) for end in flow.origins(given)
    ):
        return GATHER
    return SCATTER if any(_is_sliced(flow, one) for one in _ends(flow, result)) else _REDUCE


def _ends(flow: Dataflow, result: Value) -> list[Value]:
    """A collective's result; of an asynchronous one, that of the call which ends its last part."""
    first = flow.instruction(result)
    chained = _CHAIN.search(first.rest)
    if chained is None or not _PART.search(first.rest):
        return [result]
    parts = [
        Value(where.name, one.name)
        for where in flow.program.computations.values()
        for one in where.instructions.values()
        if one.opcode == first.opcode and is_further_part(one) and chained[0] in one.rest
    ]
    return [
        Value(part.computation, reader.name)
        for part in parts
        for reader, _ in flow.readers(part)
        if reader.opcode == "custom-call" and reader.quoted("custom_call_target") == _DONE
    ]


def _is_put_in_place(flow: Dataflow, given: Value) -> bool:
    """Whether it is a part that a padded reduce-scatter leaves here."""
    return any(end.computation.startswith(SCATTERS) for end in flow.origins(given, _SLICES))


def _is_added_to(flow: Dataflow, result: Value) -> bool:
    """Whether a ring adds to what it passes on."""
    return any(
        reader.opcode == "add" for at in flow.copies(result) for reader, _ in flow.readers(at)
    )


def _fills(flow: Dataflow, update: Value) -> bool:
    """Whether the update goes into a constant."""
    target = Value(update.computation, flow.instruction(update).operands[0])
    return all(
        flow.instruction(end).opcode in {"broadcast", "constant"} for end in flow.origins(target)
    )


def _is_sliced(flow: Dataflow, result: Value) -> bool:
    """Whether every reader of the result reads a slice of it, wherever it is moved to first."""
    seen, todo, slices = {result}, [result], 0
    while todo:
        value = todo.pop()
        moved = flow.to_callers(value)
        for reader, place in flow.readers(value):
            if reader.opcode == "dynamic-slice" and place == 0:
                slices += 1
            elif not _is_of_another(reader, value):
                passed_on = flow.through(value, reader, place)
                if not passed_on:
                    return False
                moved += passed_on
        todo += [new for new in moved if new not in seen]
        seen |= set(moved)
    return slices > 0


def _is_of_another(reader: Instruction, value: Value) -> bool:
    """Whether the reader takes another element of the value's tuple."""
    return reader.opcode == "get-tuple-element" and int(reader.attribute("index")) != value.element


# Find what a compiled program sends to other pods, and the trainer's lines that ask for it.


_MEGASCALE = "xla_megascale_runtime"
_DCN_KINDS = {"ALL_REDUCE": _REDUCE, "ALL_GATHER": GATHER, "REDUCE_SCATTER": SCATTER}
_DCN_KINDS |= {"ALL_TO_ALL": _ALL_TO_ALL, "ONE_TO_ONE": PERMUTE}
BACKWARD = "transpose("  # jax's scope of everything that a backward pass computes
# All slices by their numbers, times the devices of each; or groups of single devices.
_TARGET = re.compile(r'_xla_megascale_target=(?:"\{([\d,]+)\}x|\{\{([\d,]+)\})')
_OF_A_SLICE = 100_000  # a single device is its slice's number times this, plus its own
_MOST_PLACES = 4
# Operations that mix weights with tokens. Weights that are gathered depend on none of them.
_MIXES = frozenset({"dot", "convolution", "gather", "scatter", "exponential"})


@dataclass(frozen=True, kw_only=True)
class DcnPayload:
    """One send. `in_backward`: it depends on a backward pass, as gradients do. `is_stored`: on no
    computation with tokens, as weights do.
    """

    name: str
    kind: str
    dtype: str
    payload_bytes: float
    executed_bytes: float
    times: int
    places: tuple[str, ...]
    in_backward: bool
    is_stored: bool
    axes: tuple[str, ...]


def is_to_other_slices(send: Instruction) -> bool:
    is_send = send.opcode == "send"
    return is_send and send.quoted("_xla_host_transfer_handler_name") == _MEGASCALE


def dcn_payloads(flow: Dataflow, slices: DeviceMesh, visit: Visit) -> Iterator[DcnPayload]:
    """The payload of a `send` to other pods; nothing for other instructions."""
    where, send, times = visit
    if not is_to_other_slices(send):
        return
    given = Value(where.name, send.operands[0])
    kind, members = transfer_of(send)
    pods = len(members)
    padded = flow.array(given)
    # The array before it was put into a larger one, of whole tiles: the smallest that it was.
    arrays, at = [flow.array(given)], given
    while sources := flow.sources(at):
        at = sources[0]
        arrays.append(flow.array(at))
    logical = min(arrays, key=lambda one: one.bytes)
    shards = pods if kind == GATHER else 1
    # Whether it comes from the program's arguments, without a computation that mixes them.
    ancestors = flow.ancestors(given, lambda at: at.opcode in _MIXES)
    yield DcnPayload(
        name=send.quoted(RENDEZVOUS),
        kind=kind,
        dtype=padded.dtype,
        payload_bytes=sent_bytes(kind, logical.bytes * shards, pods),
        executed_bytes=sent_bytes(kind, padded.bytes * shards, pods),
        times=times,
        places=tuple(_places(flow, given)),
        in_backward=_is_in_backward(flow, given),
        is_stored=all(one.opcode not in _MIXES for one in ancestors),
        axes=slices.axes_of(members),
    )


def transfer_of(send: Instruction) -> tuple[str, tuple[int, ...]]:
    """The collective that a send belongs to, and the slices that exchange it."""
    # The slices of the first group that exchange something; the compiler counts them from one.
    target = _TARGET.search(send.rest)
    if target is None:
        members = ()
    else:
        every, group = target.groups()
        if every:
            members = tuple(number - 1 for number in numbers(every))
        else:
            members = tuple(number // _OF_A_SLICE - 1 for number in numbers(group))
    return _DCN_KINDS.get(send.quoted("_xla_megascale_transfer_type"), PERMUTE), members


def _places(flow: Dataflow, sent: Value) -> list[str]:
    """The trainer's lines nearest to a value, back through everything that it depends on."""
    lines: list[str] = []
    for instruction in flow.ancestors(sent, lambda at: bool(_line(flow, at))):
        line = _line(flow, instruction)
        if line and line not in lines:
            lines.append(line)
        if len(lines) == _MOST_PLACES:
            break
    return lines


def _line(flow: Dataflow, instruction: Instruction) -> str:
    return flow.program.sources.trainer_line(instruction.frame)


def _is_in_backward(flow: Dataflow, sent: Value) -> bool:
    return any(
        BACKWARD in i.op_name for i in flow.ancestors(sent, lambda at: BACKWARD in at.op_name)
    )
