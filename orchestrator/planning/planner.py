"""Spec to Plan: search, choose, and write the choice with its forecast and digest."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import chain
from math import prod

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.losses import StagePart, change_s, over_stages
from orchestrator.network.mesh_axes import (
    DCN_AXES,
    DCN_GROUPS,
    GROUPS,
    ICI_AXES,
    OPTIONAL_AXES,
    in_use,
    link_of,
)
from orchestrator.network.rematerialization import AUTO
from orchestrator.planning import flops, nearest_specs, plan_warnings, search
from orchestrator.planning.collectives import per_layer
from orchestrator.planning.feasibility import batch_range, check_chip, check_experts
from orchestrator.planning.forecast import add, beyond, forecast, plus, typical
from orchestrator.planning.infeasible import Infeasible, infeasible
from orchestrator.planning.layout import Training
from orchestrator.planning.ranking import (
    PIPELINE_RULE,
    RULE,
    RankedChoice,
    ranked_choices,
)
from orchestrator.planning.torus import spans_of
from orchestrator.values import plan as values
from orchestrator.values.model import Model
from orchestrator.values.spec import Batch, MeshRequest, Pods, Spec


def make_plan(spec: Spec) -> values.Plan:
    """Return the fastest realizable plan of a spec, or raise `Infeasible` with the reasons."""
    return make_plans(spec, 1)[0]


def make_plans(spec: Spec, most: int) -> list[values.Plan]:
    """Return the plan of a spec, then its runners-up of other kinds (not for stages)."""
    if spec.experiment.stages:
        return [joined(spec, placed(spec, list(_stage_plans(spec))))]
    request = search.search_request(spec)
    compute = spec.experiment.precision.compute
    check_chip(request.chip, compute)
    if spec.run.trainer == plan_warnings.LEDGER_TRAINER:
        check_experts(spec.experiment.model, compute)
    result = search.search(request)
    ranked = ranked_choices(request, result.candidates, most)
    if not ranked:
        raise infeasible(spec, request, result)
    return [_write_plan(spec, request, result, choice) for choice in ranked]


# Smaller lines of a step, cuts of a line and gains in days are not worth a change.
_LINE, _CUT, _GAIN = 0.03, 0.05, 0.01
_UNWANTED = {"large_batch", "no_memory_margin"}


# A line, the share of it per token that a change cuts, the overrides, and their plan.
LineCut = tuple[values.LedgerLine, float, tuple[str, ...], values.Plan]


def line_cut(spec: Spec, plan: values.Plan) -> LineCut | None:
    """Return the costliest line that one of a few changes cuts; None where none helps. Each change
    is planned, and the run must end earlier with it. A run in stages has no such line.
    """
    experiment, resources = spec.experiment, spec.resources
    changes: list[tuple[nearest_specs.Change, bool]] = [
        ({nearest_specs.SEQUENCES: 2 * experiment.batch.sequences}, True),
        ({nearest_specs.MOMENTS: "bf16"}, experiment.precision.optimizer != "bf16"),
        ({nearest_specs.REMAT: AUTO}, experiment.remat != AUTO),
        ({nearest_specs.MESH: AUTO}, resources.mesh != MeshRequest()),
        ({nearest_specs.MICROBATCHES: AUTO}, experiment.batch.microbatches is not None),
    ]
    warned = {each.code for each in plan.warnings}
    made: list[tuple[nearest_specs.Change, values.Plan]] = []
    for change, differs in changes if not plan.stages else ():
        wanted = nearest_specs.changed(spec, change)
        if differs and nearest_specs.within_limits(wanted):
            with suppress(SpecError):
                made.append((change, make_plan(wanted)))
    days = (1 - _GAIN) * plan.forecast.days.likeliest
    better = [
        (change, other)
        for change, other in made
        if other.forecast.days.likeliest < days
        and not ({each.code for each in other.warnings} - warned) & _UNWANTED
    ]
    lines = plan.forecast.expected_time or plan.forecast.time
    for line in sorted(lines, key=lambda each: -each.value):
        cuts = []
        for number, (_, other) in enumerate(better):
            theirs = other.forecast.expected_time or other.forecast.time
            left_s = sum(each.value for each in theirs if each.name == line.name)
            cuts.append((1 - left_s / line.value * plan.batch.tokens / other.batch.tokens, -number))
        share, number = max(cuts, default=(0.0, 0))
        if share > _CUT and line.value > _LINE * plan.forecast.step_s.likeliest:
            change, other = better[-number]
            return line, share, nearest_specs.overrides(change), other
    return None


def make_stage_plans(spec: Spec, number: int, most: int) -> list[values.Plan]:
    others, before = list(_stage_plans(spec)), number - 1
    runs = (
        [*others[:before], plan, *others[number:]]
        for plan in make_plans(stage_spec(spec, number), most)
    )
    return [placed(spec, plans)[before] for plans in runs]


def _stage_plans(spec: Spec) -> Iterator[values.Plan]:
    """Yield a plan for each stage, as if it were the only one."""
    specs = stage_specs(spec)
    for number, stage in enumerate(specs, start=1):
        try:
            yield make_plan(stage)
        except Infeasible as error:
            raise error.of_stage(number, len(specs)) from error


def _write_plan(
    spec: Spec, request: search.SearchRequest, result: search.SearchResult, ranked: RankedChoice
) -> values.Plan:
    choice = ranked.choice
    layout = search.layout_of_choice(request, choice)
    experiment, pods, model = spec.experiment, request.pods, spec.experiment.model
    axes, groups = _axes_and_groups(request, choice, layout)
    plan = values.Plan(
        schema=values.PLAN_SCHEMA,
        digest="",
        name=spec.name,
        trainer=spec.run.trainer,
        ledger_describes_trainer=spec.run.trainer == plan_warnings.LEDGER_TRAINER,
        spec_digest=values.experiment_digest(experiment),
        overrides=spec.overrides,
        model=values.PlannedModel(
            **{field.name: getattr(model, field.name) for field in fields(Model)},
            parameters=flops.parameters(model),
            active_parameters=flops.active_parameters(model),
        ),
        tokens=experiment.tokens,
        run_steps=spec.run.steps,
        batch=values.PlannedBatch(
            sequences=layout.sequences,
            length=layout.length,
            tokens=layout.sequences * layout.length,
            requested_sequences=experiment.batch.sequences,
            sequences_per_replica=layout.sequences // int(layout.ways("batch")),
            microbatches=layout.microbatches,
        ),
        optimizer=experiment.optimizer,
        precision=experiment.precision,
        remat=choice.remat,
        data=experiment.data,
        start=experiment.start,
        seed=experiment.seed,
        compiler_options=_compiler_options(request, layout, axes),
        chip=request.chip.name,
        chip_definition=spec.resources.chip_definition,
        topology=str(request.topology),
        pods=pods,
        chips=pods * request.topology.chips,
        devices=prod(layout.mesh.values()),
        hosts=pods * catalog.hosts(request.chip, request.topology),
        mesh={axis.name: axis.size for axis in axes},
        axes=axes,
        groups=groups,
        gradient_reduction="per_layer" if per_layer(layout) else "at_end",
        loss_chunk_tokens=layout.loss_chunk_tokens,
        loss_gradient="per_chunk" if layout.sums_loss_by_chunk else "at_end",
        chip_profile=None,
        forecast=forecast(layout, spec),
        search=values.SearchSummary(
            enumerated=result.enumerated,
            realizable=result.realizable,
            priced=len(result.candidates),
            alike=ranked.alike,
            rule=RULE + PIPELINE_RULE * request.chip.switched,
        ),
        warnings=(),
        choice=spec.choice,
        pipeline=_planned_pipeline(layout),
    )
    warnings = tuple(plan_warnings.all_warnings(plan, spec, request, result))
    return replace(plan, digest=values.plan_digest(plan), warnings=warnings)


def _planned_pipeline(layout: Training) -> values.PlannedPipeline | None:
    if layout.stages == 1:
        return None
    places = int(layout.stages * layout.chunks * layout.chunk_layers)
    return values.PlannedPipeline(
        stages=int(layout.stages),
        chunks=layout.chunks,
        microbatches=layout.microbatches,
        layers_per_chunk=int(layout.chunk_layers),
        empty_layers=places - layout.network.layers,
        weight_gather="per_step" if layout.gathers_once else "per_layer",
    )


def _axes_and_groups(
    request: search.SearchRequest, choice: search.Choice, layout: Training
) -> tuple[tuple[values.MeshAxis, ...], dict[str, values.DeviceGroup]]:
    """Return mesh axes, outermost first, and groups of several devices, with their torus axes."""
    factors, moe = search.factors_of(choice)[0], layout.model.moe

    def spans(axes: tuple[str, ...]) -> tuple[values.TorusSpan, ...]:
        return spans_of(request.torus, factors, axes) if link_of(axes) == "ici" else ()

    axes = tuple(
        values.MeshAxis(name=axis, size=size, link=link_of((axis,)), spans=spans((axis,)))
        for axis, size in ((axis, layout.mesh[axis]) for axis in (*DCN_AXES, *ICI_AXES))
        if size > 1 or axis not in OPTIONAL_AXES
    )
    groups = {
        name: values.DeviceGroup(
            axes=in_use(joined, layout.mesh),
            size=int(layout.devices_along(joined)),
            link=link_of(joined),
            spans=spans(joined),
            bytes_per_s=layout.links.bytes_per_s(name),
        )
        for name, joined in (GROUPS | DCN_GROUPS).items()
    }
    if moe is None:
        for name in ("expert", "experts", "expert_dcn", "experts_dcn"):
            del groups[name]
    if moe is None or not moe.biases:
        del groups["expert_replicas"]
    return axes, {name: group for name, group in groups.items() if group.size > 1}


def _compiler_options(
    request: search.SearchRequest, layout: Training, axes: tuple[values.MeshAxis, ...]
) -> dict[str, bool | int | float | str]:
    """Return the chip's options, and those of the spec, which come first."""
    copies = [span.size for axis in axes if axis.name == "data" for span in axis.spans]
    chosen = {}
    for name, option in request.chip.compiler_options.items():
        odd = option.odd_copies if any(size % 2 for size in copies if size > 1) else None
        value = option.value if odd is None else odd
        if value is not None and layout.has_option(name):
            chosen[name] = value
    if request.chip.xla_gpu:
        # Let it plan with the usable memory: it takes f (0.8 M - S) + S, of the device's memory M
        # and the state S, with an f in percent that is 95 by default.
        usable = request.chip.hbm_usable_bytes.value
        state = layout.stored_parameter_elements * (layout.parameter_bytes + layout.moment_bytes)
        free = _PLANNED_SHARE * usable / POOL_SHARE - state
        chosen[_MEMORY_FACTOR] = int(100 * (usable - state) / max(free, usable / 100))
    return chosen | request.experiment.compiler_options


