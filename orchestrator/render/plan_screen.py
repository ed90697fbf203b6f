"""a Plan on one screen."""

import re
from collections.abc import Callable, Sequence

from orchestrator.plan.plan_diff import lies_on
from orchestrator.render.formatting import (
    count,
    counted,
    dollars,
    in_memory,
    lasting,
    percent,
    resource,
    scaled,
    seconds,
    span,
    with_unit,
)
from orchestrator.render.layout import columns, following, indent, page, tabulated, title
from orchestrator.types.codec import short
from orchestrator.types.plan import Estimate, Forecast, LedgerLine, MeshAxis, Plan

# Lines of time below this share of the unoverlapped step are shown together.
SMALL = 0.009
INTERVAL = "80 % interval"
LOSES = "loses: per token, midway from lower bound to unoverlapped, as plans are chosen"
SMALL_PART = 0.02  # of the expected step: smaller parts are left to `orch explain`


def plan_screen(
    plan: Plan, next_command: str | None, compiled: str = "", runners_up: Sequence[str] = ()
) -> str:
    """The whole plan: what will be done, two ledgers, what it comes to, and what to do next.

    `compiled` is what an earlier proof of this plan said, `runners_up` their table where they were
    asked for. While a command goes on there is no next.
    """
    blocks = [
        [title(headline(plan), f"plan {short(plan.digest)}")],
        indent(decisions(plan)),
        indent([*memory(plan), *([f"  {compiled}"] if compiled else [])]),
        indent(time(plan)),
        indent(outcome(plan)),
        runners_up,
        [f"warning: {warning}" for warning in plan.warnings],
        [verdict(plan), *following(next_command)],
    ]
    return page(blocks)


def headline(plan: Plan) -> str:
    slices = f"{plan.pods} {'pod' if plan.pods == 1 else 'pods'} of {plan.topology}"
    return f"{plan.name}: {count(plan.chips)} {plan.chip} chips, {slices}"


def decisions(plan: Plan) -> list[str]:
    """What was asked and what was decided, a line each."""
    inside = ", ".join(axis_text(axis) for axis in plan.axes if axis.link == "ici")
    rows = [
        ("model", f"{plan.model.name}, {scaled(plan.model.parameters, 4)} parameters"),
        ("mesh", f"pods {plan.pods} dcn | {inside}"),
        ("batch", batch(plan)),
        ("step", step(plan)),
        ("searched", searched(plan)),
    ]
    if plan.chip_profile is not None:
        rows.append(
            ("measured", f"on a machine of these chips, profile {short(plan.chip_profile)}")
        )
    if plan.overrides:
        rows.append(("set", " ".join(plan.overrides)))
    return columns(rows, "<<")


def axis_text(axis: MeshAxis) -> str:
    """An axis with the torus axes it lies on: `tensor 8 (x)`, `data 35 (y/4 z/4)` when strided."""
    where = lies_on(axis)
    return f"{axis.name} {axis.size}" + (f" ({where})" if where else "")


def batch(plan: Plan) -> str:
    size = plan.batch
    text = f"{count(size.sequences)} sequences x {count(size.length)}"
    text += f" = {scaled(size.tokens)} tokens"
    if size.sequences != size.requested_sequences:
        moved = size.sequences / size.requested_sequences - 1
        more = f"{percent(abs(moved))} {'more' if moved > 0 else 'fewer'}"
        text += f" ({count(size.requested_sequences)} asked; {more} divide evenly)"
    return text


def step(plan: Plan) -> str:
    parts = plan.batch.microbatches
    micro = "1 microbatch" if parts == 1 else f"{parts} microbatches"
    when = {"per_layer": "layer by layer", "at_end": "at its end"}[plan.gradient_reduction]
    precision = plan.precision
    return (
        f"{micro}, remat {plan.remat}, {precision.compute} on {precision.parameters} parameters,"
        f" gradients reduced {when}"
    )


def searched(plan: Plan) -> str:
    found = plan.search
    return (
        f"{count(found.enumerated)} placements, {count(found.realizable)} realizable,"
        f" {count(found.priced)} priced"
    )


