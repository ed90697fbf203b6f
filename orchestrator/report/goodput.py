"""Where the time of a run went. Pure.

The names are those of Google's goodput measurement. An attempt starts processes and devices, makes
or restores its state, compiles, and steps. A step that is done again was wasted the first time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import get_args

from orchestrator.types.report import Badput, Goodput
from orchestrator.types.run import Attempt, Run, TimedStep

StepsByAttempt = Mapping[int, Sequence[TimedStep]]


@dataclass
class _Account:
    """Seconds by where they went."""

    goodput_s: float = 0.0
    badput_s: dict[Badput, float] = field(
        default_factory=lambda: dict.fromkeys(get_args(Badput), 0.0)
    )

    def add(self, cause: Badput, seconds: float) -> None:
        self.badput_s[cause] += max(0.0, seconds)


def goodput(run: Run, steps: StepsByAttempt) -> Goodput | None:
    """Where the time went; None before the first attempt."""
    if not run.attempts:
        return None
    started_s = run.attempts[0].started_at_s
    total_s = max(0.0, _end_s(run, steps) - started_s)
    account, counts = _Account(), counted_attempts(steps)
    usual_s = _usual_step_s(steps)
    for attempt in run.attempts:
        done = steps.get(attempt.number, ())
        _count_startup(account, attempt, done, usual_s)
        for timed in done:
            _count_step(account, timed, usual_s, wasted=counts[timed.step.index] != attempt.number)
        _count_recovery(account, run, attempt, done)
    return _close(account, total_s, waited_s=max(0.0, started_s - run.submitted_at_s))


def counted_attempts(steps: StepsByAttempt) -> dict[int, int]:
    """The attempt that counts for each step: the last one that did it."""
    counts: dict[int, int] = {}
    for number in sorted(steps):
        counts.update((timed.step.index, number) for timed in steps[number])
    return counts


def _count_startup(
    account: _Account, attempt: Attempt, done: Sequence[TimedStep], usual_s: float
) -> None:
    """The time before the second step of an attempt."""
    if not done or done[0].step.startup is None:
        return
    first, startup = done[0], done[0].step.startup
    before_s = first.at_s - first.step.step_s - attempt.started_at_s
    account.add("tpu_initialization", before_s - startup.state_s - startup.compile_s)
    restores = startup.steps_done > 0
    state: Badput = "unproductive_checkpoint_restore_time" if restores else "training_prep"
    account.add(state, startup.state_s)
    account.add("program_startup", startup.compile_s + max(0.0, first.step.step_s - usual_s))


def _count_step(account: _Account, timed: TimedStep, usual_s: float, *, wasted: bool) -> None:
    """One step; of the first of an attempt, only as long as a usual one takes."""
    step = timed.step
    step_s = min(step.step_s, usual_s) if step.startup else step.step_s
    if wasted:
        account.add("wasted_progress_from_disruption", step_s)
        return
    account.add("data_loading_sync", step.data_s)
    account.add("unproductive_checkpoint_save_time", step.checkpoint_s)
    account.goodput_s += max(0.0, step_s - step.data_s - step.checkpoint_s)


def _count_recovery(
    account: _Account, run: Run, attempt: Attempt, done: Sequence[TimedStep]
) -> None:
    """The time between the last step of an attempt and the start of the next."""
    later = [one for one in run.attempts if one.number > attempt.number]
    if later:
        stopped_s = done[-1].at_s if done else attempt.started_at_s
        account.add("infrastructure_recovery_from_disruption", later[0].started_at_s - stopped_s)


def _usual_step_s(steps: StepsByAttempt) -> float:
    """The median step after warm-up; 0 where no attempt did a second step."""
    warm = [timed.step.step_s for done in steps.values() for timed in done[1:]]
    return median(warm) if warm else 0.0


def _end_s(run: Run, steps: StepsByAttempt) -> float:
    """The end of the run, or the last thing known of it."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    steps_s = [done[-1].at_s for done in steps.values() if done]
    attempts_s = [at for one in run.attempts for at in (one.started_at_s, one.ended_at_s) if at]
    return max([*steps_s, *attempts_s])


def _close(account: _Account, total_s: float, *, waited_s: float) -> Goodput:
    """The account with the rest as `other`.

    Clocks of two machines may differ by seconds, so the total is at least what was counted.
    """
    counted_s = account.goodput_s + sum(account.badput_s.values())
    total_s = max(total_s, counted_s)
    account.badput_s["other"] = total_s - counted_s
    return Goodput(
        total_s=total_s,
        goodput_s=account.goodput_s,
        goodput=account.goodput_s / total_s if total_s else 0.0,
        badput_s=account.badput_s,
        waited_s=waited_s,
    )
