"""two plans side by side on one screen."""

from collections.abc import Callable, Sequence

from orchestrator.plan.plan_diff import SUM
from orchestrator.render.formatting import (
    counted,
    dollars,
    in_memory,
    lasting,
    percent,
    resource,
    scaled,
    seconds,
    span,
    to_digits,
)
from orchestrator.render.layout import columns, indent, page
from orchestrator.types.codec import short
from orchestrator.types.plan_diff import KeyDiff, LineDiff, PlanDiff, PlanReference

ENDS = ("first", "second")
# Lines that move by less than this share of the larger total are told together.
SMALL = 0.002


FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("MFU, lower bound", "mfu.lower", percent),
    ("MFU, expected", "mfu.expected", percent),
    ("MFU, unoverlapped", "mfu.unoverlapped", percent),
    ("tokens/s, lower bound", "tokens_per_s.lower", scaled),
    ("tokens/s, expected", "tokens_per_s.expected", scaled),
    ("tokens/s, unoverlapped", "tokens_per_s.unoverlapped", scaled),
    ("all tokens, lower bound", "days.lower", lasting),
    ("all tokens, expected", "days.expected", lasting),
    ("all tokens, unoverlapped", "days.unoverlapped", lasting),
    ("cost, lower bound", "dollars.lower", dollars),
    ("cost, expected", "dollars.expected", dollars),
    ("cost, unoverlapped", "dollars.unoverlapped", dollars),
)


def plan_diff_screen(found: PlanDiff, next_command: str) -> str:
    """Which two, what differs, what it does to each ledger and figure, and what to do next."""
    first, second = found.plans
    compared = [
        block("memory per device", memory(found)),
        block("time per step", time(found)),
        block("what it comes to", figures(found)),
    ]
    blocks = [
        [title(found)],
        block("what differs", differing(found)),
        *(compared if first.digest != second.digest else compared[-1:] * moved(found)),
        [verdict(found), f"Next: {next_command}"],
    ]
    return page(blocks)


def title(found: PlanDiff) -> str:
    return " beside ".join(called(plan) for plan in found.plans)


def moved(found: PlanDiff) -> bool:
    """Whether any figure of the two forecasts differs."""
    return any(pair.first != pair.second for pair in found.figures)


def called(plan: PlanReference) -> str:
    changed = f" with {' '.join(plan.overrides)}" if plan.overrides else ""
    return f"{plan.name} ({short(plan.digest)}){changed}"


def block(heading: str, lines: Sequence[str]) -> list[str]:
    return [f"  {heading}", *indent(lines, "    ")] if lines else []


def differing(found: PlanDiff) -> list[str]:
    """What was asked otherwise, then what was decided otherwise."""
    asked = [(pair.key, shown(pair.first), shown(pair.second), "asked") for pair in found.requested]
    decided = [(pair.key, shown(pair.first), shown(pair.second), "plan") for pair in found.decided]
    rows = [*asked, *decided]
    return columns([("", "first", "second", ""), *rows], "<>><") if rows else []


