"""Show the difference of two plans on one screen."""

from collections.abc import Callable, Sequence

from orchestrator.formatting import (
    counted,
    dollars,
    in_memory,
    lasting,
    percent,
    scaled,
    seconds,
    signed_points,
)
from orchestrator.plan.diff_plans import SUM
from orchestrator.render.plan_diff_verdict import (
    change,
    figure,
    figures_differ,
    verdict,
    verdict_rows,
)
from orchestrator.render.resource_names import resource_name
from orchestrator.render.screen_parts import (
    Part,
    Screen,
    Table,
    closing,
    heading,
    indent,
    paragraph,
    screen,
    section,
)
from orchestrator.types.codec import short
from orchestrator.types.plan_diff import LineDiff, PlanDiff, PlanReference

SMALL = 0.002  # of the larger total: smaller lines are shown as one
HEAD = ("", "", "first", "second", "change")
TOTALS = {"lower": "lower bound"}
FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("MFU", "mfu", percent),
    ("tokens/s", "tokens_per_s", scaled),
    ("all tokens", "days", lasting),
    ("cost", "dollars", dollars),
    ("goodput", "goodput", percent),
)
FIGURES_OF_STAGES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("memory", "memory_bytes_per_device", in_memory),
    ("step", "step_s", seconds),
    ("days", "days", lasting),
)
ESTIMATES = ("lower", "expected", "unoverlapped")

Row = tuple[str, ...]


def plan_diff_screen(diff: PlanDiff, next_command: str) -> Screen:
    """Return the differences of two plans, in their decisions, ledgers and figures."""
    first, second = diff.plans
    figures_section = section("figures", figures(diff))
    compared = [
        section("memory per device", memory(diff) if diff.memory else []),
        section("time per step", time(diff) if diff.time else []),
        section("stages", stages(diff)),
        figures_section,
    ]
    if first.digest == second.digest:
        compared = [figures_section] if figures_differ(diff) else []
    return screen(
        [heading(f"{reference(first)} and {reference(second)}")],
        indent(verdict_rows(diff)),
        indent([paragraph(verdict(diff), "bold")]),
        section("differences", differences(diff)),
        *compared,
        closing(verdict(diff), next_command),
    )


def reference(plan: PlanReference) -> str:
    changes = f" with {' '.join(plan.overrides)}" if plan.overrides else ""
    return f"{plan.name} ({short(plan.digest)}){changes}"


def differences(diff: PlanDiff) -> list[Part]:
    """Return the keys that differ in the specs, then those that differ in the plans."""
    rows = [
        (pair.key, as_written(pair.first), as_written(pair.second), "spec")
        for pair in diff.requested
    ]
    where: dict[Row, list[int]] = {}
    for pair in diff.decided:
        stage, key = of_stage(pair.key)
        where.setdefault((key, as_written(pair.first), as_written(pair.second)), []).append(stage)
    every = len(dict.fromkeys(of_stage(pair.key)[0] for pair in diff.figures)) - 1
    rows += [
        (key + in_stages(numbers, every), first, second, "plan")
        for (key, first, second), numbers in where.items()
    ]
    return [Table(rows=[("", "first", "second", ""), *rows], columns="<>><")] if rows else []


def in_stages(numbers: Sequence[int], every: int) -> str:
    """Return which stages a difference is in; nothing where the plans have none."""
    if not any(numbers):
        return ""
    if len(numbers) == every:
        return " in every stage"
    return f" in stage {', '.join(map(str, numbers))}"


