"""a Score as a table of runs, its totals, and what was left out."""

from collections.abc import Sequence

from orchestrator.render.formatting import percent, seconds
from orchestrator.render.layout import columns, indent, page, tabulated, title
from orchestrator.types.score import Retention, Score, ScoredRow, Summary


def score_screen(score: Score, next_command: str) -> str:
    """Every run, in total, retention over slices, what is in no figure, and what to do next."""
    summary = score.summary
    blocks = [
        [title(f"{runs(summary.rows)} against their forecasts", score.learned_on)],
        table(score),
        indent(strays(score)),
        indent(totals(summary)),
        retention(score),
        indent(left_out(score)),
        [verdict(summary), f"Next: {next_command}"],
    ]
    return page(blocks)


def runs(count: int) -> str:
    return f"{count} published run" + "s" * (count != 1)


def table(score: Score) -> list[str]:
    if not score.rows:
        return []
    head = ("run", "expected", "80 % interval", "measured", "error")
    return tabulated([head, *map(row, score.rows)], "<>>>>")


def row(run: ScoredRow) -> tuple[str, ...]:
    return (
        run.id,
        seconds(run.expected_step_s),
        f"{seconds(run.low_step_s).split()[0]} to {seconds(run.high_step_s)}",
        seconds(run.measured_step_s),
        signed(run.error),
    )


def signed(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


def strays(score: Score) -> list[str]:
    """The runs that no interval holds, and those that no roofline should have let pass."""
    outside = [run.id for run in score.rows if not run.inside_interval]
    below = [
        f"{run.id} (at least {seconds(run.lower_step_s)})"
        for run in score.rows
        if run.below_lower_bound
    ]
    said = {"outside the 80 % interval": outside, "faster than the lower bound": below}
    return [f"{what}: {', '.join(ids)}" for what, ids in said.items() if ids]


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
    """Tokens per second and chip on several slices over those on one."""
    if not score.retention:
        return []
    head = ("rate per chip, over one slice", "slices", "measured", "expected", "")
    return tabulated([head, *map(retained, score.retention)], "<>>>>")


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


def score_markdown(scores: dict[str, Score]) -> str:
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
