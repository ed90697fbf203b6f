"""Everything that is read from one compiled program, as plain numbers."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.proving.compiled import (
    PRODUCTS,
    REPEATED,
    CompiledCollective,
    DcnSend,
    ProgramSummary,
)
from orchestrator.proving.hlo import flops
from orchestrator.proving.hlo.buffers import BufferClasses, peak
from orchestrator.proving.hlo.collectives import DeviceMesh, dcn_payloads, logical_payloads
from orchestrator.proving.hlo.dataflow import Dataflow, Visit, visits
from orchestrator.proving.hlo.origins import Lines, last_line
from orchestrator.proving.hlo.program import HloProgram
from orchestrator.proving.hlo.schedule import Record, SchedulePass, Sent, Work
from orchestrator.proving.hlo.transfers import DomainLinks, SliceLinks, TransferReader
from orchestrator.values import proof as proofs

_SMALL = 1e-4  # of a step: products and transfers below that are left out of the lists
_SHORT = 5e-4  # of a round: events below that are left out of a timeline
_LOOPS = 2  # the forward and the backward pass
_MOVED_OUT = 2  # rounds of a loop
_FIELD = {"product": "products_s", "kernel": "kernels_s", "copy": "copies_s", "other": "other_s"}
_AGAIN = ".remat"  # in the names of what the compiler itself computes twice, to save memory


def summarize(
    program: HloProgram,
    mesh: DeviceMesh,
    between: DeviceMesh,
    layers: int,
    rates: proofs.ScheduleRates | None = None,
    places: tuple[tuple[int, ...], ...] = (),
    planned: Mapping[tuple[tuple[str, ...], str], str] | None = None,
    kept: int | None = None,
) -> ProgramSummary:
    """The numbers of a program with that many layers. `mesh` has the devices of a slice, `between`
    the slices. `rates`, with `places` as torus coordinates of each partition, price the schedule;
    `planned` has the ledger's line for the axes and the kind of a collective. What is kept of each
    layer, or of each of the `kept` passes of a pipeline, is counted as such.
    """
    flow, visited = Dataflow(program), list(visits(program))
    classes = BufferClasses(flow, peak(program), kept or layers)
    uncounted = {
        flops.kernel_name(op)
        for where, op, _ in visited
        if flops.is_kernel(op) and flops.kernel_flops(program, where, op) is None
    }
    moves = [
        (visit[1].name, sent) for visit in visited for sent in logical_payloads(flow, mesh, visit)
    ]
    payloads = [(name, sent) for name, sent in moves if isinstance(sent, CompiledCollective)]
    sends = [sent for _, sent in moves if isinstance(sent, DcnSend)]
    sends += [send for visit in visited for send in dcn_payloads(flow, between, visit)]
    alike: dict[tuple[tuple[str, ...], str, str, str], list[CompiledCollective]] = defaultdict(list)
    for _, each in payloads:
        alike[each.axes, each.kind, each.dtype, each.executed_kind].append(each)
    schedule = None
    if rates:
        known = planned or {}
        links = DomainLinks(rates) if rates.torus.switched else SliceLinks(rates.torus, places)
        other = proofs.OTHER_LINE
        lines = {name: known.get((sent.axes, sent.kind), other) for name, sent in payloads}
        lines |= {sent.name: known.get((sent.axes, sent.kind), other) for sent in sends}
        transfers = TransferReader(program, mesh, between, links, rates.transfers, lines)
        record = SchedulePass(program, transfers, rates.compute, program.entry).record
        schedule = _schedule(record, rates.compute.peak_flops_per_s, layers)
    return ProgramSummary(
        live_bytes=classes.sizes(),
        peak_at=classes.peak_at(),
        buffers=classes.largest(),
        collectives=tuple(
            replace(
                group[0],
                payload_bytes=sum(each.payload_bytes for each in group),
                calls=sum(each.calls for each in group),
                executed_bytes=sum(each.executed_bytes for each in group),
            )
            for _, group in sorted(alike.items(), key=lambda pair: pair[0])
        ),
        sends=tuple(sends),
        flops=_flops(program, visited),
        uncounted=tuple(sorted(uncounted)),
        schedule=schedule,
    )


def _flops(program: HloProgram, visited: list[Visit]) -> dict[str, float]:
    """FLOPs of one device and step: matrix products, those the compiler repeats, each kernel."""
    repeated = {
        called
        for _, instruction in program.instructions()
        if _AGAIN in instruction.name
        for called in instruction.called
    }
    total: dict[str, float] = defaultdict(float)
    for where, instruction, times in visited:
        if flops.is_product(instruction):
            is_repeated = where.name in repeated or _AGAIN in instruction.name
            name = REPEATED if is_repeated else PRODUCTS
            total[name] += times * flops.product_flops(where, instruction)
        elif flops.is_kernel(instruction):
            each = flops.kernel_flops(program, where, instruction) or 0
            total[flops.kernel_name(instruction)] += times * each
    return dict(total)


def _schedule(record: Record, peak_flops_per_s: float, layers: int) -> proofs.Schedule:
    lines = _lines(record)
    kinds = (*_FIELD.values(), "exposed_s")
    sums = {kind: sum(getattr(line, kind) for line in lines) for kind in kinds}
    total = sum(sums.values())
    # The two longest loops with a round for each layer, of which the compiler may move two out of
    # the loop; without such a loop, the two longest of all.
    rounds = [each for each in record.rounds if each.seconds > 0]
    over_layers = [each for each in rounds if 0 <= layers - each.trips <= _MOVED_OUT] or rounds
    longest = sorted(over_layers, key=lambda each: -each.seconds * each.times)[:_LOOPS]
    # Products of at least that many seconds; those first that lose most time to the peak.
    least_s = _SMALL * total
    alike: dict[tuple[str, str, tuple[str, ...], float], list[Work]] = defaultdict(list)
    for work in record.work:
        if work.kind == "product":
            shape = str(work.instruction.arrays[0])
            alike[last_line(work.lines), shape, work.fused, work.peak].append(work)
    products = []
    for (line, shape, fused, peak_of_type), works in alike.items():
        seconds = sum(work.seconds * work.times for work in works)
        multiplied = sum(work.flops * work.times for work in works)
        product = proofs.ScheduledProduct(
            line=line,
            shape=shape,
            fused=fused,
            calls_per_step=sum(work.times for work in works),
            flops=multiplied,
            seconds=seconds,
            peak_share=multiplied / seconds / peak_of_type if seconds else 0.0,
        )
        if seconds >= least_s:
            products.append((multiplied / peak_of_type - seconds, line, product))
    return proofs.Schedule(
        total_s=total,
        **sums,
        flops=sum(line.flops for line in lines),
        peak_flops_per_s=peak_flops_per_s,
        lines=lines,
        ledger=_ledger_lines(record),
        products=tuple(product for *_, product in sorted(products, key=lambda row: row[:2])),
        collectives=_collectives(record, _SMALL * total),
        loops=tuple(
            proofs.ScheduledLoop(
                name=each.name,
                trips=each.trips,
                round_s=each.seconds,
                events=tuple(e for e in each.events if e.seconds >= _SHORT * each.seconds),
            )
            for each in sorted(longest, key=rounds.index)
        ),
        unpriced=tuple(sorted(record.unpriced)),
    )


def _lines(record: Record) -> tuple[proofs.ScheduledLine, ...]:
    names = (*_FIELD.values(), "exposed_s", "flops")
    sums: dict[Lines, dict[str, float]] = defaultdict(lambda: dict.fromkeys(names, 0.0))
    for work in record.work:
        sums[work.lines][_FIELD[work.kind]] += work.seconds * work.times
        if work.kind == "product":
            sums[work.lines]["flops"] += work.flops * work.times
    for sent in record.sent:
        sums[sent.lines]["exposed_s"] += sent.exposed_s * sent.times
    return source_lines(sums)


def source_lines(sums: Mapping[Lines, dict[str, float]]) -> tuple[proofs.ScheduledLine, ...]:
    lines = [
        proofs.ScheduledLine(line=last_line(stack), stack=stack, **seconds)
        for stack, seconds in sums.items()
    ]
    return tuple(sorted(lines, key=lambda line: (-line.total_s, line.stack)))


def _ledger_lines(record: Record) -> tuple[proofs.ScheduledLedgerLine, ...]:
    sums: dict[str, dict[str, float]] = defaultdict(
        lambda: dict.fromkeys(("computed_s", "exposed_s", "wire_s"), 0.0)
    )
    for work in record.work:
        sums[work.ledger]["computed_s"] += work.seconds * work.times
    for sent in record.sent:
        sums[sent.ledger]["exposed_s"] += sent.exposed_s * sent.times
        if sent.transfer.link != "hbm":
            sums[sent.ledger]["wire_s"] += sent.transfer.seconds * sent.times
    return ledger_lines(sums)


def ledger_lines(sums: Mapping[str, dict[str, float]]) -> tuple[proofs.ScheduledLedgerLine, ...]:
    lines = [proofs.ScheduledLedgerLine(kind=kind, **seconds) for kind, seconds in sums.items()]
    return tuple(sorted(lines, key=lambda line: (-line.total_s, line.kind)))


def _collectives(record: Record, least_s: float) -> tuple[proofs.ScheduledCollective, ...]:
    alike: dict[tuple[object, ...], list[Sent]] = defaultdict(list)
    for sent in record.sent:
        how = sent.transfer
        key = how.kind, how.axes, how.link, how.algorithm, sent.asynchronous
        alike[*key, last_line(sent.lines)].append(sent)
    found = []
    for group in alike.values():
        first, behind = group[0], defaultdict[str, float](float)
        for sent in group:
            for work in sent.behind:
                behind[last_line(work.lines)] += work.seconds * sent.times
        how = first.transfer
        total = proofs.ScheduledCollective(
            kind=how.kind,
            axes=how.axes,
            link=how.link,
            algorithm=how.algorithm,
            asynchronous=first.asynchronous,
            line=last_line(first.lines),
            calls_per_step=sum(sent.times for sent in group),
            bytes_per_step=sum(sent.transfer.bytes * sent.times for sent in group),
            wire_s=sum(sent.transfer.seconds * sent.times for sent in group),
            exposed_s=sum(sent.exposed_s * sent.times for sent in group),
            behind=max(behind, key=lambda line: (behind[line], line), default=""),
            behind_s=sum(behind.values()),
        )
        # A copy into the chip's fast memory matters only where the device waits for it.
        wire_s = 0.0 if how.link == "hbm" else total.wire_s
        if max(wire_s, total.exposed_s) >= least_s:
            found.append(total)
    return tuple(sorted(found, key=lambda total: (-total.exposed_s, -total.wire_s, total.line)))
