"""Show a plan: the verdict first, then its decisions, its ledgers, its figures, its runners-up."""

from collections.abc import Callable, Sequence

from orchestrator.formatting import (
    DAY_S,
    count,
    counted,
    dollars,
    elapsed,
    in_memory,
    lasting,
    percent,
    scaled,
    seconds,
    span,
    to_digits,
    with_unit,
)
from orchestrator.network.mesh_axes import ICI_AXES, in_use
from orchestrator.network.rematerialization import summary_of, text_of
from orchestrator.planning.odds import DeadlineOdds
from orchestrator.planning.plan_warnings import warning_texts
from orchestrator.planning.ranking import OFFLOAD_GAIN, TIE, Reason, loss, passed_over
from orchestrator.show.parts import (
    Detail,
    Part,
    Screen,
    Table,
    Text,
    Title,
    closing,
    heading,
    indent,
    next_step,
    screen,
    section,
    warning,
)
from orchestrator.show.plan_text import (
    INTERVAL,
    expected_parts,
    headline,
    in_microbatches,
    likely,
    memory,
    time,
    verdict,
    verdict_lines,
)
from orchestrator.values.codec import short
from orchestrator.values.goodput import GoodputForecast, GoodputLine, LossKind
from orchestrator.values.plan import (
    Estimate,
    MeshAxis,
    Plan,
    PlanWarning,
    SearchSummary,
    WarningCode,
)

# The part of a plan's screen about goodput: where time goes that trains nothing, and saves.


SMALL_LOSS = 0.01  # of all time: smaller losses are shown as one line
LOSSES: dict[LossKind, str] = {
    "saving": "steps wait for saves",
    "lost_steps": "steps done again",
    "detection": "until a failure is seen",
    "waiting": "waiting for a slice",
    "restart": "starting processes",
    "restore": "restoring",
    "evaluation": "evaluating",
    "fewer_pods": "running on fewer pods",
    "stage_changes": "changes of stages",
}


def goodput_part(plan: Plan, *, full: bool) -> list[Part]:
    """Return the losses, the failures behind them, and what a save needs."""
    forecast = plan.forecast.goodput
    if not plan.ledger_describes_trainer:
        return []
    notes = [failures_text(forecast), save_text(forecast)]
    shown, small = split_losses(forecast, 0 if full else SMALL_LOSS)
    rows = [loss_row(line) for line in shown]
    if small:
        rows.append((counted(len(small), "smaller loss", "es"), "", "", percent(sum(small))))
    sizes = [*(line.share for line in shown), *([sum(small)] if small else []), 0]
    table = Table(
        rows=[*rows, total_row(forecast)],
        columns="<<<>",
        bars=sizes,
        row_styles={len(rows): "bold"},
    )
    return section("goodput", [table, *(note for note in notes if note)])


def split_losses(forecast: GoodputForecast, least: float) -> tuple[list[GoodputLine], list[float]]:
    """Return the losses that are shown, the largest first, and the shares of the smaller ones;
    none where the spec states the goodput.
    """
    if forecast.stated:
        return [], []
    shown = [line for line in forecast.lines if line.share >= least]
    small = [line.share for line in forecast.lines if line.share < least]
    return sorted(shown, key=lambda line: -line.share), small


def loss_row(line: GoodputLine) -> tuple[str, ...]:
    often = f"x {to_digits(line.per_day, 3)} a day"
    return LOSSES[line.kind], seconds(line.each_s), often, percent(line.share)


def total_row(forecast: GoodputForecast) -> tuple[str, ...]:
    if forecast.stated:
        return "goodput", "", "of the spec", percent(forecast.expected)
    interval = f"80 % interval {span(percent(forecast.low), percent(forecast.high))}"
    return "goodput", "", interval, percent(forecast.expected)


def failures_text(forecast: GoodputForecast) -> str:
    """Return how often something fails, and how that is known."""
    between_s = forecast.seconds_between_failures
    if between_s is None:
        return ""
    inputs = forecast.inputs
    rates = "rates of another chip, assumed" if inputs.assumed else "rates"
    names = ", ".join(inputs.sources["failures_per_day"])
    return f"a failure every {elapsed(between_s)} ({rates}: {names})"


def save_text(forecast: GoodputForecast) -> str:
    """Return the bytes of a save, its times, and the best interval."""
    save, every = forecast.inputs.save, forecast.every_steps
    if not save.write_s.value:
        return ""
    text = (
        f"a save every {count(every)} steps ({lasting(forecast.every_s / DAY_S)}):"
        f" {with_unit(save.bytes, 'B')}, of a chip {with_unit(save.host_bytes_per_chip, 'B')};"
        f" steps wait {seconds(save.blocking_s.value)}, the storage takes"
        f" {seconds(save.write_s.value)} at {with_unit(save.storage_bytes_per_s.value, 'B/s')}"
        f" and needs {with_unit(forecast.needed_bytes_per_s, 'B/s')}"
    )
    best = forecast.best_every_steps
    if every == best or forecast.stated or forecast.seconds_between_failures is None:
        return text
    return f"{text}; best every {count(best)} steps ({percent(forecast.best)})"


