"""The losses of a sweep, and the best trial."""

from collections.abc import Mapping, Sequence

from orchestrator.study.scaling_report import TrialRun
from orchestrator.study.trial_losses import Losses
from orchestrator.types.study import Study, Trial
from orchestrator.types.sweep import SweepReport, SweepTrialReport

SCHEMA = 2
MOST_POINTS = 100  # of a curve of losses
LAST_SHARE = 10  # the loss of a trial is the mean over its last tenth


def make_sweep_report(
    key: str,
    study: Study,
    runs: Sequence[TrialRun],
    losses: Mapping[int, Losses],
) -> SweepReport:
    """The results of all trials."""
    trials = tuple(_trial(one, runs, losses.get(one.number)) for one in study.trials)
    ended = [(one.loss, one.number) for one in trials if one.loss is not None and is_whole(one)]
    return SweepReport(
        schema=SCHEMA,
        study=key,
        name=study.name,
        vary=study.vary,
        rehearsal=any(one.report.rehearsal for one in runs),
        trials=trials,
        best=min(ended)[1] if ended else None,
    )


def is_whole(trial: SweepTrialReport) -> bool:
    """Whether a trial did all its steps."""
    return 0 < trial.steps == trial.steps_done


def _trial(trial: Trial, runs: Sequence[TrialRun], losses: Losses | None) -> SweepTrialReport:
    own = [one for one in runs if one.trial == trial.number]
    first = next((one.report for one in reversed(own) if one.repeat == 1), None)
    losses = losses if first else None  # of how many steps they are is unknown
    measured = first.measured if first else None
    steps = first.steps if first else 0
    done = losses.steps_done if losses else 0
    expected = (one.step_s for one in first.ratios if one.against == "expected") if first else ()
    return SweepTrialReport(
        number=trial.number,
        settings=trial.settings,
        runs={one.report.run: one.report.state for one in own},
        steps_done=done,
        steps=steps,
        loss=last_loss(losses, steps) if losses else None,
        losses=curve(losses, steps) if losses else (),
        step_s=measured.step_s if measured else None,
        expected_s=next(iter(expected), None),
        mfu=measured.mfu.median if measured and measured.mfu else None,
    )


def last_loss(losses: Losses, steps: int) -> float | None:
    """The mean loss over the last tenth of all steps, as far as a trial came."""
    done = losses.steps_done
    return losses.mean(done - max(1, steps // LAST_SHARE), done)


def curve(losses: Losses, steps: int) -> tuple[tuple[int, float], ...]:
    """The mean losses of equal parts, each at its last step."""
    size = max(1, -(-steps // MOST_POINTS))
    ends = [*range(size, losses.steps_done, size), losses.steps_done] if losses.steps_done else []
    means = ((end, losses.mean(end - size, end)) for end in ends)
    return tuple((end, mean) for end, mean in means if mean is not None)
