"""Show a plan on one screen: its decisions, its two ledgers, its figures, its runners-up."""

import re
from collections.abc import Callable, Sequence

from orchestrator.formatting import (
    at_least,
    count,
    counted,
    dollars,
    in_memory,
    lasting,
    percent,
    scaled,
    seconds,
    span,
    with_unit,
)
from orchestrator.network.mesh_axes import in_use
from orchestrator.network.rematerialization import summary_of, text_of
from orchestrator.plan.forecast import scale
from orchestrator.plan.plan_warnings import LEDGER_TRAINER
from orchestrator.render.goodput_part import goodput_part
from orchestrator.render.resource_names import resource_name
from orchestrator.render.screen_parts import (
    Part,
    Screen,
    Table,
    Text,
    Title,
    indent,
    next_step,
    screen,
    section,
    warning,
)
from orchestrator.render.warning_text import warning_texts
from orchestrator.types.codec import short
from orchestrator.types.offers import DeadlineOdds
from orchestrator.types.plan import (
    Estimate,
    Forecast,
    LedgerLine,
    MeshAxis,
    Plan,
    PlannedBatch,
    SearchSummary,
    WarningCode,
)

SMALL_LINE = 0.009  # of the unoverlapped step: smaller lines are shown as one
SMALL_PART = 0.02  # of the expected step: smaller parts are left to `orch explain`
INTERVAL = "80 % interval"
SAID_FIRST: tuple[WarningCode, ...] = ("other_trainer",)  # no figure below is about that program
REDUCTIONS = {"per_layer": "layer by layer", "at_end": "at the end"}
ALIKE_RULE = (
    "+n: other meshes with this tensor, remat and microbatches, slower by less than the forecast"
    " knows"
)
LOSS_RULE = (
    "loss: extra time per token, midway between lower bound and unoverlapped; below zero where a"
    " policy offloads for less than the forecast knows"
)


def plan_screen(
    plan: Plan,
    next_command: str | None,
    compiled: str = "",
    runners_up: Sequence[Plan] = (),
    odds: DeadlineOdds | None = None,
) -> Screen:
    """Return what will be done, what it should cost, and what to do next.

    `compiled` is the summary of an earlier proof of this plan.
    """
    first = [one for one in plan.warnings if one.code in SAID_FIRST]
    others = [one for one in plan.warnings if one.code not in SAID_FIRST]
    return screen(
        [
            Title(left=headline(plan), right=f"plan {short(plan.digest)}"),
            *(warning(text) for text in warning_texts(first)),
        ],
        indent(decisions(plan)),
        [*memory(plan), *([f"    {compiled}"] if compiled else [])],
        time(plan),
        goodput_part(plan),
        indent([*figures(plan), *deadline_text(odds)]),
        runners_up_table([plan, *runners_up]) if runners_up else [],
        [warning(text) for text in warning_texts(others)],
        [verdict(plan), *next_step(next_command)],
    )


def headline(plan: Plan) -> str:
    chips = f"{count(plan.chips)} {plan.chip} chips"
    return f"{plan.name}: {chips}, {counted(plan.pods, 'pod')} of {plan.topology}"


def decisions(plan: Plan) -> list[Part]:
    """Return the request and the decisions, a line each."""
    shown = in_use(plan.mesh, plan.mesh)
    inside = ", ".join(
        axis_text(axis) for axis in plan.axes if axis.link == "ici" and axis.name in shown
    )
    rows = [
        ("model", model(plan)),
        ("mesh", f"{slices_text(plan)} dcn | {inside}"),
        ("batch", batch(plan)),
        ("step", step(plan)),
        ("search", searched(plan.search)),
    ]
    if plan.chip_profile is not None:
        rows.append(("rates", f"measured on these chips, profile {short(plan.chip_profile)}"))
    if plan.overrides:
        rows.append(("set", " ".join(plan.overrides)))
    return [Table(rows=rows, columns="<w")]


def model(plan: Plan) -> str:
    parameters, active = plan.model.parameters, plan.model.active_parameters
    of_token = f", {scaled(active, 4)} of them active" if active != parameters else ""
    return f"{plan.model.name}, {scaled(parameters, 4)} parameters{of_token}"


