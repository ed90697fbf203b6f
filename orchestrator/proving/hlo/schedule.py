"""Price a compiled program operation by operation, in the order in which it is scheduled.

The compiler writes its estimate of cycles to every fusion and copy. Kernels are priced by their
FLOPs, transfers by their links. A device computes one operation after another. A transfer that
starts in one operation and ends in another runs beside those between; where its end comes first,
the device waits, and that wait is exposed.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from orchestrator.proving.hlo.collectives import is_to_other_slices, transfer_of
from orchestrator.proving.hlo.dataflow import RENDEZVOUS
from orchestrator.proving.hlo.execution_counts import UnknownTrips, trip_count
from orchestrator.proving.hlo.flops import (
    is_kernel,
    is_product,
    kernel_flops,
    kernel_name,
    product_flops,
)
from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction, numbers
from orchestrator.proving.hlo.transfers import (
    ASYNC_DONE,
    ASYNC_START,
    START,
    Transfer,
    TransferReader,
    chain_of,
    collectives_in,
    inside,
    is_collective,
    is_on_sparse_core,
)
from orchestrator.values.proof import ComputeRates

# The source lines of every instruction, also of those that the compiler makes and names none
# for.


Lines = tuple[str, ...]


class _Attribution:
    """Lines of the instructions of one computation, the outermost first."""

    def __init__(self, program: HloProgram, where: Computation) -> None:
        self.program, self.where = program, where
        self.known: dict[str, Lines] = {}

    def lines(self, one: Instruction) -> Lines:
        if one.name not in self.known:
            self.known[one.name] = (
                self._own(one)
                or self._nearest(one, lambda at: at.operands)
                or self._nearest(one, lambda at: self._readers[at.name])
            )
        return self.known[one.name]

    def _own(self, one: Instruction) -> Lines:
        if lines := self.program.sources.program_lines(one.frame):
            return lines
        if one.opcode != "fusion":
            return ()
        [fused] = self.program.called(one)
        # What a fusion contains, its result first.
        inner = (
            self.program.sources.program_lines(x.frame)
            for x in list(fused.instructions.values())[::-1]
        )
        return next(filter(None, inner), ())

    def _nearest(self, one: Instruction, near: Callable[[Instruction], Iterable[str]]) -> Lines:
        seen, todo = {one.name}, deque([one])
        while todo:
            at = todo.popleft()
            for name in near(at):
                other = self.where.instructions.get(name)
                if other is None or name in seen:
                    continue
                if lines := self._own(other):
                    return lines
                seen.add(name)
                todo.append(other)
        return ()

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        readers: dict[str, list[str]] = defaultdict(list)
        for one in self.where.instructions.values():
            for operand in one.operands:
                readers[operand].append(one.name)
        return readers


_Kind = Literal["product", "kernel", "copy", "other"]
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# What moves data and computes nothing, alone or inside a fusion.
_RELAYOUTS = {"copy", "transpose", "reshape", "concatenate", "pad", "slice", "dynamic-slice"}
_RELAYOUTS |= {"dynamic-update-slice", "reverse", "gather"}
_NOTHING = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "iota", "broadcast"}
_NOTHING |= {"fusion", "convert", "maximum", "select", "compare", "after-all"}
# Beside a product in its fusion, these are named: they can slow it down.
_MOVED_IN = {"concatenate", "pad", "copy", "transpose", "maximum"}
_DONE = "-done"


@dataclass(frozen=True)
class Work:
    """An operation that the device computes, once; it runs `times` a step."""

    kind: _Kind
    instruction: Instruction
    lines: Lines
    seconds: float
    times: int
    flops: float = 0.0
    fused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sent:
    """A transfer, once; it runs `times` a step. `behind`: what is computed meanwhile."""

    transfer: Transfer
    asynchronous: bool
    lines: Lines
    times: int
    exposed_s: float
    behind: tuple[Work, ...] = ()


@dataclass(frozen=True)
class SimulatedEvent:
    """What a computation does at a time, in one round."""

    start_s: float
    seconds: float
    what: Work | Transfer | str
    lines: Lines
    waits: bool = False


@dataclass
class Round:
    """One round of a loop's body."""

    loop: Instruction
    trips: int
    times: int
    seconds: float
    events: list[SimulatedEvent]


@dataclass
class Record:
    """All that runs in a step."""

    work: list[Work] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    unpriced: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _OnItsWay:
    """A transfer that has started: when it ends, and what had been computed before it."""

    transfer: Transfer
    end_s: float
    lines: Lines
    work_before: int


def schedule_of(program: HloProgram, transfers: TransferReader, rates: ComputeRates) -> Record:
    """Everything that a step runs, with seconds."""
    return _run(program, transfers, rates, program.entry, 1).record


