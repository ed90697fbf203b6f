"""Plan room: the same experiment on another number of pods. Pure."""

from dataclasses import replace

from orchestrator.errors import SpecError
from orchestrator.plan.planner import make_plan, plan_digest
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Pods, Spec

# How far the batch may move, where no mesh of so many pods divides it.
TOLERANCES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


def plan_on(spec: Spec, plan: Plan, pods: int) -> Plan:
    """The plan on so many pods: of the same batch where a mesh divides it, by more accumulation;
    else of the nearest batch that can be.
    """
    if pods == plan.pods:
        return plan
    for tolerance in TOLERANCES:
        batch = replace(spec.experiment.batch, sequences=plan.batch.sequences, tolerance=tolerance)
        asked = replace(
            spec,
            experiment=replace(spec.experiment, batch=batch),
            resources=replace(spec.resources, pods=Pods(min=pods, max=pods)),
        )
        try:
            made = make_plan(asked)
        except SpecError as error:
            refused = error
        else:
            return _of_the_same(made, plan)
    raise refused


def _of_the_same(made: Plan, plan: Plan) -> Plan:
    """A plan that names the experiment of another, and the batch that was asked there."""
    batch = replace(made.batch, requested_sequences=plan.batch.requested_sequences)
    named = replace(made, spec_digest=plan.spec_digest, batch=batch)
    return replace(named, digest=plan_digest(named))
