"""Spec to Plan: search, choose, and write the choice out with its forecast and digest."""

from collections.abc import Iterator
from dataclasses import fields, replace
from math import prod

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import AXES, DCN_AXES, GROUPS, ICI_AXES, SHARED_OVER_DCN, in_use
from orchestrator.planning import flops, search
from orchestrator.planning.collectives import per_layer
from orchestrator.planning.forecast import forecast
from orchestrator.planning.infeasible import Infeasible, infeasible
from orchestrator.planning.layout import Training
from orchestrator.planning.plan_warnings import LEDGER_TRAINER, all_warnings
from orchestrator.planning.ranking import RULE, RankedChoice, ranked_choices
from orchestrator.planning.stages import joined, placed, stage_spec, stage_specs
from orchestrator.planning.torus import spans_of
from orchestrator.values.model import Model
from orchestrator.values.plan import (
    PLAN_SCHEMA,
    DeviceGroup,
    MeshAxis,
    Plan,
    PlannedBatch,
    PlannedModel,
    SearchSummary,
    experiment_digest,
    plan_digest,
)
from orchestrator.values.spec import Batch, Pods, Spec


def make_plan(spec: Spec) -> Plan:
    """Return the fastest realizable plan of a spec, or raise `Infeasible` with the reasons."""
    return make_plans(spec, 1)[0]


def make_plans(spec: Spec, most: int) -> list[Plan]:
    """Return the plan of a spec, then its runners-up of other kinds; with stages there are none."""
    if spec.experiment.stages:
        return [joined(spec, placed(spec, list(_stage_plans(spec))))]
    request = search.search_request(spec)
    result = search.search(request)
    ranked = ranked_choices(request, result.candidates, most)
    if not ranked:
        raise infeasible(spec, request, result)
    return [_write_plan(spec, request, result, choice) for choice in ranked]


def make_stage_plans(spec: Spec, number: int, most: int) -> list[Plan]:
    """Return the plan of one stage in its place in the run, and its runners-up."""
    others, before = list(_stage_plans(spec)), number - 1
    runs = (
        [*others[:before], plan, *others[number:]]
        for plan in make_plans(stage_spec(spec, number), most)
    )
    return [placed(spec, plans)[before] for plans in runs]


def _stage_plans(spec: Spec) -> Iterator[Plan]:
    """Yield a plan for each stage, as if it were the only one."""
    specs = stage_specs(spec)
    for number, stage in enumerate(specs, start=1):
        try:
            yield make_plan(stage)
        except Infeasible as error:
            raise error.of_stage(number, len(specs)) from error


