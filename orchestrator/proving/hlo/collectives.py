"""The collectives of a compiled program, as the trainer means them and as the compiler runs them.
The compiler writes a reduce-scatter as an all-reduce of which each device keeps its slice, and an
all-gather as an all-reduce of parts set into zeros: both take twice the bytes. A ring of permutes
around a matrix product is a gather or a scatter, with the same bytes. Permutes that move padded
parts are none, and those between stages of a pipeline are what they are. The maker of the operand
and the reader of the result tell the meaning.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.network.mesh_axes import PIPELINE, SHARED_OVER_DCN, in_slice
from orchestrator.proving.compiled import CompiledCollective, DcnSend
from orchestrator.proving.hlo.dataflow import RENDEZVOUS, Dataflow, HloValue, Visit
from orchestrator.proving.hlo.origins import named_line
from orchestrator.proving.hlo.program import Instruction, numbers
from orchestrator.values.plan import sent_bytes

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
_CHOSEN = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")
_PASSES = "source_target_pairs="
_PAIRS = re.compile(r"\{(\d+),(\d+)\}")


@dataclass(frozen=True)
class DeviceMesh:
    """Sizes of the mesh axes of one program, and the place of each partition in that mesh. Of the
    axes of a program for GPUs, some lie `between` their domains; one for TPUs is that of a slice.
    """

    axes: dict[str, int]
    places: tuple[int, ...] | None = None
    between: tuple[str, ...] = ()

    def axes_of(self, partitions: tuple[int, ...]) -> tuple[str, ...]:
        """The axes in which the partitions differ; no partitions mean the whole slice."""
        at = np.array(partitions or range(prod(self.axes.values())))
        places = np.array(self.places)[at] if self.places else at
        indices = np.unravel_index(places, tuple(self.axes.values()))
        return tuple(
            name for name, index in zip(self.axes, indices, strict=True) if np.ptp(index) > 0
        )

    def place(self, partition: int) -> int:
        return self.places[partition] if self.places else partition

    @property
    def domain(self) -> int:
        """Partitions of a slice: those between slices are the outermost axes."""
        return prod(size for name, size in self.axes.items() if name not in self.between)


def first_group(collective: Instruction, partitions: int) -> tuple[int, ...]:
    """The partitions of the first group; the others are alike."""
    if counted := _COUNTED.search(collective.rest):
        # `[groups, size]<=[a, b]T(1, 0)`: an iota of a x b, transposed, cut into groups.
        shape, sizes, order = counted.groups()
        groups = _iota(numbers(sizes), order).reshape(numbers(shape))
        return tuple(int(partition) for partition in groups[0])
    if listed := _LISTED.search(collective.rest):
        return numbers(listed[1])
    mesh = _MESH.search(collective.rest)
    if mesh is None:
        if _GROUPS not in collective.rest or _NO_GROUPS in collective.rest:
            return tuple(range(partitions))
        raise ValueError(f"{collective.name} has groups of another form: {collective.rest[:200]}")
    # Partitions that differ only along the chosen axes, the first of them outermost.
    axes, tiled, order, chosen = mesh.groups()
    whole_axes = {name: int(size) for name, size in _AXIS.findall(axes)}
    # 'b':(2)4 is 4 of what is left of axis 'b' after 2.
    parts = [
        (name, int(before or 1), int(size or whole_axes[name]))
        for name, before, size in _CHOSEN.findall(chosen)
    ]
    pieces = []
    for name, whole in whole_axes.items():
        # An axis is cut so that each part is made of whole pieces.
        ends = ((at, at * size) for part, at, size in parts if part == name)
        pieces += [(name, at, end // at) for at, end in pairwise(sorted({1, whole}.union(*ends)))]
    tiles = numbers(tiled) if tiled else (prod(whole_axes.values()),)
    devices = _iota(tiles, order).reshape([size for _, _, size in pieces])
    along = [
        number
        for name, before, size in parts
        for number, (axis, at, _) in enumerate(pieces)
        if axis == name and before <= at < before * size
    ]
    others = [number for number in range(len(pieces)) if number not in along]
    first = devices.transpose(others + along)[(0,) * len(others)]
    return tuple(int(partition) for partition in first.flat)


def pairs_text(permute: Instruction) -> str:
    start = permute.rest.index(_PASSES)
    return permute.rest[start : permute.rest.index("}}", start) + 1]


@lru_cache(maxsize=256)  # the pairs of permutes fill most of a large program's text
def chain(pairs: str) -> tuple[tuple[int, ...], bool]:
    """Return the partitions that pass data on to one another, and whether they are a ring."""
    after = {int(source): int(target) for source, target in _PAIRS.findall(pairs)}
    members = [min(after)]
    seen = set(members)
    while (following := after.get(members[-1], members[0])) not in seen:
        members.append(following)
        seen.add(following)
    return tuple(members), set(after) == set(after.values())


def _iota(sizes: tuple[int, ...], order: str | None) -> NDArray[np.int64]:
    return np.arange(prod(sizes)).reshape(sizes).transpose(numbers(order) if order else None)


GATHER, SCATTER, _REDUCE = "all-gather", "reduce-scatter", "all-reduce"
PERMUTE, _ALL_TO_ALL = "collective-permute", "all-to-all"
KINDS = {GATHER, SCATTER, _REDUCE, PERMUTE, _ALL_TO_ALL}
(_PIPELINE,) = in_slice(PIPELINE)
_STAGES = "stage_exchange"  # what the trainer calls transfers between stages
_PART = re.compile(r'"async_collective_fusion_config":\{"flag_start":"(-?\d+)"')
_FIRST_PART = "-1"
_CHAIN = re.compile(r'chain_id="\d+"')  # one number for all parts of a collective
_DONE = "AsyncCollectiveDone"
_SLICES = frozenset({"slice", "dynamic-slice"})
SCATTERS = "all-reduce-scatter"  # begins the name of a fusion that is a reduce-scatter


DTYPES = {"f32": "fp32"}  # as the Plan calls them


def logical_payloads(
    flow: Dataflow, mesh: DeviceMesh, visit: Visit
) -> Iterator[CompiledCollective | DcnSend]:
    """The payload of each operand of a collective; nothing for other instructions. One that joins
    several slices counts as the trainer writes it, and the compiler for GPUs has merged it: one
    inside each slice, one among the slices that share weights, one along each other axis between.
    """
    where, instruction, times = visit
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS or is_further_part(instruction):
        return
    if kind == PERMUTE:
        group, is_ring = chain(pairs_text(instruction))
    else:
        group, is_ring = first_group(instruction, flow.program.partitions), False
    ways = len(group)
    is_scatter = where.name.startswith(SCATTERS)
    runs = SCATTER if is_scatter else kind
    for place, operand in enumerate(instruction.operands):
        given = HloValue(where.name, operand)
        element = place if len(instruction.operands) > 1 else None
        array = flow.array(given)
        volume = unpadded = array.bytes * (ways if kind == GATHER else 1)
        # Whether it is a part that a padded reduce-scatter leaves here; permutes put it in place.
        origins = flow.origins(given, _SLICES)
        is_padded_part = any(end.computation.startswith(SCATTERS) for end in origins)
        if runs == PERMUTE and is_padded_part:
            logical = SCATTER
        else:
            result = HloValue(where.name, instruction.name, element)
            logical = _logical_kind(flow, runs, is_ring, given, result)
        if is_scatter and where.parameters:
            arrays = [parameter.arrays[0] for parameter in where.parameters.values()]
            size = sum(source.bytes for source in arrays if source.dtype == array.dtype)
            unpadded = min(volume, size) or volume
        elif logical == SCATTER and is_padded_part:
            unpadded = 0.0
        axes, dtype = mesh.axes_of(group), DTYPES.get(array.dtype, array.dtype)
        near = ways
        if any(axis in mesh.between for axis in axes):
            near //= len({mesh.place(partition) // mesh.domain for partition in group})
        for joined, crosses in _written_apart(mesh, axes, logical):
            if crosses:
                # Reductions and permutes send all between slices, others what a device has there.
                part = unpadded if logical in (PERMUTE, _REDUCE) else unpadded / near
                members = prod(mesh.axes[axis] for axis in joined)
                yield DcnSend(
                    name=instruction.name,
                    kind=logical,
                    dtype=dtype,
                    payload_bytes=sent_bytes(logical, part, members) * times,
                    padding_bytes=0.0,
                    calls=times,
                    axes=joined,
                    line=named_line(instruction.op_name),
                    **_origin_of(flow, given),
                )
                continue
            others = {axis for axis in axes if axis not in mesh.between} - {*joined}
            members = near // prod(mesh.axes[axis] for axis in others)
            payload = sent_bytes(PERMUTE if runs == PERMUTE else logical, unpadded, members)
            yield CompiledCollective(
                kind=logical,
                axes=joined,
                dtype=dtype,
                payload_bytes=payload * times,
                executed_kind=runs,
                executed_bytes=sent_bytes(runs, volume, members) * times,
                calls=times,
            )


def _written_apart(
    mesh: DeviceMesh, axes: tuple[str, ...], kind: str
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The groups of axes over which the trainer writes a collective, and which lie between slices:
    the compiler for GPUs merges sums over stages, replicas and devices that share weights.
    """
    across = tuple(axis for axis in axes if axis in mesh.between)
    if across and kind == PERMUTE:  # one peer, behind the slowest of its links
        yield across[:1], True
        return
    if shared := tuple(axis for axis in across if axis in SHARED_OVER_DCN):
        yield shared, True
    for axis in across:
        if axis not in shared:
            yield (axis,), True
    near = tuple(axis for axis in axes if axis not in across)
    if kind == _REDUCE and _PIPELINE in near and len(near) > 1:
        yield (_PIPELINE,), False
        near = tuple(axis for axis in near if axis != _PIPELINE)
    if near or not across:
        yield near, False