_MEMORY_FACTOR = "xla_gpu_memory_limit_slop_factor"
_PLANNED_SHARE = 0.8  # of a GPU's memory
POOL_SHARE = 0.92  # of it, which a program gets (`gpu-memory` in sources.toml)
# The environment of JAX on GPUs: a plan counts on more memory than JAX takes by default.
ON_GPUS = {"JAX_PLATFORMS": "cuda,cpu", "XLA_CLIENT_MEM_FRACTION": str(POOL_SHARE)}


# How far the batch may move if no mesh of that many pods divides it.
_TOLERANCES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


def plan_on(spec: Spec, plan: values.Plan, pods: int) -> values.Plan:
    """Return the plan on `pods` pods, with the same batch if a mesh divides it, by more
    accumulation than was requested; otherwise with the nearest batch that has a plan, and with a
    warning if that is beyond the tolerance.
    """
    if pods == plan.pods:
        return plan
    if plan.stages:
        pairs = zip(stage_specs(spec), plan.stages, strict=True)
        return joined(spec, [plan_on(own_spec, stage, pods) for own_spec, stage in pairs])
    allowed = spec.experiment.batch.tolerance
    for tolerance in sorted({*_TOLERANCES, allowed}):
        batch = Batch(sequences=plan.batch.sequences, length=plan.batch.length, tolerance=tolerance)
        changed = replace(
            spec,
            experiment=replace(spec.experiment, batch=batch),
            resources=replace(spec.resources, pods=Pods(min=pods, max=pods)),
        )
        try:
            other = make_plan(changed)
        except SpecError as error:
            last_error = error
        else:
            # It is the same experiment and stage, and the batch that was requested.
            requested = replace(other.batch, requested_sequences=plan.batch.requested_sequences)
            other = replace(other, spec_digest=plan.spec_digest, batch=requested, stage=plan.stage)
            asked, now = requested.requested_sequences, requested.sequences
            low, high = batch_range(replace(batch, sequences=asked, tolerance=allowed))
            if not low <= now <= high:
                figures = {"pods": pods, "sequences": now, "requested": asked, "tolerance": allowed}
                warning = plan_warnings.make_warning("other_batch", **figures)
                other = replace(other, warnings=(warning, *other.warnings))
            return replace(other, digest=values.plan_digest(other))
    raise last_error


