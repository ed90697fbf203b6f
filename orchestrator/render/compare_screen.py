"""Show reports of several runs as tables: speed, memory, and where the time went."""

from collections.abc import Sequence

from orchestrator.formatting import (
    count,
    counted,
    elapsed,
    in_memory,
    percent,
    scaled,
    seconds,
    to_digits,
)
from orchestrator.render.report_text import CAUSES, NOT_COMPARED
from orchestrator.render.screen_parts import (
    Part,
    Screen,
    Table,
    heading,
    indent,
    labelled,
    next_step,
    paragraph,
    screen,
    section,
)
from orchestrator.render.trials_text import loss_text
from orchestrator.types.report import Goodput, Ratio, Report, Spread

SAME = 0.01  # rates this close are equal

Row = tuple[str, ...]


def compare_screen(reports: Sequence[Report], next_command: str) -> Screen:
    """Return how fast each run was, what was predicted, and where its time went."""
    return screen(
        [heading(f"{counted(len(reports), 'run')}, measured against predicted")],
        indent([paragraph(verdict(reports), "bold")]),
        section("speed", [speed(reports)]),
        section("memory per device", [memory(reports)]),
        section("where the time went", [time(reports)]),
        notes(reports),
        next_step(next_command),
    )


def speed(reports: Sequence[Report]) -> Table:
    head = (
        "RUN", "PODS", "STEPS", "STEP TIME", "P10, P90", "TOKENS/S/CHIP", "MFU",
        "PREDICTED", "RATIO",
    )  # fmt: skip
    rows = [head, *map(speed_row, reports)]
    if len({one.spec_digest for one in reports}) > 1:
        rows = [(*row, cell) for row, cell in zip(rows, ["LOSS", *map(loss, reports)], strict=True)]
    return Table(rows=rows, columns="<" + ">" * (len(rows[0]) - 1))


def loss(report: Report) -> str:
    return "-" if report.last_loss is None else loss_text(report.last_loss)


def speed_row(report: Report) -> Row:
    start = report.run, str(report.pods), count(report.steps_done)
    if report.measured is None:
        return *start, "-", "-", "-", "-", "-", "-"
    measured, against = report.measured, reference(report)
    return (
        *start,
        seconds(measured.step_s.median),
        spread(measured.step_s),
        scaled(measured.tokens_per_s_per_chip),
        percent(measured.mfu.median) if measured.mfu else "-",
        seconds(against.step_s) if against else "-",
        f"{to_digits(against.measured_over_predicted, 3)} x" if against else "-",
    )


def spread(steps: Spread) -> str:
    """Return how far the tenth and the ninetieth percentile are from the median."""
    low, high = steps.low / steps.median - 1, steps.high / steps.median - 1
    return f"{low * 100:+.0f} {high * 100:+.0f} %"


def reference(report: Report) -> Ratio | None:
    """Return the prediction that counts: the expected step, or else the lower bound."""
    against = report.gap.against if report.gap else None
    return next((one for one in report.ratios if one.against == against), None)


def memory(reports: Sequence[Report]) -> Table:
    """Return the peak as forecast, as compiled and as measured by the devices."""
    head = ("RUN", "FORECAST", "COMPILED", "MEASURED", "LIMIT")
    return Table(rows=[head, *map(memory_row, reports)], columns="<>>>>")


def memory_row(report: Report) -> Row:
    memory = report.memory
    sizes = memory.forecast_bytes, memory.compiled_bytes, memory.measured_bytes, memory.hbm_bytes
    return report.run, *("-" if one is None else in_memory(one) for one in sizes)


def time(reports: Sequence[Report]) -> Table:
    head = ("RUN", "STATE", "ATTEMPTS", "TIME", "GOODPUT", "LARGEST LOSS")
    return Table(rows=[head, *map(time_row, reports)], columns="<<>>><")


def time_row(report: Report) -> Row:
    start = report.run, report.state, str(report.attempts)
    if report.goodput is None:
        return *start, "-", "-", ""
    goodput = report.goodput
    return *start, elapsed(goodput.total_s), percent(goodput.goodput), largest_loss(goodput)


def largest_loss(goodput: Goodput) -> str:
    cause, lost_s = max(goodput.badput_s.items(), key=lambda pair: pair[1])
    return f"{CAUSES[cause]} {percent(lost_s / goodput.total_s)}" if lost_s else ""


def notes(reports: Sequence[Report]) -> list[Part]:
    """Return what PREDICTED is, and why cells are empty."""
    texts = sorted({text for one in reports if (text := prediction_note(one))})
    if any(one.measured and one.memory.measured_bytes is None for one in reports):
        texts.append("MEASURED is - where devices do not report memory, as those of a CPU")
    if any(one.memory.hbm_bytes is None for one in reports):
        texts.append("LIMIT is - in a rehearsal, whose devices share this machine's memory")
    return [labelled("note:", text) for text in texts]


def prediction_note(report: Report) -> str:
    if report.not_compared:
        return NOT_COMPARED[report.not_compared]
    against = reference(report)
    if against is None:
        return ""
    what = "the lower bound" if against.against == "lower" else "the expected step"
    here = ", from this machine's chip profile" if report.rehearsal else ""
    return f"PREDICTED is {what}{here}, and RATIO the step time over it"


def different_experiments(reports: Sequence[Report]) -> str:
    """Return the lowest loss: the speeds of different experiments say nothing of each other."""
    text = "Compare: these are different experiments; compare each with its own forecast."
    losses = [(one.last_loss, one.run) for one in reports if one.last_loss is not None]
    if len(losses) < len(reports):
        return text
    lowest, run = min(losses)
    return f"{text} {run} ends with the lowest loss, {loss_text(lowest)}."


def verdict(reports: Sequence[Report]) -> str:
    """Return which run is the fastest, where they can be compared."""
    if not reports:
        return "Compare: the study has no run yet."
    measured = [(one, one.measured) for one in reports if one.measured]
    missing = len(reports) - len(measured)
    if missing:
        return f"Compare: {missing} of {len(reports)} runs have no step after warm-up."
    if len(reports) == 1:
        return "Compare: one run; name another to compare it with."
    if len({one.rehearsal for one in reports}) > 1:
        return "Compare: rehearsals and real runs cannot be compared."
    if len({one.spec_digest for one in reports}) > 1:
        return different_experiments(reports)
    ordered = sorted(measured, key=lambda pair: -pair[1].tokens_per_s_per_chip)
    (best, most), (_, least) = ordered[0], ordered[-1]
    ratio = most.tokens_per_s_per_chip / least.tokens_per_s_per_chip
    if ratio < 1 + SAME:
        return "Compare: all have the same tokens per second and chip, within 1 %."
    return (
        f"Compare: {best.run} has the most tokens per second and chip, {to_digits(ratio, 3)} times"
        " the fewest."
    )
