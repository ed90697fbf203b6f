"""Show the difference of two plans on one screen."""

from collections.abc import Callable, Sequence
from typing import Literal

from orchestrator.formatting import (
    change_by,
    counted,
    dollars,
    in_memory,
    lasting,
    percent,
    scaled,
    seconds,
    signed_points,
    to_digits,
    with_unit,
)
from orchestrator.planning.diff_plans import SUM, KeyDiff, LineDiff, PlanDiff, PlanReference
from orchestrator.proving.diff_proofs import LineSeconds, ProofDiff, ProofFigure
from orchestrator.show.parts import (
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
from orchestrator.show.plan_text import resource_name
from orchestrator.show.proof_screen import short_line
from orchestrator.values.codec import short
from orchestrator.values.proof import Proof, Schedule

# The verdict on two plans: five lines that come first, and one sentence.


SAME = 0.001  # a ratio this close to one is no difference
FEW_TIMES = 1.5  # smaller ratios are shown as percent
VERDICT: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("time", "days", lasting),
    ("cost", "dollars", dollars),
    ("MFU", "mfu", percent),
)
Side = Literal["first", "second"]
SIDES: tuple[Side, Side] = ("first", "second")


def verdict_rows(diff: PlanDiff) -> list[Part]:
    """Return the five lines of both verdicts; none where both are one plan."""
    if diff.plans[0].digest == diff.plans[1].digest:
        return []
    rows: list[tuple[str, ...]] = []
    if any(values := figure(diff, "memory_bytes_per_device")):
        rows.append(("fits", *fitting(diff), change(*values)))
    at = "expected" if all(figure(diff, "days.expected")) else "lower"
    interval = ", 80 % interval" if at == "expected" else ""
    for name, key, show in VERDICT:
        values = figure(diff, f"{key}.{at}")
        if any(values):
            changed = signed_points(values[1] - values[0]) if show is percent else change(*values)
            rows.append((name, *(ends(diff, side, key, show) for side in SIDES), changed))
    if not staged(diff):
        rows.append(("bound by", *diff.bounds, ""))
    head = ("", f"first{interval}", f"second{interval}", "change")
    bold = dict.fromkeys(range(1, len(rows) + 1), "bold")
    return [Table(rows=[head, *rows], columns="<>>>", row_styles=bold)]


def fitting(diff: PlanDiff) -> list[str]:
    """Return whether each plan fits, and how much of the memory it takes."""
    used, limits = figure(diff, "memory_bytes_per_device"), figure(diff, "hbm_bytes_per_device")
    pairs = zip(used, limits, strict=True)
    return [
        f"{'yes' if size <= limit else 'no'}: {percent(size / limit)} of HBM"
        for size, limit in pairs
    ]


def ends(diff: PlanDiff, side: Side, key: str, show: Callable[[float], str]) -> str:
    """Return what is expected of a plan with its 80 % interval; without one, the least."""
    values = {pair.key: getattr(pair, side) for pair in diff.figures}
    low, middle, high = (values.get(f"{key}.{name}") for name in ("low", "expected", "high"))
    if middle is None:
        lower = values.get(f"{key}.lower")
        word = "at most" if show is percent else "at least"
        return "-" if lower is None else f"{word} {show(lower)}"
    return f"{show(middle)} ({between(show(low), show(high))})" if low and high else show(middle)


def between(low: str, high: str) -> str:
    """Return an interval with its unit once: `30.1-39.9 days`."""
    number, _, unit = low.partition(" ")
    return f"{number}-{high}" if unit and high.endswith(f" {unit}") else f"{low}-{high}"


def verdict(diff: PlanDiff) -> str:
    """Return how much faster and dearer the second plan is."""
    first, second = diff.plans
    if first.digest == second.digest:
        differ = "its figures differ" if figures_differ(diff) else "its figures are the same"
        return f"Both are one plan; {differ}."
    at = "expected" if all(figure(diff, "days.expected")) else "lower"
    is_staged = staged(diff)
    text = f"The second is {faster(ratio(diff, f'tokens_per_s.{at}'))}" if not is_staged else ""
    if is_staged:
        text = f"The second takes {costs(ratio(diff, f'days.{at}'))} time"
    if all(figure(diff, "dollars.lower")):
        text += f" and costs {costs(ratio(diff, f'dollars.{at}'))}"
    if at == "lower":
        text += ", both at best"
    before, after = diff.bounds
    if is_staged:
        return f"{text}."
    return f"{text}. It is bound by {after}{f', not {before}' if before != after else ''}."


def staged(diff: PlanDiff) -> bool:
    """Return whether a plan has stages, each with a bound of its own."""
    return not any(figure(diff, "tokens_per_s.lower"))


def ratio(diff: PlanDiff, key: str) -> float:
    """Return the second over the first."""
    first, second = figure(diff, key)
    return second / first