# --- a run in stages


def stage_specs(spec: Spec) -> list[Spec]:
    """Return a spec for each stage: the same resources, and an experiment of its own."""
    specs = []
    for stage in spec.experiment.stages:
        experiment = replace(
            spec.experiment,
            tokens=stage.tokens,
            batch=stage.batch,
            optimizer=stage.optimizer,
            data=stage.data,
            remat=stage.remat or spec.experiment.remat,
            stages=(),
        )
        resources = replace(spec.resources, mesh=stage.mesh or spec.resources.mesh)
        run = replace(spec.run, steps=None)
        specs.append(replace(spec, experiment=experiment, resources=resources, run=run))
    return specs


def stage_spec(spec: Spec, number: int) -> Spec:
    specs = stage_specs(spec)
    if not 1 <= number <= len(specs):
        known = f"stages 1 to {len(specs)}" if specs else "no stages"
        raise SpecError(f"stage {number}: {spec.name} has {known}")
    return specs[number - 1]


def explained_stage(spec: Spec, number: int | None) -> Spec:
    """Return a stage, that with most tokens by default, as a spec; a spec without any is itself."""
    specs = stage_specs(spec)
    if number is None and not specs:
        return spec
    if number is None:
        number = 1 + max(range(len(specs)), key=lambda place: specs[place].experiment.tokens)
    return replace(stage_spec(spec, number), name=f"{spec.name}, stage {number} of {len(specs)}")


