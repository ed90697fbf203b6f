"""Show a plan: the verdict first, then its decisions, its ledgers, its figures, its runners-up."""

from collections.abc import Sequence

from orchestrator import formatting as fmt
from orchestrator.network.mesh_axes import ICI_AXES, in_use
from orchestrator.network.rematerialization import summary_of, text_of
from orchestrator.planning.odds import DeadlineOdds
from orchestrator.planning.plan_warnings import warning_texts
from orchestrator.planning.ranking import OFFLOAD_GAIN, TIE, Reason, loss, passed_over
from orchestrator.show import parts as ui
from orchestrator.show import plan_text
from orchestrator.values.codec import short
from orchestrator.values.plan import Estimate, Plan, PlanWarning, WarningCode

_SAID_FIRST: tuple[WarningCode, ...] = ("other_trainer",)  # no figure below is about that program
_REDUCTIONS = {"per_layer": "layer by layer", "at_end": "at the end"}


def plan_screen(
    plan: Plan,
    next_command: str | None,
    compiled: str = "",
    runners_up: Sequence[Plan] = (),
    detail: ui.Detail = "usual",
    odds: DeadlineOdds | None = None,
) -> ui.Screen:
    """Return what the plan should reach and cost; `compiled` sums up an earlier proof of it."""
    first = warning_texts([note for note in plan.warnings if note.code in _SAID_FIRST])
    others = [note for note in plan.warnings if note.code not in _SAID_FIRST]
    more = plan_text.deadline_and_run(plan, odds)
    if compiled:
        more.append(("proof", compiled))
    five: list[ui.Part] = []
    if plan.ledger_describes_trainer:
        five = [plan_text.verdict_table(plan.forecast, plan.tokens, more)]
    top: list[list[ui.Part]] = [
        [ui.Title(plan_text.headline(plan), f"plan {short(plan.digest)}"), *map(ui.warning, first)],
        ui.indent(five),
    ]
    alternatives = _runners_up([plan, *runners_up]) if runners_up else []
    if detail == "brief":
        return ui.screen(*top, alternatives, [*_unsaid(others), *ui.next_step(next_command)])
    full = detail == "full"
    return ui.screen(
        *top,
        ui.indent(_decisions(plan, full=full)),
        plan_text.memory_ledger(plan, full=full),
        plan_text.time_ledger(plan, full=full),
        plan_text.expected_ledger(plan, full=full),
        plan_text.goodput_ledger(plan, full=full),
        ui.indent([_figures(plan, full=full)]),
        alternatives,
        map(ui.warning, warning_texts(others)),
        ui.closing(plan_text.verdict(plan), next_command),
    )


def _unsaid(warnings: Sequence[PlanWarning]) -> list[ui.Part]:
    number = len(warning_texts(warnings))
    return (
        [ui.warning(f"{fmt.counted(number, 'warning')}, shown without --brief")] if warnings else []
    )


