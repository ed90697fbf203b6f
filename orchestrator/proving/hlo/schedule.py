"""Price a compiled program operation by operation, in the order in which it is scheduled. Fusions
and copies have the compiler's estimate of cycles, kernels their FLOPs, transfers their links. A
device computes one operation after another; a transfer runs during the operations between its start
and its end, and a wait for its end is exposed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from orchestrator.proving.compiled import GROUPED_MATMUL
from orchestrator.proving.hlo import collectives, flops
from orchestrator.proving.hlo import transfers as moves
from orchestrator.proving.hlo.dataflow import RENDEZVOUS, UnknownTrips, trip_count
from orchestrator.proving.hlo.origins import NOTHING, Kind, Lines, Origins, last_line, only_moves
from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction
from orchestrator.proving.hlo.transfers import START, Transfer, TransferReader, inside, moved_bytes
from orchestrator.values.proof import OTHER_LINE, ComputeRates, ScheduledEvent

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# The compiler for GPUs writes the estimates of several models: the first has any operation, the
# other those whose tiles it has chosen.
_COST = re.compile(
    r'"exec_time_us":([\d.e+\-]+),"compute_time_us":[\d.e+\-]+,'
    r'"memory_access_time_us":([\d.e+\-]+),"name":"(|indexing-cost-model)"'
)
# What moves single elements or rows: these take longer than their bytes.
_SCATTERED = {"gather", "scatter", "sort", "custom-call"}
# With a product in its fusion, these are named: they can slow it down.
_MOVED_IN = {"concatenate", "pad", "copy", "transpose", "maximum"}
_DONE = "-done"
_SPARSE_CORE_THREAD = "sparsecore"


@dataclass(frozen=True)
class Work:
    """An operation that the device computes, once; it runs `times` a step."""

    kind: Kind
    instruction: Instruction
    lines: Lines
    ledger: str  # the kind of the ledger's line that prices it
    seconds: float
    times: int
    flops: float = 0.0
    fused: tuple[str, ...] = ()
    peak: float = 0.0  # FLOPs per second of a product in its type


@dataclass
class Sent:
    """A transfer that has started and runs `times` per step. `behind`: what is computed meanwhile;
    the last three fields are known when the device has waited for its end.
    """

    transfer: Transfer
    lines: Lines
    ledger: str
    times: int
    end_s: float
    work_before: int  # how much the computation itself had computed when it started
    asynchronous: bool = True
    exposed_s: float = 0.0
    behind: tuple[Work, ...] = ()


@dataclass(frozen=True)
class _Round:
    """One round of a loop's body, which runs `trips` times each of the `times` of the loop."""

    name: str
    trips: int
    times: int
    seconds: float
    events: list[ScheduledEvent]


@dataclass
class Record:
    work: list[Work] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    rounds: list[_Round] = field(default_factory=list)
    unpriced: set[str] = field(default_factory=set)