def placed(spec: Spec, plans: Sequence[values.Plan]) -> list[values.Plan]:
    """Return the plans of all stages with their places in the run, from plans of each by itself."""
    identity, stages = values.experiment_digest(spec.experiment), spec.experiment.stages
    ends = [0]
    for plan in plans:
        ends.append(ends[-1] + plan.total_steps)
    begins = [n for n, stage in enumerate(stages) if n == 0 or stage.restarts_schedule]
    placed_plans = []
    for n, plan in enumerate(plans):
        schedule = max(begin for begin in begins if begin <= n)
        after = min((begin for begin in begins if begin > n), default=len(plans))
        same_data = [other for other in plans[:n] if other.data.path == plan.data.path]
        span = values.StageSpan(
            number=n + 1,
            of=len(plans),
            first_step=ends[n],
            steps=plan.total_steps,
            schedule_first_step=ends[schedule],
            schedule_steps=ends[after] - ends[schedule],
            first_token=sum(other.total_steps * other.batch.tokens for other in same_data),
        )
        # Warnings that depend on the length of the run belong to the whole run.
        of_run = plan_warnings.run_warnings(plan)
        own = tuple(warning for warning in plan.warnings if warning not in of_run)
        placed_plan = replace(plan, spec_digest=identity, stage=span, warnings=own)
        placed_plans.append(replace(placed_plan, digest=values.plan_digest(placed_plan)))
    return placed_plans


def joined(spec: Spec, stages: Sequence[values.Plan]) -> values.Plan:
    """Return the plan of the whole run from those of its stages, each in its place."""
    # The forecast of the first stage, with the time and the money of all, and with what binds the
    # longest. What is unknown about one stage is unknown about all: ends of intervals add up.
    forecasts = [stage.forecast for stage in stages]
    first, longest = forecasts[0], max(forecasts, key=lambda each: each.days.likeliest)
    goodput = over_stages(
        [
            StagePart(goodput=each.goodput, steps_s=stage.total_steps * typical(each.step_s))
            for stage, each in zip(stages, forecasts, strict=True)
        ]
    )
    changes_s = sum(change_s(each.goodput) for each in forecasts[1:])
    chips = stages[0].chips * first.goodput.inputs.rented
    price, paid = first.dollars_per_chip_hour, [each.dollars for each in forecasts if each.dollars]
    dollars = None
    if price is not None and len(paid) == len(stages):
        dollars = plus(add(paid), changes_s / HOUR_S * chips * price)
    whole = replace(
        stages[0],
        stage=None,
        stages=tuple(stages),
        tokens=sum(stage.tokens for stage in stages),
        run_steps=spec.run.steps,
        forecast=replace(
            first,
            fits=all(each.fits for each in forecasts),
            bound=longest.bound,
            bound_by=longest.bound_by,
            goodput=goodput,
            days=plus(add([each.days for each in forecasts]), changes_s / DAY_S),
            chip_hours=plus(
                add([each.chip_hours for each in forecasts]), changes_s / HOUR_S * chips
            ),
            dollars=dollars,
        ),
        warnings=(),
    )
    # Each warning once, and an axis as far beyond as it gets. The interval between saves is one for
    # all stages: the run itself has that warning.
    clearest: dict[object, tuple[float, values.PlanWarning]] = {}
    for warning in chain.from_iterable(stage.warnings for stage in stages):
        figures, distance = warning.figures, 0.0
        key: object = (warning.code, tuple(figures.items()))
        if warning.code == "checkpoint_interval":
            continue
        if warning.code == "extrapolation":
            value, low, high = (float(figures[name]) for name in ("value", "low", "high"))
            key, distance = figures["axis"], beyond(value, low, high)
        if key not in clearest or distance > clearest[key][0]:
            clearest[key] = (distance, warning)
    once = [warning for _, warning in clearest.values()]
    warnings = (*once, *plan_warnings.interval_warnings(whole), *plan_warnings.run_warnings(whole))
    return replace(whole, digest=values.plan_digest(whole), warnings=warnings)