def memory(plan: Plan) -> list[str]:
    """The ledger of the largest phase."""
    forecast = plan.forecast
    largest = max(forecast.memory, key=lambda phase: phase.bytes)
    others = [phase for phase in forecast.memory if phase is not largest]
    rows = [(line.name, put_in(line), in_memory(line.value), "") for line in largest.lines]
    usable = f"of {in_memory(forecast.hbm_bytes_per_device)}"
    rows.append((f"peak: {largest.name}", "", in_memory(largest.bytes), usable))
    rest = ", ".join(f"{phase.name} {in_memory(phase.bytes)}" for phase in others)
    return ["memory per device", *indent([*columns(rows, "<<><"), f"other phases: {rest}"])]


def put_in(line: LedgerLine) -> str:
    """The formula with its numbers: `size x owned` is 4 x 1.13B."""
    return re.sub(r"[a-z_]{2,}", lambda name: number(line, name[0]), line.formula)


def number(line: LedgerLine, name: str) -> str:
    return scaled(line.inputs[name]) if name in line.inputs else name


def amount(line: LedgerLine) -> str:
    """What the line's resource works through, and how fast."""
    inputs = line.inputs
    if "calls" in inputs and "hops" in inputs:
        return f"{count(inputs['calls'])} calls x {count(inputs['hops'])} hops"
    if "once" in inputs:
        return f"{count(inputs['calls'])} calls x {seconds(inputs['once'])}, as measured"
    name, unit = ("flops", "FLOP") if "flops" in inputs else ("bytes", "B")
    return f"{with_unit(inputs[name], unit)} at {with_unit(inputs['rate'], unit + '/s')}"


def time(plan: Plan) -> list[str]:
    """The ledger of seconds, largest first within its resource; small lines together."""
    forecast = plan.forecast
    least = SMALL * forecast.step_s.unoverlapped
    shown = [line for line in forecast.time if line.value >= least]
    small = [line for line in forecast.time if line.value < least]
    rows = [
        (line.name, spent_on(line), amount(line), seconds(line.value), mark(plan, line))
        for line in shown
    ]
    if small:
        total = seconds(sum(line.value for line in small))
        rows.append((counted(len(small), "smaller line"), "", "", total, ""))
    rows.append(("unoverlapped", "", "all lines", seconds(forecast.step_s.unoverlapped), ""))
    rows.append(("lower bound", forecast.bound, binds(plan), seconds(forecast.step_s.lower), ""))
    if forecast.step_s.expected is not None:
        within = f"{INTERVAL} {span(*ends(forecast.step_s, seconds))}"
        rows.append(("expected", "", within, seconds(forecast.step_s.expected), ""))
    return ["time per step", *indent([*columns(rows, "<<<><"), *expected(plan)])]


def expected(plan: Plan) -> list[str]:
    """What the expected step is made of, largest first; nothing where no run was learned from."""
    ledger = sorted(plan.forecast.expected_time, key=lambda line: -line.value)
    least = SMALL_PART * sum(line.value for line in ledger)
    made = [f"{line.name} {seconds(line.value)}" for line in ledger if line.value >= least]
    return [f"of which {', '.join(made)}"] if made else []


def spent_on(line: LedgerLine) -> str:
    """Where the line's time is spent, as the bound names it."""
    return resource(line.resource or "")


def mark(plan: Plan, line: LedgerLine) -> str:
    return "*" if spent_on(line) == plan.forecast.bound else ""


def binds(plan: Plan) -> str:
    """What the star means, and how much longer the binding resource takes than the next."""
    over = plan.forecast.bound_by
    if not over:
        return "* binds"
    return f"* binds, {percent(over) + ' over' if over < 1 else f'{1 + over:.1f} times'} the next"


