"""Show a plan: the verdict first, then its decisions, its ledgers, its figures, its runners-up."""

from collections.abc import Sequence

from orchestrator import formatting as fmt
from orchestrator.network.mesh_axes import ICI_AXES, MODEL_OVER_DCN, in_use, sizes
from orchestrator.network.rematerialization import summary_of, text_of
from orchestrator.planning.offers import DeadlineOdds
from orchestrator.planning.plan_warnings import warning_texts
from orchestrator.planning.planner import LineCut
from orchestrator.planning.ranking import OFFLOAD_GAIN, TIE, Reason, loss, passed_over
from orchestrator.show import parts as ui
from orchestrator.show import plan_text
from orchestrator.values.codec import short
from orchestrator.values.plan import Estimate, Plan, PlanWarning, WarningCode

_SAID_FIRST: tuple[WarningCode, ...] = ("other_trainer",)  # no figure below is about that program
_REDUCTIONS = {"per_layer": "layer by layer", "at_end": "at the end"}


def plan_screen(
    plan: Plan, next_command: str | None, compiled: str = "", runners_up: Sequence[Plan] = (),
    detail: ui.Detail = "usual", odds: DeadlineOdds | None = None, cut: LineCut | None = None,
) -> ui.Screen:  # fmt: skip
    """Return what the plan should reach and cost; `compiled` sums up an earlier proof of it, and
    `cut` is the change that cuts its costliest line.
    """
    first = warning_texts([note for note in plan.warnings if note.code in _SAID_FIRST])
    others = [note for note in plan.warnings if note.code not in _SAID_FIRST]
    more = plan_text.deadline_and_run(plan, odds)
    more += [("proof", compiled)] if compiled else []
    forecast, full = plan.forecast, detail == "full"
    is_known = plan.ledger_describes_trainer
    top: list[list[ui.Part]] = [
        [ui.Title(plan_text.headline(plan), f"plan {short(plan.digest)}"), *map(ui.warning, first)],
        ui.indent([plan_text.verdict_table(forecast, plan.tokens, more)] if is_known else []),
    ]
    alternatives = _runners_up([plan, *runners_up]) if runners_up else []
    if detail == "brief":
        return ui.screen(*top, alternatives, [*_unsaid(others), *ui.next_step(next_command)])
    cut_texts = []
    if cut:
        line, share, overrides, other = cut

        def run_text(which: Plan) -> str:
            cost, days = which.forecast.dollars, fmt.lasting(which.forecast.days.likeliest)
            return f"{days} and {fmt.dollars(cost.likeliest)}" if cost else days

        options = " ".join(f"--set {override}" for override in overrides)
        of_step = fmt.percent(line.value / forecast.step_s.likeliest)
        cut_texts.append(
            f"The costliest line that a change cuts is {line.name}, {of_step} of the step: with"
            f" {options} it takes {fmt.whole_percent(share)} less per token, and the run"
            f" {run_text(other)} instead of {run_text(plan)}."
        )
    figures: list[tuple[str, Estimate, ui.Show]] = [
        ("MFU", forecast.mfu, fmt.percent),
        *([("MFU, 6 x params", forecast.mfu_6p, fmt.percent)] if full else []),
        ("tokens/s", forecast.tokens_per_s, fmt.scaled),
        (f"{fmt.scaled(plan.tokens)} tokens", forecast.days, fmt.lasting),
        ("chip-hours", forecast.chip_hours, fmt.scaled),
    ]
    return ui.screen(
        *top,
        ui.indent(_decisions(plan, full=full)),
        plan_text.memory_ledger(plan, full=full),
        plan_text.time_ledger(plan, full=full),
        plan_text.expected_ledger(plan, full=full),
        ui.indent(cut_texts, 4),
        plan_text.goodput_ledger(plan, full=full),
        ui.indent([plan_text.estimates_table(forecast, figures)]),
        alternatives,
        map(ui.warning, warning_texts(others)),
        ui.closing(plan_text.verdict(plan), next_command),
    )


def _unsaid(warnings: Sequence[PlanWarning]) -> list[ui.Part]:
    number = fmt.counted(len(warning_texts(warnings)), "warning")
    return [ui.warning(f"{number}, shown by orch plan without --brief")] if warnings else []


