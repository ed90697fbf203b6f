"""Predictions against published runs, by the catalog's constants or by cross-validation."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.published import (
    Efficiency,
    GoodputRun,
    Wait,
    campaign,
    goodput_runs,
    recovery,
)
from orchestrator.errors import SpecError
from orchestrator.evidence.score.learn import (
    Key,
    baseline,
    by_document,
    by_group,
    by_software,
    held_out,
    learn,
)
from orchestrator.evidence.score.published_runs import MIXTURES, OTHER_SOFTWARE, PUBLISHED, read
from orchestrator.evidence.score.samples import (
    GoodputScore,
    RecoveryScore,
    Retention,
    Sample,
    Score,
    ScoredRow,
    SkippedRow,
    SoftwareSummary,
    Summary,
    samples,
)
from orchestrator.formatting import DAY_S
from orchestrator.goodput.losses import Rhythm, with_causes
from orchestrator.network.mesh_axes import DCN_AXES
from orchestrator.planning.torus import Floats
from orchestrator.values.goodput import Uncertain, heartbeat_interval_s, poll_interval_s, settling_s

_HeldOut = Literal["document", "group", "software"]
_KEYS = {"document": by_document, "group": by_group, "software": by_software}
_LEARNED_ON = {
    "document": "without each document in turn",
    "group": "without each source and chip in turn",
    "software": "without each software in turn",
}
_OWN = (PUBLISHED, OTHER_SOFTWARE)
_Runs = tuple[list[Sample], list[SkippedRow]]


@cache
def _published() -> _Runs:
    """Return the project's own files of dense models, from which constants are learned."""
    return samples([row for path in _OWN for row in read(path)])


@cache
def _published_mixtures() -> _Runs:
    """Return the project's file of mixtures of experts. No constant has seen them."""
    return samples(read(MIXTURES))


def _runs_of(path: Path | None, reason: str, is_known: Callable[[str], object]) -> _Runs:
    """Return the runs of a file, or all of the project's own, on chips that are known.

    Runs on other chips are skipped for `reason`.
    """
    if path:
        usable, skipped = samples(read(path))
    else:
        (dense, without), (mixtures, others) = _published(), _published_mixtures()
        usable, skipped = [*dense, *mixtures], [*without, *others]
    unknown = [
        SkippedRow(id=sample.run.id, reason=reason.format(chip=sample.run.chip))
        for sample in usable
        if not is_known(sample.run.chip)
    ]
    return [sample for sample in usable if is_known(sample.run.chip)], [*skipped, *unknown]


def with_catalog_constants(path: Path | None = None) -> Score:
    """Score every row of a file by the catalog's constants. The baseline knows the same rows."""
    reason = "no run of {chip} was learned from: `expected` is unknown"
    scorable, skipped = _runs_of(path, reason, catalog.efficiency)
    baseline_s = baseline(_published()[0])
    rows = []
    for sample in scorable:
        efficiency = catalog.efficiency(sample.run.chip)
        assert efficiency is not None
        rows.append(_scored(sample, efficiency, baseline_s(sample)))
    return _score_of(scorable, rows, skipped, "learned on the project's own files")


def cross_validated(hold_out: _HeldOut, path: Path | None = None) -> Score:
    """Score every row of a file by constants from its rows of other documents, groups or software.

    They are learned only from dense models, where the file has any.
    """
    reason = "{chip} has no matrix unit to learn about"
    tpus, skipped = _runs_of(path, reason, lambda chip: catalog.chip(chip).matrix_unit)
    key = _KEYS[hold_out]
    dense = [sample for sample in tpus if not sample.run.model.moe] or tpus
    if len(set(map(key, dense))) < 2:
        raise SpecError(
            f"{path or PUBLISHED}: nothing to learn from: all its runs are of one {hold_out}"
        )
    # Where software is held out, the spread is still learned by document.
    learned_by = by_group if hold_out == "group" else by_document
    rows: dict[str, ScoredRow] = {}
    for train, test in _folds(tpus, dense, key):
        constants = learn(train, learned_by)
        baseline_s = baseline(train)
        for sample in test:
            efficiency = constants.efficiency(sample.run.chip)
            rows[sample.run.id] = _scored(sample, efficiency, baseline_s(sample))
    in_order = [rows[sample.run.id] for sample in tpus]
    return _score_of(tpus, in_order, skipped, _LEARNED_ON[hold_out])


def _folds(
    every: list[Sample], dense: list[Sample], key: Key
) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """Yield the dense rows without a key and all rows with it, for each key; keys that no dense row
    has learn from all dense rows together.
    """
    known = set(map(key, dense))
    for fold in held_out(dense, key):
        yield fold.train, [sample for sample in every if key(sample) == fold.key]
    if others := [sample for sample in every if key(sample) not in known]:
        yield dense, others


def _scored(sample: Sample, efficiency: Efficiency, baseline_s: float) -> ScoredRow:
    expected = sample.expected_s(efficiency)
    low, high = sample.interval(efficiency)
    software = sample.run.software
    return ScoredRow(
        id=sample.run.id,
        group=sample.run.group,
        chip=sample.run.chip,
        software=software.name,
        kernel=software.kernel,
        averages=software.averages,
        assumed=software.assumed,
        mixture=sample.run.model.moe is not None,
        slices=sample.run.slices,
        measured_step_s=sample.measured_s,
        expected_step_s=expected,
        low_step_s=low,
        high_step_s=high,
        lower_step_s=sample.laid_out.lower_s,
        baseline_step_s=baseline_s,
        error=expected / sample.measured_s - 1,
        inside_interval=low <= sample.measured_s <= high,
        below_lower_bound=sample.measured_s < sample.laid_out.lower_s,
    )


