"""A fleet of slices that fail by dice, and a driver on it, by a clock that jumps from look to look.

The driver, its monitor and their decisions are real. What is simulated is the cluster with its
ranks, and the disk of the journal: events go through the journal's own rules. A few ranks of each
slice stand for all of them.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

from orchestrator.drive.driver import Driver
from orchestrator.drive.monitor import Clock
from orchestrator.formatting import DAY_S
from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Claimed,
    Ended,
    Pending,
    Submitted,
)
from orchestrator.journal.heartbeat import Heartbeat
from orchestrator.journal.run_state import (
    Observation,
    RunState,
    StepSummary,
    apply,
    build_run,
    initial,
    violation,
)
from orchestrator.launch.backend import AttemptEvent, AttemptSpec, Slice, WorkerArgs
from orchestrator.values.plan import Plan
from orchestrator.values.run import (
    Attempt,
    AttemptReason,
    EndState,
    Run,
    SavedCheckpoint,
    StateReason,
    TimedStep,
    WrittenSteps,
)
from orchestrator.values.spec import Spec
from tests.journals import ME, SUBMITTED, step

RANKS = 2  # that stand for all of a slice
Fault = Literal["machine", "cable", "hang"]


@dataclass(frozen=True, kw_only=True)
class Times:
    """How often a slice fails, and the seconds of all that a run does."""

    machines_per_day: float
    cables_per_day: float
    hang_share: float
    node_loss_s: float
    repair_s: float
    reroute_s: float
    ready_s: float
    step_s: float
    every: int
    blocking_s: float
    write_s: float


@dataclass
class SimulatedClock:
    """Time that passes when somebody waits."""

    now_s: float = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class SimulatedSlice:
    """A slice: until when it is out, and when it fails next."""

    name: str
    out_until_s: float = 0.0
    fails_at_s: float = inf
    fault: Fault = "machine"


@dataclass
class Fleet:
    """The cluster: a backend whose attempts run on slices that fail."""

    times: Times
    slices: int
    pods: int
    clock: SimulatedClock
    dice: random.Random
    steps: int
    faults: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.all = [SimulatedSlice(f"pod-{number}") for number in range(self.slices)]
        for held in self.all:
            self.draw(held)
        self.current: SimulatedAttempt | None = None

    def draw(self, one: SimulatedSlice) -> None:
        """When and how a slice that is whole fails next."""
        machines, cables = self.times.machines_per_day, self.times.cables_per_day
        begins_s = max(one.out_until_s, self.clock.now_s)
        one.fails_at_s = begins_s + self.dice.expovariate((machines + cables) / DAY_S)
        broken = self.dice.random() < machines / (machines + cables)
        one.fault = "machine" if broken else "cable"
        if self.dice.random() < self.times.hang_share:
            one.fault = "hang"

    def strike(self) -> None:
        """Let every failure strike whose time has come."""
        for held in self.all:
            while held.fails_at_s <= self.clock.now_s:
                out_s = {"machine": self.times.repair_s, "cable": self.times.reroute_s, "hang": 0.0}
                held.out_until_s = held.fails_at_s + out_s[held.fault]
                self.faults[held.fault] = self.faults.get(held.fault, 0) + 1
                if self.current:
                    self.current.strike(held)
                self.draw(held)

    def shown(self) -> tuple[Slice, ...]:
        """The slices as the cluster sees them."""
        self.strike()
        used = self.current.used if self.current and self.current.running else ()
        return tuple(
            Slice(
                name=held.name,
                hosts=1 if held.out_until_s > self.clock.now_s else 2,
                size=2,
                free=held.name not in used,
            )
            for held in self.all
        )

    def attempt(self, spec: AttemptSpec) -> "SimulatedAttempt":
        self.current = SimulatedAttempt(self, spec.claim)
        return self.current

    def read(self, _: Path, attempt: int) -> dict[int, Heartbeat]:
        """The heartbeats of the ranks of an attempt."""
        self.strike()
        current = self.current
        return current.heartbeats() if current and current.number == attempt else {}


@dataclass
class SimulatedAttempt:
    """An attempt whose ranks do steps and saves until something fails."""

    fleet: Fleet
    claim: int
    number: int = 0
    used: tuple[str, ...] = ()
    running: bool = False
    began_s: float = 0.0
    restored: int = 0
    failed_s: float = inf
    failed: SimulatedSlice | None = None
    fault: Fault = "machine"
    heartbeat_s: float = 1.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.running = False

    def start(self, args: WorkerArgs, slices: Sequence[str]) -> None:
        self.number, self.used, self.running = args.attempt, tuple(slices), True
        self.heartbeat_s = args.heartbeat_s
        self.restored = args.saves[-1].step if args.saves else 0
        self.began_s = self.fleet.clock.now_s

    def slices(self) -> tuple[Slice, ...]:
        return self.fleet.shown()

    def strike(self, one: SimulatedSlice) -> None:
        if self.running and one.name in self.used and one.fails_at_s < self.failed_s:
            self.failed_s, self.failed, self.fault = one.fails_at_s, one, one.fault

    def next_event(self, timeout_s: float) -> AttemptEvent | None:
        clock, fleet = self.fleet.clock, self.fleet
        if not self.running:
            clock.wait(timeout_s)
            return AttemptEvent(slices=fleet.shown())
        fleet.strike()
        ends_s = self.ends_s()
        clock.wait(min(timeout_s, max(ends_s - clock.now_s, 0.0)))
        fleet.strike()
        if clock.now_s < self.ends_s():
            return None
        if self.failed_s < inf:
            return AttemptEvent(ended=True, error=f"a rank of {self.number} is gone: {self.fault}")
        return AttemptEvent(ended=True)

    def ends_s(self) -> float:
        """When the cluster says that the attempt has ended."""
        if self.fault == "hang" and self.failed_s < inf:
            return inf
        if self.failed_s < inf:
            return self.failed_s + self.fleet.times.node_loss_s
        return self.time_of(self.fleet.steps) + self.fleet.times.write_s

    # --- what its ranks have done

    @property
    def own_step_s(self) -> float:
        return self.fleet.times.step_s * self.fleet.pods / len(self.used)

    @property
    def cycle_s(self) -> float:
        return self.fleet.times.every * self.own_step_s + self.fleet.times.blocking_s

    def time_of(self, steps: int) -> float:
        """When so many steps of the run are done."""
        cycles, rest = divmod(steps - self.restored, self.fleet.times.every)
        work_s = cycles * self.cycle_s + rest * self.own_step_s
        return self.began_s + self.fleet.times.ready_s + work_s

    def working_s(self) -> float:
        until_s = min(self.fleet.clock.now_s, self.failed_s)
        return until_s - self.began_s - self.fleet.times.ready_s

    def steps_done(self) -> int:
        """Steps of the run that are done, from the first one; 0 before this attempt did one."""
        working_s, times = self.working_s(), self.fleet.times
        if working_s < self.own_step_s:
            return 0
        cycles, rest_s = divmod(working_s, self.cycle_s)
        done = int(cycles) * times.every + min(int(rest_s / self.own_step_s), times.every)
        return min(self.restored + done, self.fleet.steps)

    def saved(self) -> SavedCheckpoint | None:
        """The newest checkpoint that is whole."""
        saves = int((self.working_s() - self.fleet.times.write_s) // self.cycle_s)
        every = self.fleet.times.every
        if saves < 1:
            return None
        number = min(self.restored + saves * every, self.fleet.steps)
        return SavedCheckpoint(claim=self.claim, attempt=self.number, step=number, sha256="")

    def heartbeats(self) -> dict[int, Heartbeat]:
        now_s, done, saved = self.fleet.clock.now_s, self.steps_done(), self.saved()
        if now_s < self.began_s + self.fleet.times.ready_s / 2:
            return {}  # its processes have not started
        beats = {}
        for rank in range(RANKS * len(self.used)):
            name = self.used[rank // RANKS]
            dead = self.failed is not None and self.fault != "hang" and name == self.failed.name
            at_s = min(now_s, self.failed_s) if dead else now_s
            beats[rank] = Heartbeat(
                rank=rank,
                slice_name=name,
                process=ME,
                at_s=at_s // self.heartbeat_s * self.heartbeat_s,
                steps=max(done - self.restored, 0),
                saved=saved if rank == 0 else None,
            )
        return beats


class MemoryWriter:
    """The writer of a journal whose events are in memory, by the journal's own rules."""

    def __init__(self, spec: Spec, plan: Plan, steps: int, clock: SimulatedClock) -> None:
        self.clock, self.plan_, self.spec_ = clock, plan, spec
        self.before, self.path = None, Path("/nonexistent/simulated")
        self.trace_request = None  # nobody asks for a trace
        submission = replace(
            SUBMITTED.submission, plan_digest=plan.digest, pods=plan.pods, steps=steps
        )
        self._state = apply(
            initial(Submitted(at_s=0.0, submission=submission)),
            2,
            Claimed(at_s=0.0, driver=ME, heartbeat_s=2.0),
        )
        self.number = self._state.writer
        self.done: dict[int, StepSummary] = {}
        self.fleet: Fleet | None = None

    # --- as a journal

    @property
    def journal(self) -> "MemoryWriter":
        return self

    def spec(self) -> Spec:
        return self.spec_

    def state(self) -> RunState:
        return self._state

    def plan(self, _: str) -> Plan:
        return self.plan_

    # --- as a writer

    def append(self, event: AnyEvent) -> None:
        assert violation(self._state, event) is None, event
        self._state = apply(self._state, self._state.last + 1, event)

    def run(self) -> Run:
        observed = Observation(
            now_s=self.clock.now_s, heartbeat_at_s=self.clock.now_s, steps=self.done
        )
        return build_run("simulated", "", self._state, observed)

    def heartbeat(self) -> None:
        return None

    @contextmanager
    def background_heartbeat(self) -> Iterator[None]:
        yield

    def record_pending(self, reason: StateReason) -> None:
        if not (self._state.pending and self._state.pending.reason == reason):
            self.append(Pending(at_s=self.clock.now_s, reason=reason))

    def start_attempt(self, plan: Plan, slices: tuple[str, ...] = ()) -> int:
        number = self._state.next_attempt
        self.append(
            AttemptStarted(
                at_s=self.clock.now_s,
                attempt=number,
                plan_digest=plan.digest,
                pods=plan.pods,
                slices=slices,
                plan_sha256="",
            )
        )
        return number

    def record_checkpoint(self, step: int, sha256: str) -> bool:
        current = self._state.open_attempt
        if current is None or step <= (current.saved_steps or 0):
            return False
        saved = SavedCheckpoint(claim=self.number, attempt=current.number, step=step, sha256=sha256)
        self.append(CheckpointSaved(at_s=self.clock.now_s, checkpoint=saved))
        return True

    def newest_saves(self, most: int) -> tuple[SavedCheckpoint, ...]:
        return self._state.saves[-most:]

    def end_attempt(
        self, reason: AttemptReason, *, error: str | None = None, first_dead_rank: int | None = None
    ) -> None:
        attempt = self._state.attempts[-1].number
        assert self.fleet
        assert self.fleet.current
        current = self.fleet.current
        if done := current.steps_done():
            last = TimedStep(at_s=self.clock.now_s, step=step(done - 1))
            started = step(current.restored, restored=current.restored).startup
            self.done[attempt] = StepSummary(startup=started, last_steps=(last,))
        self.append(
            AttemptEnded(
                at_s=self.clock.now_s,
                attempt=attempt,
                steps=WrittenSteps(lines=0, bytes=0, sha256=""),
                reason=reason,
                error=error,
                first_dead_rank=first_dead_rank,
            )
        )

    def end_run(self, state: EndState, reason: StateReason | None = None) -> None:
        self.append(Ended(at_s=self.clock.now_s, state=state, reason=reason))


@dataclass(frozen=True)
class Simulated:
    """What came of a simulated run."""

    run: Run
    attempts: tuple[Attempt, ...]
    saves: tuple[SavedCheckpoint, ...]
    took_s: float
    faults: dict[str, int]


def simulate(
    spec: Spec, plan: Plan, times: Times, steps: int, *, seed: int, slices: int | None = None
) -> Simulated:
    """Drive a run of so many steps to its end, whatever fails."""
    clock = SimulatedClock()
    writer = MemoryWriter(spec, plan, steps, clock)
    fleet = Fleet(
        times=times,
        slices=slices or plan.pods,
        pods=plan.pods,
        clock=clock,
        dice=random.Random(seed),
        steps=steps,
    )
    writer.fleet = fleet
    anything: Any = writer  # in place of a journal and its writer
    driver = Driver(
        anything,
        fleet,  # type: ignore[arg-type]  # it starts attempts, and nothing else
        clock=Clock(now_s=lambda: clock.now_s, sleep=clock.wait),
        read=fleet.read,
    )
    driver.run()
    run = writer.run()
    return Simulated(run, run.attempts, writer.state().saves, clock.now_s, fleet.faults)