def _decisions(plan: Plan, *, full: bool) -> list[ui.Part]:
    """Return the request and the decisions, a line each."""
    # Axes between slices with more than one part, or the first: weights are shared over an axis
    # that is used.
    between = [axis for axis in plan.axes if axis.link == "dcn"]
    dcn = [axis for axis in between if axis.size > 1] or between[:1]
    used = in_use(plan.mesh, plan.mesh)
    inside = []
    for axis in plan.axes:
        if axis.link == "ici" and axis.name in used:
            # Its torus axes: `tensor 8 (x)`, `data 35 (y/4 z/4)` when strided.
            where = f" ({axis.torus_text})" if axis.torus_text else ""
            inside.append(f"{axis.name} {axis.size}{where}")

    size = plan.batch
    sequences = f"{fmt.count(size.sequences)} sequences x {fmt.count(size.length)}"
    batch = f"{sequences} = {fmt.scaled(size.tokens)} tokens"
    if size.sequences != size.requested_sequences:
        change = size.sequences / size.requested_sequences - 1
        verb = "raised" if change > 0 else "lowered"
        requested = fmt.count(size.requested_sequences)
        batch += f" ({verb} {fmt.percent(abs(change))} from {requested} to divide evenly)"

    step = (
        f"{fmt.counted(size.microbatches, 'microbatch', 'es')}, remat {text_of(plan.remat)},"
        f" {plan.precision.compute} on {plan.precision.parameters} parameters,"
        f" gradients reduced {_REDUCTIONS[plan.gradient_reduction]}"
    )
    slices = ", ".join(f"{axis.name} {axis.size}" for axis in dcn)
    rows = [
        ("model", _model(plan)),
        ("mesh", f"{slices} dcn | {', '.join(inside)}"),
        ("batch", batch),
        ("step", step),
    ]
    if full:
        search = plan.search
        found = f"{fmt.count(search.realizable)} realizable, {fmt.count(search.priced)} priced"
        rows.append(("search", f"{fmt.count(search.enumerated)} placements, {found}"))
    if plan.chip_profile is not None:
        rows.append(("rates", f"measured on these chips, profile {short(plan.chip_profile)}"))
    if plan.overrides:
        rows.append(("set", " ".join(plan.overrides)))
    return [ui.Table(rows, "<w")]


def _model(plan: Plan) -> str:
    parameters, active = plan.model.parameters, plan.model.active_parameters
    of_token = f", {fmt.scaled(active, 4)} of them active" if active != parameters else ""
    return f"{plan.model.name}, {fmt.scaled(parameters, 4)} parameters{of_token}"


def _figures(plan: Plan, *, full: bool) -> ui.Table:
    forecast = plan.forecast
    return plan_text.estimates_table(
        forecast,
        [
            ("MFU", forecast.mfu, fmt.percent),
            *([("MFU, 6 x params", forecast.mfu_6p, fmt.percent)] if full else []),
            ("tokens/s", forecast.tokens_per_s, fmt.scaled),
            (f"{fmt.scaled(plan.tokens)} tokens", forecast.days, fmt.lasting),
            ("chip-hours", forecast.chip_hours, fmt.scaled),
        ],
    )


# The runners-up of a plan: what each would be, and why it is not the plan.

_WHY = "it takes the least time per token, by the mean of lower bound and unoverlapped (loss)"
_ALIKE_RULE = (
    "+n: other meshes with this tensor, remat and microbatches, slower by less than the forecast"
    " can tell"
)
_LOSS_RULE = (
    "loss: extra time per token, midway between lower bound and unoverlapped; a policy that"
    f" offloads must gain {fmt.percent(OFFLOAD_GAIN)} to come before one that does not"
)


def _runners_up(plans: Sequence[Plan]) -> list[ui.Part]:
    """Return a row for each plan, the chosen one first, and why it is the one."""
    first, *others = plans
    has_estimate = all(plan.forecast.step_s.expected is not None for plan in plans)
    # The axes inside a pod that any of the plans uses.
    used = {axis for plan in plans for axis in in_use(plan.mesh, plan.mesh)}
    axes = tuple(axis for axis in ICI_AXES if axis in used)

    def row(plan: Plan) -> ui.Row:
        forecast, step_s = plan.forecast, plan.forecast.step_s
        speed = fmt.seconds(step_s.lower), fmt.seconds(step_s.unoverlapped)
        if has_estimate:
            speed = fmt.seconds(step_s.expected or 0), fmt.percent(forecast.mfu.expected or 0)
        alike = f" +{plan.search.alike}" if plan.search.alike else ""
        return (
            _mesh_text(plan, axes) + alike,
            plan_text.in_microbatches(plan.batch),
            summary_of(plan.remat),
            fmt.in_memory(forecast.memory_bytes_per_device),
            *speed,
            "-" if plan is first else fmt.percent(loss(first, plan)),
            forecast.bound,
        )

    speeds = ("expected", "MFU") if has_estimate else ("lower", "unoverlapped")
    head = ("mesh", "batch", "remat", "memory", *speeds, "loss", "bound")
    rows = [head, *map(row, plans)]

    faster: dict[Reason, list[Plan]] = {}
    for other in others:
        if reason := passed_over(first, other):
            faster.setdefault(reason, []).append(other)
    why = f"why the first: {_WHY}"
    if first.forecast.step_s.expected is not None and not faster:
        why += "; it is also expected to be the fastest of these"
    texts = [_ALIKE_RULE, _LOSS_RULE, why]
    for reason, listed in faster.items():
        names = (
            f"{_mesh_text(plan, axes)} (MFU {fmt.percent(plan.forecast.mfu.expected or 0)})"
            for plan in listed
        )
        texts.append(f"why not {', '.join(names)}: {_why_not(reason, first, listed[0])}")
    title = f"the plan and {fmt.counted(len(others), 'runner')}-up ({'.'.join(axes)})"
    shown = ui.Table(rows, "<><>>>><", row_styles={1: "bold"})
    return [ui.heading(title), *ui.indent([shown, *(ui.Text(text, hang=2) for text in texts)])]


