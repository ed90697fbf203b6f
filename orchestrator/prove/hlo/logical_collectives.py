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

from orchestrator.prove.hlo.dataflow import Dataflow, Value
from orchestrator.prove.hlo.execution_counts import Visit
from orchestrator.prove.hlo.program import Computation, Instruction
from orchestrator.prove.hlo.replica_groups import DeviceMesh, chain, first_group

GATHER, SCATTER, REDUCE = "all-gather", "reduce-scatter", "all-reduce"
PERMUTE, ALL_TO_ALL = "collective-permute", "all-to-all"
KINDS = {GATHER, SCATTER, REDUCE, PERMUTE, ALL_TO_ALL}
PART = re.compile(r'"async_collective_fusion_config":\{"flag_start":"(-?\d+)"')
FIRST_PART = "-1"
CHAIN = re.compile(r'chain_id="\d+"')  # one number for all parts of a collective
DONE = "AsyncCollectiveDone"
SLICES = frozenset({"slice", "dynamic-slice"})
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
    return volume * (ways - 1) / ways * (2 if kind == REDUCE else 1)


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
        unpadded = _unpadded_bytes(flow, where, given, logical, volume)
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
    part = PART.search(instruction.rest)
    return part is not None and part[1] != FIRST_PART


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
    if runs != REDUCE:
        return runs
    if _is_set_into_zeros(flow, given):
        return GATHER
    return SCATTER if any(_is_sliced(flow, one) for one in _ends(flow, result)) else REDUCE


def _ends(flow: Dataflow, result: Value) -> list[Value]:
    """A collective's result; of an asynchronous one, that of the call which ends its last part."""
    first = flow.instruction(result)
    chained = CHAIN.search(first.rest)
    if chained is None or not PART.search(first.rest):
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
        if reader.opcode == "custom-call" and reader.quoted("custom_call_target") == DONE
    ]


def _unpadded_bytes(
    flow: Dataflow, where: Computation, given: Value, logical: str, volume: float
) -> float:
    """The volume without padding; nothing for a permute that puts padded parts in place."""
    if where.name.startswith(SCATTERS) and where.parameters:
        arrays = [one.arrays[0] for one in where.parameters.values()]
        size = sum(array.bytes for array in arrays if array.dtype == flow.array(given).dtype)
        return min(volume, size) or volume
    return 0.0 if logical == SCATTER and _is_put_in_place(flow, given) else volume


def _is_put_in_place(flow: Dataflow, given: Value) -> bool:
    """Whether it is a part that a padded reduce-scatter leaves here."""
    return any(end.computation.startswith(SCATTERS) for end in flow.origins(given, SLICES))


def _is_added_to(flow: Dataflow, result: Value) -> bool:
    """Whether a ring adds to what it passes on."""
    return any(
        reader.opcode == "add" for at in flow.copies(result) for reader, _ in flow.readers(at)
    )


def _is_set_into_zeros(flow: Dataflow, given: Value) -> bool:
    made = [flow.instruction(end) for end in flow.origins(given)]
    return all(instruction.opcode == "dynamic-update-slice" for instruction in made) and all(
        _fills(flow, end) for end in flow.origins(given)
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
