"""Sentences about a report: the verdict, the gap to the prediction, the goodput."""

from orchestrator.formatting import count, elapsed, off, percent, seconds, to_digits
from orchestrator.journal.run_status import first_line
from orchestrator.render.resource_names import resource_name
from orchestrator.types.report import Badput, Gap, Goodput, Measurement, NotCompared, Ratio, Report

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
