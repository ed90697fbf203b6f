"""Compares predictions with published runs, by the catalog's constants or by cross-validation."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.published import (
    CampaignFault,
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

HeldOut = Literal["document", "group", "software"]
KEYS = {"document": by_document, "group": by_group, "software": by_software}
# By what the spread of known software is learned; that of new software is always of software.
LEARNED_BY = KEYS | {"software": by_document}
LEARNED_ON = {
    "document": "without each document in turn",
    "group": "without each source and chip in turn",
    "software": "without each software in turn",
}
OWN = (PUBLISHED, OTHER_SOFTWARE)
Runs = tuple[list[Sample], list[SkippedRow]]


@cache
def published() -> Runs:
    """The project's own files of dense models, read once: what constants are learned from."""
    return samples([row for path in OWN for row in read(path)])


@cache
def published_mixtures() -> Runs:
    """Its file of mixtures of experts, read once. No constant has seen them."""
    return samples(read(MIXTURES))


def runs_of(path: Path | None) -> Runs:
    """The runs of a file; without one, all of the project's own."""
    if path:
        return samples(read(path))
    dense, mixtures = published(), published_mixtures()
    return [*dense[0], *mixtures[0]], [*dense[1], *mixtures[1]]


def with_catalog_constants(path: Path | None = None) -> Score:
    """Every row of a file by the catalog's constants. The baseline knows the same rows."""
    usable, skipped = runs_of(path)
    scorable = [sample for sample in usable if catalog.efficiency(sample.run.chip)]
    unknown = [
        SkippedRow(
            id=sample.run.id,
            reason=f"no run of {sample.run.chip} was learned from: `expected` is unknown",
        )
        for sample in usable
        if not catalog.efficiency(sample.run.chip)
    ]
    baseline_s = baseline(published()[0])
    rows = [scored(s, catalog_efficiency(s.run.chip), baseline_s(s)) for s in scorable]
    return score_of(scorable, rows, [*skipped, *unknown], "learned on the project's own files")


def catalog_efficiency(chip: str) -> Efficiency:
    efficiency = catalog.efficiency(chip)
    assert efficiency is not None
    return efficiency


def cross_validated(hold_out: HeldOut, path: Path | None = None) -> Score:
    """Every row of a file by constants from its rows of other documents, groups or software.

    They are learned from dense models alone, where the file has any.
    """
    usable, skipped = runs_of(path)
    tpus = [sample for sample in usable if catalog.chip(sample.run.chip).matrix_unit]
    others = [
        SkippedRow(id=s.run.id, reason=f"{s.run.chip} has no matrix unit to learn about")
        for s in usable
        if not catalog.chip(s.run.chip).matrix_unit
    ]
    key = KEYS[hold_out]
    dense = [sample for sample in tpus if not sample.run.model.moe] or tpus
    if len(set(map(key, dense))) < 2:
        raise SpecError(
            f"{path or PUBLISHED}: nothing to learn from: all its runs are of one {hold_out}"
        )
    rows: dict[str, ScoredRow] = {}
    for train, test in folds(tpus, dense, key):
        constants = learn(train, LEARNED_BY[hold_out])
        baseline_s = baseline(train)
        for sample in test:
            efficiency = constants.efficiency(sample.run.chip)
            rows[sample.run.id] = scored(sample, efficiency, baseline_s(sample))
    in_order = [rows[sample.run.id] for sample in tpus]
    return score_of(tpus, in_order, [*skipped, *others], LEARNED_ON[hold_out])


def folds(
    every: list[Sample], dense: list[Sample], key: Key
) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """For each key, the dense rows without it and all rows with it; keys that no dense row has
    learn from all of these, as one.
    """
    known = set(map(key, dense))
    for fold in held_out(dense, key):
        yield fold.train, [sample for sample in every if key(sample) == fold.key]
    if others := [sample for sample in every if key(sample) not in known]:
        yield dense, others


def scored(sample: Sample, efficiency: Efficiency, baseline_s: float) -> ScoredRow:
    """One row against its prediction."""
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
        lower_step_s=sample.lower_s,
        baseline_step_s=baseline_s,
        error=expected / sample.measured_s - 1,
        inside_interval=low <= sample.measured_s <= high,
        below_lower_bound=sample.measured_s < sample.lower_s,
    )


def score_of(
    samples: list[Sample], rows: list[ScoredRow], skipped: list[SkippedRow], learned_on: str
) -> Score:
    return Score(
        learned_on=learned_on,
        rows=tuple(rows),
        left_out=tuple(skipped),
        retention=tuple(retentions(samples, rows)),
        software=tuple(software_summaries(rows)),
        summary=summary(rows, len(skipped)),
        dense=summary([row for row in rows if not row.mixture], 0),
        mixtures=summary([row for row in rows if row.mixture], 0),
    )