def _decisions(plan: Plan, *, full: bool) -> list[ui.Part]:
    # Axes between slices with more than one part, or the first: weights are shared over an axis
    # that is used.
    between = [axis for axis in plan.axes if axis.link == "dcn"]
    dcn = [axis for axis in between if axis.size > 1] or between[:1]
    slices = ", ".join(f"{axis.name} {axis.size}" for axis in dcn)
    # Axes inside a slice with their torus axes: `tensor 8 (x)`, `data 35 (y/4 z/4)` when strided.
    inside = ", ".join(
        f"{axis.name} {axis.size}" + (f" ({axis.torus_text})" if axis.torus_text else "")
        for axis in plan.axes
        if axis.link == "ici" and axis.name in in_use(plan.mesh, plan.mesh)
    )
    size, search, profile = plan.batch, plan.search, plan.chip_profile
    step = (
        f"{fmt.counted(size.microbatches, 'microbatch', 'es')}, remat {text_of(plan.remat)},"
        f" {plan.precision.compute} on {plan.precision.parameters} parameters,"
        f" gradients reduced {_REDUCTIONS[plan.gradient_reduction]}"
    )
    pipeline = ""
    if cut := plan.pipeline:
        layers, empty = fmt.counted(cut.layers_per_chunk, "layer"), cut.empty_layers
        pipeline = f"{cut.stages} stages x {fmt.counted(cut.chunks, 'chunk')} of {layers}"
        pipeline += f" ({fmt.counted(empty, 'place')} without a layer)" if empty else ""
        gathered = "once a step" if cut.weight_gather == "per_step" else "in each pass"
        pipeline += f", matrices gathered {gathered}"
    choice, is_stale = "", any(note.code == "stale_choice" for note in plan.warnings)
    if (made := plan.choice) and not is_stale:  # the compiler chose this plan
        choice = (
            f"by {made.compiler}: {fmt.seconds(made.scheduled_s)} scheduled, the best of"
            f" {fmt.counted(made.compared, 'program')} (program {made.program})"
        )
    counts = map(fmt.count, (search.enumerated, search.realizable, search.priced))
    found = "{} placements, {} realizable, {} priced".format(*counts)
    rows = [
        ("model", _model(plan)),
        ("mesh", f"{slices} dcn | {inside}"),
        ("batch", fmt.batch(size.sequences, size.length, size.requested_sequences)),
        ("step", step),
        ("pipeline", pipeline),
        ("choice", choice),
        ("search", found if full else ""),
        ("rates", f"measured on these chips, profile {short(profile)}" if profile else ""),
        ("set", " ".join(plan.overrides)),
    ]
    return [ui.Table([(name, text) for name, text in rows if text], "<w")]


def _model(plan: Plan) -> str:
    parameters, active = plan.model.parameters, plan.model.active_parameters
    of_token = f", {fmt.scaled(active, 4)} of them active" if active != parameters else ""
    return f"{plan.model.name}, {fmt.scaled(parameters, 4)} parameters{of_token}"


# The runners-up of a plan: what each would be, and why it is not the plan.

_ALIKE_RULE = (
    "+n: other meshes with this tensor, remat and microbatches, slower by less than the forecast"
    " can tell"
)
_LOSS_RULE = (
    "loss: extra time per token, midway between lower bound and unoverlapped; a policy that"
    f" offloads must gain {fmt.percent(OFFLOAD_GAIN)} to come before one that does not"
)


_WHY_NOT: dict[Reason, str] = {
    "work": "by that rule a token takes {share} longer. What the higher estimate rests on, how much"
    " runs hide and how long they wait, is less certain between two meshes than their work",
    "offload": "a token takes {share} less by that rule, and a policy that offloads must gain"
    " {least}",
    "batch": "it is as fast by that rule, within {tie}, and its {sequences} sequences are further"
    " from the {requested} of the spec than {chosen}",
    "waits": "by that rule a token takes {share} longer: nothing hides the reduction of gradients."
    " It is expected to be faster because slices wait for each other once a step and not in each"
    " layer, and no published run on several slices shows that",
}