def _run(
    program: HloProgram,
    transfers: TransferReader,
    rates: ComputeRates,
    where: Computation,
    times: int,
) -> "_SchedulePass":
    run = _SchedulePass(program, transfers, rates, where, times)
    for instruction in where.instructions.values():
        run.step(instruction)
    return run


class _SchedulePass:
    """One pass over a computation, which runs `times` a step."""

    def __init__(
        self,
        program: HloProgram,
        transfers: TransferReader,
        rates: ComputeRates,
        where: Computation,
        times: int,
    ) -> None:
        self.program, self.transfers, self.rates = program, transfers, rates
        self.where, self.times = where, times
        self.attribution = _Attribution(program, where)
        self.now = 0.0
        self.record, self.events = Record(), list[SimulatedEvent]()
        self.own = list[Work]()  # what this computation itself computes, in order
        self.flying, self.recent = dict[str, _OnItsWay](), list[_OnItsWay]()

    def step(self, one: Instruction) -> None:
        """Run one instruction."""
        for applies, handle in _HANDLERS:
            if applies(one):
                handle(self, one)
                return

    # --- control flow

    def loop(self, one: Instruction) -> None:
        try:
            trips = trip_count(self.program, self.where, one)
        except UnknownTrips:
            trips = 1
            self.record.unpriced.add(f"rounds of {one.name}")
        body = self.program.computations[one.attribute("body")[1:]]
        inner = self._called(body, self.times * trips)
        self.record.rounds.append(Round(one, trips, self.times * trips, inner.now, inner.events))
        self._join(inner)
        self._event(f"{trips} x {one.name}", trips * inner.now, self._lines(one))
        self.now += trips * inner.now

    def call(self, one: Instruction) -> None:
        """A call; of a conditional's branches, the longest counts."""
        branches = [self._called(called, self.times) for called in self.program.called(one)]
        if branches:
            longest = max(branches, key=lambda branch: branch.now)
            self._join(longest)
            self._event(one.name, longest.now, self._lines(one))
            self.now += longest.now

    def _called(self, where: Computation, times: int) -> "_SchedulePass":
        return _run(self.program, self.transfers, self.rates, where, times)

    def _join(self, inner: "_SchedulePass") -> None:
        self.record.work += inner.record.work
        self.record.sent += inner.record.sent
        self.record.rounds += inner.record.rounds
        self.record.unpriced |= inner.record.unpriced

    # --- computation

    def compute(self, one: Instruction) -> None:
        """What the compiler gives cycles for."""
        cycles = _CYCLES.search(one.rest)
        if cycles:
            self._spend(self._work(one, int(cycles[1]) / self.rates.clock_hz))

    def kernel(self, one: Instruction) -> None:
        flops = kernel_flops(self.program, self.where, one)
        if flops is None:
            self.record.unpriced.add(kernel_name(one))
            return
        seconds = flops / (self.rates.peak_flops_per_s * self.rates.kernel_share)
        self._spend(Work("kernel", one, self._lines(one), seconds, self.times, flops))

    def reduction(self, one: Instruction) -> None:
        """A reduction by itself. Where it adds whole tiles, the compiler's estimate is up to thirty
        times its own bundles (docs/proof.md), and its bytes take longer than its additions.
        """
        summed = self.where.operand(one, 0).arrays[0]
        if set(numbers(one.braced("dimensions"))) & set(summed.minor_dimensions[:2]):
            self.compute(one)
            return
        moved = summed.bytes + sum(array.bytes for array in one.arrays)
        seconds = moved / self.transfers.rates.hbm_bytes_per_s
        self._spend(Work("other", one, self._lines(one), seconds, self.times))

    def _work(self, one: Instruction, seconds: float) -> Work:
        """The kind of work of an instruction: a product, if a product is inside it."""
        parts = inside(self.program, one) if one.opcode == "fusion" else [(self.where, one)]
        opcodes = {part.opcode for _, part in parts}
        products = [(at, part) for at, part in parts if is_product(part)]
        if not products:
            is_move = bool(opcodes & _RELAYOUTS) and opcodes <= _RELAYOUTS | _NOTHING
            kind: _Kind = "copy" if is_move else "other"
            return Work(kind, one, self._lines(one), seconds, self.times)
        flops = [product_flops(at, part) for at, part in products]
        _, largest = products[flops.index(max(flops))]
        lines = self.program.sources.program_lines(largest.frame) or self._lines(one)
        moved = tuple(sorted(opcodes & _MOVED_IN))
        return Work("product", largest, lines, seconds, self.times, sum(flops), moved)

    def _lines(self, one: Instruction) -> Lines:
        return self.attribution.lines(one)

    def _spend(self, work: Work) -> None:
        self.record.work.append(work)
        self.own.append(work)
        self._event(work, work.seconds, work.lines)
        self.now += work.seconds

    def _event(self, what: Work | Transfer | str, seconds: float, lines: Lines) -> None:
        if seconds > 0:
            self.events.append(SimulatedEvent(self.now, seconds, what, lines))

    # --- transfers

    def fusion(self, one: Instruction) -> None:
        """A fusion computes, and may hold a collective, or a part of one."""
        targets = {
            part.quoted("custom_call_target")
            for _, part in inside(self.program, one)
            if part.opcode == "custom-call"
        }
        collectives = collectives_in(self.program, one)
        if ASYNC_DONE in targets:
            # The last part of the work overlaps the end of the transfer.
            self.compute(one)
            self._finish(f"chain {chain_of(self.program, one)}")
        elif ASYNC_START in targets and collectives:
            where, collective = collectives[0]
            transfer = self.transfers.collective(where, collective, one)
            self._start(f"chain {chain_of(self.program, one)}", transfer, self._lines(one))
            self.compute(one)
        elif collectives:
            for where, collective in collectives:
                transfer = self.transfers.collective(where, collective, one)
                self._wait_for(transfer, self._lines(one))
        else:
            self.compute(one)

    def collective(self, one: Instruction) -> None:
        transfer = self.transfers.collective(self.where, one, one)
        if one.opcode.endswith(START):
            self._start(one.name, transfer, self._lines(one))
        else:
            self._wait_for(transfer, self._lines(one))

    def start(self, one: Instruction) -> None:
        """An asynchronous copy, or an asynchronous call, which may have a collective in it."""
        collectives = collectives_in(self.program, one)
        if collectives:
            where, collective = collectives[0]
            transfer = self.transfers.collective(where, collective, one)
        elif is_on_sparse_core(one):
            transfer = self.transfers.on_sparse_core(one)
        else:
            transfer = self.transfers.copy(one)
        self._start(one.name, transfer, self._lines(one))

    def send(self, one: Instruction) -> None:
        if is_to_other_slices(one):
            transfer = self.transfers.send(one, *transfer_of(one))
            self._start(one.quoted(RENDEZVOUS), transfer, self._lines(one))

    def receive(self, one: Instruction) -> None:
        """It ends when what the other slices send has arrived."""
        if one.quoted(RENDEZVOUS) in self.flying:
            self.flying[one.name] = self.flying.pop(one.quoted(RENDEZVOUS))

    def done(self, one: Instruction) -> None:
        self._finish(one.operands[0])

    def _start(self, name: str, transfer: Transfer, lines: Lines) -> None:
        ends = [it.end_s for it in self.recent if it.transfer.waits_for(transfer)]
        begin = max([self.now, *ends])
        flying = _OnItsWay(transfer, begin + transfer.seconds, lines, len(self.own))
        self.recent = [it for it in self.recent if it.end_s > self.now] + [flying]
        self.flying[name] = flying
        if transfer.seconds > 0:
            self.events.append(SimulatedEvent(begin, transfer.seconds, transfer, lines))

    def _finish(self, name: str) -> None:
        """Wait for a transfer; one that began in another round has ended."""
        flying = self.flying.pop(name, None)
        if flying is None:
            return
        waited = max(0.0, flying.end_s - self.now)
        behind = tuple(self.own[flying.work_before :])
        self.record.sent.append(
            Sent(flying.transfer, True, flying.lines, self.times, waited, behind)
        )
        self._expose(flying.transfer, waited, flying.lines)

    def _wait_for(self, transfer: Transfer, lines: Lines) -> None:
        """A synchronous transfer: the device waits from its start to its end."""
        self._start("now", transfer, lines)
        flying = self.flying.pop("now")
        waited = flying.end_s - self.now
        self.record.sent.append(Sent(transfer, False, lines, self.times, waited))
        self._expose(transfer, waited, lines)

    def _expose(self, transfer: Transfer, seconds: float, lines: Lines) -> None:
        if seconds > 0:
            self.events.append(SimulatedEvent(self.now, seconds, transfer, lines, waits=True))
            self.now += seconds


_Handler = Callable[[_SchedulePass, Instruction], None]
_HANDLERS: tuple[tuple[Callable[[Instruction], bool], _Handler], ...] = (
    (lambda one: one.opcode == "while", _SchedulePass.loop),
    (lambda one: one.opcode in {"call", "conditional"}, _SchedulePass.call),
    (lambda one: one.opcode == "fusion", _SchedulePass.fusion),
    (is_collective, _SchedulePass.collective),
    (lambda one: one.opcode == "send", _SchedulePass.send),
    (lambda one: one.opcode == "recv", _SchedulePass.receive),
    (lambda one: one.opcode.endswith(START), _SchedulePass.start),
    (lambda one: one.opcode.endswith(_DONE), _SchedulePass.done),
    (is_kernel, _SchedulePass.kernel),
    (lambda one: one.opcode == "reduce", _SchedulePass.reduction),
    (lambda _: True, _SchedulePass.compute),
)
