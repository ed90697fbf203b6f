"""Lay the operations of a trace onto the ledger's lines and the trainer's source lines. At each
moment a device's time belongs to what it computes; else to the transfer that it waits for; else
it is idle, and between two steps it waits for the host.
"""

import gzip
import re
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from statistics import median_low

from orchestrator.errors import TraceUnreadable
from orchestrator.network.mesh_axes import link_of
from orchestrator.proving.hlo.operations import Operation, operations_of
from orchestrator.proving.hlo.origins import Kind, last_line, named_line
from orchestrator.proving.hlo.program import program_of
from orchestrator.proving.hlo.summary import ledger_lines, source_lines
from orchestrator.proving.xspace import Device, Op, Said, check_in_order, read_trace
from orchestrator.values import proof
from orchestrator.values.plan import Plan
from orchestrator.values.profile import HOST, IDLE, TraceNote, TraceSeconds

_S = 1e-12  # a picosecond
_LEAST_NAMED = 0.5  # of the busy seconds: with less, the trace is of another program
_DONE = "-done"  # in the names of waits
_MODULE = re.compile(r"HloModule ([\w.\-]+)")
_FIELD = {"product": "products_s", "kernel": "kernels_s", "copy": "copies_s", "other": "other_s",
          "sent": "exposed_s"}  # fmt: skip
# Kinds of a trace's own categories of operations; a GPU's are the names of kernels.
_CATEGORIES: tuple[tuple[str, Kind | str], ...] = (
    (r"^(while|call|conditional)$", "container"),
    (r"all-|reduce-scatter|collective|nccl|send|recv|-(start|done)|memcpy", "sent"),
    (r"convolution|dot|gemm|matmul|cutlass", "product"),
    (r"custom|fmha|flash|pallas", "kernel"),
    (r"copy|data formatting|transpose|reshape", "copy"),
)
_PLACE = re.compile(r"trainers/.+$|[^/]+/[^/]+$")


def measure(
    content: bytes, name: str, note: TraceNote, plan: Plan, program: bytes | None
) -> TraceSeconds:
    """Return what a trace says of a step. `program` is the text of the program that ran, packed by
    gzip; without it the trace has to say itself what its operations are.
    """
    found, whole = read_trace(content, name), note.platform != "tpu"
    known, module = dict[str, Operation](), ""
    if program is not None:
        try:
            text = gzip.decompress(program).decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise TraceUnreadable(f"the program next to {name} is damaged: {error}") from error
        heading = _MODULE.match(text)
        module = heading[1] if heading else ""
        known = operations_of(program_of(text), plan, note.places, whole=whole)
    else:  # the module that ran longest is the step
        busy_s: dict[str, int] = defaultdict(int)
        for device in found:
            for ran, ops in device.ops.items():
                busy_s[ran] += sum(end - start for start, end, _ in ops)
        module = max(busy_s, key=lambda ran: busy_s[ran])
    devices = [device for device in found if device.ops.get(module)]
    if not devices:
        ran = ", ".join(sorted({ran for device in found for ran in device.ops}))
        raise TraceUnreadable(f"{name} has no step of this run: it is of {ran}, not of {module}")
    tables = [_Table(device, module, known) for device in devices]
    busy = sum(table.busy_s for table in tables)
    named = sum(table.named_s for table in tables) / busy if busy else 0.0
    if known and named < _LEAST_NAMED:
        raise TraceUnreadable(
            f"{name} is of another program: {1 - named:.0%} of its seconds are in operations that"
            f" the program of plan {plan.digest[:8]} does not have"
        )
    joined, count = _Joined(tables), len(tables)
    return TraceSeconds(
        note=note,
        names="program" if known else "trace",
        named=named,
        devices=count,
        steps=min(table.steps for table in tables),
        step_s=sum(table.step_s for table in tables) / count,
        ledger=joined.ledger(),
        lines=joined.lines(),
        collectives=joined.collectives(),
    )


