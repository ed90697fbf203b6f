"""Show a score: published runs against their forecasts, with totals and what was left out."""

from collections import Counter

from orchestrator.evidence.score.samples import Score, Summary
from orchestrator.formatting import counted, percent, seconds, signed_percent, signed_points, span
from orchestrator.show.parts import (
    Part,
    Row,
    Screen,
    Table,
    Title,
    closing,
    heading,
    indent,
    labelled,
    screen,
    table,
)


def score_screen(score: Score, next_command: str) -> Screen:
    """Return every run, the totals, the efficiency on several slices, and what to do next."""
    summary = score.summary
    verdict = _verdict(summary)
    runs = [
        (
            run.id,
            seconds(run.expected_step_s),
            span(seconds(run.low_step_s), seconds(run.high_step_s)),
            seconds(run.measured_step_s),
            signed_percent(run.error),
        )
        for run in score.rows
    ]
    each_software = [
        (
            one.software,
            str(one.rows),
            share(one.median_abs_error),
            share(one.p90_abs_error),
            share(one.inside_interval),
            signed_percent(one.median_error),
        )
        for one in score.software
    ]
    # Tokens per second and chip on several slices over those on one.
    retention = [
        (
            kept.id,
            str(kept.slices),
            percent(kept.measured),
            percent(kept.expected),
            signed_points(kept.expected - kept.measured),
        )
        for kept in score.retention
    ]
    goodput = [
        (
            run.id,
            percent(run.predicted.value),
            span(percent(run.predicted.low), percent(run.predicted.high)),
            f"{'over ' if run.reported_is == 'at_least' else ''}{percent(run.reported)}",
        )
        for run in score.goodput
    ]
    recoveries = [
        (fault.id, seconds(fault.predicted_s), seconds(fault.recorded_s))
        for fault in score.recoveries
    ]
    # Runs outside their interval, and those faster than the lower bound.
    groups = {
        "outside the 80 % interval": [run.id for run in score.rows if not run.inside_interval],
        "faster than the lower bound": [
            f"{run.id} (at least {seconds(run.lower_step_s)})"
            for run in score.rows
            if run.below_lower_bound
        ],
    }
    software = table(
        ("software", "runs", "median", "p90", "inside 80 %", "bias"),
        each_software if len(each_software) > 1 else [],
    )
    return screen(
        [Title(f"{_runs(summary.rows)} against their forecasts", score.learned_on)],
        indent([heading(verdict)]),
        indent(table(("run", "expected", "80 % interval", "measured", "error"), runs)),
        indent(f"{name}: {', '.join(ids)}" for name, ids in groups.items() if ids),
        indent(_totals(score)),
        indent(software),
        indent(
            table(
                ("rate per chip, over one slice", "slices", "measured", "expected", ""), retention
            )
        ),
        indent(
            table(("share of time that trains", "predicted", "80 % interval", "reported"), goodput)
        ),
        indent(table(("seconds until a step was done again", "predicted", "recorded"), recoveries)),
        indent(_assumptions(score)),
        indent(labelled("left out:", f"{run.id}: {run.reason}") for run in score.left_out),
        closing(verdict, next_command),
    )


def _runs(number: int) -> str:
    return counted(number, "published run")


def _totals(score: Score) -> list[Part]:
    """Return the errors of the expected step time, next to those of a simple baseline; where there
    are both, dense models and mixtures of experts apart.
    """
    summary = score.summary
    if not summary.rows:
        return []
    named = {"this model": summary}
    if score.mixtures.rows:
        named |= {"dense models": score.dense, "mixtures of experts": score.mixtures}
    rows: list[Row] = [("error", "runs", "median", "mean", "p90", "worst")]
    for name, one in named.items():
        errors = one.median_abs_error, one.mean_abs_error, one.p90_abs_error, one.worst_abs_error
        rows.append((name, str(one.rows), *map(share, errors)))
    median, p90 = summary.baseline_median_abs_error, summary.baseline_p90_abs_error
    cells = ("" if error is None else share(error) for error in (median, None, p90, None))
    rows.append(("baseline: one MFU per chip", "", *cells))
    return [Table(rows, gap=3)]


def share(fraction: float | None) -> str:
    return "-" if fraction is None else percent(fraction)


def _assumptions(score: Score) -> list[Part]:
    """Return what the rows do not state of their software, and what was assumed instead."""
    lines: list[Part] = []
    names = {"software": "software", "kernel": "attention kernel", "averages": "averages"}
    for column, name in names.items():
        counts = Counter(getattr(row, column) for row in score.rows if column in row.assumed)
        assumed = ", ".join(f"{value} in {number}" for value, number in counts.most_common())
        lines += [f"{name} not stated: assumed {assumed}"] if counts else []
    return lines


def _verdict(summary: Summary) -> str:
    """Return the score in one line."""
    out = f"{summary.left_out} left out"
    if not summary.rows:
        return f"Score: no run that can be planned and converted, {out}."
    faster = f"{summary.below_lower_bound or 'none'} faster than the lower bound"
    return (
        f"Score: {_runs(summary.rows)}, median error {share(summary.median_abs_error)}, p90"
        f" {share(summary.p90_abs_error)}, {share(summary.inside_interval)} inside the 80 %"
        f" interval, {faster}, {out}."
    )
