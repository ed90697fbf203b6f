"""What a trace of some steps says: seconds of a step by the ledger's lines and by source lines."""

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.notes import Note
from orchestrator.values.codec import Shown, Value
from orchestrator.values.plan import Plan
from orchestrator.values.proof import ScheduledCollective, ScheduledLedgerLine, ScheduledLine

PROFILE_SCHEMA = 1
TRACES = "profile"  # a folder of a run; below it one for each range of steps, and in it each rank's
PROGRAM, TRACE, SECONDS = "program.hlo.gz", "trace.json", "seconds.json"

# Lines of a profile that no line of the ledger prices, besides `other`: the device does nothing
# inside a step, or waits for the host to begin the next one.
IDLE, HOST = "idle", "host"

_ProfileNoteCode = Literal[
    "by_names", "clock_jumped", "few_names", "other_plan", "ranks_differ", "steps_cut", "unread",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProfileNote(Note):
    """What a reader of a profile should know: a code, and its figures."""

    code: _ProfileNoteCode


class TraceNote(Value):
    """The plan and steps behind a trace, written next to it by the process that took it. `places`
    has the place of each partition of the program in the plan's mesh; none where they are in order.
    """

    plan_digest: str
    rank: int
    first_step: int
    end_step: int
    platform: str
    device_kind: str
    places: tuple[int, ...] = ()


_MOST_RANKS = 4  # of one run: a slice differs from the others more than its hosts from each other


def traced_ranks(plan: Plan) -> range:
    """Return the ranks that trace: the first of each slice, of at most four slices."""
    return range(0, min(plan.pods, _MOST_RANKS) * plan.hosts_per_slice, plan.hosts_per_slice)


class TraceSeconds(Value):
    """Seconds of one step and device in one rank's trace: the mean of `steps` steps on `devices`.

    `ledger` adds up to `step_s`, with lines `idle` and `host`. `lines` are the source lines, and
    `collectives` each kind by its axes; their fields are those of a proof's schedule. `named` is
    the share of the busy seconds whose operations are in the program. `names` says where what is
    known of the operations is from: the `program` that ran, or the `trace` alone.
    """

    schema: int = PROFILE_SCHEMA
    note: TraceNote
    names: Literal["program", "trace"]
    named: float
    devices: int
    steps: int
    step_s: float
    ledger: tuple[ScheduledLedgerLine, ...]
    lines: tuple[ScheduledLine, ...]
    collectives: tuple[ScheduledCollective, ...]


class ProfileLine(Value):
    """A line of the ledger as each witness sees it, in seconds of one step and device; None where
    a witness has no such line.

    `lower` is at peak rates, with nothing hidden; `scheduled` is the compiler's. `expected` speaks
    of whole parts of a step: the first line of each `part` has it. `measured` is what is computed
    and what is waited for; `exposed_s` the latter, and `wire_s` all time of its transfers.
    """

    kind: str
    part: str
    lower_s: float | None
    scheduled_s: float | None
    measured_s: float
    exposed_s: float
    wire_s: float
    expected_s: float | None = None
    slowest_rank: int | None = None


class Profile(Shown, Value):
    """Measured seconds of a step, line by line, next to what was predicted: the mean of the ranks
    that were traced.

    `lines` adds up to `step_s`. A line has a `slowest_rank` where that rank computes it for a
    quarter longer than the others, and a fiftieth of the step. `not_compared` says why predictions
    are missing. `sources` and `collectives` are those of the first rank.
    """

    schema: int = PROFILE_SCHEMA
    run: str
    plan_digest: str
    first_step: int
    end_step: int
    platform: str
    device_kind: str
    ranks: tuple[int, ...]
    folder: str
    step_s: float
    lower_s: float | None
    scheduled_s: float | None
    expected_s: float | None
    not_compared: Literal["cpu_rehearsal"] | None
    lines: tuple[ProfileLine, ...]
    sources: tuple[ScheduledLine, ...]
    collectives: tuple[ScheduledCollective, ...]
    notes: tuple[ProfileNote, ...] = ()

    def _line(self) -> str:
        largest = max(self.lines, key=lambda line: line.measured_s)
        return f"{self.run}: a step of {self.step_s:.3g} s, {largest.kind} takes most of it"

    def _rows(self) -> list[dict[str, Any]]:
        names = ("kind", "part", "lower_s", "scheduled_s", "expected_s", "measured_s", "exposed_s",
                 "wire_s")  # fmt: skip
        return [{name: getattr(line, name) for name in names} for line in self.lines]