def _exclusive(ops: Iterable[Op], priority: Mapping[str, int]) -> tuple[dict[str, int], list[Op]]:
    """Return picoseconds that are an operation's own: of those that run at once, those of the one
    with the highest priority that began last; and the gaps in which nothing runs.
    """
    numbered = list(ops)
    points = [(start, 1, i) for i, (start, end, _) in enumerate(numbered) if end > start]
    points += [(end, 0, i) for i, (start, end, _) in enumerate(numbered) if end > start]
    own: dict[str, int] = defaultdict(int)
    gaps: list[Op] = []
    running: list[tuple[int, int, int]] = []
    ended, now = set[int](), 0
    for at, begins, i in sorted(points):
        while running and running[0][2] in ended:
            heappop(running)
        if running:
            own[numbered[running[0][2]][2]] += at - now
        elif own and at > now:
            gaps.append((now, at, ""))
        now = at
        if begins:
            start, _, name = numbered[i]
            heappush(running, (-priority.get(name, 2), -start, i))
        else:
            ended.add(i)
    return own, gaps


class _Table:
    """The seconds of one device, all steps together."""

    def __init__(self, device: Device, module: str, known: Mapping[str, Operation]) -> None:
        ops = device.ops[module]
        names = {name for _, _, name in (*ops, *device.sent)}
        self.operations = {
            name: known.get(name) or _said(name, device.said.get(name, Said())) for name in names
        }
        spans = sorted(device.executions.get(module, [])) or self._rounds(ops)
        if not spans:
            raise TraceUnreadable(f"the trace has no whole step on {device.name}")
        check_in_order(spans, device.name)
        first, last = spans[0][0], max(end for _, end in spans)
        self.steps, self.step_s = len(spans), _S * (last - first) / len(spans)
        inside = [(max(start, first), min(end, last), name) for start, end, name in ops]
        level = {"sent": 1, None: 0}
        own, gaps = _exclusive(
            inside, {name: level.get(op.kind, 2) for name, op in self.operations.items()}
        )
        self.own_s = {name: _S * spent / self.steps for name, spent in own.items()}
        between = [(end, start) for (_, end), (start, _) in pairwise(spans)]
        starts = [start for start, _, _ in gaps]
        waited = sum(
            max(0, min(end, stop) - max(start, begin))
            for begin, stop in between
            for start, end, _ in gaps[
                max(bisect_left(starts, begin) - 1, 0) : bisect_left(starts, stop)
            ]
        )
        self.host_s = _S * waited / self.steps
        self.idle_s = max(self.step_s - sum(self.own_s.values()) - self.host_s, 0.0)
        self.busy_s = sum(self.own_s.values())
        self.named_s = sum(s for name, s in self.own_s.items() if name in known)
        # Links are busy while an operation sends; of one that runs during others, the trace has
        # either the whole transfer or only the wait for its end.
        self.wire_s: dict[str, float] = defaultdict(float)
        self.calls: dict[str, float] = defaultdict(float)
        sent = [op for op in device.sent if first <= op[0] < last]
        waits = [op for op in inside if self.operations[op[2]].kind == "sent"]
        if sent:
            whole = {op[2] for op in sent}
            waits = [op for op in waits if op[2] not in whole and _DONE not in op[2]]
        for start, end, name in (*waits, *sent):
            self.wire_s[name] += _S * (end - start) / self.steps
            self.calls[name] += 1 / self.steps

    def _rounds(self, ops: list[Op]) -> list[tuple[int, int]]:
        """Return the steps where the trace names none: each runs once what is outside of loops."""
        by_name: dict[str, list[Op]] = defaultdict(list)
        for op in sorted(ops):
            if self.operations[op[2]].once:
                by_name[op[2]].append(op)
        if not by_name:
            return [(min(op[0] for op in ops), max(op[1] for op in ops))]
        count = median_low(len(rounds) for rounds in by_name.values())
        rounds = [each for each in by_name.values() if len(each) == count]
        # A step ends with the last of these, and begins with whatever comes after the one before.
        ends = [max(each[i][1] for each in rounds) for i in range(count)]
        begins = list(ends)
        for start, end, _ in ops:
            if (i := bisect_left(ends, end)) < count:
                begins[i] = min(begins[i], start)
        return list(zip(begins, ends, strict=True))