def slices_text(plan: Plan) -> str:
    """Return the axes between slices; an axis over which weights are shared where it is used."""
    between = [axis for axis in plan.axes if axis.link == "dcn"]
    shown = [axis for axis in between if axis.size > 1] or between[:1]
    return ", ".join(f"{axis.name} {axis.size}" for axis in shown)


def searched(search: SearchSummary) -> str:
    realizable, priced = count(search.realizable), count(search.priced)
    return f"{count(search.enumerated)} placements, {realizable} realizable, {priced} priced"


def axis_text(axis: MeshAxis) -> str:
    """Return an axis with its torus axes: `tensor 8 (x)`, `data 35 (y/4 z/4)` when strided."""
    where = axis.torus_text
    return f"{axis.name} {axis.size}" + (f" ({where})" if where else "")


def batch(plan: Plan) -> str:
    size = plan.batch
    text = (
        f"{count(size.sequences)} sequences x {count(size.length)} = {scaled(size.tokens)} tokens"
    )
    if size.sequences == size.requested_sequences:
        return text
    change = size.sequences / size.requested_sequences - 1
    verb = "raised" if change > 0 else "lowered"
    requested = count(size.requested_sequences)
    return f"{text} ({verb} {percent(abs(change))} from {requested} to divide evenly)"


def step(plan: Plan) -> str:
    precision = plan.precision
    return (
        f"{counted(plan.batch.microbatches, 'microbatch', 'es')}, remat {text_of(plan.remat)},"
        f" {precision.compute} on {precision.parameters} parameters,"
        f" gradients reduced {REDUCTIONS[plan.gradient_reduction]}"
    )


def memory(plan: Plan) -> list[Part]:
    """Return the ledger of the largest phase, and the size of the next."""
    forecast = plan.forecast
    largest, second, *_ = sorted(forecast.memory, key=lambda phase: -phase.bytes)
    rows = [(line.name, with_numbers(line), in_memory(line.value), "") for line in largest.lines]
    usable = f"of {in_memory(forecast.hbm_bytes_per_device)}"
    rows.append((f"peak: {largest.name}", "", in_memory(largest.bytes), usable))
    others = f"next phase: {second.name} {in_memory(second.bytes)}"
    parts: list[Part] = [Table(rows=rows, columns="<<><"), others]
    return section(f"memory per device{of_trainer(plan)}", [*parts, *on_host(forecast)])


def on_host(forecast: Forecast) -> list[Part]:
    """Return what the host holds for each chip, if anything."""
    if not forecast.host_memory_bytes_per_chip:
        return []
    limit = forecast.host_bytes_per_chip
    known = f"of {in_memory(limit)}" if limit else "of an unknown size"
    return [f"host memory per chip: {in_memory(forecast.host_memory_bytes_per_chip)} {known}"]


def with_numbers(line: LedgerLine) -> str:
    """Return the formula with its numbers: `size x owned` is 4 x 1.13B."""

    def number(name: re.Match[str]) -> str:
        return scaled(line.inputs[name[0]]) if name[0] in line.inputs else name[0]

    return re.sub(r"[a-z_]{2,}", number, line.formula)


def time(plan: Plan) -> list[Part]:
    """Return the ledger of seconds, with the small lines as one."""
    forecast = plan.forecast
    step_s = forecast.step_s
    least = SMALL_LINE * step_s.unoverlapped
    shown = [line for line in forecast.time if line.value >= least]
    small = [line.value for line in forecast.time if line.value < least]
    rows = [time_row(plan, line) for line in shown]
    if small:
        rows.append((counted(len(small), "smaller line"), "", "", seconds(sum(small)), ""))
    rows.append(("unoverlapped", "", "all lines", seconds(step_s.unoverlapped), ""))
    rows.append(("lower bound", forecast.bound, "", seconds(step_s.lower), ""))
    if step_s.expected is not None:
        interval = f"{INTERVAL} {likely(step_s, seconds)}"
        rows.append(("expected", "", interval, seconds(step_s.expected), ""))
    table = Table(rows=rows, columns="<<<><")
    title = f"time per step{of_trainer(plan)}"
    return section(title, [table, bottleneck(plan), *expected_parts(plan)])


