"""reports of several runs as tables."""

from collections.abc import Sequence

from orchestrator.render.formatting import (
    count,
    elapsed,
    in_memory,
    percent,
    scaled,
    seconds,
    to_digits,
)
from orchestrator.render.layout import columns, indent
from orchestrator.render.report_text import NOT_COMPARED
from orchestrator.types.report import Goodput, Ratio, Report, Spread

SAME = 0.01


def compare_screen(reports: Sequence[Report], next_command: str) -> str:
    """How fast each run was, what was forecast for it, and where its time went."""
    blocks = [
        [f"{len(reports)} {'run' if len(reports) == 1 else 'runs'}, measured against predicted"],
        ["  speed", *indent(speed(reports), "    ")],
        ["  memory per device", *indent(memory_of(reports), "    ")],
        ["  where the time went", *indent(time(reports), "    ")],
        [
            *sorted({said for one in reports if (said := note(one))}),
            *unmeasured(reports),
            *unlimited(reports),
        ],
        [verdict(reports), f"Next: {next_command}"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def speed(reports: Sequence[Report]) -> list[str]:
    head = ("RUN", "PODS", "STEPS", "STEP", "SPREAD", "TOKENS/S/CHIP", "MFU", "PREDICTED", "OVER")
    return columns([head, *map(speed_row, reports)], "<>>>>>>>>")


def speed_row(report: Report) -> tuple[str, ...]:
    found = report.measured
    start = report.run, str(report.pods), count(report.steps_done)
    if found is None:
        return *start, "-", "-", "-", "-", "-", "-"
    return (
        *start,
        seconds(found.step_s.median),
        spread(found.step_s),
        scaled(found.tokens_per_s_per_chip),
        percent(found.mfu.median) if found.mfu else "-",
        predicted(report),
        over(report),
    )


def spread(found: Spread) -> str:
    """How far the tenth and the ninetieth percentile lie from the median."""
    low, high = found.low / found.median - 1, found.high / found.median - 1
    return f"{low * 100:+.0f} {high * 100:+.0f} %"


def reference(report: Report) -> Ratio | None:
    """What the run is held against: what was expected, or else the lower bound."""
    against = report.gap.against if report.gap else None
    return next((one for one in report.ratios if one.against == against), None)


def predicted(report: Report) -> str:
    one = reference(report)
    return seconds(one.step_s) if one else "-"


def over(report: Report) -> str:
    """The measured step as a multiple of the predicted one."""
    one = reference(report)
    return f"{to_digits(one.measured_over_predicted, 3)} x" if one else "-"


def note(report: Report) -> str:
    """What PREDICTED is, or why there is none."""
    if report.not_compared:
        return f"note: {NOT_COMPARED[report.not_compared]}"
    one = reference(report)
    if one is None:
        return ""
    what = "the lower bound" if one.against == "lower" else "what is expected"
    here = " on this machine's measured ceilings" if report.rehearsal else ""
    return f"note: PREDICTED is {what}{here}"


def memory_of(reports: Sequence[Report]) -> list[str]:
    """The peak as forecast, as compiled and as the devices say it was."""
    head = ("RUN", "FORECAST", "COMPILED", "MEASURED", "ALLOWED")
    return columns([head, *map(memory_row, reports)], "<>>>>")


def memory_row(report: Report) -> tuple[str, ...]:
    found = report.memory
    sizes = found.forecast_bytes, found.compiled_bytes, found.measured_bytes, found.hbm_bytes
    return report.run, *("-" if one is None else in_memory(one) for one in sizes)


def unmeasured(reports: Sequence[Report]) -> list[str]:
    """Why no memory was measured, where none was."""
    silent = any(one.measured and one.memory.measured_bytes is None for one in reports)
    return [
        "note: MEASURED is - where devices do not say what they hold, as those of a CPU"
    ] * silent


def unlimited(reports: Sequence[Report]) -> list[str]:
    """Why nothing is said to be allowed, where nothing limits."""
    free = any(one.memory.hbm_bytes is None for one in reports)
    return ["note: ALLOWED is - in a rehearsal: its devices share this machine's memory"] * free


def time(reports: Sequence[Report]) -> list[str]:
    head = ("RUN", "STATE", "ATTEMPTS", "TIME", "GOODPUT", "LOST MOST TO")
    return columns([head, *map(time_row, reports)], "<<>>><")


def time_row(report: Report) -> tuple[str, ...]:
    start = report.run, report.state, str(report.attempts)
    if report.goodput is None:
        return *start, "-", "-", ""
    spent = report.goodput
    return *start, elapsed(spent.total_s), percent(spent.goodput), cause(spent)


def cause(spent: Goodput) -> str:
    """What took most of the time that trained nothing."""
    name, lost_s = max(spent.badput_s.items(), key=lambda pair: pair[1])
    return f"{name} {percent(lost_s / spent.total_s)}" if lost_s else ""


def verdict(reports: Sequence[Report]) -> str:
    """Which was the fastest, where that can be said."""
    found = [(one, one.measured) for one in reports if one.measured]
    missing = len(reports) - len(found)
    if missing:
        return f"Compare: {missing} of {len(reports)} came to no step after warm-up."
    if len(reports) == 1:
        return "Compare: one run; name another to hold it beside."
    if len({one.rehearsal for one in reports}) > 1:
        return "Compare: rehearsals and real runs are told apart, not compared."
    if len({one.spec_digest for one in reports}) > 1:
        return "Compare: these are different experiments; compare each with its own forecast."
    ordered = sorted(found, key=lambda pair: -pair[1].tokens_per_s_per_chip)
    (best, most), (_, least) = ordered[0], ordered[-1]
    ratio = most.tokens_per_s_per_chip / least.tokens_per_s_per_chip
    if ratio < 1 + SAME:
        return "Compare: they make the same tokens per second and chip, within 1 %."
    more = f"{to_digits(ratio, 3)} times the least"
    return f"Compare: {best.run} makes the most tokens per second and chip, {more}."
