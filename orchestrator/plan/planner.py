"""Spec to Plan: search, choose, and write the choice out with its forecast and digest."""

from collections.abc import Iterator
from dataclasses import fields, replace
from math import prod
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import Chip
from orchestrator.network.mesh_axes import AXES, SHARED_OVER_DCN
from orchestrator.plan import flops
from orchestrator.plan.forecast import forecast
from orchestrator.plan.gradient_collectives import per_layer
from orchestrator.plan.identity import experiment_digest, plan_digest
from orchestrator.plan.infeasible import Infeasible, infeasible
from orchestrator.plan.layout import Layout
from orchestrator.plan.placed_mesh import device_groups, place_axes
from orchestrator.plan.plan_warnings import (
    LEDGER_TRAINER,
    accumulation_warnings,
    forecast_warnings,
    host_warnings,
    kernel_warnings,
    model_warnings,
    recipe_warnings,
    search_warnings,
    trainer_warnings,
)
from orchestrator.plan.ranking import RULE, RankedChoice, ranked_choices
from orchestrator.plan.search import (
    Choice,
    SearchRequest,
    SearchResult,
    layout_of_choice,
    search,
    search_request,
)
from orchestrator.plan.stages import placed, stage_spec, stage_specs, whole_plan
from orchestrator.types.model import Model
from orchestrator.types.plan import PLAN_SCHEMA, Plan, PlannedBatch, PlannedModel, SearchSummary
from orchestrator.types.spec import Experiment, Spec


def make_plan(spec: Spec) -> Plan:
    """The fastest realizable plan of a spec; `Infeasible` says why there is none."""
    return make_plans(spec, 1)[0]


def make_plans(spec: Spec, most: int) -> list[Plan]:
    """The plan of a spec and its runners-up, best first, each of another kind. With stages there
    are no runners-up.
    """
    if spec.experiment.stages:
        return [whole_plan(spec, list(stage_plans(spec)))]
    request = search_request(spec)
    result = search(request)
    ranked = ranked_choices(request, result.candidates, most)
    if not ranked:
        raise infeasible(spec, request, result)
    return [write_plan(spec, request, result, one) for one in ranked]


def make_stage_plans(spec: Spec, number: int, most: int) -> list[Plan]:
    """The plan of one stage in its place in the run, and its runners-up."""
    alone = stage_spec(spec, number)
    others, before = list(stage_plans(spec)), number - 1
    runs = ([*others[:before], one, *others[number:]] for one in make_plans(alone, most))
    return [placed(spec, plans)[before] for plans in runs]


def stage_plans(spec: Spec) -> Iterator[Plan]:
    """A plan for each stage, as if it ran alone."""
    specs = stage_specs(spec)
    for number, one in enumerate(specs, start=1):
        try:
            yield make_plan(one)
        except Infeasible as error:
            raise error.of_stage(number, len(specs)) from error


def write_plan(
    spec: Spec, request: SearchRequest, result: SearchResult, ranked: RankedChoice
) -> Plan:
    """One choice written out, with its forecast and digest."""
    choice = ranked.choice
    layout = layout_of_choice(request, choice)
    experiment, pods = spec.experiment, request.pods
    replicas = int(layout.ways("batch"))
    plan = Plan(
        schema=PLAN_SCHEMA,
        digest="",
        name=spec.name,
        trainer=spec.run.trainer,
        ledger_describes_trainer=spec.run.trainer == LEDGER_TRAINER,
        spec_digest=experiment_digest(experiment),
        overrides=spec.overrides,
        model=PlannedModel(
            **fields_of(experiment.model),
            parameters=flops.parameters(experiment.model),
            active_parameters=flops.active_parameters(experiment.model),
        ),
        tokens=experiment.tokens,
        run_steps=spec.run.steps,
        batch=planned_batch(experiment, choice, replicas),
        optimizer=experiment.optimizer,
        precision=experiment.precision,
        remat=choice.remat,
        data=experiment.data,
        start=experiment.start,
        seed=experiment.seed,
        compiler_options=compiler_options(request.chip, layout, experiment),
        chip=request.chip.name,
        chip_definition=spec.resources.chip_definition,
        topology=str(request.topology),
        pods=pods,
        chips=pods * request.topology.chips,
        devices=prod(layout.mesh.values()),
        hosts=pods * catalog.hosts(request.chip, request.topology),
        mesh={axis: layout.mesh[axis] for axis in AXES},
        axes=place_axes(request, choice),
        groups=device_groups(request, choice, layout),
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
    warnings = (
        *trainer_warnings(plan),
        *host_warnings(plan),
        *model_warnings(plan),
        *search_warnings(spec, request, result),
        *accumulation_warnings(plan, request, result),
        *kernel_warnings(plan),
        *recipe_warnings(plan),
        *forecast_warnings(plan),
    )
    return replace(plan, digest=plan_digest(plan), warnings=warnings)


def compiler_options(
    chip: Chip, layout: Layout, experiment: Experiment
) -> dict[str, bool | int | float | str]:
    """The chip's options, and those of the spec, which come first."""
    share = layout.devices_along(SHARED_OVER_DCN) > 1
    of_chip = chip.libtpu.options.items() if chip.libtpu else ()
    chosen = {name: one.value for name, one in of_chip if one.between_slices or not share}
    return chosen | experiment.compiler_options


def fields_of(model: Model) -> dict[str, Any]:
    """The fields of a model by name, sections as they are."""
    return {field.name: getattr(model, field.name) for field in fields(Model)}


def planned_batch(experiment: Experiment, choice: Choice, replicas: int) -> PlannedBatch:
    return PlannedBatch(
        sequences=choice.sequences,
        length=experiment.batch.length,
        tokens=choice.sequences * experiment.batch.length,
        requested_sequences=experiment.batch.sequences,
        sequences_per_replica=choice.sequences // replicas,
        microbatches=choice.microbatches,
    )