def software_summaries(rows: list[ScoredRow]) -> list[SoftwareSummary]:
    """The figures of each software, those with the most rows first."""
    counts = Counter(row.software for row in rows)
    by_name = {name: [row for row in rows if row.software == name] for name in counts}
    return [
        SoftwareSummary(
            software=name,
            rows=count,
            median_error=float(np.median([row.error for row in by_name[name]])),
            median_abs_error=float(np.median([abs(row.error) for row in by_name[name]])),
            p90_abs_error=float(p90(np.array([abs(row.error) for row in by_name[name]]))),
            inside_interval=sum(row.inside_interval for row in by_name[name]) / count,
        )
        for name, count in counts.most_common()
    ]


def summary(rows: list[ScoredRow], skipped: int) -> Summary:
    """The figures for all rows; None without rows."""
    errors = np.abs([row.error for row in rows])
    baseline_errors = np.abs([row.baseline_step_s / row.measured_step_s - 1 for row in rows])

    def figure(statistic: Callable[[Floats], Any], values: Floats) -> float | None:
        return float(statistic(values)) if len(rows) else None

    return Summary(
        rows=len(rows),
        left_out=skipped,
        median_abs_error=figure(np.median, errors),
        mean_abs_error=figure(np.mean, errors),
        p90_abs_error=figure(p90, errors),
        worst_abs_error=figure(np.max, errors),
        inside_interval=figure(np.mean, np.array([float(row.inside_interval) for row in rows])),
        below_lower_bound=sum(row.below_lower_bound for row in rows),
        baseline_median_abs_error=figure(np.median, baseline_errors),
        baseline_p90_abs_error=figure(p90, baseline_errors),
    )


def p90(values: Floats) -> Any:
    return np.quantile(values, 0.9)


def retentions(samples: list[Sample], rows: list[ScoredRow]) -> list[Retention]:
    """Rows of several slices against the row of the same job on one slice."""
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
    """What the rows of one job share: all but the number of slices."""
    run, mesh = sample.run, sample.laid_out.layout.mesh
    inside = tuple(size for axis, size in mesh.items() if axis not in DCN_AXES)
    per_slice = run.chips // run.slices, run.sequences / run.slices, run.microbatches
    return run.document, run.software.name, run.model, inside, per_slice, run.length, run.remat


# Predicted shares of effective time against published ones; recoveries against the campaign.


CAUSES = ("failures_per_day", "recovery_s", "blocking_s", "write_s")


def goodput_scores() -> tuple[GoodputScore, ...]:
    """Each published run from its own rates."""
    return tuple(map(_scored, goodput_runs()))


def _scored(run: GoodputRun) -> GoodputScore:
    interval_s = run.interval_s or rhythm_of(run).best_interval_s()
    share = rhythm_of(run).share(interval_s)
    ends = (
        (at(run, name, "low", interval_s), at(run, name, "high", interval_s)) for name in CAUSES
    )
    predicted = with_causes(share, ends, 1.0)
    return GoodputScore(
        id=run.id,
        source=run.source,
        predicted=predicted,
        reported=run.reported,
        reported_is=run.reported_is,
        note=run.note,
    )


def at(run: GoodputRun, name: str, end: str, interval_s: float) -> float:
    """The share with one number at an end of its interval."""
    number: Uncertain = getattr(run, name)
    moved: dict[str, Any] = {name: replace(number, value=getattr(number, end))}
    return rhythm_of(replace(run, **moved)).share(interval_s)


def rhythm_of(run: GoodputRun) -> Rhythm:
    return Rhythm(
        between_failures_s=DAY_S / run.failures_per_day.value,
        recovery_s=run.recovery_s.value,
        blocking_s=run.blocking_s.value,
        write_s=run.write_s.value,
    )


# --- the campaign of faults


def recovery_scores() -> tuple[RecoveryScore, ...]:
    """Each kind of fault: what the driver's constants say it costs, and what it did."""
    return tuple(
        RecoveryScore(
            id=fault.id,
            faults=fault.faults,
            predicted_s=recovers_s(fault),
            recorded_s=fault.recorded_s,
        )
        for fault in campaign().faults
    )


def recovers_s(fault: CampaignFault) -> float:
    """Seconds from a fault until a step is done again, on two ranks."""
    known = campaign()
    beat_s = heartbeat_interval_s(2, known.hang_limit_s)
    waits: dict[Wait, float] = {
        "poll": poll_interval_s(beat_s),
        "settling": settling_s(beat_s),
        "hang": known.hang_limit_s,
        "node_loss": recovery().node_loss_s.low,
    }
    return known.restart_s + sum(waits[name] for name in fault.waits)
