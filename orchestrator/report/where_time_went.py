"""Where the time of a run went. Pure.

The names are those of Google's goodput measurement. An attempt starts processes and devices, makes
or restores its state, compiles, and steps. A step that is done again was wasted the first time.
"""

from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from orchestrator.journal.counted_steps import StepsByAttempt, counted_rows
from orchestrator.journal.step_table import Mask, StepTable
from orchestrator.types.report import Badput, Goodput
from orchestrator.types.run import Attempt, Run


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
    account, counted = _Account(), counted_rows(steps)
    usual_s = _usual_step_s(steps)
    for attempt in run.attempts:
        table = steps.get(attempt.number)
        if table is not None and len(table):
            _count_startup(account, attempt, table, usual_s)
            _count_steps(account, table, usual_s, counted[attempt.number])
        _count_recovery(account, run, attempt, table)
    return _close(account, total_s, waited_s=max(0.0, started_s - run.submitted_at_s))


def _count_startup(account: _Account, attempt: Attempt, table: StepTable, usual_s: float) -> None:
    """The time before the second step of an attempt, and of each stage that begins in it."""
    for row, startup in table.startups.items():
        first_s = float(table.step_s[row])
        if row == 0:
            evaluated_s = sum(one.evaluation_s for at, one in table.evaluations.items() if at == 0)
            before_s = float(table.at_s[0]) - evaluated_s - first_s - attempt.started_at_s
            account.add("tpu_initialization", before_s - startup.state_s - startup.compile_s)
        restores = startup.steps_done > 0
        state: Badput = "unproductive_checkpoint_restore_time" if restores else "training_prep"
        account.add(state, startup.state_s)
        account.add("program_startup", startup.compile_s + max(0.0, first_s - usual_s))


def _count_steps(account: _Account, table: StepTable, usual_s: float, counted: Mask) -> None:
    """The steps; of the first of an attempt, only as long as a usual one takes."""
    step_s = np.where(table.warm, table.step_s, np.minimum(table.step_s, usual_s))
    account.add("wasted_progress_from_disruption", float(step_s[~counted].sum()))
    evaluations = table.evaluations.items()
    account.add(
        "wasted_progress_from_disruption",
        sum(one.evaluation_s for row, one in evaluations if not counted[row]),
    )
    account.add("evaluation", sum(one.evaluation_s for row, one in evaluations if counted[row]))
    data_s, saving_s = table.data_s[counted], table.checkpoint_s[counted]
    account.add("data_loading_sync", float(np.maximum(data_s, 0.0).sum()))
    account.add("unproductive_checkpoint_save_time", float(np.maximum(saving_s, 0.0).sum()))
    account.goodput_s += float(np.maximum(step_s[counted] - data_s - saving_s, 0.0).sum())


def _count_recovery(account: _Account, run: Run, attempt: Attempt, table: StepTable | None) -> None:
    """The time between the last step of an attempt and the start of the next."""
    later = next((one for one in run.attempts if one.number > attempt.number), None)
    if later:
        stopped_s = table.at_s[-1] if table is not None and len(table) else attempt.started_at_s
        cause: Badput = "infrastructure_recovery_from_disruption"
        account.add(cause, later.started_at_s - float(stopped_s))


def _usual_step_s(steps: StepsByAttempt) -> float:
    """The median step after warm-up; 0 where no attempt did a second step."""
    warm = np.concatenate([np.zeros(0), *(table.step_s[1:] for table in steps.values())])
    return float(np.median(warm)) if len(warm) else 0.0


def _end_s(run: Run, steps: StepsByAttempt) -> float:
    """The end of the run, or the last thing known of it."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    steps_s = [float(table.at_s[-1]) for table in steps.values() if len(table)]
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