def _runners_up(plans: Sequence[Plan]) -> list[ui.Part]:
    """Return a row for each plan, the chosen one first, and why it is the one."""
    first, *others = plans
    has_estimate = all(plan.forecast.step_s.expected is not None for plan in plans)
    # The axes inside a pod that any of the plans uses.
    used = {axis for plan in plans for axis in in_use(plan.mesh, plan.mesh)}
    of_plans = [sizes(plan.mesh) for plan in plans]
    shared = [axis for axis in MODEL_OVER_DCN if any(each[axis] > 1 for each in of_plans)]
    axes = (*shared, *(axis for axis in ICI_AXES if axis in used))

    def mesh(plan: Plan) -> str:
        return ".".join(map(str, sizes(plan.mesh, axes).values()))

    speeds = ("expected", "MFU") if has_estimate else ("lower", "unoverlapped")
    rows: list[ui.Row] = [("mesh", "batch", "remat", "memory", *speeds, "loss", "bound")]
    for plan in plans:
        forecast, step_s = plan.forecast, plan.forecast.step_s
        speed = fmt.seconds(step_s.lower), fmt.seconds(step_s.unoverlapped)
        if has_estimate:
            speed = fmt.seconds(step_s.expected or 0), fmt.percent(forecast.mfu.expected or 0)
        placed = mesh(plan) + (f" +{plan.search.alike}" if plan.search.alike else "")
        lost = "-" if plan is first else fmt.percent(loss(first, plan))
        rows.append((placed, *_placed(plan), *speed, lost, forecast.bound))
    # Runners-up that are expected to be faster, by the reason that they are not the plan.
    faster: dict[Reason, list[Plan]] = {}
    for other in others:
        if reason := passed_over(first, other):
            faster.setdefault(reason, []).append(other)
    why = "why the first: it takes the least time per token, by the mean of lower bound and"
    why += " unoverlapped (loss)"
    if first.forecast.step_s.expected is not None and not faster:
        why += "; it is also expected to be the fastest of these"
    texts = [_ALIKE_RULE, _LOSS_RULE, why]
    for reason, listed in faster.items():
        other = listed[0]
        shares = (fmt.percent(plan.forecast.mfu.expected or 0) for plan in listed)
        pairs = zip(map(mesh, listed), shares, strict=True)
        names = ", ".join(f"{placed} (MFU {share})" for placed, share in pairs)
        because = _WHY_NOT[reason].format(
            share=fmt.percent(abs(loss(first, other))),
            least=fmt.percent(OFFLOAD_GAIN),
            tie=f"{TIE:.0%}",
            sequences=fmt.count(other.batch.sequences),
            requested=fmt.count(first.batch.requested_sequences),
            chosen=fmt.count(first.batch.sequences),
        )
        texts.append(f"why not {names}: {because}")
    title = f"the plan and {fmt.counted(len(others), 'runner')}-up ({'.'.join(axes)})"
    shown = ui.Table(rows, "<><>>>><", row_styles={1: "bold"})
    return [ui.heading(title), *ui.indent([shown, *(ui.Text(text, hang=2) for text in texts)])]


