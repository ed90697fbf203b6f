"""An episode of the campaign: one run on plain processes, and the faults that strike it."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from orchestrator.values.run import Run
from tests.chaos.drawn import PlainFault
from tests.chaos.fault_record import FaultRecord
from tests.chaos.plain_runs import (
    END_S,
    LIMIT_S,
    POLL_S,
    STALL_S,
    NotSurvived,
    PlainRun,
    described,
    plain_run,
    signal_all,
)


@dataclass
class Episode:
    """Faults on one run. `expected` are the losses of an undisturbed one."""

    run: PlainRun
    expected: list[float]
    seed: int
    commit: str
    records: list[FaultRecord] = field(default_factory=list)

    def strike(self, fault: PlainFault) -> None:
        """Let a fault strike, wait until the run has recovered, and note what that cost."""
        self._come_to(fault)
        before, began_s = self.run.run(), time.monotonic()
        victims = {strike: self._pid(strike.target) for strike in fault.strikes}
        killed = [pid for one, pid in victims.items() if one.how == "killed"]
        stopped = [pid for one, pid in victims.items() if one.how != "killed"]
        signal_all(stopped, signal.SIGSTOP)
        signal_all(killed, signal.SIGKILL)
        self.run.points.disarm()
        survived, detail = True, ""
        try:
            if any(strike.how == "stalled" for strike in fault.strikes):
                time.sleep(STALL_S)
                signal_all(
                    [v for one, v in victims.items() if one.how == "stalled"], signal.SIGCONT
                )
            after = self._recovered(fault, before)
        except NotSurvived as error:
            survived, detail, after = False, str(error), self.run.run()
        lost_s = time.monotonic() - began_s
        signal_all(stopped, signal.SIGCONT)
        lasting = [pid for one, pid in victims.items() if one.how == "stopped"]
        struck = " + ".join(f"{strike.target} {strike.how}" for strike in fault.strikes)
        done = max((attempt.steps_done for attempt in before.attempts), default=0)
        restored = after.attempts[-1].restored_steps if after.attempts else 0
        self.records.append(
            FaultRecord(
                index=fault.index,
                seed=self.seed,
                backend="processes",
                name=fault.name,
                phase=fault.phase,
                struck=f"{fault.first} killed, then {struck}" if fault.first else struck,
                survived=survived,
                identical=self._identical() if survived else None,
                named=named(fault, before, after),
                lost_s=round(lost_s, 1),
                redone=max(0, done - restored) if len(after.attempts) > len(before.attempts) else 0,
                left_over=self._still_there(lasting) if survived else [],
                at=time.strftime("%Y-%m-%d", time.gmtime()),
                commit=self.commit,
                detail=detail,
            )
        )
        if not survived:
            raise NotSurvived(f"{fault}: {detail}")

    def finish(self) -> list[FaultRecord]:
        """Let the run end, and compare all of it; the records."""
        self.run.points.disarm()
        self.run.points.pace(0.0)
        ended = self._until_ended()
        left = self.run.left_over()
        sound = ended.state == "succeeded" and self._identical() and ended.steps_done == ended.steps
        last = self.records[-1]
        self.records[-1] = msgspec.structs.replace(
            last,
            survived=last.survived and ended.state == "succeeded",
            identical=bool(sound),
            left_over=[*last.left_over, *left],
            detail=last.detail if sound else described(ended),
        )
        return self.records

    # --- the strike

    def _come_to(self, fault: PlainFault) -> None:
        """Bring the run to the point where the fault strikes."""
        run, points = self.run, self.run.points
        if not run.drivers:
            points.arm(fault.point, fault.who)
            run.start_driver()
            run.until_reached()
            return
        farthest = max(attempt.steps_done for attempt in run.run().attempts)
        run.until(lambda now: now.state == "running" and _newest(now) >= farthest + fault.ahead)
        if fault.point == "step":
            return
        points.arm(fault.point, fault.who)
        if fault.first:
            os.kill(self._pid(fault.first), signal.SIGKILL)
        run.until_reached()

    def _pid(self, target: str) -> int:
        if target == "driver":
            return self.run.driver.pid
        return self.run.rank(int(target.partition("-")[2]))

    # --- the recovery

    def _recovered(self, fault: PlainFault, before: Run) -> Run:
        """Wait until a driver runs an attempt that came farther than before the fault."""
        deadline = time.monotonic() + LIMIT_S
        while not self._is_recovered(fault, before, now := self.run.run()):
            if now.ended_at_s is not None:
                raise NotSurvived(f"ended: {described(now)}")
            if time.monotonic() > deadline:
                raise NotSurvived(f"no progress within {LIMIT_S:.0f} s: {described(now)}")
            self.run.keep_driven()
            time.sleep(POLL_S)
        return now

    @staticmethod
    def _is_recovered(fault: PlainFault, before: Run, now: Run) -> bool:
        if now.state == "succeeded":
            return True
        lasting = [strike.target for strike in fault.strikes if strike.how != "stalled"]
        if "driver" in lasting and now.driver == before.driver:
            return False
        if now.driver is None or now.state != "running":
            return False
        another = len(now.attempts) > len(before.attempts)
        needed = before.attempts and before.attempts[-1].reason is None and lasting
        farthest = max((attempt.steps_done for attempt in before.attempts), default=0)
        return (another or not needed) and _newest(now) > farthest

    def _still_there(self, pids: list[int]) -> list[str]:
        """The processes that were stopped, superseded, woken, and did not end."""
        deadline = time.monotonic() + END_S
        while (alive := [pid for pid in pids if _lives(pid)]) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return [f"process {pid} that was stopped" for pid in alive]

    def _identical(self) -> bool:
        steps = [timed.step for timed in self.run.recorded.steps(self.run.run())]
        return all(step.loss == self.expected[step.index] for step in steps)

    def _until_ended(self) -> Run:
        deadline = time.monotonic() + LIMIT_S
        while (now := self.run.run()).ended_at_s is None and time.monotonic() < deadline:
            self.run.keep_driven()
            time.sleep(POLL_S)
        return now


def named(fault: PlainFault, before: Run, after: Run) -> bool | None:
    """Whether the journal names the rank that was struck; None where none was, or more than it."""
    lasting = [strike.target for strike in fault.strikes if strike.how != "stalled"]
    if fault.first or len(lasting) != 1 or lasting[0] == "driver" or not before.attempts:
        return None
    ended = after.attempts[len(before.attempts) - 1]
    return ended.first_dead_rank == int(lasting[0].partition("-")[2])


def _newest(run: Run) -> int:
    return run.attempts[-1].steps_done if run.attempts else 0


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def run_episode(
    folder: Path, faults: list[PlainFault], expected: list[float], seed: int, commit: str
) -> list[FaultRecord]:
    """The records of some faults on one run, which ends early where one is not survived."""
    with plain_run(folder) as run:
        episode = Episode(run, expected, seed, commit)
        if faults[0].ahead:  # the first ones of the episode are done already
            run.start_driver()
            run.until(lambda now: now.state == "running")
        try:
            for fault in faults:
                episode.strike(fault)
        except NotSurvived as error:
            print(error, flush=True)
            if not episode.records or episode.records[-1].survived:
                raise  # the run failed before the fault struck
            return episode.records
        return episode.finish()
