"""Everything that is read from one compiled program, as plain numbers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.prove.compiled import (
    PRODUCTS,
    REPEATED,
    CompiledCollective,
    DcnSend,
    ProgramSummary,
)
from orchestrator.prove.hlo.buffer_classes import BufferClasses
from orchestrator.prove.hlo.buffer_liveness import peak
from orchestrator.prove.hlo.dataflow import Dataflow
from orchestrator.prove.hlo.dcn import DcnPayload, dcn_payloads
from orchestrator.prove.hlo.execution_counts import Visit, visits
from orchestrator.prove.hlo.kernel_flops import is_kernel, kernel_flops, kernel_name
from orchestrator.prove.hlo.logical_collectives import CollectivePayload, logical_payloads
from orchestrator.prove.hlo.op_flops import is_product, product_flops
from orchestrator.prove.hlo.program import HloProgram
from orchestrator.prove.hlo.replica_groups import DeviceMesh
from orchestrator.prove.hlo.schedule import schedule_of
from orchestrator.prove.hlo.schedule_summary import ScheduleSummary
from orchestrator.prove.hlo.slice_links import SliceLinks
from orchestrator.prove.hlo.transfers import TransferReader
from orchestrator.types.schedule import Schedule, ScheduleRates

DTYPES = {"f32": "fp32"}  # as the Plan calls them
AGAIN = ".remat"  # in the names of what the compiler itself computes twice, to save memory


@dataclass(frozen=True)
class Pricing:
    """What turns a schedule into seconds: rates, and where on the torus each partition is."""

    rates: ScheduleRates
    places: tuple[tuple[int, ...], ...]


def summarize(
    program: HloProgram,
    mesh: DeviceMesh,
    between: DeviceMesh,
    layers: int,
    pricing: Pricing | None = None,
) -> ProgramSummary:
    """The numbers of a program with that many layers.

    `mesh` has the devices of a slice, `between` the slices; `pricing` makes seconds of its
    schedule.
    """
    flow, visited = Dataflow(program), list(visits(program))
    classes = BufferClasses(flow, peak(program), layers)
    kernels = [visit for visit in visited if is_kernel(visit[1])]
    uncounted = {
        kernel_name(op) for where, op, _ in kernels if kernel_flops(program, where, op) is None
    }
    return ProgramSummary(
        live_bytes=classes.sizes(),
        peak_at=classes.peak_at(),
        buffers=classes.largest(),
        collectives=_collectives(one for v in visited for one in logical_payloads(flow, mesh, v)),
        sends=tuple(_send(one) for visit in visited for one in dcn_payloads(flow, between, visit)),
        flops=_flops(program, visited),
        uncounted=tuple(sorted(uncounted)),
        schedule=_schedule(program, mesh, between, layers, pricing) if pricing else None,
    )


def _schedule(
    program: HloProgram, mesh: DeviceMesh, between: DeviceMesh, layers: int, pricing: Pricing
) -> Schedule:
    links = SliceLinks(pricing.rates.torus, pricing.places)
    transfers = TransferReader(program, mesh, between, links, pricing.rates.transfers)
    record = schedule_of(program, transfers, pricing.rates.compute)
    return ScheduleSummary(record, pricing.rates.compute).schedule(layers)


def _send(one: DcnPayload) -> DcnSend:
    return DcnSend(
        name=one.name,
        kind=one.kind,
        dtype=DTYPES.get(one.dtype, one.dtype),
        payload_bytes=one.payload_bytes * one.times,
        padding_bytes=(one.executed_bytes - one.payload_bytes) * one.times,
        calls=one.times,
        places=one.places,
        in_backward=one.in_backward,
        is_stored=one.is_stored,
        axes=one.axes,
    )


def _collectives(payloads: Iterable[CollectivePayload]) -> tuple[CompiledCollective, ...]:
    """Alike payloads added up."""
    alike: dict[tuple[tuple[str, ...], str, str, str], list[CollectivePayload]] = defaultdict(list)
    for one in payloads:
        alike[one.axes, one.kind, DTYPES.get(one.dtype, one.dtype), one.executed_kind].append(one)
    return tuple(
        CompiledCollective(
            axes=axes,
            kind=kind,
            dtype=dtype,
            payload_bytes=sum(one.payload_bytes * one.times for one in ones),
            calls=sum(one.times for one in ones),
            executed_kind=executed_kind,
            executed_bytes=sum(one.executed_bytes * one.times for one in ones),
        )
        for (axes, kind, dtype, executed_kind), ones in sorted(alike.items())
    )


def _flops(program: HloProgram, visited: list[Visit]) -> dict[str, float]:
    """FLOPs of one device and step: matrix products, those the compiler repeats, each kernel."""
    repeated = {
        called
        for where in program.computations.values()
        for instruction in where.instructions.values()
        if AGAIN in instruction.name
        for called in instruction.called
    }
    total: dict[str, float] = defaultdict(float)
    for where, instruction, times in visited:
        if is_product(instruction):
            is_repeated = where.name in repeated or AGAIN in instruction.name
            total[REPEATED if is_repeated else PRODUCTS] += times * product_flops(
                where, instruction
            )
        elif is_kernel(instruction):
            each = kernel_flops(program, where, instruction) or 0
            total[kernel_name(instruction)] += times * each
    return dict(total)