def _write_plan(
    spec: Spec, request: search.SearchRequest, result: search.SearchResult, ranked: RankedChoice
) -> Plan:
    """Write one choice out, with its forecast and digest."""
    choice = ranked.choice
    layout = search.layout_of_choice(request, choice)
    experiment, pods = spec.experiment, request.pods
    model, batch = experiment.model, experiment.batch
    # Each mesh axis with its link and the torus axes it lies on, outermost first.
    factors, sizes = search.factors_of(choice)[0], search.slice_sizes(request).items()
    between = (MeshAxis(name=axis, size=size, link="dcn", spans=()) for axis, size in sizes)
    inside = (
        MeshAxis(name=axis, size=choice.mesh[axis], link="ici",
                 spans=spans_of(request.torus, factors, (axis,)))
        for axis in ICI_AXES
    )  # fmt: skip
    plan = Plan(
        schema=PLAN_SCHEMA,
        digest="",
        name=spec.name,
        trainer=spec.run.trainer,
        ledger_describes_trainer=spec.run.trainer == LEDGER_TRAINER,
        spec_digest=experiment_digest(experiment),
        overrides=spec.overrides,
        model=PlannedModel(
            **{field.name: getattr(model, field.name) for field in fields(Model)},
            parameters=flops.parameters(model),
            active_parameters=flops.active_parameters(model),
        ),
        tokens=experiment.tokens,
        run_steps=spec.run.steps,
        batch=PlannedBatch(
            sequences=choice.sequences,
            length=batch.length,
            tokens=choice.sequences * batch.length,
            requested_sequences=batch.sequences,
            sequences_per_replica=choice.sequences // int(layout.ways("batch")),
            microbatches=choice.microbatches,
        ),
        optimizer=experiment.optimizer,
        precision=experiment.precision,
        remat=choice.remat,
        data=experiment.data,
        start=experiment.start,
        seed=experiment.seed,
        compiler_options=_compiler_options(request, layout),
        chip=request.chip.name,
        chip_definition=spec.resources.chip_definition,
        topology=str(request.topology),
        pods=pods,
        chips=pods * request.topology.chips,
        devices=prod(layout.mesh.values()),
        hosts=pods * catalog.hosts(request.chip, request.topology),
        mesh={axis: layout.mesh[axis] for axis in AXES},
        axes=(*between, *inside),
        groups=_device_groups(request, choice, layout),
        gradient_reduction="per_layer" if per_layer(layout) else "at_end",
        loss_chunk_tokens=layout.loss_chunk_tokens,
        loss_gradient="per_chunk" if layout.sums_loss_by_chunk else "at_end",
        chip_profile=None,
        forecast=forecast(layout, spec),
        search=SearchSummary(
            enumerated=result.enumerated,
            realizable=result.realizable,
            priced=len(result.candidates),
            alike=ranked.alike,
            rule=RULE,
        ),
        warnings=(),
    )
    warnings = tuple(all_warnings(plan, spec, request, result))
    return replace(plan, digest=plan_digest(plan), warnings=warnings)


def _device_groups(
    request: search.SearchRequest, choice: search.Choice, layout: Training
) -> dict[str, DeviceGroup]:
    """Return each set of devices that a collective joins, with its rate; no single devices."""
    factors, moe = search.factors_of(choice)[0], layout.model.moe
    groups = {
        name: DeviceGroup(
            axes=in_use(axes, choice.mesh),
            size=prod(choice.mesh[axis] for axis in axes),
            link="ici",
            spans=spans_of(request.torus, factors, axes),
            bytes_per_s=layout.links.bytes_per_s(name),
        )
        for name, axes in GROUPS.items()
    }
    for axis in DCN_AXES:
        groups[axis] = DeviceGroup(
            axes=(axis,), size=layout.mesh[axis], link="dcn", spans=(),
            bytes_per_s=layout.links.bytes_per_s(axis),
        )  # fmt: skip
    if moe is None:
        del groups["expert"], groups["experts"]
    if moe is None or not moe.biases:
        del groups["expert_replicas"]
    return {name: group for name, group in groups.items() if group.size > 1}


def _compiler_options(
    request: search.SearchRequest, layout: Training
) -> dict[str, bool | int | float | str]:
    """Return the chip's options, and those of the spec, which come first."""
    share = layout.devices_along(SHARED_OVER_DCN) > 1
    of_chip = request.chip.libtpu.options if request.chip.libtpu else {}
    chosen = {
        name: option.value for name, option in of_chip.items() if option.between_slices or not share
    }
    return chosen | request.experiment.compiler_options


# How far the batch may move if no mesh of that many pods divides it.
_TOLERANCES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


def plan_on(spec: Spec, plan: Plan, pods: int) -> Plan:
    """Return the plan on `pods` pods, with the same batch if a mesh divides it, by more
    accumulation than was requested; otherwise with the nearest batch that has a plan.
    """
    if pods == plan.pods:
        return plan
    if plan.stages:
        pairs = zip(stage_specs(spec), plan.stages, strict=True)
        return joined(spec, [plan_on(own_spec, stage, pods) for own_spec, stage in pairs])
    for tolerance in _TOLERANCES:
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
            return replace(other, digest=plan_digest(other))
    raise last_error
