"""one run on a page, held against its plan."""

from orchestrator.render import report_text as words
from orchestrator.render.formatting import (
    count,
    elapsed,
    in_memory,
    percent,
    resource,
    scaled,
    seconds,
    to_digits,
)
from orchestrator.render.page.bars import Bar, Mark, Segment, bars
from orchestrator.render.page.html import Html, filled, join, table, tag
from orchestrator.render.page.ledger import time
from orchestrator.render.page.roofline import roofline
from orchestrator.render.page.shown import RunPage
from orchestrator.render.page.steps import steps
from orchestrator.render.plan_screen import amount, headline
from orchestrator.render.status_screen import cause
from orchestrator.types.codec import short
from orchestrator.types.plan import Plan
from orchestrator.types.report import Report
from orchestrator.types.run import Run


def run_page(shown: RunPage) -> str:
    """The whole page."""
    report = shown.report
    return filled(
        "run.html",
        title=report.run,
        kind=rehearsal(shown),
        verdict=words.run_verdict(report),
        headline=headline(shown.full),
        figures=figures(report),
        time=time(shown),
        roofline=join(roofline(shown.full, compared_s(shown)), roofline_note(shown)),
        steps=steps(shown),
        memory=memory(shown),
        goodput=goodput(report),
        attempts=attempts(shown.run),
        ledger=ledger(shown.full),
        made=made(shown),
    )


def rehearsal(shown: RunPage) -> Html:
    """What a rehearsal says before anything else."""
    if not shown.report.rehearsal:
        return Html("")
    small = shown.plan
    pods = f"{small.pods} {'pod' if small.pods == 1 else 'pods'}"
    said = (
        f"A rehearsal: a small copy ({scaled(small.model.parameters)} parameters, {small.devices}"
        f" emulated devices in {pods}) on this machine's CPU. Its seconds say nothing about chips"
        " and stand beside no forecast of them. "
    )
    if shown.report.not_compared:
        said += "This machine's own ceilings were not measured, so it is held against none."
    else:
        said += "It is held against a forecast on this machine's own measured ceilings."
    return tag("p", said, class_="rehearsal")


def figures(report: Report) -> Html:
    """The numbers that people ask for first."""
    found, spent = report.measured, report.goodput
    entries: list[tuple[str, str, str]] = []
    if found:
        low, high = seconds(found.step_s.low), seconds(found.step_s.high)
        spread = f"{low} to {high}, {count(found.steps)} steps"
        entries.append(("step", seconds(found.step_s.median), spread))
        if found.mfu:
            low, high = percent(found.mfu.low), percent(found.mfu.high)
            entries.append(("MFU", percent(found.mfu.median), f"{low} to {high}"))
        rate = scaled(found.tokens_per_s_per_chip)
        of = "emulated chip" if report.rehearsal else "chip"
        entries.append((f"tokens/s per {of}", rate, f"{scaled(found.tokens_per_s)} in all"))
    if report.gap:
        one = next(one for one in report.ratios if one.against == report.gap.against)
        name = "over the bound" if one.against == "lower" else "over expected"
        over = f"{to_digits(one.measured_over_predicted, 3)} x"
        entries.append((name, over, seconds(one.step_s)))
    if spent:
        entries.append(("goodput", percent(spent.goodput), f"of {elapsed(spent.total_s)}"))
    if report.first_loss is not None and report.last_loss is not None:
        entries.append(("loss", f"{report.last_loss:.3f}", f"from {report.first_loss:.3f}"))
    return join(*(figure(*entry) for entry in entries))