def _mesh_text(plan: Plan, axes: Sequence[str]) -> str:
    return ".".join(str(plan.mesh[axis]) for axis in axes)


def _why_not(reason: Reason, plan: Plan, other: Plan) -> str:
    share = fmt.percent(abs(loss(plan, other)))
    match reason:
        case "work":
            return (
                f"by that rule a token takes {share} longer. What the higher estimate rests on, how"
                " much runs hide and how long they wait, is less certain between two meshes than"
                " their work"
            )
        case "offload":
            least = fmt.percent(OFFLOAD_GAIN)
            return (
                f"a token takes {share} less by that rule, and a policy that offloads must gain"
                f" {least}"
            )
        case "batch":
            sequences, requested = other.batch.sequences, plan.batch.requested_sequences
            return (
                f"it is as fast by that rule, within {TIE:.0%}, and its {fmt.count(sequences)}"
                f" sequences are further from the {fmt.count(requested)} of the spec than"
                f" {fmt.count(plan.batch.sequences)}"
            )
        case "waits":
            return (
                f"by that rule a token takes {fmt.percent(loss(plan, other))} longer: nothing hides the"
                " reduction of gradients. It is expected to be faster because slices wait for each"
                " other once a step and not in each layer, and no published run on several slices"
                " shows that"
            )


# The plan of a run in stages: a row for each, then what all take together.


def stages_screen(
    plan: Plan,
    next_command: str | None,
    compiled: Sequence[str] = (),
    detail: ui.Detail = "usual",
    odds: DeadlineOdds | None = None,
) -> ui.Screen:
    """Return what the run takes, then each stage; `compiled` are lines about earlier proofs."""
    top: list[list[ui.Part]] = [
        [ui.Title(plan_text.headline(plan), f"plan {short(plan.digest)}")],
        ui.indent([_whole_run(plan, odds)]),
        ui.section(f"stages{plan_text.of_trainer(plan)}", _stage_rows(plan)),
    ]
    if detail == "brief":
        return ui.screen(*top, [*_unsaid(plan.warnings), *ui.next_step(next_command)])
    totals: list[tuple[str, Estimate, ui.Show]] = [
        (f"{fmt.scaled(plan.tokens)} tokens", plan.forecast.days, fmt.lasting),
        ("chip-hours", plan.forecast.chip_hours, fmt.scaled),
    ]
    return ui.screen(
        *top,
        ui.indent([*_stage_meshes(plan), *_schedules(plan), *compiled], 4),
        plan_text.goodput_ledger(plan, full=detail == "full"),
        ui.indent([plan_text.estimates_table(plan.forecast, totals, "all stages")]),
        map(ui.warning, warning_texts(plan.warnings)),
        ui.closing(plan_text.verdict(plan), next_command),
    )


