"""Everything that is read from one compiled program, as plain numbers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.proving.compiled import (
    PRODUCTS,
    REPEATED,
    CompiledCollective,
    DcnSend,
    ProgramSummary,
)
from orchestrator.proving.hlo.buffers import BufferClasses, peak
from orchestrator.proving.hlo.collectives import (
    BACKWARD,
    CollectivePayload,
    DcnPayload,
    DeviceMesh,
    dcn_payloads,
    logical_payloads,
)
from orchestrator.proving.hlo.dataflow import Dataflow
from orchestrator.proving.hlo.execution_counts import Visit, visits
from orchestrator.proving.hlo.flops import (
    is_kernel,
    is_product,
    kernel_flops,
    kernel_name,
    product_flops,
)
from orchestrator.proving.hlo.program import HloProgram
from orchestrator.proving.hlo.schedule import (
    Lines,
    Record,
    Round,
    Sent,
    SimulatedEvent,
    Work,
    schedule_of,
)
from orchestrator.proving.hlo.transfers import SliceLinks, Transfer, TransferReader
from orchestrator.values.proof import (
    ComputeRates,
    Schedule,
    ScheduledCollective,
    ScheduledEvent,
    ScheduledLine,
    ScheduledLoop,
    ScheduledProduct,
    ScheduleRates,
)

# A step's schedule in numbers: by line, product and transfer, and one round of a layer's loops.


_SMALL = 1e-4  # of a step: products and transfers below that are left out of the lists
_SHORT = 5e-4  # of a round: events below that are left out of a timeline
_LOOPS = 2  # the forward and the backward pass
_MOVED_OUT = 2  # rounds of a loop
_UNKNOWN = "no source line"  # a line that no instruction nearby names
_FIELD = {"product": "products_s", "kernel": "kernels_s", "copy": "copies_s", "other": "other_s"}


class _ScheduleSummary:
    """Sums of a record."""

    def __init__(self, record: Record, rates: ComputeRates) -> None:
        self.record, self.rates = record, rates

    def schedule(self, layers: int) -> Schedule:
        """The whole: `layers` says which loops are those over layers."""
        lines = self._lines()
        kinds = (*_FIELD.values(), "exposed_s")
        sums = {kind: sum(getattr(line, kind) for line in lines) for kind in kinds}
        total = sum(sums.values())
        return Schedule(
            total_s=total,
            **sums,
            flops=sum(line.flops for line in lines),
            peak_flops_per_s=self.rates.peak_flops_per_s,
            lines=lines,
            products=self._products(_SMALL * total),
            collectives=self._collectives(_SMALL * total),
            loops=self._loops(layers),
            unpriced=tuple(sorted(self.record.unpriced)),
        )

    def _lines(self) -> tuple[ScheduledLine, ...]:
        seconds: dict[Lines, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for work in self.record.work:
            of_stack = seconds[work.lines]
            of_stack[_FIELD[work.kind]] += work.seconds * work.times
            if work.kind == "product":
                of_stack["flops"] += work.flops * work.times
        for sent in self.record.sent:
            seconds[sent.lines]["exposed_s"] += sent.exposed_s * sent.times
        names = (*_FIELD.values(), "exposed_s", "flops")
        lines = [
            ScheduledLine(
                line=_last(stack),
                stack=stack,
                **{name: sums.get(name, 0.0) for name in names},
            )
            for stack, sums in seconds.items()
        ]
        return tuple(sorted(lines, key=lambda line: (-line.total_s, line.stack)))

    def _products(self, least_s: float) -> tuple[ScheduledProduct, ...]:
        alike: dict[tuple[str, str, tuple[str, ...]], list[Work]] = defaultdict(list)
        for work in self.record.work:
            if work.kind == "product":
                shape = str(work.instruction.arrays[0])
                alike[_last(work.lines), shape, work.fused].append(work)
        products = [self._product(key, works) for key, works in alike.items()]
        long = (one for one in products if one.seconds >= least_s)
        return tuple(
            sorted(
                long,
                key=lambda one: (one.flops / self.rates.peak_flops_per_s - one.seconds, one.line),
            )
        )

    def _product(
        self, key: tuple[str, str, tuple[str, ...]], works: list[Work]
    ) -> ScheduledProduct:
        line, shape, fused = key
        seconds = sum(work.seconds * work.times for work in works)
        flops = sum(work.flops * work.times for work in works)
        return ScheduledProduct(
            line=line,
            shape=shape,
            fused=fused,
            calls_per_step=sum(work.times for work in works),
            flops=flops,
            seconds=seconds,
            peak_share=flops / seconds / self.rates.peak_flops_per_s if seconds else 0.0,
        )

    def _collectives(self, least_s: float) -> tuple[ScheduledCollective, ...]:
        alike: dict[tuple[object, ...], list[Sent]] = defaultdict(list)
        for sent in self.record.sent:
            one = sent.transfer
            key = one.kind, one.axes, one.link, one.algorithm, sent.asynchronous
            alike[*key, _last(sent.lines)].append(sent)
        found = [self._collective(sents) for sents in alike.values()]
        # Seconds on a link to elsewhere: what only goes into the chip's fast memory matters where
        # it is waited for.
        long = (
            one
            for one in found
            if max(0.0 if one.link == "hbm" else one.wire_s, one.exposed_s) >= least_s
        )
        return tuple(sorted(long, key=lambda one: (-one.exposed_s, -one.wire_s, one.line)))

    def _collective(self, sents: list[Sent]) -> ScheduledCollective:
        first, behind = sents[0], defaultdict[str, float](float)
        for sent in sents:
            for work in sent.behind:
                behind[_last(work.lines)] += work.seconds * sent.times
        one = first.transfer
        return ScheduledCollective(
            kind=one.kind,
            axes=one.axes,
            link=one.link,
            algorithm=one.algorithm,
            asynchronous=first.asynchronous,
            line=_last(first.lines),
            calls_per_step=sum(sent.times for sent in sents),
            bytes_per_step=sum(sent.transfer.bytes * sent.times for sent in sents),
            wire_s=sum(sent.transfer.seconds * sent.times for sent in sents),
            exposed_s=sum(sent.exposed_s * sent.times for sent in sents),
            behind=max(behind, key=lambda line: (behind[line], line), default=""),
            behind_s=sum(behind.values()),
        )

    # --- one round of the loops over layers

    def _loops(self, layers: int) -> tuple[ScheduledLoop, ...]:
        """The two longest loops with that many rounds, of which the compiler may move two out of
        the loop; of any loops, where none has.
        """
        rounds = [one for one in self.record.rounds if one.seconds > 0]
        over_layers = [one for one in rounds if 0 <= layers - one.trips <= _MOVED_OUT] or rounds
        longest = sorted(over_layers, key=lambda one: -one.seconds * one.times)[:_LOOPS]
        return tuple(self._loop(one) for one in sorted(longest, key=rounds.index))

    def _loop(self, one: Round) -> ScheduledLoop:
        works = (event.what.instruction for event in one.events if isinstance(event.what, Work))
        name = "backward" if any(BACKWARD in work.op_name for work in works) else "forward"
        long = [event for event in one.events if event.seconds >= _SHORT * one.seconds]
        return ScheduledLoop(
            name=name,
            trips=one.trips,
            round_s=one.seconds,
            events=tuple(self._event(event) for event in long),
        )

    def _event(self, event: SimulatedEvent) -> ScheduledEvent:
        track, kind, name = _described(event)
        return ScheduledEvent(
            track=track,
            kind=kind,
            name=name,
            line=_last(event.lines),
            start_s=event.start_s,
            seconds=event.seconds,
        )


def _described(event: SimulatedEvent) -> tuple[str, str, str]:
    """The track, the kind and the name of an event."""
    if isinstance(event.what, Transfer):
        track = "compute" if event.waits else event.what.link
        return track, "exposed" if event.waits else "transfer", event.what.kind
    if isinstance(event.what, Work):
        return "compute", event.what.kind, event.what.instruction.name
    return "compute", "loop", event.what


def _last(lines: Lines) -> str:
    """The innermost line."""
    return lines[-1] if lines else _UNKNOWN


_DTYPES = {"f32": "fp32"}  # as the Plan calls them
_AGAIN = ".remat"  # in the names of what the compiler itself computes twice, to save memory


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
    return _ScheduleSummary(record, pricing.rates.compute).schedule(layers)


def _send(one: DcnPayload) -> DcnSend:
    return DcnSend(
        name=one.name,
        kind=one.kind,
        dtype=_DTYPES.get(one.dtype, one.dtype),
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
        alike[one.axes, one.kind, _DTYPES.get(one.dtype, one.dtype), one.executed_kind].append(one)
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
        if _AGAIN in instruction.name
        for called in instruction.called
    }
    total: dict[str, float] = defaultdict(float)
    for where, instruction, times in visited:
        if is_product(instruction):
            is_repeated = where.name in repeated or _AGAIN in instruction.name
            total[REPEATED if is_repeated else PRODUCTS] += times * product_flops(
                where, instruction
            )
        elif is_kernel(instruction):
            each = kernel_flops(program, where, instruction) or 0
            total[kernel_name(instruction)] += times * each
    return dict(total)