def figure(name: str, value: str, beside: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", value), tag("small", beside), class_="figure")


def compared_s(shown: RunPage) -> float | None:
    """The measured step, where it may stand beside the forecast for chips."""
    found, is_of_chips = shown.report.measured, not shown.report.rehearsal
    return found.step_s.median if found and shown.report.ratios and is_of_chips else None


def roofline_note(shown: RunPage) -> Html:
    said = (
        "Slanted lines are roofs: bytes over HBM, the links inside a pod (ici) or the data-center"
        " network (dcn) at their peak rates. A dot stands where the step meets each of them, and"
        " the step can rise until one touches its own. Groups that use the same links take turns."
    )
    if shown.report.rehearsal:
        said += " The rehearsal itself is not on it: its seconds are a CPU's."
    return tag("p", said)


def memory(shown: RunPage) -> Html:
    """Of the plan for chips against what the compiler allows; a rehearsal's own, and apart it."""
    if not shown.report.rehearsal:
        return of_chips(shown)
    here = tag("h3", "The rehearsal, on this machine")
    free = tag("p", "Nothing limits an emulated device: all of them share this machine's memory.")
    chips = tag("h3", f"The plan, on {shown.full.chip} chips")
    return join(here, bars([foretold(shown.plan)], in_memory), free, chips, of_chips(shown))


def foretold(plan: Plan) -> Bar:
    """The largest phase of a step, by what it holds."""
    largest = max(plan.forecast.memory, key=lambda phase: phase.bytes)
    lines = sorted(largest.lines, key=lambda line: -line.value)
    segments = tuple(Segment(name=line.name, value=line.value) for line in lines)
    return Bar(name=f"forecast: {largest.name}", kind="hbm", segments=segments)


def of_chips(shown: RunPage) -> Html:
    """Forecast by lines, compiled by classes and measured, against what the compiler allows."""
    proof, allowed = shown.proof, shown.full.forecast.hbm_bytes_per_device
    rows = [foretold(shown.full)]
    if proof:
        held = sorted(proof.ledger, key=lambda line: -line.compiled)
        segments = tuple(Segment(name=line.name, value=line.compiled) for line in held)
        peak = proof.peak_hbm_bytes_per_device
        rest = peak - sum(segment.value for segment in segments)
        more = (Segment(name="the rest", value=rest),) if rest > 0 else ()
        rows.append(Bar(name="compiled", kind="dcn", segments=(*segments, *more)))
    limit = Mark(name="the compiler allows", kind="limit", value=allowed)
    said = [] if proof else ["No proof is kept with this run: nothing was compiled for chips."]
    known = shown.report.memory.measured_bytes
    if shown.report.rehearsal:
        said.append("What the emulated devices of a rehearsal hold says nothing about chips.")
    elif known is None:
        said.append("The devices did not say what they held: nothing was measured.")
    else:
        segments = (Segment(name="peak", value=known),)
        rows.append(Bar(name="measured", kind="measured", segments=segments))
    return join(bars(rows, in_memory, [limit]), tag("p", " ".join(said)))


def goodput(report: Report) -> Html:
    """All seconds of the run by where they went."""
    spent = report.goodput
    if spent is None:
        return tag("p", "No attempt has begun.")
    lost = sorted(spent.badput_s.items(), key=lambda pair: -pair[1])
    row = Bar(
        name="from the first attempt to the end",
        kind="goodput",
        segments=(
            Segment(name="steps that counted", value=spent.goodput_s),
            *(Segment(name=words.CAUSES[name], value=s, kind="lost") for name, s in lost if s > 0),
        ),
    )
    rows = [("goodput", elapsed_or_ms(spent.goodput_s), percent(spent.goodput))]
    rows += [
        (f"{name}: {words.CAUSES[name]}", elapsed_or_ms(s), percent(s / spent.total_s))
        for name, s in lost
        if s > 0
    ]
    return join(
        bars([row], elapsed_or_ms, told=3),
        tag("p", words.goodput_text(spent)),
        table(("where", "time", "share"), rows),
    )


def elapsed_or_ms(value_s: float) -> str:
    return elapsed(value_s) if value_s >= 10 else seconds(value_s)


def attempts(run: Run) -> Html:
    rows = [
        (
            str(one.number),
            one.reason or run.state,
            cause(one) or "-",
            str(one.pods),
            count(one.steps_done),
            elapsed((one.ended_at_s or run.read_at_s) - one.started_at_s)
            if one.reason != "lost"
            else "-",
        )
        for one in run.attempts
    ]
    if not rows:
        return tag("p", "No attempt has begun.")
    return table(("attempt", "ended by", "why", "pods", "steps done", "took"), rows, words=3)


def ledger(plan: Plan) -> Html:
    """Every line of seconds with its formula and numbers."""
    rows = [
        (
            line.name,
            resource(line.resource or ""),
            line.formula,
            amount(line),
            seconds(line.value),
        )
        for line in plan.forecast.time
    ]
    return table(("line", "keeps busy", "formula", "amount", "time"), rows, words=4)


def made(shown: RunPage) -> Html:
    """Which plan, which spec, by which definition, with which versions."""
    report = shown.report
    facts = [
        ("plan", short(report.plan_digest)),
        ("rehearses plan", short(report.rehearses) if report.rehearses else ""),
        ("spec", short(report.spec_digest)),
        ("MFU counts", report.forecast.mfu_definition),
        *shown.run.environment.items(),
    ]
    entries = (join(tag("dt", name), tag("dd", value)) for name, value in facts if value)
    return tag("dl", *entries, class_="facts")