def of_trainer(plan: Plan) -> str:
    """Return whose program a ledger describes, where it is not the plan's."""
    return "" if plan.ledger_describes_trainer else f", of trainer {LEDGER_TRAINER}"


def time_row(plan: Plan, line: LedgerLine) -> tuple[str, ...]:
    name = resource_name(line.resource or "")
    mark = "*" if name == plan.forecast.bound else ""
    return line.name, name, amount(line), seconds(line.value), mark


def amount(line: LedgerLine) -> str:
    """Return the amount of work on the line, and the rate."""
    inputs = line.inputs
    if "calls" in inputs and "hops" in inputs:
        return f"{count(inputs['calls'])} calls x {count(inputs['hops'])} hops"
    if "once" in inputs:
        return f"{count(inputs['calls'])} calls x {seconds(inputs['once'])}, as measured"
    name, unit = ("flops", "FLOP") if "flops" in inputs else ("bytes", "B")
    return f"{with_unit(inputs[name], unit)} at {with_unit(inputs['rate'], unit + '/s')}"


def bottleneck(plan: Plan) -> str:
    """Return what the star means, and by how much the bottleneck is slower than the next."""
    margin = plan.forecast.bound_by
    if not margin:
        return "* bottleneck"
    slower = f"{percent(margin)} slower than" if margin < 1 else f"{1 + margin:.1f} times"
    return f"* bottleneck; {slower} the next"


def expected_parts(plan: Plan) -> list[Part]:
    """Return the parts of the expected step, largest first."""
    lines = sorted(plan.forecast.expected_time, key=lambda line: -line.value)
    least = SMALL_PART * sum(line.value for line in lines)
    parts = [f"{line.name} {seconds(line.value)}" for line in lines if line.value >= least]
    if not parts:
        return []
    return [Text(text=", ".join(parts), start="expected: ", hang=2), *learned_from(plan)]


def learned_from(plan: Plan) -> list[Part]:
    """Return the software for whose runs `expected` speaks."""
    known = plan.forecast.learned_from
    if known is None:
        return []
    reference, longer = known.reference, [other.longer for other in known.others]
    text = f"as in {counted(reference.runs, 'published run')} of {reference.software}"
    if longer:
        names = ", ".join(other.software for other in known.others)
        text += f"; other software took {span(percent(min(longer)), percent(max(longer)))} longer"
        text += f" ({names})"
    return [Text(text=text, start="expected: ", hang=2)]


def figures(plan: Plan) -> list[Part]:
    """Return MFU, throughput, days and money as a table."""
    forecast = plan.forecast
    rows = [
        ("MFU", *estimate_cells(forecast.mfu, percent)),
        ("MFU, 6 x params", *estimate_cells(forecast.mfu_6p, percent)),
        ("tokens/s", *estimate_cells(forecast.tokens_per_s, scaled)),
        (f"{scaled(plan.tokens)} tokens", *estimate_cells(forecast.days, lasting)),
        ("chip-hours", *estimate_cells(forecast.chip_hours, scaled)),
    ]
    if forecast.dollars is not None:
        price = f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"
        rows.append((price, *estimate_cells(forecast.dollars, dollars)))
    known = forecast.step_s.expected is not None
    head = ("", "lower bound", "expected", INTERVAL, "unoverlapped") if known else ("", "at best")
    table = Table(rows=[head, *rows], columns="<" + ">" * (len(head) - 1))
    return [table, *shorter_run(plan)]


def shorter_run(plan: Plan) -> list[Part]:
    """Return what a run takes and costs that ends before all tokens are used."""
    if plan.run_share == 1 or not plan.ledger_describes_trainer:
        return []
    steps = f"{count(plan.run_steps or 0)} of {count(plan.total_steps)} steps"
    takes = ", ".join(time_and_cost(plan.forecast, plan.run_share))
    return [f"run.steps ends the run after {steps}: {takes}"]


def deadline_text(odds: DeadlineOdds | None) -> list[Part]:
    """Return how likely the deadline holds."""
    if odds is None:
        return []
    within = "" if odds.deadline == f"{odds.days:g}d" else f", in {lasting(odds.days)}"
    if odds.odds is None:
        return [f"deadline {odds.deadline}{within}: how likely is unknown, nothing is expected"]
    return [f"deadline {odds.deadline}{within}: {percent(odds.odds)} likely, if it begins now"]