def _score_of(
    samples: list[Sample], rows: list[ScoredRow], skipped: list[SkippedRow], learned_on: str
) -> Score:
    # Rows of several slices against the row of the same job on one slice.
    def job(sample: Sample) -> tuple[object, ...]:
        """Return what the rows of one job share: all but the number of slices."""
        run, mesh = sample.run, sample.laid_out.layout.mesh
        inside = tuple(size for axis, size in mesh.items() if axis not in DCN_AXES)
        per_slice = run.chips // run.slices, run.sequences / run.slices, run.microbatches
        return run.document, run.software.name, run.model, inside, per_slice, run.length, run.remat

    both = list(zip(samples, rows, strict=True))
    single = {job(sample): row for sample, row in both if sample.run.slices == 1}
    return Score(
        learned_on=learned_on,
        rows=tuple(rows),
        left_out=tuple(skipped),
        retention=tuple(
            [
                Retention(
                    id=row.id,
                    slices=row.slices,
                    measured=first.measured_step_s / row.measured_step_s,
                    expected=first.expected_step_s / row.expected_step_s,
                )
                for sample, row in both
                if sample.run.slices > 1 and (first := single.get(job(sample)))
            ]
        ),
        software=tuple(_software_summaries(rows)),
        summary=summary(rows, len(skipped)),
        dense=summary([row for row in rows if not row.mixture], 0),
        mixtures=summary([row for row in rows if row.mixture], 0),
    )


def _software_summaries(rows: list[ScoredRow]) -> list[SoftwareSummary]:
    """Return the figures of each software, those with the most rows first."""
    found = []
    for name, count in Counter(row.software for row in rows).most_common():
        own = [row for row in rows if row.software == name]
        errors = np.array([row.error for row in own])
        found.append(
            SoftwareSummary(
                software=name,
                rows=count,
                median_error=float(np.median(errors)),
                median_abs_error=float(np.median(abs(errors))),
                p90_abs_error=float(_p90(abs(errors))),
                inside_interval=sum(row.inside_interval for row in own) / count,
            )
        )
    return found


def summary(rows: list[ScoredRow], skipped: int) -> Summary:
    """Return the figures for all rows; None without rows."""
    errors = np.abs([row.error for row in rows])
    baseline_errors = np.abs([row.baseline_step_s / row.measured_step_s - 1 for row in rows])

    def figure(statistic: Callable[[Floats], Any], values: Floats) -> float | None:
        return float(statistic(values)) if len(rows) else None

    return Summary(
        rows=len(rows),
        left_out=skipped,
        median_abs_error=figure(np.median, errors),
        mean_abs_error=figure(np.mean, errors),
        p90_abs_error=figure(_p90, errors),
        worst_abs_error=figure(np.max, errors),
        inside_interval=figure(np.mean, np.array([float(row.inside_interval) for row in rows])),
        below_lower_bound=sum(row.below_lower_bound for row in rows),
        baseline_median_abs_error=figure(np.median, baseline_errors),
        baseline_p90_abs_error=figure(_p90, baseline_errors),
    )


def _p90(values: Floats) -> Any:
    return np.quantile(values, 0.9)


# Predicted shares of effective time against published ones; recoveries against the campaign.


def goodput_scores() -> tuple[GoodputScore, ...]:
    """Return the goodput of each published run, predicted from its own rates."""
    causes = ("failures_per_day", "recovery_s", "blocking_s", "write_s")
    scores = []
    for run in goodput_runs():
        rhythm = _rhythm_of(run)
        interval_s = run.interval_s or rhythm.best_interval_s()
        ends = []  # the share with one number at the low and at the high end of its interval
        for cause in causes:
            number: Uncertain = getattr(run, cause)
            moved: list[dict[str, Any]] = [
                {cause: replace(number, value=value)} for value in (number.low, number.high)
            ]
            low, high = (_rhythm_of(replace(run, **change)).share(interval_s) for change in moved)
            ends.append((low, high))
        scores.append(
            GoodputScore(
                id=run.id,
                source=run.source,
                predicted=with_causes(rhythm.share(interval_s), ends, 1.0),
                reported=run.reported,
                reported_is=run.reported_is,
                note=run.note,
            )
        )
    return tuple(scores)


def _rhythm_of(run: GoodputRun) -> Rhythm:
    return Rhythm(
        between_failures_s=DAY_S / run.failures_per_day.value,
        recovery_s=run.recovery_s.value,
        blocking_s=run.blocking_s.value,
        write_s=run.write_s.value,
    )


def recovery_scores() -> tuple[RecoveryScore, ...]:
    """Return for each kind of fault what the driver's constants say it costs, and what it did.

    A recovery lasts from a fault until a step is done again, on two ranks.
    """
    known = campaign()
    beat_s = heartbeat_interval_s(2, known.hang_limit_s)
    waits: dict[Wait, float] = {
        "poll": poll_interval_s(beat_s),
        "settling": settling_s(beat_s),
        "hang": known.hang_limit_s,
        "node_loss": recovery().node_loss_s.low,
    }
    return tuple(
        RecoveryScore(
            id=fault.id,
            faults=fault.faults,
            predicted_s=known.restart_s + sum(waits[name] for name in fault.waits),
            recorded_s=fault.recorded_s,
        )
        for fault in known.faults
    )
