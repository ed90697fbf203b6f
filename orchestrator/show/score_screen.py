"""Show a score: published runs against their forecasts, with totals and what was left out."""

from collections import Counter

from orchestrator.evidence.score.samples import (
    GoodputScore,
    Retention,
    Score,
    ScoredRow,
    SoftwareSummary,
    Summary,
)
from orchestrator.formatting import counted, percent, seconds, signed_percent, signed_points, span
from orchestrator.show.parts import (
    Part,
    Screen,
    Table,
    Title,
    closing,
    indent,
    labelled,
    paragraph,
    screen,
)


def score_screen(score: Score, next_command: str) -> Screen:
    """Return every run, the totals, the efficiency on several slices, and what to do next."""
    summary = score.summary
    return screen(
        [Title(left=f"{runs(summary.rows)} against their forecasts", right=score.learned_on)],
        indent([paragraph(verdict(summary), "bold")]),
        indent(table(score)),
        indent(outliers(score)),
        indent(totals(score)),
        indent(software(score)),
        indent(retention(score)),
        indent(goodput(score)),
        indent(recoveries(score)),
        indent(assumptions(score)),
        indent(labelled("left out:", f"{one.id}: {one.reason}") for one in score.left_out),
        closing(verdict(summary), next_command),
    )


def runs(number: int) -> str:
    return counted(number, "published run")


def table(score: Score) -> list[Part]:
    head = ("run", "expected", "80 % interval", "measured", "error")
    rows = [head, *map(row, score.rows)]
    return [Table(rows=rows, columns="<>>>>")] if score.rows else []


def row(run: ScoredRow) -> tuple[str, ...]:
    return (
        run.id,
        seconds(run.expected_step_s),
        span(seconds(run.low_step_s), seconds(run.high_step_s)),
        seconds(run.measured_step_s),
        signed_percent(run.error),
    )


def outliers(score: Score) -> list[Part]:
    """Return the runs outside their interval, and those faster than the lower bound."""
    outside = [run.id for run in score.rows if not run.inside_interval]
    below = [
        f"{run.id} (at least {seconds(run.lower_step_s)})"
        for run in score.rows
        if run.below_lower_bound
    ]
    groups = {"outside the 80 % interval": outside, "faster than the lower bound": below}
    return [f"{name}: {', '.join(ids)}" for name, ids in groups.items() if ids]


def totals(score: Score) -> list[Part]:
    """Return the errors of the expected step time, next to those of a simple baseline; where there
    are both, dense models and mixtures of experts apart.
    """
    summary = score.summary
    if not summary.rows:
        return []
    baseline = (summary.baseline_median_abs_error, None, summary.baseline_p90_abs_error, None)
    apart = {"dense models": score.dense, "mixtures of experts": score.mixtures}
    named = {"this model": summary, **apart} if score.mixtures.rows else {"this model": summary}
    rows = [
        ("error", "runs", "median", "mean", "p90", "worst"),
        *((name, str(one.rows), *errors(one)) for name, one in named.items()),
        (
            "baseline: one MFU per chip",
            "",
            *("" if one is None else share(one) for one in baseline),
        ),
    ]
    return [Table(rows=rows, columns="<>>>>>", gap=3)]


def errors(summary: Summary) -> tuple[str, ...]:
    return tuple(
        share(figure)
        for figure in (
            summary.median_abs_error,
            summary.mean_abs_error,
            summary.p90_abs_error,
            summary.worst_abs_error,
        )
    )


def share(fraction: float | None) -> str:
    return "-" if fraction is None else percent(fraction)


def software(score: Score) -> list[Part]:
    """Return the errors of each software, where there is more than one."""
    head = ("software", "runs", "median", "p90", "inside 80 %", "bias")
    rows = [head, *map(software_row, score.software)]
    return [Table(rows=rows, columns="<>>>>>")] if len(score.software) > 1 else []


def software_row(one: SoftwareSummary) -> tuple[str, ...]:
    return (
        one.software,
        str(one.rows),
        share(one.median_abs_error),
        share(one.p90_abs_error),
        share(one.inside_interval),
        signed_percent(one.median_error),
    )


def retention(score: Score) -> list[Part]:
    """Return tokens per second and chip on several slices over those on one."""
    head = ("rate per chip, over one slice", "slices", "measured", "expected", "")
    rows = [head, *map(retention_row, score.retention)]
    return [Table(rows=rows, columns="<>>>>")] if score.retention else []


def retention_row(one: Retention) -> tuple[str, ...]:
    points = signed_points(one.expected - one.measured)
    return one.id, str(one.slices), percent(one.measured), percent(one.expected), points


def goodput(score: Score) -> list[Part]:
    """Return shares of effective time."""
    head = ("share of time that trains", "predicted", "80 % interval", "reported")
    rows = [head, *map(goodput_row, score.goodput)]
    return [Table(rows=rows, columns="<>>>")] if score.goodput else []


def recoveries(score: Score) -> list[Part]:
    """Return the recoveries of the campaign of faults."""
    head = ("seconds until a step was done again", "predicted", "recorded")
    rows = [(one.id, seconds(one.predicted_s), seconds(one.recorded_s)) for one in score.recoveries]
    return [Table(rows=[head, *rows], columns="<>>")] if rows else []


def goodput_row(one: GoodputScore) -> tuple[str, ...]:
    interval = span(percent(one.predicted.low), percent(one.predicted.high))
    above = "over " if one.reported_is == "at_least" else ""
    return one.id, percent(one.predicted.value), interval, f"{above}{percent(one.reported)}"


def assumptions(score: Score) -> list[Part]:
    """Return what the rows do not state of their software, and what was assumed instead."""
    given = {"software": "software", "kernel": "attention kernel", "averages": "averages"}
    lines: list[Part] = []
    for column, name in given.items():
        rows = [row for row in score.rows if column in row.assumed]
        counts = Counter(getattr(row, column) for row in rows)
        assumed = ", ".join(f"{value} in {number}" for value, number in counts.most_common())
        lines += [f"{name} not stated: assumed {assumed}"] if rows else []
    return lines


def verdict(summary: Summary) -> str:
    """Return the score in one line."""
    out = f"{summary.left_out} left out"
    if not summary.rows:
        return f"Score: no run that can be planned and converted, {out}."
    faster = f"{summary.below_lower_bound or 'none'} faster than the lower bound"
    return (
        f"Score: {runs(summary.rows)}, median error {share(summary.median_abs_error)}, p90"
        f" {share(summary.p90_abs_error)}, {share(summary.inside_interval)} inside the 80 %"
        f" interval, {faster}, {out}."
    )