def time_and_cost(forecast: Forecast, share: float) -> list[str]:
    """Return the days and dollars that so much of all tokens is likely to take."""
    takes = [likely(scale(forecast.days, share), lasting)]
    if forecast.dollars is not None:
        takes.append(likely(scale(forecast.dollars, share), dollars))
    return takes


def estimate_cells(estimate: Estimate, show: Callable[[float], str]) -> tuple[str, ...]:
    """Return the bounds with the expected value and its interval; or the best alone."""
    if estimate.expected is None:
        return (show(estimate.lower),)
    expected = show(estimate.expected), likely(estimate, show)
    return (show(estimate.lower), *expected, show(estimate.unoverlapped))


def likely(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the 80 % interval of a time or a cost; without one, the least it can be."""
    if estimate.low is None or estimate.high is None:
        return at_least(show(estimate.lower))
    return span(show(estimate.low), show(estimate.high))


def verdict(plan: Plan) -> str:
    """Return the plan in one line."""
    forecast = plan.forecast
    if not plan.ledger_describes_trainer:
        return f"Plan: a mesh for {plan.trainer}, whose memory, time and cost are unknown."
    parts = ["fits" if forecast.fits else "does not fit", f"bound by {forecast.bound}"]
    parts += time_and_cost(forecast, 1)
    if plan.run_share == 1:
        return f"Plan: {', '.join(parts)}."
    shorter = ", ".join(time_and_cost(forecast, plan.run_share))
    return f"Plan: {', '.join(parts)}; {counted(plan.run_steps or 0, 'step')}: {shorter}."


def runners_up_table(plans: Sequence[Plan]) -> list[Part]:
    """Return a row for each plan, the chosen one first."""
    first = plans[0]
    has_estimate = all(plan.forecast.step_s.expected is not None for plan in plans)
    columns = ("expected", "MFU") if has_estimate else ("lower", "unoverlapped")
    head = ("mesh", "batch", "remat", "memory", *columns, "loss", "bound")
    rows = [head, *(runner_up(plan, first, has_estimate=has_estimate) for plan in plans)]
    title = f"the plan and {counted(len(plans) - 1, 'runner')}-up (data.fsdp.sequence.tensor)"
    return [title, *indent([Table(rows=rows, columns="<><>>>><"), ALIKE_RULE, LOSS_RULE])]


def runner_up(plan: Plan, first: Plan, *, has_estimate: bool) -> tuple[str, ...]:
    forecast = plan.forecast
    step_s = forecast.step_s
    if has_estimate:
        speed = seconds(step_s.expected or 0), percent(forecast.mfu.expected or 0)
    else:
        speed = seconds(step_s.lower), seconds(step_s.unoverlapped)
    return (
        mesh_with_alike(plan),
        in_microbatches(plan.batch),
        summary_of(plan.remat),
        in_memory(forecast.memory_bytes_per_device),
        *speed,
        "-" if plan is first else percent(token_s(plan) / token_s(first) - 1),
        forecast.bound,
    )


def mesh_with_alike(plan: Plan) -> str:
    """Return the mesh inside a pod, and how many meshes are like it."""
    shown = in_use(plan.mesh, plan.mesh)
    inside = (axis for axis in plan.axes if axis.link == "ici" and axis.name in shown)
    mesh = ".".join(str(axis.size) for axis in inside)
    return f"{mesh} +{plan.search.alike}" if plan.search.alike else mesh


def in_microbatches(batch: PlannedBatch) -> str:
    """Return the sequences of a step: 1,024, or 4 x 256 in four microbatches."""
    each = count(batch.sequences / batch.microbatches)
    return f"{batch.microbatches} x {each}" if batch.microbatches > 1 else each


def token_s(plan: Plan) -> float:
    """Return the seconds per token by which plans are ranked."""
    step_s = plan.forecast.step_s
    unhidden_s = step_s.unoverlapped - plan.forecast.hidden_s
    return (step_s.lower + unhidden_s) / 2 / plan.batch.tokens
