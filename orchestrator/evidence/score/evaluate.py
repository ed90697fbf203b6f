"""Predictions against published runs, by the catalog's constants or by cross-validation."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator import catalog
from orchestrator.catalog import published
from orchestrator.catalog.published import Efficiency, Wait
from orchestrator.errors import SpecError
from orchestrator.evidence.score import learn, samples
from orchestrator.evidence.score.published_runs import (
    MIXTURES,
    OTHER_SOFTWARE,
    PUBLISHED,
    QUANTIZED,
    SkippedRow,
    read,
)
from orchestrator.evidence.score.samples import Sample, Score, ScoredRow, summary
from orchestrator.formatting import DAY_S
from orchestrator.goodput.losses import Rhythm, with_causes
from orchestrator.network.mesh_axes import DCN_AXES
from orchestrator.values.goodput import Uncertain, heartbeat_interval_s, poll_interval_s, settling_s

_HeldOut = Literal["document", "group", "software"]
# The key of rows that are held out together, and what the constants are learned on then.
_HELD_OUT: dict[_HeldOut, tuple[learn.Key, str]] = {
    "document": (learn.by_document, "without each document in turn"),
    "group": (learn.by_group, "without each source and chip in turn"),
    "software": (learn.by_software, "without each software in turn"),
}
_Runs = tuple[list[Sample], list[SkippedRow]]


# The project's own files: of dense models in the types of activations, and of mixtures of experts
# and products in int8 and fp8.
DENSE, OTHERS = (PUBLISHED, OTHER_SOFTWARE), (MIXTURES, QUANTIZED)


@cache
def published_samples(*files: Path) -> _Runs:
    return samples.samples(row for file in files for row in read(file))


def _runs_of(path: Path | None, reason: str, is_known: Callable[[str], object]) -> _Runs:
    """Return the runs of a file or of the project; `reason` is why unknown chips are skipped."""
    files = (
        [samples.samples(read(path))] if path else list(starmap(published_samples, (DENSE, OTHERS)))
    )
    usable, skipped = [], [row for _, left_out in files for row in left_out]
    for sample in (sample for scorable, _ in files for sample in scorable):
        if is_known(sample.run.chip):
            usable.append(sample)
        else:
            why = reason.format(chip=sample.run.chip)
            skipped.append(SkippedRow(id=sample.run.id, reason=why))
    return usable, skipped


def with_catalog_constants(path: Path | None = None) -> Score:
    """Score every row of a file by the catalog's constants. The baseline knows the same rows."""
    reason = "no run of {chip} was learned from: `expected` is unknown"
    scorable, skipped = _runs_of(path, reason, catalog.efficiency)
    baseline_s = learn.baseline(published_samples(*DENSE)[0])
    rows = []
    for sample in scorable:
        efficiency = catalog.efficiency(sample.run.chip, sample.run.compute)
        assert efficiency is not None
        rows.append(_scored(sample, efficiency, baseline_s(sample)))
    return _score_of(scorable, rows, skipped, "learned on the project's own files")


def cross_validated(hold_out: _HeldOut, path: Path | None = None) -> Score:
    """Score a file's rows by constants from its rows of other documents, groups or software."""
    reason = "{chip} has no matrix unit to learn about"
    tpus, skipped = _runs_of(path, reason, lambda chip: catalog.chip(chip).matrix_unit)
    key, learned_on = _HELD_OUT[hold_out]
    if len(set(map(key, tpus))) < 2:
        raise SpecError(
            f"{path or PUBLISHED}: nothing to learn from: all its runs are of one {hold_out}"
        )
    # Where software is held out, the spread is still learned by document.
    learned_by = learn.by_group if hold_out == "group" else learn.by_document
    rows: dict[str, ScoredRow] = {}
    for _, train, test in learn.held_out(tpus, key):
        constants, baseline_s = learn.learn(train, learned_by), learn.baseline(train)
        for sample in test:
            efficiency = constants.efficiency(sample.run.chip, sample.run.compute)
            rows[sample.run.id] = _scored(sample, efficiency, baseline_s(sample))
    in_order = [rows[sample.run.id] for sample in tpus]
    return _score_of(tpus, in_order, skipped, learned_on)


def _scored(sample: Sample, efficiency: Efficiency, baseline_s: float) -> ScoredRow:
    expected = sample.expected_s(efficiency)
    ends, software = sample.interval(efficiency), sample.run.software
    return ScoredRow(
        id=sample.run.id,
        group=sample.run.group,
        chip=sample.run.chip,
        software=software.name,
        kernel=software.kernel,
        averages=software.averages,
        assumed=software.assumed,
        mixture=sample.run.model.moe is not None,
        compute=sample.run.compute,
        slices=sample.run.slices,
        **samples.step_figures(sample.measured_s, expected, ends, sample.lower_s, baseline_s),
    )


