"""Render room: a Score as a table of runs, its totals, and what was left out."""

from collections.abc import Sequence

from orchestrator.render.text import columns, indent, percent, seconds, title
from orchestrator.stations.score import Retention, Score, ScoredRow, Summary


def screen(score: Score, next_command: str) -> str:
    """Every run, in total, retention over slices, what is in no figure, and what to do next."""
    summary = score.summary
    blocks = [
        [title(f"{runs(summary.rows)} against their forecasts", score.learned_on)],
        indent(table(score)),
        indent(totals(summary)),
        indent(retention(score)),
        indent(left_out(score)),
        [verdict(summary), f"Next: {next_command}"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def runs(count: int) -> str:
    return f"{count} published run" + "s" * (count != 1)


def table(score: Score) -> list[str]:
    if not score.rows:
        return []
    head = ("run", "lower", "expected", "80 % interval", "measured", "error", "")
    return columns([head, *map(row, score.rows)], "<>>>>><")


def row(run: ScoredRow) -> tuple[str, ...]:
    return (
        run.id,
        seconds(run.lower_step_s),
        seconds(run.expected_step_s),
        f"{seconds(run.low_step_s).split()[0]} to {seconds(run.high_step_s)}",
        seconds(run.measured_step_s),
        signed(run.error),
        remark(run),
    )


def signed(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


def remark(run: ScoredRow) -> str:
    if run.below_lower_bound:
        return "faster than the lower bound"
    return "" if run.inside_interval else "outside"


def totals(summary: Summary) -> list[str]:
    """Errors of the expected step time, beside the baseline's."""
    if not summary.rows:
        return []
    rows = [
        ("error", "median", "mean", "p90", "worst"),
        (
            "this model",
            share(summary.median_abs_error),
            share(summary.mean_abs_error),
            share(summary.p90_abs_error),
            share(summary.worst_abs_error),
        ),
        (
            "one MFU a kind of chip",
            share(summary.baseline_median_abs_error),
            "",
            share(summary.baseline_p90_abs_error),
            "",
        ),
    ]
    return columns(rows, "<>>>>", gap="   ")


def share(fraction: float | None) -> str:
    return "-" if fraction is None else percent(fraction)


def retention(score: Score) -> list[str]:
    """Throughput per chip on several slices over one."""
    if not score.retention:
        return []
    head = ("throughput per chip over that on one slice", "slices", "measured", "expected", "")
    return columns([head, *map(retained, score.retention)], "<>>>>")


def retained(one: Retention) -> tuple[str, ...]:
    points = f"{(one.expected - one.measured) * 100:+.1f} points"
    return one.id, str(one.slices), percent(one.measured), percent(one.expected), points


def left_out(score: Score) -> list[str]:
    return [f"left out: {one.id}: {one.reason}" for one in score.left_out]


def verdict(summary: Summary) -> str:
    """The score in one line."""
    out = f"{summary.left_out} left out"
    if not summary.rows:
        return f"Score: no run that can be planned and converted, {out}."
    faster = f"{summary.below_lower_bound or 'none'} faster than the lower bound"
    return (
        f"Score: {runs(summary.rows)}, median error {share(summary.median_abs_error)}, p90"
        f" {share(summary.p90_abs_error)}, {share(summary.inside_interval)} inside the 80 %"
        f" interval, {faster}, {out}."
    )


def comparison(scores: dict[str, Score]) -> str:
    """The README's table: this model beside the baseline, for each way of leaving rows out."""
    head = ("learned without", "median", "p90", "inside 80 %", "one MFU: median", "p90")
    return markdown([head, *(compared(name, score.summary) for name, score in scores.items())])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head and whose first column is text."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]]) + "\n"


def compared(name: str, summary: Summary) -> tuple[str, ...]:
    return (
        name,
        share(summary.median_abs_error),
        share(summary.p90_abs_error),
        share(summary.inside_interval),
        share(summary.baseline_median_abs_error),
        share(summary.baseline_p90_abs_error),
    )
