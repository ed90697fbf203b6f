"""The verdict on two plans: five lines that come first, and one sentence."""

from collections.abc import Callable
from typing import Literal

from orchestrator.formatting import change_by, dollars, lasting, percent, signed_points, to_digits
from orchestrator.render.screen_parts import Part, Table
from orchestrator.types.plan_diff import KeyDiff, PlanDiff

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