def stages_screen(
    plan: Plan, next_command: str | None, compiled: Sequence[str] = (),
    detail: ui.Detail = "usual", odds: DeadlineOdds | None = None,
) -> ui.Screen:  # fmt: skip
    """Return what the run takes, then each stage; `compiled` are lines about earlier proofs."""
    forecast = plan.forecast
    more = plan_text.deadline_and_run(plan, odds)
    if plan.overrides:
        more.append(("set", " ".join(plan.overrides)))
    more.append(("model", _model(plan)))
    verdict = ui.Table(more, "<w")
    if plan.ledger_describes_trainer:
        # Whether all stages fit, and what they take together.
        each = [stage.forecast.mfu.likeliest for stage in plan.stages]
        is_known = all(stage.forecast.mfu.expected is not None for stage in plan.stages)
        mfu = f"{fmt.span(fmt.percent(min(each)), fmt.percent(max(each)))}, by stage"
        bound = f"{forecast.bound}: {plan_text.in_words(forecast.bound)}, in the longest stage"
        fits = "yes, every stage" if forecast.fits else "no"
        takes = plan_text.time_and_price(forecast, plan.tokens)
        texts = (fits, *takes, mfu if is_known else f"at most {mfu}", bound)
        verdict = plan_text.five_lines(forecast, texts, more)
    figures, meshes, rates = _stage_lines(plan.stages)
    top: list[list[ui.Part]] = [
        [ui.Title(plan_text.headline(plan), f"plan {short(plan.digest)}")],
        ui.indent([verdict]),
        ui.section(f"stages{plan_text.of_trainer(plan)}", figures),
    ]
    if detail == "brief":
        return ui.screen(*top, [*_unsaid(plan.warnings), *ui.next_step(next_command)])
    totals: list[tuple[str, Estimate, ui.Show]] = [
        (f"{fmt.scaled(plan.tokens)} tokens", forecast.days, fmt.lasting),
        ("chip-hours", forecast.chip_hours, fmt.scaled),
    ]
    return ui.screen(
        *top,
        ui.indent([*meshes, *rates, *compiled], 4),
        plan_text.goodput_ledger(plan, full=detail == "full"),
        ui.indent([plan_text.estimates_table(forecast, totals, "all stages")]),
        map(ui.warning, warning_texts(plan.warnings)),
        ui.closing(plan_text.verdict(plan), next_command),
    )


def _placed(plan: Plan) -> ui.Row:
    memory = fmt.in_memory(plan.forecast.memory_bytes_per_device)
    # 1,024 sequences, or 4 x 256 in four microbatches.
    microbatches = plan.batch.microbatches
    each = fmt.count(plan.batch.sequences / microbatches)
    sequences = f"{microbatches} x {each}" if microbatches > 1 else each
    return sequences, summary_of(plan.remat), memory


def _stage_lines(stages: Sequence[Plan]) -> tuple[list[ui.Part], list[ui.Part], list[str]]:
    """Return the figures of each stage, its mesh, and the schedules of the learning rate."""

    def shown(estimate: Estimate, show: ui.Show) -> str:
        text = show(estimate.likeliest)
        return text if estimate.expected is not None else fmt.at_least(text)

    figures, meshes, rates = list[ui.Row](), list[ui.Row](), []
    for number, stage in enumerate(stages, 1):
        name, forecast = f"stage {number}", stage.forecast
        sizes = map(fmt.count, (stage.total_steps, stage.batch.sequences, stage.batch.length))
        step, days = shown(forecast.step_s, fmt.seconds), shown(forecast.days, fmt.lasting)
        cost = "" if forecast.dollars is None else shown(forecast.dollars, fmt.dollars)
        mfu = fmt.percent(forecast.mfu.likeliest)
        figures.append((name, fmt.scaled(stage.tokens), *sizes, step, mfu, days, cost))
        axes = [axis for axis in stage.axes if axis.link == "ici" and axis.size > 1]
        inside = ", ".join(f"{axis.name} {axis.size}" for axis in axes) or "one device"
        meshes.append((name, inside, *_placed(stage), forecast.bound))
        # A schedule of the learning rate that begins here, and the stages that it goes on for.
        if stage.schedule_span[0] != stage.first_step:
            continue
        last = sum(other.schedule_span == stage.schedule_span for other in stages) + number - 1
        which = name if last == number else f"stages {number} to {last}"
        options, (_, steps) = stage.optimizer, stage.schedule_span
        schedule = f"{options.peak_lr:g}, constant"
        if options.decay != "constant":
            falls = f"{options.peak_lr:g}, {options.decay} to {options.end_lr:g}"
            schedule = f"{falls} after {fmt.count(steps)} steps"
        if options.warmup_steps:
            schedule = f"{fmt.count(options.warmup_steps)} steps of warm-up to {schedule}"
        rates.append(f"learning rate in {which}: {schedule}")
    head = ("", "tokens", "steps", "batch", "length", "step", "MFU", "time", "dollars")
    mesh_head = ("", "mesh inside a pod", "batch", "remat", "memory", "bound")
    return ui.table(head, figures), ui.table(mesh_head, meshes, "<<><><"), rates
