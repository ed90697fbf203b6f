"""The report of a run on a screen: the verdict first, then its figures."""

from collections.abc import Iterator, Sequence

from orchestrator.formatting import (
    count,
    counted,
    dollars,
    elapsed,
    elapsed_or_ms,
    in_memory,
    lasting,
    off,
    percent,
    scaled,
    seconds,
    span,
    to_digits,
)
from orchestrator.journal.run_state import first_line
from orchestrator.show.parts import (
    Detail,
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
from orchestrator.show.plan_text import resource_name
from orchestrator.show.trials_text import loss_text
from orchestrator.values.report import (
    Badput,
    Gap,
    Goodput,
    Measurement,
    NotCompared,
    Ratio,
    Report,
    Spread,
    StageReport,
    StageTotals,
)

# Sentences about a report: the verdict, the gap to the prediction, the goodput.


SMALL = 0.01  # of the largest part of a gap: smaller parts are left out
PARTS = {
    "devices": "on the devices",
    "slow steps": "in slow steps",
    "waiting for data": "waiting for data",
    "saving": "saving",
}
NOT_COMPARED: dict[NotCompared, str] = {
    "cpu_rehearsal": "a rehearsal measures this machine's CPU and its forecast is for chips, so"
    " they are not compared"
}
CAUSES: dict[Badput, str] = {
    "tpu_initialization": "starting processes",
    "training_prep": "creating the first state",
    "program_startup": "compiling and the first step",
    "data_loading_sync": "waiting for data",
    "unproductive_checkpoint_save_time": "saving checkpoints",
    "unproductive_checkpoint_restore_time": "restoring checkpoints",
    "evaluation": "evaluating held-out text",
    "wasted_progress_from_disruption": "repeated steps",
    "infrastructure_recovery_from_disruption": "recovering from disruptions",
    "other": "everything else",
}


def run_verdict(report: Report) -> str:
    """Return how the run ended, how fast it was, and how that compares with the forecast."""
    return f"{ending(report)} {speed(report)}"


def ending(report: Report) -> str:
    done = f"{count(report.steps_done)} of {count(report.steps)} steps"
    if report.state == "succeeded":
        return f"{'Rehearsal succeeded' if report.rehearsal else 'Succeeded'}: {done}."
    why = f": {first_line(report.detail).rstrip('.')}" if report.detail else ""
    state = f"Rehearsal {report.state}" if report.rehearsal else report.state.capitalize()
    return f"{state} after {done}{why}."


def speed(report: Report) -> str:
    measured = report.measured
    if measured is None:
        return "No step was measured after warm-up."
    step = f"A step took {seconds(measured.step_s.median)}"
    if report.not_compared:
        cpu = " on this machine's CPU, which says nothing about chips"
        return f"{step}{cpu if report.rehearsal else ''}."
    ratios = {one.against: one for one in report.ratios}
    if "expected" in ratios:
        mfu = f"; MFU {percent(measured.mfu.median)}" if measured.mfu else ""
        return f"{step}, {against_expected(ratios['expected'], report)}{mfu}."
    return f"{step}, {against_bound(ratios['lower'], measured, report)}."


def against_expected(expected: Ratio, report: Report) -> str:
    """Return how far the measured step is from the expected one."""
    measured_s = expected.step_s * expected.measured_over_predicted
    text = off(measured_s, expected.step_s, f"the {seconds(expected.step_s)} expected")
    if report.rehearsal:
        text += " from this machine's chip profile"
    if report.inside_interval is not None:
        text += f", {'inside' if report.inside_interval else 'outside'} the 80 % interval"
    return text


def against_bound(lower: Ratio, measured: Measurement, report: Report) -> str:
    text = f"{to_digits(lower.measured_over_predicted, 3)} times the lower bound"
    if measured.mfu:
        most = percent(report.forecast.mfu.lower)
        text += f"; MFU {percent(measured.mfu.median)} of at most {most}"
    return text


def gap_text(gap: Gap) -> str:
    """Return where the time beyond the prediction went, and what could have taken it."""
    largest = max(abs(part.s) for part in gap.parts)
    parts = [
        f"{signed(part.s)} {PARTS[part.name]}"
        for part in gap.parts
        if abs(part.s) >= SMALL * largest
    ]
    than = "the lower bound" if gap.against == "lower" else "expected"
    more = "more" if gap.s >= 0 else "less"
    text = f"The mean step took {seconds(abs(gap.s))} {more} than {than}: {', '.join(parts)}."
    if gap.exposed is not None and 0 < gap.exposed <= 1:
        text += (
            f" At peak rates, {percent(gap.exposed)} of the communication that could overlap did"
            " not."
        )
    elif gap.exposed is not None and gap.exposed > 1:
        text += " It is slower than without any overlap, so some rate is below its peak."
    return text + suspect(gap)


def signed(value_s: float) -> str:
    return f"{'+' if value_s >= 0 else '-'}{seconds(abs(value_s))}"


def suspect(gap: Gap) -> str:
    """Return the likeliest resource to have set the pace alone."""
    likely = next(iter(gap.suspects), None)
    if likely is None:
        return ""
    rate = percent(likely.rate_if_alone)
    return f" If {resource_name(likely.resource)} alone set the pace, it ran at {rate} of its peak."


def goodput_text(goodput: Goodput) -> str:
    """Return the share of the time that trained, and what took most of the rest."""
    total = elapsed(goodput.total_s)
    text = f"{percent(goodput.goodput)} of {total} went into steps that count"
    name, lost_s = max(goodput.badput_s.items(), key=lambda pair: pair[1])
    if lost_s:
        text += f"; most of the rest went into {CAUSES[name]}, {elapsed(lost_s)}"
    return f"{text}."


# The figures of a report, as its page and its screen show them.


Row = tuple[str, ...]


def figures(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield the main numbers: name, value, and a note."""
    measured = report.measured
    if measured:
        step_s = measured.step_s
        spread = (
            f"{span(seconds(step_s.low), seconds(step_s.high))}, {counted(measured.steps, 'step')}"
        )
        yield "step", seconds(step_s.median), spread
        if mfu := measured.mfu:
            yield "MFU", percent(mfu.median), span(percent(mfu.low), percent(mfu.high))
        chip = "emulated chip" if report.rehearsal else "chip"
        total = f"{scaled(measured.tokens_per_s)} in total"
        yield f"tokens/s per {chip}", scaled(measured.tokens_per_s_per_chip), total
    if report.gap:
        one = next(one for one in report.ratios if one.against == report.gap.against)
        name = "over the lower bound" if one.against == "lower" else "over expected"
        yield name, f"{to_digits(one.measured_over_predicted, 3)} x", seconds(one.step_s)
    if report.goodput:
        total = f"of {elapsed(report.goodput.total_s)}"
        yield "goodput", percent(report.goodput.goodput), total
    if report.outlook:
        days = report.outlook.days_left
        interval = span(lasting(days.low), lasting(days.high))
        yield "left", lasting(days.value), f"80 % interval {interval}"
        if report.outlook.odds is not None:
            yield "deadline", percent(report.outlook.odds), "likely to hold"
    if report.first_loss is not None and report.last_loss is not None:
        yield "loss", f"{report.last_loss:.3f}", f"from {report.first_loss:.3f}"
    if evaluation := report.evaluation:
        best = f"{evaluation.best.loss:.3f} after step {count(evaluation.best.steps_done)}"
        yield "held-out loss", f"{evaluation.last.loss:.3f}", f"best {best}"
        perplexity = to_digits(evaluation.last.perplexity, 4)
        yield "perplexity", perplexity, f"of {scaled(evaluation.last.tokens)} held-out tokens"


def goodput_rows(goodput: Goodput) -> list[Row]:
    lost = sorted(goodput.badput_s.items(), key=lambda pair: -pair[1])
    return [
        ("goodput", elapsed_or_ms(goodput.goodput_s), percent(goodput.goodput)),
        *(
            (f"{name}: {CAUSES[name]}", elapsed_or_ms(s), percent(s / goodput.total_s))
            for name, s in lost
            if s > 0
        ),
    ]


# The stages of a run as a table: what each took, beside its forecast.


StageRow = tuple[str, ...]
HEAD = ("stage", "steps", "tokens", "batch", "length", "step", "MFU", "over predicted", "time",
        "dollars")  # fmt: skip


def stage_rows(report: Report) -> list[StageRow]:
    """Return a row for each stage and one for all; none for a run without stages."""
    if not report.stages or report.stage_totals is None:
        return []
    return [*(stage_row(one) for one in report.stages), total_row(report.stage_totals)]


def stage_row(stage: StageReport) -> StageRow:
    measured, over = stage.measured, stage.measured_over_predicted
    return (
        str(stage.number),
        f"{count(stage.steps_done)} of {count(stage.steps)}",
        scaled(stage.tokens_done) if stage.tokens_done else "0",
        count(stage.sequences),
        count(stage.length),
        seconds(measured.step_s.median) if measured else "-",
        percent(measured.mfu.median) if measured and measured.mfu else "-",
        "-" if over is None else f"{to_digits(over, 3)} x",
        elapsed(stage.steps_s) if stage.steps_s else "-",
        "-" if stage.dollars is None else dollars(stage.dollars),
    )


def total_row(totals: StageTotals) -> StageRow:
    over = totals.steps_s / totals.predicted_s if totals.predicted_s else None
    return (
        "all",
        count(totals.steps_done),
        scaled(totals.tokens_done) if totals.tokens_done else "0",
        "",
        "",
        "",
        "",
        "-" if over is None else f"{to_digits(over, 3)} x",
        elapsed(totals.steps_s) if totals.steps_s else "-",
        "-" if totals.dollars is None else dollars(totals.dollars),
    )


def report_screen(report: Report, page: str, next_command: str, detail: Detail) -> Screen:
    """Return the verdict; unless that is enough its figures, and in full where the time went."""
    ending = [paragraph(f"wrote {page}"), *next_step(next_command)]
    first = [heading(f"{report.run}: {run_verdict(report)}")]
    if detail == "brief":
        return screen(first, ending)
    shown = [Table(rows=[*figures(report)], columns="<>w")]
    more = lost_time(report) if detail == "full" else []
    return screen(first, section("figures", shown), *more, sentences(report), ending)


def sentences(report: Report) -> list[Part]:
    """Return what the time beyond the prediction went into, and what all of it did."""
    texts = [gap_text(report.gap)] if report.gap else []
    texts += [goodput_text(report.goodput)] if report.goodput else []
    return indent(map(paragraph, texts))


def lost_time(report: Report) -> list[list[Part]]:
    """Return the stages, and every cause of lost time."""
    stages = stage_rows(report)
    table = [Table(rows=[HEAD, *stages], columns="<" + ">" * (len(HEAD) - 1))] if stages else []
    rows = goodput_rows(report.goodput) if report.goodput else []
    causes = [Table(rows=rows, columns="<>>")] if rows else []
    return [section("stages", table), section("where the time went", causes)]


# Show reports of several runs as tables: speed, memory, and where the time went.


SAME = 0.01  # rates this close are equal

CompareRow = tuple[str, ...]


def compare_screen(reports: Sequence[Report], next_command: str) -> Screen:
    """Return how fast each run was, what was predicted, and where its time went."""
    return screen(
        [heading(f"{counted(len(reports), 'run')}, measured against predicted")],
        indent([paragraph(compare_verdict(reports), "bold")]),
        section("speed", [compare_screen_speed(reports)]),
        section("memory per device", [memory(reports)]),
        section("where the time went", [time(reports)]),
        compare_notes(reports),
        next_step(next_command),
    )


def compare_screen_speed(reports: Sequence[Report]) -> Table:
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


def speed_row(report: Report) -> CompareRow:
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


def memory_row(report: Report) -> CompareRow:
    memory = report.memory
    sizes = memory.forecast_bytes, memory.compiled_bytes, memory.measured_bytes, memory.hbm_bytes
    return report.run, *("-" if one is None else in_memory(one) for one in sizes)


def time(reports: Sequence[Report]) -> Table:
    head = ("RUN", "STATE", "ATTEMPTS", "TIME", "GOODPUT", "LARGEST LOSS")
    return Table(rows=[head, *map(time_row, reports)], columns="<<>>><")


def time_row(report: Report) -> CompareRow:
    start = report.run, report.state, str(report.attempts)
    if report.goodput is None:
        return *start, "-", "-", ""
    goodput = report.goodput
    return *start, elapsed(goodput.total_s), percent(goodput.goodput), largest_loss(goodput)


def largest_loss(goodput: Goodput) -> str:
    cause, lost_s = max(goodput.badput_s.items(), key=lambda pair: pair[1])
    return f"{CAUSES[cause]} {percent(lost_s / goodput.total_s)}" if lost_s else ""


def compare_notes(reports: Sequence[Report]) -> list[Part]:
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


def compare_verdict(reports: Sequence[Report]) -> str:
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
