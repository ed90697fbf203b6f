"""Report room: where a run's seconds went. Pure.

The names are those of Google's goodput measurement. An attempt starts processes and devices, makes
or restores its state, compiles, and steps; what it steps over again was wasted the first time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import get_args

from orchestrator.types.report import Badput, Goodput
from orchestrator.types.run import Attempt, Run, TimedStep

Steps = Mapping[int, Sequence[TimedStep]]  # of each attempt, by its number


@dataclass
class _Ledger:
    """Seconds by where they went."""

    goodput_s: float = 0.0
    badput_s: dict[Badput, float] = field(
        default_factory=lambda: dict.fromkeys(get_args(Badput), 0.0)
    )

    def add(self, where: Badput, seconds: float) -> None:
        self.badput_s[where] += max(0.0, seconds)


def goodput(run: Run, steps: Steps) -> Goodput | None:
    """Where the time went; None before the first attempt."""
    if not run.attempts:
        return None
    began_s = run.attempts[0].started_at_s
    total_s = max(0.0, _end_s(run, steps) - began_s)
    ledger, kept = _Ledger(), newest(steps)
    usual_s = _usual_s(steps)
    for attempt in run.attempts:
        taken = steps.get(attempt.number, ())
        _count_opening(ledger, attempt, taken, usual_s)
        _count_steps(ledger, attempt.number, taken, kept, usual_s)
        _count_after(ledger, run, attempt, taken)
    return _closed(ledger, total_s, waited_s=max(0.0, began_s - run.submitted_at_s))


def newest(steps: Steps) -> dict[int, int]:
    """Of each step, the attempt whose doing of it counts."""
    kept: dict[int, int] = {}
    for number in sorted(steps):
        kept.update((timed.step.index, number) for timed in steps[number])
    return kept


def _count_opening(
    ledger: _Ledger, attempt: Attempt, taken: Sequence[TimedStep], usual_s: float
) -> None:
    """What comes before the second step of an attempt."""
    if not taken or taken[0].step.opening is None:
        return
    first, opening = taken[0], taken[0].step.opening
    restores = opening.steps_done > 0
    before_s = first.at_s - first.step.step_s - attempt.started_at_s
    ledger.add("tpu_initialization", before_s - opening.state_s - opening.compile_s)
    state: Badput = "unproductive_checkpoint_restore_time" if restores else "training_prep"
    ledger.add(state, opening.state_s)
    ledger.add("program_startup", opening.compile_s + max(0.0, first.step.step_s - usual_s))


def _count_steps(
    ledger: _Ledger,
    number: int,
    taken: Sequence[TimedStep],
    kept: Mapping[int, int],
    usual_s: float,
) -> None:
    for step in (timed.step for timed in taken):
        step_s = min(step.step_s, usual_s) if step.opening else step.step_s
        if kept[step.index] != number:
            ledger.add("wasted_progress_from_disruption", step_s)
            continue
        ledger.add("data_loading_sync", step.data_s)
        ledger.add("unproductive_checkpoint_save_time", step.checkpoint_s)
        ledger.goodput_s += max(0.0, step_s - step.data_s - step.checkpoint_s)


def _count_after(ledger: _Ledger, run: Run, attempt: Attempt, taken: Sequence[TimedStep]) -> None:
    """What passes between the last step of an attempt and the start of the next."""
    later = [one for one in run.attempts if one.number > attempt.number]
    if later:
        left_s = taken[-1].at_s if taken else attempt.started_at_s
        ledger.add("infrastructure_recovery_from_disruption", later[0].started_at_s - left_s)


def _usual_s(steps: Steps) -> float:
    """A step without warming up; 0 where no attempt came to a second step."""
    warm = [timed.step.step_s for taken in steps.values() for timed in taken[1:]]
    return median(warm) if warm else 0.0


def _end_s(run: Run, steps: Steps) -> float:
    """When the run ended, or when it was last heard of."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    stepped = [taken[-1].at_s for taken in steps.values() if taken]
    told = [at for one in run.attempts for at in (one.started_at_s, one.ended_at_s) if at]
    return max([*stepped, *told])


def _closed(ledger: _Ledger, total_s: float, *, waited_s: float) -> Goodput:
    """The ledger with what is left over as `other`.

    Clocks of two machines may differ by seconds: never more was counted than has passed.
    """
    counted_s = ledger.goodput_s + sum(ledger.badput_s.values())
    total_s = max(total_s, counted_s)
    ledger.badput_s["other"] = total_s - counted_s
    return Goodput(
        total_s=total_s,
        goodput_s=ledger.goodput_s,
        goodput=ledger.goodput_s / total_s if total_s else 0.0,
        badput_s=ledger.badput_s,
        waited_s=waited_s,
    )