@dataclass
class SchedulePass:
    """One pass over a computation, which runs `times` a step; `record` has all that it runs."""

    program: HloProgram
    transfers: TransferReader
    rates: ComputeRates
    where: Computation
    times: int = 1
    now: float = 0.0
    record: Record = field(default_factory=Record)
    events: list[ScheduledEvent] = field(default_factory=list)
    own: list[Work] = field(default_factory=list)  # what the computation itself computes, in order
    flying: dict[str, Sent] = field(default_factory=dict)
    recent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.origins = Origins(self.program, self.where, self.transfers.exchanges)
        for instruction in self.where.instructions.values():
            handle = next(handle for applies, handle in _HANDLERS if applies(instruction))
            handle(self, instruction)

    # --- control flow

    def loop(self, op: Instruction) -> None:
        try:
            trips = trip_count(self.program, self.where, op)
        except UnknownTrips:
            trips = 1
            self.record.unpriced.add(f"rounds of {op.name}")
        body = self.program.computations[op.attribute("body")[1:]]
        inner = self._called(body, self.times * trips)
        works = (work.instruction.op_name for work in inner.own if work.seconds > 0)
        is_backward = any(collectives.BACKWARD in op_name for op_name in works)
        name = "backward" if is_backward else "forward"
        self.record.rounds.append(_Round(name, trips, self.times * trips, inner.now, inner.events))
        self._join(inner, f"{trips} x {op.name}", trips, op)

    def call(self, op: Instruction) -> None:
        """A call; of a conditional's branches, the longest counts."""
        branches = [self._called(called, self.times) for called in self.program.called(op)]
        if branches:
            self._join(max(branches, key=lambda branch: branch.now), op.name, 1, op)

    def _called(self, where: Computation, times: int) -> "SchedulePass":
        return SchedulePass(self.program, self.transfers, self.rates, where, times)

    def _join(self, inner: "SchedulePass", name: str, trips: int, op: Instruction) -> None:
        self.record.work += inner.record.work
        self.record.sent += inner.record.sent
        self.record.rounds += inner.record.rounds
        self.record.unpriced |= inner.record.unpriced
        seconds = trips * inner.now
        self._event("compute", "loop", name, self.origins.lines(op), self.now, seconds)
        self.now += seconds

    # --- computation

    def compute(self, op: Instruction) -> None:
        """An operation with an estimate: a product, if a product is inside it."""
        cycles, costs = _CYCLES.search(op.rest), _COST.findall(op.rest)
        if cycles:
            estimated_s = int(cycles[1]) / self.rates.clock_hz
        elif costs:
            estimated_s = 1e-6 * float(costs[-1][0])
        else:
            return
        parts = inside(self.program, op) if op.opcode == "fusion" else [(self.where, op)]
        opcodes = {part.opcode for _, part in parts}
        # Estimates of passes and relayouts are up to fifteen times their own bundles, and their
        # bytes take longer than their bundles (docs/proof.md). So are those of products with passes
        # in their fusion, which run at the same time as the products.
        bytes_s = moved_bytes(self.program, self.where, op) / self.transfers.rates.hbm_bytes_per_s
        products = [(at, part) for at, part in parts if flops.is_product(part)]
        if not products:
            kind: Kind = "copy" if only_moves(opcodes) else "other"
            is_pass = cycles is not None and not opcodes & _SCATTERED
            self._spend(kind, op, op, min(estimated_s, bytes_s) if is_pass else estimated_s)
            return
        counted = [flops.product_flops(at, part) for at, part in products]
        at, largest = products[counted.index(max(counted))]
        moved = tuple(sorted(opcodes & _MOVED_IN))
        peak = self._peak(at.operand(largest, 0).arrays[0].dtype)
        if costs:
            # Kernels of products are chosen on a GPU, and none is here: the peak, or the memory.
            seconds = max(sum(counted) / peak, 1e-6 * float(costs[0][1]))
        else:
            rate = peak * self._product_share(at, largest, max(counted))
            seconds = max(sum(counted) / rate, min(estimated_s, bytes_s))
            is_narrow = all(array.dtype != "f32" for array in at.operand(largest, 0).arrays)
            if opcodes <= NOTHING | {largest.opcode} or not is_narrow:
                seconds = max(seconds, estimated_s)
        self._spend("product", largest, op, seconds, sum(counted), moved, peak)

    def _peak(self, dtype: str) -> float:
        """Return FLOPs per second of products of that type: what the compiler widened is wide."""
        wide = self.rates.wide_flops_per_s or self.rates.peak_flops_per_s
        return self.rates.peak_flops_per_s if dtype.startswith("f8") else wide

    def _product_share(self, where: Computation, product: Instruction, counted: float) -> float:
        """Return the share of the peak. The rows of a product are its shortest edge: its FLOPs over
        its largest array.
        """
        operands = [where.operand(product, place) for place in range(len(product.operands))]
        largest = max(part.arrays[0].elements for part in (*operands, product))
        rows = counted / flops.MULTIPLY_AND_ADD / largest
        few = np.interp(np.log2(rows), np.log2(self.rates.rows), self.rates.row_shares)
        return self.rates.product_share * float(few)

    def kernel(self, op: Instruction) -> None:
        counted = flops.kernel_flops(self.program, self.where, op)
        if counted is None:
            self.record.unpriced.add(flops.kernel_name(op))
            return
        # Experts' rows fill whole tiles, so that their matmuls are products like any other.
        is_grouped = flops.kernel_name(op) == GROUPED_MATMUL
        share = self.rates.product_share if is_grouped else self.rates.kernel_share
        self._spend("kernel", op, op, counted / (self._peak("bf16") * share), counted)

    def _spend(
        self,
        kind: Kind,
        op: Instruction,
        outside: Instruction,
        seconds: float,
        counted: float = 0.0,
        fused: tuple[str, ...] = (),
        peak: float = 0.0,
    ) -> None:
        """Compute an operation; `outside` is the fusion that it runs in, or itself."""
        lines = self.origins.said_lines(op) if op is not outside else ()
        ledger = self.origins.said_ledger(op) if op is not outside else ""
        lines = lines or self.origins.lines(outside)
        ledger = ledger or self.origins.ledger(outside)
        work = Work(kind, op, lines, ledger, seconds, self.times, counted, fused, peak)
        self.record.work.append(work)
        self.own.append(work)
        self._event("compute", kind, op.name, work.lines, self.now, seconds)
        self.now += seconds

    def _event(
        self, track: str, kind: str, name: str, lines: Lines, start_s: float, seconds: float
    ) -> None:
        if seconds > 0:
            line = last_line(lines)
            event = ScheduledEvent(
                track=track, kind=kind, name=name, line=line, start_s=start_s, seconds=seconds
            )
            self.events.append(event)

    # --- transfers

    def fusion(self, op: Instruction) -> None:
        """A fusion computes, and may hold a collective, or a part of one."""
        targets = {
            part.quoted("custom_call_target")
            for _, part in inside(self.program, op)
            if part.opcode == "custom-call"
        }
        exchanges = self._collectives(op)
        if moves.ASYNC_DONE in targets:
            # The last part of the work overlaps the end of the transfer.
            self.compute(op)
            self.finish(f"chain {moves.chain_of(self.program, op)}")
        elif moves.ASYNC_START in targets and exchanges:
            self._start(f"chain {moves.chain_of(self.program, op)}", op, *exchanges[0])
            self.compute(op)
        elif exchanges:
            for transfer, ledger in exchanges:
                self._start("now", op, transfer, ledger)
                self.finish("now", asynchronous=False)
        else:
            self.compute(op)

    def _collectives(self, caller: Instruction) -> list[tuple[Transfer, str]]:
        """Collectives that begin inside a fusion or an asynchronous call, with ledger lines."""
        return [
            (self.transfers.collective(where, part, caller), self._sent_ledger(part))
            for where, part in inside(self.program, caller)
            if moves.is_collective(part) and not collectives.is_further_part(part)
        ]

    def _sent_ledger(self, collective: Instruction) -> str:
        return self.origins.said_ledger(collective) or OTHER_LINE

    def collective(self, op: Instruction) -> None:
        transfer = self.transfers.collective(self.where, op, op)
        self._start(op.name, op, transfer, self._sent_ledger(op))
        if not op.opcode.endswith(START):
            self.finish(op.name, asynchronous=False)

    def start(self, op: Instruction) -> None:
        """An asynchronous copy, or an asynchronous call, which may have a collective in it."""
        ledger = self.origins.ledger(op)
        if exchanges := self._collectives(op):
            transfer, ledger = exchanges[0]
        elif op.quoted("async_execution_thread") == _SPARSE_CORE_THREAD:
            transfer = self.transfers.on_sparse_core(op)
        else:
            transfer = self.transfers.copy(op)
            ledger = "offload" if transfer.link == "host" else ledger
        self._start(op.name, op, transfer, ledger)

    def send(self, op: Instruction) -> None:
        if collectives.is_to_other_slices(op):
            transfer = self.transfers.send(op, *collectives.transfer_of(op))
            self._start(op.quoted(RENDEZVOUS), op, transfer, self._sent_ledger(op))

    def receive(self, op: Instruction) -> None:
        """It ends when the data of the other slices has arrived."""
        if op.quoted(RENDEZVOUS) in self.flying:
            self.flying[op.name] = self.flying.pop(op.quoted(RENDEZVOUS))

    def _start(self, name: str, op: Instruction, transfer: Transfer, ledger: str) -> None:
        flying = [other for other in self.recent if other.transfer.meets(transfer)]
        begin, lines = self.now, self.origins.lines(op)
        end_s = begin + transfer.seconds
        if transfer.links is None:  # one after another
            begin = max([begin, *(other.end_s for other in flying)])
            end_s = begin + transfer.seconds
        else:  # links carry packets of all in turn: the shorter of two delays the other by itself
            for other in flying:
                both_s = min(transfer.seconds, max(other.end_s - self.now, 0.0))
                other.end_s, end_s = other.end_s + both_s, end_s + both_s
        sent = Sent(transfer, lines, ledger, self.times, end_s, len(self.own))
        self.recent = [other for other in self.recent if other.end_s > self.now] + [sent]
        self.flying[name] = sent
        self._event(transfer.link, "transfer", transfer.kind, lines, begin, transfer.seconds)

    def finish(self, name: str, asynchronous: bool = True) -> None:
        """Wait for a transfer; one that began in another round has ended."""
        if sent := self.flying.pop(name, None):
            sent.asynchronous, sent.behind = asynchronous, tuple(self.own[sent.work_before :])
            sent.exposed_s = max(0.0, sent.end_s - self.now)
            self.record.sent.append(sent)
            kind = sent.transfer.kind
            self._event("compute", "exposed", kind, sent.lines, self.now, sent.exposed_s)
            self.now += sent.exposed_s


_Handler = Callable[[SchedulePass, Instruction], None]
_HANDLERS: tuple[tuple[Callable[[Instruction], bool], _Handler], ...] = (
    (lambda op: op.opcode == "while", SchedulePass.loop),
    (lambda op: op.opcode in {"call", "conditional"}, SchedulePass.call),
    (lambda op: op.opcode == "fusion", SchedulePass.fusion),
    (moves.is_collective, SchedulePass.collective),
    (lambda op: op.opcode == "send", SchedulePass.send),
    (lambda op: op.opcode == "recv", SchedulePass.receive),
    (lambda op: op.opcode.endswith(START), SchedulePass.start),
    (lambda op: op.opcode.endswith(_DONE), lambda at, op: at.finish(op.operands[0])),
    (flops.is_kernel, SchedulePass.kernel),
    (lambda _: True, SchedulePass.compute),
)