def is_further_part(instruction: Instruction) -> bool:
    """Whether it continues a collective: its start, its middle and its end all name it."""
    part = _PART.search(instruction.rest)
    return part is not None and part[1] != _FIRST_PART


def _logical_kind(
    flow: Dataflow, runs: str, is_ring: bool, given: HloValue, result: HloValue
) -> str:
    if runs == PERMUTE:
        # A ring around a product gathers, or scatters if it adds to what it passes on.
        readers = (reader for at in flow.copies(result) for reader, _ in flow.readers(at))
        if not is_ring or named_line(flow.instruction(result).op_name) == _STAGES:
            return PERMUTE
        return SCATTER if any(reader.opcode == "add" for reader in readers) else GATHER
    if runs != _REDUCE:
        return runs
    made = [(end, flow.instruction(end)) for end in flow.origins(given)]
    if all(update.opcode == "dynamic-update-slice" for _, update in made):
        targets = (HloValue(end.computation, update.operands[0]) for end, update in made)
        into = {flow.instruction(end).opcode for target in targets for end in flow.origins(target)}
        if into <= {"broadcast", "constant"}:
            return GATHER
    return SCATTER if any(_is_sliced(flow, end) for end in _ends(flow, result)) else _REDUCE


def _ends(flow: Dataflow, result: HloValue) -> list[HloValue]:
    """A collective's result; of an asynchronous one, that of the call which ends its last part."""
    first = flow.instruction(result)
    chained = _CHAIN.search(first.rest)
    if chained is None or not _PART.search(first.rest):
        return [result]
    parts = [
        HloValue(where.name, part.name)
        for where, part in flow.program.instructions()
        if part.opcode == first.opcode and is_further_part(part) and chained[0] in part.rest
    ]
    return [
        HloValue(part.computation, reader.name)
        for part in parts
        for reader, _ in flow.readers(part)
        if reader.opcode == "custom-call" and reader.quoted("custom_call_target") == _DONE
    ]


