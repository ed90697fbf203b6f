"""time per step, the ledger by resource with the measured step across it."""

from orchestrator.render import report_text as words
from orchestrator.render.formatting import resource, seconds
from orchestrator.render.page.bars import Bar, Mark, Segment, bars
from orchestrator.render.page.html import Html, join, tag
from orchestrator.render.page.roofline import kind_of
from orchestrator.render.page.shown import RunPage
from orchestrator.report.gap import device_times
from orchestrator.types.plan import Plan
from orchestrator.types.report import Measurement, Report

SMALL = 0.012  # resources below this share of the step share a bar


def time(shown: RunPage) -> Html:
    """The ledger with the measured step across it; a rehearsal's own, and apart that for chips."""
    if not shown.report.rehearsal:
        return held(shown.report, shown.plan)
    chips = join(tag("h3", f"The plan, on {shown.full.chip} chips"), forecast_alone(shown.full))
    here = tag("h3", "The rehearsal, on this machine")
    return join(here, held(shown.report, shown.plan), chips)


def forecast_alone(plan: Plan) -> Html:
    return bars([*predicted(plan), *expected(plan)], seconds, marks_of(plan))


def held(report: Report, plan: Plan) -> Html:
    """What was measured beside what was forecast; alone where it may not be."""
    found, gap = report.measured, report.gap
    if found is None:
        return (
            tag("p", "No step was measured after warm-up.")
            if report.rehearsal
            else (forecast_alone(plan))
        )
    if gap is None:
        return bars([measured(found)], seconds)
    spread = found.step_s
    mark = Mark(
        name="measured", kind="measured", value=spread.median, low=spread.low, high=spread.high
    )
    rows = [*predicted(plan), *expected(plan), measured(found)]
    drawn = bars(rows, seconds, [*marks_of(plan), mark])
    return join(drawn, tag("p", words.gap_text(gap)))


def marks_of(plan: Plan) -> list[Mark]:
    """The figures of a forecast as marks across its bars."""
    step_s = plan.forecast.step_s
    bound = Mark(name="lower bound", kind="lower", value=step_s.lower)
    marks = [bound]
    if step_s.expected is not None:
        low, high = step_s.low, step_s.high
        marks.append(
            Mark(name="expected", kind="expected", value=step_s.expected, low=low, high=high)
        )
    if step_s.unoverlapped != step_s.expected:
        last = Mark(name="nothing overlapped", kind="unoverlapped", value=step_s.unoverlapped)
        marks.append(last)
    return marks


def predicted(plan: Plan) -> list[Bar]:
    """A bar for each resource, the busiest first."""
    lines: dict[str, list[Segment]] = {}
    for line in plan.forecast.time:
        name = "ici latency" if line.resource == "latency" else resource(line.resource or "")
        lines.setdefault(name, []).append(Segment(name=line.name, value=line.value))
    found = [
        Bar(name=name, kind=kind_of(name), segments=tuple(sorted(all_, key=lambda s: -s.value)))
        for name, all_ in lines.items()
    ]
    ordered = sorted(found, key=lambda bar: -bar.value)
    least = SMALL * plan.forecast.step_s.unoverlapped
    small = [bar for bar in ordered if bar.value < least]
    shown = [bar for bar in ordered if bar.value >= least]
    if not small:
        return shown
    segments = tuple(Segment(name=bar.name, value=bar.value) for bar in small)
    return [*shown, Bar(name="the rest", kind="latency", segments=segments)]


def expected(plan: Plan) -> list[Bar]:
    """What the expected step is made of, where runs were learned from."""
    lines = sorted(plan.forecast.expected_time, key=lambda line: -line.value)
    segments = tuple(Segment(name=line.name, value=line.value) for line in lines)
    return [Bar(name="expected", kind="expected", segments=segments)] if segments else []


def measured(found: Measurement) -> Bar:
    """The mean step, by what it waited for."""
    usual_s, slow_s = device_times(found)
    segments = (
        Segment(name="devices", value=usual_s),
        Segment(name="slow steps", value=slow_s),
        Segment(name="waiting for data", value=found.mean_data_s),
        Segment(name="saving", value=found.mean_checkpoint_s),
    )
    told = tuple(segment for segment in segments if segment.value > 0)
    return Bar(name="measured, mean", kind="measured", segments=told)