def faster(ratio: float) -> str:
    """Return a ratio of speeds: `2.4 times faster`, `9.4 % slower`."""
    if abs(ratio - 1) < SAME:
        return "as fast"
    word, times = ("faster", ratio) if ratio > 1 else ("slower", 1 / ratio)
    by = f"{to_digits(times, 2)} times" if times >= FEW_TIMES else percent(abs(ratio - 1))
    return f"{by} {word}"


def costs(ratio: float) -> str:
    """Return a ratio of costs: `1.6 times as much`, `9.4 % less`."""
    if abs(ratio - 1) < SAME:
        return "the same"
    if not 1 / FEW_TIMES < ratio < FEW_TIMES:
        return f"{to_digits(ratio, 2)} times as much"
    return f"{percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'}"


def figures_differ(diff: PlanDiff) -> bool:
    return any(pair.first != pair.second for pair in diff.figures)


def figure(diff: PlanDiff, key: str) -> tuple[float, float]:
    """Return a figure of both forecasts; 0 where one has none."""
    pairs: dict[str, KeyDiff] = {pair.key: pair for pair in diff.figures}
    pair = pairs.get(key)
    return (float(pair.first or 0), float(pair.second or 0)) if pair else (0.0, 0.0)


def change(first: float, second: float) -> str:
    """Return the change in percent, or as a multiple where it is large."""
    if first == second:
        return "same"
    if not first or not second:
        return "new" if second else "gone"
    return change_by(second / first)


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


# Show two proofs side by side on one screen.


MOST = 10  # lines; --json has all
SMALL_PROOF = 0.001  # of a step: lines that differ by less are left to --json
NAMES = {
    "peak_hbm": "peak memory",
    "host": "on the host",
    "flops": "FLOPs",
    "ici": "sent over ici",
    "dcn": "sent over dcn",
    "products_s": "products",
    "kernels_s": "kernels",
    "copies_s": "copies",
    "other_s": "other",
    "exposed_s": "exposed",
    "total_s": "scheduled",
}
ProofRow = tuple[str, ...]


def proof_diff_screen(diff: ProofDiff, names: tuple[str, str]) -> Screen:
    """Return the figures of both, and the lines whose seconds differ."""
    first, second = diff.proofs
    return screen(
        [heading(f"{proof_reference(names[0], first)} and {proof_reference(names[1], second)}")],
        indent([paragraph(proof_diff_verdict(diff), "bold")]),
        section("per device and step", proof_figures(diff)),
        section("lines whose seconds differ most", lines(diff)),
        closing(proof_diff_verdict(diff)),
    )


def proof_reference(name: str, proof: Proof) -> str:
    return f"{name} ({short(proof.plan_digest)}, trainer {proof.trainer})"


def proof_figures(diff: ProofDiff) -> list[Part]:
    rows: list[ProofRow] = [("", "first", "second", "change")]
    rows += [
        (NAMES[one.name], *(proof_shown(one, value) for value in pair), change(*pair))
        for one in diff.figures
        if any(pair := (one.first, one.second))
    ]
    return [Table(rows=rows, columns="<>>>")]


def proof_shown(figure: ProofFigure, value: float) -> str:
    if figure.unit == "s":
        return seconds(value)
    if figure.unit == "flops":
        return with_unit(value, "FLOP", 4)
    is_memory = figure.name in {"peak_hbm", "host"}
    return in_memory(value) if is_memory else with_unit(value, "B", 4)


def lines(diff: ProofDiff) -> list[Part]:
    least = SMALL_PROOF * max((one.total_s for one in schedules(diff)), default=0.0)
    rows = [proof_line_row(one) for one in diff.lines[:MOST] if abs(one.more_s) >= least]
    head = ("first", "second", "more", "")
    return [Table(rows=[head, *rows], columns=">>><")] if rows else []


def proof_line_row(one: LineSeconds) -> ProofRow:
    sign = "+" if one.more_s > 0 else "-"
    more = f"{sign}{seconds(abs(one.more_s))}"
    return part(one.first_s), part(one.second_s), more, short_line(one.line)


def part(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def schedules(diff: ProofDiff) -> list[Schedule]:
    return [proof.schedule for proof in diff.proofs if proof.schedule]


def proof_diff_verdict(diff: ProofDiff) -> str:
    """Return which schedule is shorter, and whether both fit."""
    both = schedules(diff)
    if len(both) < 2:
        return "There is no schedule of both: the catalog has no clock for a chip."
    ratio = both[1].total_s / both[0].total_s
    word = "longer" if ratio > 1 else "shorter"
    text = f"The second is scheduled {percent(abs(ratio - 1))} {word}"
    unfit = [name for name, proof in zip(("first", "second"), diff.proofs, strict=True)
             if not proof.fits]  # fmt: skip
    return f"{text}{''.join(f'; the {name} does not fit' for name in unfit)}."