def shown(value: bool | float | str | None) -> str:
    """A value of a spec or a plan as its file has it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:,}"


def memory(found: PlanDiff) -> list[str]:
    """The phases that are the largest in either plan, line by line."""
    sums = [line for line in found.memory if line.name == SUM]
    largest = {max(sums, key=lambda line: line.first or 0.0).part}
    largest.add(max(sums, key=lambda line: line.second or 0.0).part)
    rows = []
    for part in dict.fromkeys(line.part for line in sums if line.part in largest):
        lines = [line for line in found.memory if line.part == part]
        rows += ledger([line for line in lines if line.name != SUM], in_memory, "")
        rows += [row(f"phase: {part}", "", line, in_memory) for line in lines if line.name == SUM]
    peaks = figure(found, "memory_bytes_per_device")
    usable = figure(found, "hbm_bytes_per_device")
    rows.append(("peak", "", *(in_memory(value) for value in peaks), change(*peaks)))
    rows.append(("of", "", *(in_memory(value) for value in usable), change(*usable)))
    return columns([HEAD, *rows], "<<>>>")


HEAD = ("", "", "first", "second", "change")
TOTALS = {"lower": "lower bound"}


def time(found: PlanDiff) -> list[str]:
    rows = ledger(list(found.time), seconds, None)
    for name in ("unoverlapped", "lower", "expected"):
        values = figure(found, f"step_s.{name}")
        if any(values):
            texts = [seconds(value) if value else "-" for value in values]
            rows.append((TOTALS.get(name, name), "", *texts, change(*values)))
    return columns([HEAD, *rows], "<<>>>")


def ledger(
    lines: list[LineDiff], show: Callable[[float], str], part: str | None
) -> list[tuple[str, ...]]:
    """A row for each line that matters in either plan, and one for all the small ones."""
    least = SMALL * max(sum(line.first or 0 for line in lines), 1e-30)
    least = max(least, SMALL * sum(line.second or 0 for line in lines))
    large = [line for line in lines if max(line.first or 0, line.second or 0) >= least]
    small = [line for line in lines if line not in large]
    rows = [row(one.name, resource(one.part) if part is None else part, one, show) for one in large]
    if small:
        first, second = (sum(getattr(line, at) or 0.0 for line in small) for at in ENDS)
        texts = show(first), show(second), change(first, second)
        rows.append((counted(len(small), "smaller line"), "", *texts))
    return rows


def row(name: str, part: str, line: LineDiff, show: Callable[[float], str]) -> tuple[str, ...]:
    values = ["-" if value is None else show(value) for value in (line.first, line.second)]
    return name, part, *values, change(line.first or 0.0, line.second or 0.0)


def change(first: float, second: float) -> str:
    """How much more or less the second has: in percent, or as a multiple where it is large."""
    if first == second:
        return "same"
    if not first or not second:
        return "new" if second else "gone"
    ratio = second / first
    if 0.5 <= ratio <= 2:
        return f"{signed((ratio - 1) * 100)} %"
    return f"x {to_digits(ratio, 3)}"


def in_points(first: float, second: float) -> str:
    """By how many percentage points a share has moved."""
    return f"{signed((second - first) * 100)} points"


def signed(value: float) -> str:
    """With its sign, unless what is shown of it is nothing: +0.3, 0.0."""
    shown = f"{value:+.1f}"
    return shown if float(shown) else "0.0"


def figures(found: PlanDiff) -> list[str]:
    rows = []
    for name, key, show in FIGURES:
        values = figure(found, key)
        if any(values):
            texts = [show(value) if value else "-" for value in values]
            points = key.startswith("mfu")
            rows.append((name, *texts, in_points(*values) if points else change(*values)))
    return columns([("", "first", "second", "change"), *rows], "<>>>")


def figure(found: PlanDiff, key: str) -> tuple[float, float]:
    """A figure of both forecasts; 0 where one has none."""
    pairs: dict[str, KeyDiff] = {pair.key: pair for pair in found.figures}
    pair = pairs.get(key)
    return (_number(pair.first), _number(pair.second)) if pair else (0.0, 0.0)


def _number(value: bool | float | str | None) -> float:
    return float(value or 0)


def verdict(found: PlanDiff) -> str:
    """What the second comes to beside the first, in one line."""
    first, second = found.plans
    if first.digest == second.digest:
        differ = "what it comes to differs" if moved(found) else "its figures are the same"
        return f"Beside: one plan twice; {differ}."
    makes, costs = ("should make", "should cost") if known(found) else ("makes", "costs")
    parts = [f"the second {makes} {times(found, 'tokens_per_s')} the tokens per second"]
    if all(figure(found, "dollars.lower")):
        parts.append(f"{costs} {times(found, 'dollars')} as much")
    before, after = found.bounds
    parts.append(f"is bound by {after}" + (f", not {before}" if before != after else ""))
    return f"Beside: {', '.join(parts)}."


def times(found: PlanDiff, key: str) -> str:
    """The second over the first as expected, or else from the bound to nothing overlapped."""
    at = ("expected",) if known(found) else ("lower", "unoverlapped")
    pairs = [figure(found, f"{key}.{name}") for name in at]
    ratios = sorted(second / first for first, second in pairs)
    return f"{span(*(to_digits(ratio, 4) for ratio in (ratios[0], ratios[-1])))} times"


def known(found: PlanDiff) -> bool:
    """Whether runs lead to expect anything of both plans."""
    return all(figure(found, "step_s.expected"))