class _Joined:
    """The tables of all devices as means, in the values of a proof's schedule."""

    def __init__(self, tables: list[_Table]) -> None:
        self.tables, self.share = tables, 1 / len(tables)

    def ledger(self) -> tuple[proof.ScheduledLedgerLine, ...]:
        zero = dict.fromkeys(("computed_s", "exposed_s", "wire_s"), 0.0)
        sums: dict[str, dict[str, float]] = defaultdict(lambda: dict(zero))
        for table in self.tables:
            for name, seconds in table.own_s.items():
                operation = table.operations[name]
                what = "exposed_s" if operation.kind == "sent" else "computed_s"
                sums[operation.ledger][what] += self.share * seconds
            for name, seconds in table.wire_s.items():
                sums[table.operations[name].ledger]["wire_s"] += self.share * seconds
            sums[IDLE]["exposed_s"] += self.share * table.idle_s
            sums[HOST]["exposed_s"] += self.share * table.host_s
        return ledger_lines(sums)

    def lines(self) -> tuple[proof.ScheduledLine, ...]:
        zero = dict.fromkeys((*_FIELD.values(), "flops"), 0.0)
        sums: dict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: dict(zero))
        for table in self.tables:
            for name, seconds in table.own_s.items():
                operation = table.operations[name]
                field = _FIELD[operation.kind or "other"]
                sums[operation.lines][field] += self.share * seconds
        return source_lines(sums)

    def collectives(self) -> tuple[proof.ScheduledCollective, ...]:
        """Transfers by kind, axes and source line. A trace has no bytes, and names no algorithm."""
        sums: dict[tuple[str, tuple[str, ...], str], list[float]] = defaultdict(lambda: [0.0] * 3)
        for table in self.tables:
            sent = {name for name in table.own_s if table.operations[name].kind == "sent"}
            for name in sorted(sent | table.wire_s.keys()):
                operation = table.operations[name]
                kind, axes = operation.transfer
                wire_s, calls = table.wire_s.get(name, 0.0), table.calls.get(name, 0.0)
                figures = table.own_s.get(name, 0.0), wire_s, calls
                total = sums[kind, axes, last_line(operation.lines)]
                for i, figure in enumerate(figures):
                    total[i] += self.share * figure
        found = [
            proof.ScheduledCollective(
                kind=kind,
                axes=axes,
                link=link_of(axes) if axes else "host" if "host" in kind else "hbm",
                algorithm="",
                asynchronous=wire_s > exposed_s,
                line=line,
                calls_per_step=calls,
                bytes_per_step=0.0,
                wire_s=wire_s,
                exposed_s=exposed_s,
                behind="",
                behind_s=0.0,
            )
            for (kind, axes, line), (exposed_s, wire_s, calls) in sums.items()
        ]
        return tuple(sorted(found, key=lambda sent: (-sent.exposed_s, -sent.wire_s, sent.line)))


def _said(name: str, said: Said) -> Operation:
    """Return what the trace itself says of an operation of no known program."""
    words = said.category or name
    kind = next((kind for pattern, kind in _CATEGORIES if re.search(pattern, words)), "other")
    place = _PLACE.search(said.source)
    lines = (place[0],) if place else ()
    transfer = (re.sub(r"(-start|-done)?[.\d]*$", "", name) if kind == "sent" else "", ())
    ledger = named_line(f"{said.op_name}/" if said.op_name else "") or proof.OTHER_LINE
    return Operation(None if kind == "container" else kind, ledger, lines, transfer)