def outcome(plan: Plan) -> list[str]:
    """MFU, throughput, days and money at each figure."""
    forecast = plan.forecast
    rows = [
        ("MFU", *figures(forecast.mfu, percent)),
        ("MFU, 6 x params", *figures(forecast.mfu_6p, percent)),
        ("tokens/s", *figures(forecast.tokens_per_s, scaled)),
        (f"{scaled(plan.tokens)} tokens", *figures(forecast.days, lasting)),
        ("chip-hours", *figures(forecast.chip_hours, scaled)),
    ]
    if forecast.dollars is not None:
        price = f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"
        rows.append((price, *figures(forecast.dollars, dollars)))
    known = forecast.step_s.expected is not None
    head = ("", "lower bound", *(("expected", INTERVAL) if known else ()), "unoverlapped")
    lines = columns([head, *rows], "<" + ">" * (len(head) - 1))
    if forecast.goodput != 1:
        lines.append(f"at a goodput of {percent(forecast.goodput)}")
    return lines


def figures(of: Estimate, show: Callable[[float], str]) -> tuple[str, ...]:
    """At the bound; what to expect and its interval, where known; with nothing hidden."""
    known: tuple[str, ...] = ()
    if of.expected is not None and of.low is not None and of.high is not None:
        known = (show(of.expected), span(show(of.low), show(of.high)))
    return (show(of.lower), *known, show(of.unoverlapped))


def verdict(plan: Plan) -> str:
    """The plan in one line; days and money by the interval, or else between both figures."""
    forecast = plan.forecast
    parts = [
        "fits" if forecast.fits else "does not fit",
        f"bound by {forecast.bound}",
        span(*ends(forecast.days, lasting)),
    ]
    if forecast.dollars is not None:
        parts.append(span(*ends(forecast.dollars, dollars)))
    return f"Plan: {', '.join(parts)}."


def ends(bounds: Estimate, show: Callable[[float], str]) -> tuple[str, str]:
    if bounds.low is None or bounds.high is None:
        return show(bounds.lower), show(bounds.unoverlapped)
    return show(bounds.low), show(bounds.high)


def runners_up_table(plans: Sequence[Plan]) -> list[str]:
    """One row a plan, the chosen one first; losses are per token, as batches may differ."""
    first = plans[0]
    known = all(plan.forecast.step_s.expected is not None for plan in plans)
    figures = ("expected", "MFU") if known else ("lower", "unoverlapped")
    head = ("mesh", "batch", "micro", "remat", "memory", *figures, "loses", "bound")
    rows = [head, *(runner_up(plan, first, known=known) for plan in plans)]
    count = len(plans) - 1
    title = f"the plan and {count} runner{'s' * (count != 1)}-up (data.fsdp.sequence.tensor)"
    return [title, *tabulated(rows, "<>><>>>><"), f"  {LOSES}"]


def runner_up(plan: Plan, first: Plan, *, known: bool) -> tuple[str, ...]:
    forecast = plan.forecast
    inside = [str(axis.size) for axis in plan.axes if axis.link == "ici"]
    return (
        ".".join(inside),
        f"{plan.batch.sequences:,}",
        str(plan.batch.microbatches),
        plan.remat,
        in_memory(forecast.memory_bytes_per_device),
        *(expected_figures(forecast) if known else peaks(forecast)),
        loss(plan, first),
        forecast.bound,
    )


def expected_figures(forecast: Forecast) -> tuple[str, str]:
    """The step and its MFU as runs lead to expect them."""
    return seconds(forecast.step_s.expected or 0), percent(forecast.mfu.expected or 0)


def peaks(forecast: Forecast) -> tuple[str, str]:
    """The step at peak rates: all overlapped, and nothing."""
    return seconds(forecast.step_s.lower), seconds(forecast.step_s.unoverlapped)


def loss(plan: Plan, first: Plan) -> str:
    """How much longer a token takes, half way between the two figures."""
    if plan is first:
        return "-"
    return percent(token_s(plan) / token_s(first) - 1)


def token_s(plan: Plan) -> float:
    step_s = plan.forecast.step_s
    return (step_s.lower + step_s.unoverlapped) / 2 / plan.batch.tokens
