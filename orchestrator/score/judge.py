"""Score room: how far predictions are from what was measured."""

from collections.abc import Callable
from typing import Any

import numpy as np

from orchestrator.catalog import Efficiency
from orchestrator.plan.torus import Floats
from orchestrator.score.fit import Key, baseline, learn, left_out
from orchestrator.score.samples import Sample
from orchestrator.types.score import HeldOutRow, Retention, Score, ScoredRow, Summary

Known = Callable[[Sample], Efficiency]


def scored(sample: Sample, known: Efficiency, baseline_s: float) -> ScoredRow:
    """One row against its prediction."""
    expected = sample.expected_s(known)
    low, high = sample.interval(known)
    return ScoredRow(
        id=sample.run.id,
        group=sample.run.group,
        chip=sample.run.chip,
        slices=sample.run.slices,
        measured_step_s=sample.measured_s,
        expected_step_s=expected,
        low_step_s=low,
        high_step_s=high,
        lower_step_s=sample.lower_s,
        baseline_step_s=baseline_s,
        error=expected / sample.measured_s - 1,
        inside_interval=low <= sample.measured_s <= high,
        below_lower_bound=sample.measured_s < sample.lower_s,
    )


def score(
    samples: list[Sample],
    left: list[HeldOutRow],
    known: Known,
    baseline_s: Callable[[Sample], float],
    learned_on: str,
) -> Score:
    """All rows by constants that are known already."""
    rows = [scored(sample, known(sample), baseline_s(sample)) for sample in samples]
    return joined(samples, rows, left, learned_on)


def score_left_out(samples: list[Sample], left: list[HeldOutRow], key: Key, what: str) -> Score:
    """Each row by constants, spread and baseline learned on rows of other keys alone."""
    found: dict[str, ScoredRow] = {}
    for learned_on, others in left_out(samples, key):
        constants, dumb = learn(learned_on, key), baseline(learned_on)
        for sample in others:
            known = constants.efficiency(sample.run.chip)
            found[sample.run.id] = scored(sample, known, dumb(sample))
    return joined(samples, [found[s.run.id] for s in samples], left, what)


def joined(
    samples: list[Sample], rows: list[ScoredRow], left: list[HeldOutRow], learned_on: str
) -> Score:
    return Score(
        learned_on=learned_on,
        rows=tuple(rows),
        left_out=tuple(left),
        retention=tuple(retentions(samples, rows)),
        summary=summary(rows, left),
    )


def summary(rows: list[ScoredRow], left: list[HeldOutRow]) -> Summary:
    """Figures of all rows together; None where there are no rows."""
    errors = np.abs([row.error for row in rows])
    dumb = np.abs([row.baseline_step_s / row.measured_step_s - 1 for row in rows])

    def figure(of: Callable[[Floats], Any], values: Floats) -> float | None:
        return float(of(values)) if len(rows) else None

    return Summary(
        rows=len(rows),
        left_out=len(left),
        median_abs_error=figure(np.median, errors),
        mean_abs_error=figure(np.mean, errors),
        p90_abs_error=figure(p90, errors),
        worst_abs_error=figure(np.max, errors),
        inside_interval=figure(np.mean, np.array([float(row.inside_interval) for row in rows])),
        below_lower_bound=sum(row.below_lower_bound for row in rows),
        baseline_median_abs_error=figure(np.median, dumb),
        baseline_p90_abs_error=figure(p90, dumb),
    )


def p90(values: Floats) -> Any:
    return np.quantile(values, 0.9)


def retentions(samples: list[Sample], rows: list[ScoredRow]) -> list[Retention]:
    """Rows of several slices against the row of the same job on one."""
    single = {job(s): row for s, row in zip(samples, rows, strict=True) if s.run.slices == 1}
    return [
        Retention(
            id=row.id,
            slices=row.slices,
            measured=one.measured_step_s / row.measured_step_s,
            expected=one.expected_step_s / row.expected_step_s,
        )
        for sample, row in zip(samples, rows, strict=True)
        if sample.run.slices > 1 and (one := single.get(job(sample)))
    ]


def job(sample: Sample) -> tuple[object, ...]:
    """What rows of one job share: all but the count of slices."""
    run = sample.run
    per_slice = run.chips // run.slices, run.sequences // run.slices
    return run.chip, run.model, per_slice, run.length, run.remat