def _is_sliced(flow: Dataflow, result: HloValue) -> bool:
    """Whether every reader of the result reads a slice of it, wherever it is moved to first."""
    seen, todo, slices = {result}, [result], 0
    while todo:
        value = todo.pop()
        moved = flow.to_callers(value)
        for reader, place in flow.readers(value):
            if reader.opcode == "dynamic-slice" and place == 0:
                slices += 1
                continue
            # A reader that takes another element of the value's tuple does not read the value.
            is_element = reader.opcode == "get-tuple-element"
            if not is_element or int(reader.attribute("index")) == value.element:
                passed_on = flow.through(value, reader, place)
                if not passed_on:
                    return False
                moved += passed_on
        todo += [new for new in moved if new not in seen]
        seen |= set(moved)
    return slices > 0


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


def is_to_other_slices(send: Instruction) -> bool:
    is_send = send.opcode == "send"
    return is_send and send.quoted("_xla_host_transfer_handler_name") == _MEGASCALE


def dcn_payloads(flow: Dataflow, slices: DeviceMesh, visit: Visit) -> Iterator[DcnSend]:
    """The payload of a `send` to other pods; nothing for other instructions."""
    where, send, times = visit
    if not is_to_other_slices(send):
        return
    given = HloValue(where.name, send.operands[0])
    kind, members = transfer_of(send)
    padded, at = flow.array(given), given
    # The payload is the smallest array that it was, before it was put into whole tiles.
    logical_bytes = padded.bytes
    while sources := flow.sources(at):
        at = sources[0]
        logical_bytes = min(logical_bytes, flow.array(at).bytes)
    shards = len(members) if kind == GATHER else 1
    payload, executed = (
        sent_bytes(kind, size * shards, len(members)) for size in (logical_bytes, padded.bytes)
    )
    yield DcnSend(
        name=send.quoted(RENDEZVOUS),
        kind=kind,
        dtype=DTYPES.get(padded.dtype, padded.dtype),
        payload_bytes=payload * times,
        padding_bytes=(executed - payload) * times,
        calls=times,
        axes=slices.axes_of(members),
        line=named_line(send.op_name),
        **_origin_of(flow, given),
    )


