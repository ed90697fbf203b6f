"""The same run on another number of pods."""

from dataclasses import replace

from orchestrator.errors import SpecError
from orchestrator.plan.identity import plan_digest
from orchestrator.plan.planner import make_plan
from orchestrator.plan.stages import joined, stage_specs
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Batch, Pods, Spec

# How far the batch may move if no mesh of that many pods divides it.
TOLERANCES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


def plan_on(spec: Spec, plan: Plan, pods: int) -> Plan:
    """The plan on that many pods, with the same batch if a mesh divides it, by more accumulation
    than was requested; otherwise with the nearest batch that has a plan.
    """
    if pods == plan.pods:
        return plan
    if plan.stages:
        pairs = zip(stage_specs(spec), plan.stages, strict=True)
        return joined(spec, [plan_on(one, stage, pods) for one, stage in pairs])
    for tolerance in TOLERANCES:
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
            return _with_identity_of(plan, other)
    raise last_error


def _with_identity_of(plan: Plan, other: Plan) -> Plan:
    """The other plan, naming the same experiment, its stage, and the batch that was requested."""
    batch = replace(other.batch, requested_sequences=plan.batch.requested_sequences)
    renamed = replace(other, spec_digest=plan.spec_digest, batch=batch, stage=plan.stage)
    return replace(renamed, digest=plan_digest(renamed))