def _score_of(
    scored: list[Sample], rows: list[ScoredRow], skipped: list[SkippedRow], learned_on: str
) -> Score:
    # Rows of several slices against the row of the same job on one slice.
    def job(sample: Sample) -> tuple[object, ...]:
        """Return what the rows of one job share: all but the number of slices."""
        run, mesh = sample.run, sample.layout.mesh
        inside = tuple(size for axis, size in mesh.items() if axis not in DCN_AXES)
        per_slice = run.chips // run.slices, run.sequences / run.slices, run.microbatches
        return run.document, run.software.name, run.model, inside, per_slice, run.length, run.remat

    both = list(zip(scored, rows, strict=True))
    single = {job(sample): row for sample, row in both if sample.run.slices == 1}
    retention = [
        samples.Retention(
            id=row.id,
            slices=row.slices,
            measured=first.measured_step_s / row.measured_step_s,
            expected=first.expected_step_s / row.expected_step_s,
        )
        for sample, row in both
        if sample.run.slices > 1 and (first := single.get(job(sample)))
    ]
    return Score(
        learned_on=learned_on,
        rows=tuple(rows),
        left_out=tuple(skipped),
        retention=tuple(retention),
        software=tuple(_software_summaries(rows)),
        summary=summary(rows, len(skipped)),
        # Dense models whose products are in the type of activations.
        dense=summary(dense_rows(rows), 0),
        mixtures=summary([row for row in rows if row.mixture], 0),
        quantized=summary(
            [row for row in rows if row.compute in published.NARROW and not row.mixture], 0
        ),
    )


def dense_rows(rows: Iterable[ScoredRow]) -> list[ScoredRow]:
    return [row for row in rows if not (row.mixture or row.compute in published.NARROW)]


def _software_summaries(rows: list[ScoredRow]) -> list[samples.SoftwareSummary]:
    """Return the figures of each software, those with the most rows first."""
    found = []
    for name, count in Counter(row.software for row in rows).most_common():
        own = [row for row in rows if row.software == name]
        errors = np.array([row.error for row in own])
        found.append(
            samples.SoftwareSummary(
                software=name,
                rows=count,
                median_error=float(np.median(errors)),
                median_abs_error=float(np.median(abs(errors))),
                p90_abs_error=float(np.quantile(abs(errors), 0.9)),
                inside_interval=sum(row.inside_interval for row in own) / count,
            )
        )
    return found


def goodput_scores() -> tuple[samples.GoodputScore, ...]:
    """Return the goodput of each published run, predicted from its own rates."""
    scores = []
    for run in published.goodput_runs():
        rhythm = _rhythm_of(run)
        interval_s = run.interval_s or rhythm.best_interval_s()
        ends = []  # the share with one number at the low and at the high end of its interval
        for cause in ("failures_per_day", "recovery_s", "blocking_s", "write_s"):
            number: Uncertain = getattr(run, cause)
            low, high = (
                _rhythm_of(run, **{cause: replace(number, value=value)}).share(interval_s)
                for value in (number.low, number.high)
            )
            ends.append((low, high))
        scores.append(
            samples.GoodputScore(
                id=run.id,
                source=run.source,
                predicted=with_causes(rhythm.share(interval_s), ends),
                reported=run.reported,
                reported_is=run.reported_is,
                note=run.note,
            )
        )
    return tuple(scores)


def _rhythm_of(run: published.GoodputRun, **changes: Any) -> Rhythm:
    run = replace(run, **changes)
    return Rhythm(
        between_failures_s=DAY_S / run.failures_per_day.value,
        recovery_s=run.recovery_s.value,
        blocking_s=run.blocking_s.value,
        write_s=run.write_s.value,
    )


def recovery_scores() -> tuple[samples.RecoveryScore, ...]:
    """Return what the driver's constants say a fault of each kind costs, and what it did cost. A
    recovery lasts from a fault until a step is done again, on two ranks.
    """
    known = published.campaign()
    beat_s = heartbeat_interval_s(2, known.hang_limit_s)
    waits: dict[Wait, float] = {
        "poll": poll_interval_s(beat_s),
        "settling": settling_s(beat_s),
        "hang": known.hang_limit_s,
        "node_loss": published.recovery().node_loss_s.low,
    }
    return tuple(
        samples.RecoveryScore(
            id=fault.id,
            faults=fault.faults,
            predicted_s=known.restart_s + sum(waits[name] for name in fault.waits),
            recorded_s=fault.recorded_s,
        )
        for fault in known.faults
    )