def _whole_run(plan: Plan, odds: DeadlineOdds | None) -> ui.Table:
    """Return the verdict on the run: whether all stages fit, and what they take together."""
    forecast = plan.forecast
    more = plan_text.deadline_and_run(plan, odds)
    if plan.overrides:
        more.append(("set", " ".join(plan.overrides)))
    more.append(("model", _model(plan)))
    if not plan.ledger_describes_trainer:
        return ui.Table(more, "<w")
    each = [stage.forecast.mfu.likeliest for stage in plan.stages]
    is_known = all(stage.forecast.mfu.expected is not None for stage in plan.stages)
    at_most = "" if is_known else "at most "
    texts = (
        "yes, every stage" if forecast.fits else "no",
        *plan_text.time_and_price(forecast, plan.tokens),
        f"{at_most}{fmt.span(fmt.percent(min(each)), fmt.percent(max(each)))}, by stage",
        f"{forecast.bound}: {plan_text.in_words(forecast.bound)}, in the longest stage",
    )
    return plan_text.five_lines(forecast, texts, more)


def _stage_name(stage: Plan) -> str:
    return f"stage {stage.stage.number if stage.stage else ''}"


def _stage_rows(plan: Plan) -> list[ui.Part]:
    """Return a row for each stage, as it should be, or at best where nothing is expected."""

    def shown(estimate: Estimate, text: str) -> str:
        return text if estimate.expected is not None else fmt.at_least(text)

    rows = []
    for stage in plan.stages:
        forecast, cost = stage.forecast, stage.forecast.dollars
        row = (
            _stage_name(stage),
            fmt.scaled(stage.tokens),
            fmt.count(stage.total_steps),
            fmt.count(stage.batch.sequences),
            fmt.count(stage.batch.length),
            shown(forecast.step_s, fmt.seconds(forecast.step_s.likeliest)),
            fmt.percent(forecast.mfu.likeliest),
            shown(forecast.days, fmt.lasting(forecast.days.likeliest)),
            "" if cost is None else shown(cost, fmt.dollars(cost.likeliest)),
        )
        rows.append(row)
    head = ("", "tokens", "steps", "batch", "length", "step", "MFU", "time", "dollars")
    return ui.table(head, rows)


def _stage_meshes(plan: Plan) -> list[ui.Part]:
    """Return how each stage is placed."""
    rows = []
    for stage in plan.stages:
        used = in_use(stage.mesh, stage.mesh)
        axes = [axis for axis in stage.axes if axis.link == "ici" and axis.name in used]
        row = (
            _stage_name(stage),
            ", ".join(f"{axis.name} {axis.size}" for axis in axes if axis.size > 1) or "one device",
            plan_text.in_microbatches(stage.batch),
            summary_of(stage.remat),
            fmt.in_memory(stage.forecast.memory_bytes_per_device),
            stage.forecast.bound,
        )
        rows.append(row)
    return ui.table(("", "mesh inside a pod", "batch", "remat", "memory", "bound"), rows, "<<><><")


def _schedules(plan: Plan) -> list[str]:
    """Return the schedules of the learning rate, a line each."""
    lines = []
    for stage in plan.stages:
        if stage.schedule_span[0] != stage.first_step:
            continue
        same = [other for other in plan.stages if other.schedule_span == stage.schedule_span]
        first, last = (other.stage.number for other in (same[0], same[-1]) if other.stage)
        which = f"stage {first}" if first == last else f"stages {first} to {last}"
        options, (_, steps) = stage.optimizer, stage.schedule_span
        schedule = f"{options.peak_lr:g}, constant"
        if options.decay != "constant":
            falls = f"{options.peak_lr:g}, {options.decay} to {options.end_lr:g}"
            schedule = f"{falls} after {fmt.count(steps)} steps"
        if options.warmup_steps:
            schedule = f"{fmt.count(options.warmup_steps)} steps of warm-up to {schedule}"
        lines.append(f"learning rate in {which}: {schedule}")
    return lines