SAID_FIRST: tuple[WarningCode, ...] = ("other_trainer",)  # no figure below is about that program
REDUCTIONS = {"per_layer": "layer by layer", "at_end": "at the end"}


def plan_screen(
    plan: Plan,
    next_command: str | None,
    compiled: str = "",
    runners_up: Sequence[Plan] = (),
    detail: Detail = "usual",
    odds: DeadlineOdds | None = None,
) -> Screen:
    """Return what the plan should reach and cost, what will be done, and what to do next.

    `compiled` is the summary of an earlier proof of this plan.
    """
    first = [one for one in plan.warnings if one.code in SAID_FIRST]
    others = [one for one in plan.warnings if one.code not in SAID_FIRST]
    top: list[list[Part]] = [
        [
            Title(left=headline(plan), right=f"plan {short(plan.digest)}"),
            *(warning(text) for text in warning_texts(first)),
        ],
        indent(verdict_lines(plan, compiled, odds)),
    ]
    table = alternatives(plan, runners_up)
    if detail == "brief":
        return screen(*top, table, [*unsaid(others), *next_step(next_command)])
    return screen(
        *top,
        *ledgers(plan, full=detail == "full"),
        table,
        [warning(text) for text in warning_texts(others)],
        closing(verdict(plan), next_command),
    )


def alternatives(plan: Plan, runners_up: Sequence[Plan]) -> list[Part]:
    if not runners_up:
        return []

    return runners_up_table([plan, *runners_up])


def ledgers(plan: Plan, *, full: bool) -> list[list[Part]]:
    """Return all that the verdict follows from."""
    return [
        indent(decisions(plan, full=full)),
        memory(plan, full=full),
        time(plan, full=full),
        expected_parts(plan, full=full),
        goodput_part(plan, full=full),
        indent(figures(plan, full=full)),
    ]


def unsaid(warnings: Sequence[PlanWarning]) -> list[Part]:
    """Return how many warnings a brief screen leaves out."""
    if not warnings:
        return []
    number = len(warning_texts(warnings))
    return [warning(f"{counted(number, 'warning')}, shown without --brief")]


def decisions(plan: Plan, *, full: bool) -> list[Part]:
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
    ]
    if full:
        rows.append(("search", searched(plan.search)))
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


def figures(plan: Plan, *, full: bool) -> list[Part]:
    """Return MFU, throughput, days and money as a table."""
    forecast = plan.forecast
    rows = [
        ("MFU", *estimate_cells(forecast.mfu, percent)),
        *([("MFU, 6 x params", *estimate_cells(forecast.mfu_6p, percent))] if full else []),
        ("tokens/s", *estimate_cells(forecast.tokens_per_s, scaled)),
        (f"{scaled(plan.tokens)} tokens", *estimate_cells(forecast.days, lasting)),
        ("chip-hours", *estimate_cells(forecast.chip_hours, scaled)),
    ]
    if forecast.dollars is not None:
        price = f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"
        rows.append((price, *estimate_cells(forecast.dollars, dollars)))
    known = forecast.step_s.expected is not None
    head = ("", "lower bound", "expected", INTERVAL, "unoverlapped") if known else ("", "at best")
    return [Table(rows=[head, *rows], columns="<" + ">" * (len(head) - 1))]


def estimate_cells(estimate: Estimate, show: Callable[[float], str]) -> tuple[str, ...]:
    """Return the bounds with the expected value and its interval; or the best alone."""
    if estimate.expected is None:
        return (show(estimate.lower),)
    expected = show(estimate.expected), likely(estimate, show)
    return (show(estimate.lower), *expected, show(estimate.unoverlapped))


# The runners-up of a plan: what each would be, and why it is not the plan.


WHY = "it takes the least time per token, by the mean of lower bound and unoverlapped (loss)"
ALIKE_RULE = (
    "+n: other meshes with this tensor, remat and microbatches, slower by less than the forecast"
    " can tell"
)
LOSS_RULE = (
    "loss: extra time per token, midway between lower bound and unoverlapped; a policy that"
    f" offloads must gain {percent(OFFLOAD_GAIN)} to come before one that does not"
)


