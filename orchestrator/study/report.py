"""Study room: reports of a study's runs to its measured scaling beside the predicted one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.study.explain import explanations
from orchestrator.study.forecast import Made, name_of, planned, series_of, smallest
from orchestrator.types.plan import Plan
from orchestrator.types.report import Measurement, Report, Spread
from orchestrator.types.study import RepeatedTrial, Study, StudyReport, Trial, TrialReport

SCHEMA = 1


@dataclass(frozen=True)
class Ran:
    """A run of a trial: its report, the plan that ran, and the plan for chips where that is
    another.
    """

    trial: int
    repeat: int
    report: Report
    plan: Plan
    full: Plan

    @property
    def predicted(self) -> Plan:
        """The plan that the measurement is held against; for chips where held against none."""
        return self.full if self.report.not_compared else self.plan


def study_report(key: str, study: Study, ran: Sequence[Ran]) -> StudyReport:
    """What the trials came to, each beside the smallest of its series."""
    done = {one.number: _done(one, ran) for one in study.trials}
    made: Made = {number: runs[-1].predicted for number, runs in done.items() if runs}
    return StudyReport(
        schema=SCHEMA,
        study=key,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        repeats=study.repeats,
        rehearsal=any(one.report.rehearsal for one in ran),
        trials=_trials(study, ran, done, made),
        explanations=explanations(_parted(done)),
    )


def _done(trial: Trial, ran: Sequence[Ran]) -> list[Ran]:
    """The newest run of each repeat that succeeded and was measured."""
    newest = {
        one.repeat: one
        for one in ran
        if one.trial == trial.number
        and one.report.state == "succeeded"
        and one.report.measured is not None
    }
    return [newest[repeat] for repeat in sorted(newest)]


def _trials(
    study: Study, ran: Sequence[Ran], done: Mapping[int, list[Ran]], made: Made
) -> tuple[TrialReport, ...]:
    least, rates = smallest(study, made), _least_rates(study, done)
    found = []
    for trial in study.trials:
        series, runs = series_of(study, trial), done[trial.number]
        plan = runs[-1].predicted if runs else None
        base = rates.get(name_of(series))
        found.append(
            TrialReport(
                number=trial.number,
                settings=trial.settings,
                series=series,
                chips=runs[-1].plan.chips if runs else 0,
                done=len(runs),
                unfinished=_unfinished(trial, ran),
                predicted=planned(plan, least[name_of(series)]) if plan else None,
                expected_s=_expected_s(runs[-1].report) if runs else None,
                not_compared=runs[-1].report.not_compared if runs else None,
                measured=_repeated(runs, base) if base else None,
            )
        )
    return tuple(found)


def _expected_s(report: Report) -> float | None:
    expected = (one.step_s for one in report.ratios if one.against == "expected")
    return next(expected, None)


def _unfinished(trial: Trial, ran: Sequence[Ran]) -> dict[str, str]:
    """The runs of a trial that have not succeeded, where no later one has in their place."""
    mine = [one for one in ran if one.trial == trial.number]
    done = {one.repeat for one in mine if one.report.state == "succeeded"}
    return {one.report.run: one.report.state for one in mine if one.repeat not in done}


def _least_rates(
    study: Study, done: Mapping[int, list[Ran]]
) -> dict[tuple[tuple[str, str], ...], float]:
    """Of each series the measured tokens per second and chip of its smallest measured trial."""
    chips: dict[tuple[tuple[str, str], ...], int] = {}
    rates: dict[tuple[tuple[str, str], ...], float] = {}
    for trial in study.trials:
        name, runs = name_of(series_of(study, trial)), done[trial.number]
        if runs and (name not in chips or runs[-1].plan.chips < chips[name]):
            chips[name] = runs[-1].plan.chips
            rates[name] = spread_of(runs, lambda found: found.tokens_per_s_per_chip).median
    return rates


def _repeated(runs: list[Ran], least: float) -> RepeatedTrial | None:
    if not runs:
        return None
    known = all(one.report.measured and one.report.measured.mfu for one in runs)
    return RepeatedTrial(
        runs=tuple(one.report.run for one in runs),
        step_s=spread_of(runs, lambda found: found.step_s.median),
        mfu=spread_of(runs, lambda found: found.mfu.median if found.mfu else 0) if known else None,
        tokens_per_s_per_chip=spread_of(runs, lambda found: found.tokens_per_s_per_chip),
        efficiency=spread_of(runs, lambda found: found.tokens_per_s_per_chip / least),
    )


def spread_of(runs: list[Ran], figure: Callable[[Measurement], float]) -> Spread:
    """A figure over repeats: median, least and most."""
    values = [figure(one.report.measured) for one in runs if one.report.measured]
    return Spread(median=median(values), low=min(values), high=max(values))


def _parted(done: Mapping[int, list[Ran]]) -> list[tuple[Plan, float]]:
    """Of each trial that may be compared, its plan and its median gap."""
    found = []
    for runs in done.values():
        gaps = [one.report.gap.parts[0].s for one in runs if one.report.gap]
        if gaps:
            found.append((runs[-1].plan, median(gaps)))
    return found
