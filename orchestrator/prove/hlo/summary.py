"""Prove room: everything that is read from one compiled program, as plain numbers."""

from collections import defaultdict
from collections.abc import Iterable

from orchestrator.prove.compiled import (
    PRODUCTS,
    REPEATED,
    CompiledCollective,
    DcnSend,
    ProgramSummary,
)
from orchestrator.prove.hlo import dots, kernels
from orchestrator.prove.hlo.buffer_classes import BufferClasses
from orchestrator.prove.hlo.buffer_liveness import peak
from orchestrator.prove.hlo.dataflow import Dataflow
from orchestrator.prove.hlo.dcn import dcn_payloads
from orchestrator.prove.hlo.execution_counts import Visit, visits
from orchestrator.prove.hlo.logical_collectives import CollectivePayload, logical_payloads
from orchestrator.prove.hlo.program import HloProgram
from orchestrator.prove.hlo.replica_groups import DeviceMesh

AGAIN = ".remat"  # in the names of what the compiler itself computes twice, to save memory
DTYPES = {"f32": "fp32"}  # as the Plan calls them


def summarize(program: HloProgram, mesh: DeviceMesh, layers: int) -> ProgramSummary:
    """All of it, of a program with so many layers on that mesh."""
    flow, every = Dataflow(program), list(visits(program))
    ledger = BufferClasses(flow, peak(program), layers)
    return ProgramSummary(
        live_bytes=ledger.classes(),
        peak_at=ledger.peak_at(),
        buffers=ledger.largest(),
        collectives=_collectives(
            one for visit in every for one in logical_payloads(flow, mesh, visit)
        ),
        sends=tuple(
            DcnSend(
                name=one.name,
                kind=one.kind,
                dtype=DTYPES.get(one.dtype, one.dtype),
                payload_bytes=one.payload_bytes * one.times,
                padding_bytes=(one.executed_bytes - one.payload_bytes) * one.times,
                calls=one.times,
                places=one.places,
                in_backward=one.in_backward,
            )
            for visit in every
            for one in dcn_payloads(flow, visit)
        ),
        flops=_flops(program, every),
        uncounted=tuple(
            sorted({kernels.name(visit[1]) for visit in every if _is_uncounted(visit)})
        ),
    )


def _collectives(found: Iterable[CollectivePayload]) -> tuple[CompiledCollective, ...]:
    """Those alike added up."""
    alike: dict[tuple[tuple[str, ...], str, str, str], list[CollectivePayload]] = defaultdict(list)
    for one in found:
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


def _flops(program: HloProgram, every: list[Visit]) -> dict[str, float]:
    """FLOPs of one device and step: matrix products, those the compiler repeats, each kernel."""
    repeated = {
        called
        for where in program.computations.values()
        for instruction in where.instructions.values()
        if AGAIN in instruction.name
        for called in instruction.called
    }
    total: dict[str, float] = defaultdict(float)
    for where, instruction, times in every:
        if instruction.opcode in {"dot", "convolution"}:
            again = where.name in repeated or AGAIN in instruction.name
            name = REPEATED if again else PRODUCTS
            total[name] += times * dots.flops(where, instruction)
        elif kernels.is_kernel(instruction):
            total[kernels.name(instruction)] += times * (kernels.flops(where, instruction) or 0)
    return dict(total)


def _is_uncounted(visit: Visit) -> bool:
    where, instruction, _ = visit
    return kernels.is_kernel(instruction) and kernels.flops(where, instruction) is None