def runners_up_table(plans: Sequence[Plan]) -> list[Part]:
    """Return a row for each plan, the chosen one first, and why it is the one."""
    first, *others = plans
    has_estimate = all(plan.forecast.step_s.expected is not None for plan in plans)
    columns = ("expected", "MFU") if has_estimate else ("lower", "unoverlapped")
    head = ("mesh", "batch", "remat", "memory", *columns, "loss", "bound")
    axes = shown_axes(plans)
    rows = [head, *(runner_up(plan, first, axes, has_estimate=has_estimate) for plan in plans)]
    title = f"the plan and {counted(len(others), 'runner')}-up ({'.'.join(axes)})"
    table = Table(rows=rows, columns="<><>>>><", row_styles={1: "bold"})
    rules = (Text(text=rule, hang=2) for rule in (ALIKE_RULE, LOSS_RULE))
    return [heading(title), *indent([table, *rules, *choice(first, others)])]


def choice(plan: Plan, others: Sequence[Plan]) -> list[Part]:
    """Return why the plan is first, and why those are not that are expected to be faster."""
    faster: dict[Reason, list[Plan]] = {}
    for other in others:
        if reason := passed_over(plan, other):
            faster.setdefault(reason, []).append(other)
    known = plan.forecast.step_s.expected is not None
    text = WHY if faster or not known else f"{WHY}; it is also expected to be the fastest of these"
    axes = shown_axes((plan, *others))
    why_not = (not_chosen(plan, listed, reason, axes) for reason, listed in faster.items())
    return [Text(text=f"why the first: {text}", hang=2), *why_not]


def not_chosen(plan: Plan, others: Sequence[Plan], reason: Reason, axes: Sequence[str]) -> Text:
    """Return why plans that are expected to be faster rank lower, in the figures of the first."""
    mfus = ((mesh_text(one, axes), percent(one.forecast.mfu.expected or 0)) for one in others)
    names = (f"{mesh} (MFU {mfu})" for mesh, mfu in mfus)
    return Text(text=f"why not {', '.join(names)}: {WHY_NOT[reason](plan, others[0])}", hang=2)


def ranked_apart(plan: Plan, other: Plan) -> str:
    share = percent(abs(loss(plan, other)))
    return (
        f"by that rule a token takes {share} longer. What the higher estimate rests on, how much"
        " runs hide and how long they wait, is less certain between two meshes than their work"
    )


def gains_too_little(plan: Plan, other: Plan) -> str:
    gain, least = percent(abs(loss(plan, other))), percent(OFFLOAD_GAIN)
    return f"a token takes {gain} less by that rule, and a policy that offloads must gain {least}"


def moves_batch(plan: Plan, other: Plan) -> str:
    sequences, requested = other.batch.sequences, plan.batch.requested_sequences
    return (
        f"it is as fast by that rule, within {TIE:.0%}, and its {count(sequences)} sequences are"
        f" further from the {count(requested)} of the spec than {count(plan.batch.sequences)}"
    )


def leaves_out_waits(plan: Plan, other: Plan) -> str:
    share = percent(loss(plan, other))
    return (
        f"by that rule a token takes {share} longer: nothing hides the reduction of gradients."
        " It is expected to be faster because slices wait for each other once a step and not in"
        " each layer, and no published run on several slices shows that"
    )


WHY_NOT: dict[Reason, Callable[[Plan, Plan], str]] = {
    "work": ranked_apart,
    "offload": gains_too_little,
    "batch": moves_batch,
    "waits": leaves_out_waits,
}


def runner_up(
    plan: Plan, first: Plan, axes: Sequence[str], *, has_estimate: bool
) -> tuple[str, ...]:
    forecast = plan.forecast
    step_s = forecast.step_s
    if has_estimate:
        speed = seconds(step_s.expected or 0), percent(forecast.mfu.expected or 0)
    else:
        speed = seconds(step_s.lower), seconds(step_s.unoverlapped)
    return (
        mesh_with_alike(plan, axes),
        in_microbatches(plan.batch),
        summary_of(plan.remat),
        in_memory(forecast.memory_bytes_per_device),
        *speed,
        "-" if plan is first else percent(loss(first, plan)),
        forecast.bound,
    )


def shown_axes(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the axes inside a pod that any of the plans uses."""
    used = {axis for plan in plans for axis in in_use(plan.mesh, plan.mesh)}
    return tuple(axis for axis in ICI_AXES if axis in used)


def mesh_text(plan: Plan, axes: Sequence[str]) -> str:
    """Return the sizes of the mesh inside a pod."""
    return ".".join(str(plan.mesh[axis]) for axis in axes)


def mesh_with_alike(plan: Plan, axes: Sequence[str]) -> str:
    """Return the mesh inside a pod, and how many meshes are like it."""
    mesh = mesh_text(plan, axes)
    return f"{mesh} +{plan.search.alike}" if plan.search.alike else mesh