def _origin_of(flow: Dataflow, given: HloValue) -> dict[str, Any]:
    backward = flow.ancestors(given, lambda at: BACKWARD in at.op_name)
    stored = flow.ancestors(given, lambda at: at.opcode in _MIXES)
    return {
        "places": _places(flow, given),
        "in_backward": any(BACKWARD in source.op_name for source in backward),
        "is_stored": all(source.opcode not in _MIXES for source in stored),
    }


def transfer_of(send: Instruction) -> tuple[str, tuple[int, ...]]:
    """The collective that a send belongs to, and the slices that exchange it."""
    kind = _DCN_KINDS.get(send.quoted("_xla_megascale_transfer_type"), PERMUTE)
    # The slices of the first group that exchange something; the compiler counts them from one.
    target = _TARGET.search(send.rest)
    if target is None:
        return kind, ()
    every, group = target.groups()
    if every:
        return kind, tuple(number - 1 for number in numbers(every))
    return kind, tuple(number // _OF_A_SLICE - 1 for number in numbers(group))


def _places(flow: Dataflow, given: HloValue) -> tuple[str, ...]:
    """The trainer's lines nearest to a value, back through everything that it depends on."""
    line_of = flow.program.sources.trainer_line
    lines: dict[str, None] = {}
    for instruction in flow.ancestors(given, lambda at: bool(line_of(at.frame))):
        if line := line_of(instruction.frame):
            lines[line] = None
        if len(lines) == _MOST_PLACES:
            break
    return tuple(lines)
