"""what a report says, in sentences."""

from orchestrator.journal.run_status import first_line
from orchestrator.render.formatting import (
    count,
    elapsed,
    off,
    percent,
    resource,
    seconds,
    to_digits,
)
from orchestrator.types.report import Gap, Goodput, NotCompared, Ratio, Report

NOT_COMPARED: dict[NotCompared, str] = {
    "cpu_rehearsal": "a rehearsal measures this machine's CPU and its forecast is for chips:"
    " they are not compared",
}
SMALL = 0.01  # parts of a gap below this share of its largest are left out
PLACES = {
    "devices": "on the devices",
    "slow steps": "in slow steps",
    "waiting for data": "waiting for data",
    "saving": "saving",
}
CAUSES = {
    "tpu_initialization": "starting slices and processes",
    "training_prep": "making the first state",
    "program_startup": "compiling and the first step",
    "data_loading_sync": "waiting for data",
    "unproductive_checkpoint_save_time": "saving checkpoints",
    "unproductive_checkpoint_restore_time": "restoring checkpoints",
    "wasted_progress_from_disruption": "steps done again",
    "infrastructure_recovery_from_disruption": "recovering from disruptions",
    "other": "everything else",
}


def run_verdict(report: Report) -> str:
    """The run in a sentence or two: how fast, beside what was forecast; or why that is unknown."""
    return f"{how_far(report)} {how_fast(report)}"


def how_far(report: Report) -> str:
    done = f"{count(report.steps_done)} of {count(report.steps)} steps"
    if report.state == "succeeded":
        return f"{'Rehearsal succeeded' if report.rehearsal else 'Succeeded'}: {done}."
    why = f": {first_line(report.detail).rstrip('.')}" if report.detail else ""
    what = f"Rehearsal {report.state}" if report.rehearsal else report.state.capitalize()
    return f"{what} after {done}{why}."


def how_fast(report: Report) -> str:
    found = report.measured
    if found is None:
        return "No step was measured after warm-up."
    took = f"A step took {seconds(found.step_s.median)}"
    if report.not_compared:
        where = "on this machine's CPU, which says nothing about chips"
        return f"{took} {where}." if report.rehearsal else f"{took}."
    over = {one.against: one for one in report.ratios}
    if "expected" in over:
        reached = f"; MFU {percent(found.mfu.median)}" if found.mfu else ""
        return f"{took}, {beside(over['expected'], report)}{reached}."
    said = f"{took}, {to_digits(over['lower'].measured_over_predicted, 3)} times the lower bound"
    if found.mfu:
        roof = percent(report.forecast.mfu.lower)
        said += f"; MFU {percent(found.mfu.median)}, where the roofline allows {roof}"
    return f"{said}."


def beside(expected: Ratio, report: Report) -> str:
    """The measured step beside the one that was expected."""
    measured_s = expected.step_s * expected.measured_over_predicted
    said = off(measured_s, expected.step_s, f"the {seconds(expected.step_s)} expected")
    if report.rehearsal:
        said += " on this machine's measured ceilings"
    if report.inside_interval is not None:
        said += f", {'inside' if report.inside_interval else 'outside'} the 80 % interval"
    return said


def gap(found: Gap) -> str:
    """Where the seconds beyond the bound are, and what could have taken them."""
    parts = {part.name: part.s for part in found.parts}
    listed = [
        f"{signed(s)} {PLACES[name]}"
        for name, s in parts.items()
        if abs(s) >= SMALL * largest(found)
    ]
    than = "the bound" if found.against == "lower" else "was expected"
    more = "more" if found.s >= 0 else "less"
    said = f"The mean step took {seconds(abs(found.s))} {more} than {than}: {', '.join(listed)}."
    if found.exposed is not None and 0 < found.exposed <= 1:
        said += (
            f" At peak rates that is as if {percent(found.exposed)} of what could be hidden was"
            " not."
        )
    elif found.exposed is not None and found.exposed > 1:
        said += " Even with nothing hidden it would have been faster: some rate is below its peak."
    return said + suspects(found)


def largest(found: Gap) -> float:
    return max(abs(part.s) for part in found.parts)


def signed(value_s: float) -> str:
    """Seconds with their sign."""
    return f"{'+' if value_s >= 0 else '-'}{seconds(abs(value_s))}"


def suspects(found: Gap) -> str:
    """The likeliest resource to have set the pace alone."""
    likely = next(iter(found.suspects), None)
    if likely is None:
        return ""
    rate = percent(likely.rate_if_alone)
    return f" Had {resource(likely.resource)} alone set the pace, it ran at {rate} of its peak."


def goodput(found: Goodput) -> str:
    """How much of the time trained, and what took most of the rest."""
    said = f"{percent(found.goodput)} of {elapsed(found.total_s)} went into steps that counted"
    name, lost_s = max(found.badput_s.items(), key=lambda pair: pair[1])
    if lost_s:
        said += f"; most of the rest went into {CAUSES[name]}, {elapsed(lost_s)}"
    return f"{said}."