def as_written(value: bool | float | str | None) -> str:
    """Return a value as a spec or a plan has it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:,}"


def memory(diff: PlanDiff) -> list[Part]:
    """Return the lines of the phases that are largest in either plan."""
    sums = [line for line in diff.memory if line.name == SUM]
    largest = {
        max(sums, key=lambda line: line.first or 0.0).part,
        max(sums, key=lambda line: line.second or 0.0).part,
    }
    rows: list[Row] = []
    for part in dict.fromkeys(line.part for line in sums if line.part in largest):
        lines = [line for line in diff.memory if line.part == part]
        rows += ledger([line for line in lines if line.name != SUM], in_memory, lambda _: "")
        rows += [line_row(f"phase: {part}", "", one, in_memory) for one in lines if one.name == SUM]
    for name, key in (("peak", "memory_bytes_per_device"), ("limit", "hbm_bytes_per_device")):
        values = figure(diff, key)
        rows.append((name, "", *map(in_memory, values), change(*values)))
    return [Table(rows=[HEAD, *rows], columns="<<>>>")]


def time(diff: PlanDiff) -> list[Part]:
    rows = ledger(diff.time, seconds, lambda line: resource_name(line.part))
    for name in ("unoverlapped", "lower", "expected"):
        values = figure(diff, f"step_s.{name}")
        if any(values):
            rows.append((TOTALS.get(name, name), "", *shown(values, seconds), change(*values)))
    return [Table(rows=[HEAD, *rows], columns="<<>>>")]


def ledger(
    lines: Sequence[LineDiff], show: Callable[[float], str], part: Callable[[LineDiff], str]
) -> list[Row]:
    """Return a row for each line that matters in either plan, and one for all small lines."""
    totals = [sum(line.first or 0 for line in lines), sum(line.second or 0 for line in lines)]
    least = SMALL * max(*totals, 1e-30)
    large = [line for line in lines if max(line.first or 0, line.second or 0) >= least]
    small = [line for line in lines if line not in large]
    rows = [line_row(line.name, part(line), line, show) for line in large]
    if small:
        first, second = sum(x.first or 0.0 for x in small), sum(x.second or 0.0 for x in small)
        name = counted(len(small), "smaller line")
        rows.append((name, "", show(first), show(second), change(first, second)))
    return rows


def line_row(name: str, part: str, line: LineDiff, show: Callable[[float], str]) -> Row:
    values = ["-" if value is None else show(value) for value in (line.first, line.second)]
    return name, part, *values, change(line.first or 0.0, line.second or 0.0)


def stages(diff: PlanDiff) -> list[Part]:
    """Return the figures of each stage that differ: what is expected, or the lower bound."""
    places = dict.fromkeys(stage for pair in diff.figures if (stage := of_stage(pair.key)[0]))
    at = "expected" if any(figure(diff, "days.expected")) else "lower"
    rows: list[Row] = []
    for stage in places:
        for name, key, show in FIGURES_OF_STAGES:
            of_key = key if show is in_memory else f"{key}.{at}"
            values = figure(diff, f"stages.{stage - 1}.{of_key}")
            if values[0] != values[1]:
                rows.append((f"stage {stage}", name, *shown(values, show), change(*values)))
    if rows:
        return [Table(rows=[HEAD, *rows], columns="<<>>>")]
    return ["the figures of every stage are the same"] if places else []


def of_stage(key: str) -> tuple[int, str]:
    """Return the number of the stage that a key is about, 0 for none, and the rest of the key."""
    first, _, rest = key.partition(".")
    if first != "stages":
        return 0, key
    place, _, of = rest.partition(".")
    return int(place) + 1, of


def figures(diff: PlanDiff) -> list[Part]:
    rows: list[Row] = []
    has_estimate = any(figure(diff, "days.expected"))
    for name, key, show in FIGURES:
        for estimate in ESTIMATES if has_estimate else ("lower",):
            values = figure(diff, f"{key}.{estimate}")
            if any(values):
                changed = change(*values)
                if show is percent:
                    changed = signed_points(values[1] - values[0])
                label = f"{name}, {TOTALS.get(estimate, estimate)}"
                rows.append((label, *shown(values, show), changed))
    return [Table(rows=[("", "first", "second", "change"), *rows], columns="<>>>")]


def shown(values: tuple[float, float], show: Callable[[float], str]) -> list[str]:
    return [show(value) if value else "-" for value in values]
