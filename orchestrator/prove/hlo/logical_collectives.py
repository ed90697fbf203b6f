"""Prove room: the collectives of a compiled program, as it runs them and as they were meant.

The compiler writes some collectives as others: a reduce-scatter as an all-reduce of which each
device keeps its slice, an all-gather as an all-reduce of what each device sets into zeros. Both
take twice the bytes. A ring of permutes around a matrix product is one or the other too, with the
same bytes. What it reduce-scatters it may fill up first, so that every device's part has a size it
likes; other permutes then move each device's own part into place, and were not meant at all. What
was meant is read from who makes the operand and who reads the result.
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
SLICES = frozenset({"slice", "dynamic-slice"})
SCATTERS = "all-reduce-scatter"  # begins the name of a fusion that is a reduce-scatter


@dataclass(frozen=True, kw_only=True)
class CollectivePayload:
    """One operand of a collective: what was meant by it, and what runs. Bytes of one execution."""

    name: str
    kind: str
    axes: tuple[str, ...]
    link: str
    dtype: str
    payload_bytes: float
    executed_kind: str
    executed_bytes: float
    times: int
    values: tuple[Value, ...]


def sent_bytes(kind: str, volume: float, ways: int) -> float:
    """Bytes that one device sends for a collective of that volume over so many devices."""
    if kind == PERMUTE:
        return volume
    return volume * (ways - 1) / ways * (2 if kind == REDUCE else 1)


def logical_payloads(flow: Dataflow, mesh: DeviceMesh, visit: Visit) -> Iterator[CollectivePayload]:
    """What a collective exchanges inside a slice; nothing for any other instruction."""
    where, instruction, times = visit
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS or _is_further_part(instruction):
        return
    group = _group(flow, instruction, kind)
    for place, operand in enumerate(instruction.operands):
        given = Value(where.name, operand)
        result = Value(
            where.name, instruction.name, place if len(instruction.operands) > 1 else None
        )
        runs = SCATTER if where.name.startswith(SCATTERS) else kind
        meant = _meant(flow, runs, given, result)
        array = flow.array(given)
        volume = array.bytes * (len(group) if kind == GATHER else 1)
        asked = _unfilled_bytes(flow, where, given, meant, volume)
        yield CollectivePayload(
            name=instruction.name,
            kind=meant,
            axes=mesh.axes_of(group),
            link="ici",
            dtype=array.dtype,
            payload_bytes=sent_bytes(PERMUTE if runs == PERMUTE else meant, asked, len(group)),
            executed_kind=runs,
            executed_bytes=sent_bytes(runs, volume, len(group)),
            times=times,
            values=(given, result),
        )


def _is_further_part(instruction: Instruction) -> bool:
    """Whether it only goes on with a collective: its start, its middle and its end all name it."""
    found = PART.search(instruction.rest)
    return found is not None and found[1] != FIRST_PART


def _group(flow: Dataflow, instruction: Instruction, kind: str) -> tuple[int, ...]:
    if kind == PERMUTE:
        return chain(instruction).members
    return first_group(instruction, flow.program.partitions)


def _meant(flow: Dataflow, runs: str, given: Value, result: Value) -> str:
    """What a collective stands for."""
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
    return SCATTER if _is_sliced(flow, result) else REDUCE


def _unfilled_bytes(
    flow: Dataflow, where: Computation, given: Value, meant: str, volume: float
) -> float:
    """The volume without what the compiler filled it up with, or put in place afterwards."""
    if where.name.startswith(SCATTERS) and where.parameters:
        arrays = [one.arrays[0] for one in where.parameters.values()]
        asked = sum(array.bytes for array in arrays if array.dtype == flow.array(given).dtype)
        return min(volume, asked) or volume
    return 0.0 if meant == SCATTER and _is_put_in_place(flow, given) else volume


def _is_put_in_place(flow: Dataflow, given: Value) -> bool:
    """Whether it is part of what a reduce-scatter has left here."""
    return any(end.computation.startswith(SCATTERS) for end in flow.ends(given, SLICES))


def _is_added_to(flow: Dataflow, result: Value) -> bool:
    """Whether what comes round a ring is added to, and not only passed on and multiplied."""
    return any(
        reader.opcode == "add" for at in flow.copies(result) for reader, _ in flow.readers(at)
    )


def _is_set_into_zeros(flow: Dataflow, given: Value) -> bool:
    made = [flow.instruction(end) for end in flow.ends(given)]
    return all(instruction.opcode == "dynamic-update-slice" for instruction in made) and all(
        _fills(flow, end) for end in flow.ends(given)
    )


def _fills(flow: Dataflow, update: Value) -> bool:
    """Whether the update goes into a constant."""
    target = Value(update.computation, flow.instruction(update).operands[0])
    return all(
        flow.instruction(end).opcode in {"broadcast", "constant"} for end in flow.ends(target)
    )


def _is_sliced(flow: Dataflow, result: Value) -> bool:
    """Whether whoever reads the result reads a slice of it, wherever it is moved to first."""
    seen, todo, slices = {result}, [result], 0
    while todo:
        value = todo.pop()
        found = flow.outward(value)
        for reader, place in flow.readers(value):
            if reader.opcode == "dynamic-slice" and place == 0:
                slices += 1
            elif not _is_of_another(reader, value):
                onward = flow.onward(value, reader, place)
                if not onward:
                    return False
                found += onward
        todo += [new for new in found if new not in seen]
        seen |= set(found)
    return slices > 0


def _is_of_another(reader: Instruction, value: Value) -> bool:
    """Whether the reader takes another element of the value's tuple."""
    return reader.opcode == "get-tuple-element" and int(reader.attribute("index")) != value.element
