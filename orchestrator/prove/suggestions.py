"""Suggest plans near a compiled one, by the Forecast corrected for its error in that one."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import ICI_AXES, SHARED_OVER_DCN
from orchestrator.network.rematerialization import POLICIES, text_of
from orchestrator.plan.feasibility import usable_axes
from orchestrator.plan.planner import make_plan
from orchestrator.plan.ranking import best_choices
from orchestrator.plan.search import search, search_request
from orchestrator.types.plan import LineKind, Plan
from orchestrator.types.proof import PlanChange
from orchestrator.types.spec import MeshRequest, Remat, Spec

RECOMPUTE: tuple[LineKind, ...] = ("matmul_recompute", "attention_recompute")


def plans_that_fit(spec: Spec, plan: Plan, missed_bytes: float) -> tuple[PlanChange, ...]:
    """Changes of the spec that lead to plans that fit, the most like this one first.

    `missed_bytes` is how much more the program of this plan needs than its Forecast says.
    """
    limit = plan.forecast.hbm_bytes_per_device - missed_bytes
    near = [_best_within(changed, limit) for changed in _variants(spec, plan)]
    # Given the mesh and the remat alone, the search may choose fewer microbatches.
    fit = [other for other in near if other and other.forecast.memory_bytes_per_device <= limit]
    return tuple(dict.fromkeys(change_to(spec, other, missed_bytes) for other in fit))


def _variants(spec: Spec, plan: Plan) -> Iterator[Spec]:
    """The spec with any remat, on any mesh, with any of both."""
    pinned = replace(spec.resources, mesh=_with_sizes(spec, plan.mesh))
    shared = {axis: getattr(spec.resources.mesh, axis) for axis in SHARED_OVER_DCN}
    free = replace(spec.resources, mesh=MeshRequest(**shared))
    any_remat = replace(spec.experiment, remat="auto")
    same_remat = replace(spec.experiment, remat=plan.remat)
    yield replace(spec, experiment=any_remat, resources=pinned)
    yield replace(spec, experiment=same_remat, resources=free)
    yield replace(spec, experiment=any_remat, resources=free)


def _best_within(spec: Spec, limit_bytes: float) -> Plan | None:
    """The plan of the best choice if the chip had less memory."""
    request = search_request(spec)
    usable = replace(request.chip.hbm_usable_bytes, value=limit_bytes)
    request = replace(request, chip=replace(request.chip, hbm_usable_bytes=usable))
    choices = best_choices(request, search(request).candidates, 1)
    if not choices:
        return None
    return _plan_with(spec, choices[0].remat, choices[0].mesh)


def _plan_with(spec: Spec, remat: Remat, mesh: dict[str, int]) -> Plan | None:
    """The plan of the spec with that policy on that mesh, if there is one."""
    experiment = replace(spec.experiment, remat=remat)
    resources = replace(spec.resources, mesh=_with_sizes(spec, mesh))
    return _plan_or_none(replace(spec, experiment=experiment, resources=resources))


def _plan_or_none(spec: Spec) -> Plan | None:
    try:
        return make_plan(spec)
    except SpecError:
        return None


def change_to(spec: Spec, other: Plan, missed_bytes: float) -> PlanChange:
    """What leads from a spec to a plan: the remat, and the mesh where that is not enough."""
    overrides = [f"experiment.remat={text_of(other.remat)}"]
    alone = _plan_or_none(replace(spec, experiment=replace(spec.experiment, remat=other.remat)))
    if alone is None or alone.digest != other.digest:
        axes = usable_axes(spec.experiment.model)
        overrides += [f"resources.mesh.{axis}={other.mesh[axis]}" for axis in axes]
    return PlanChange(
        overrides=tuple(overrides),
        peak_hbm_bytes_per_device=other.forecast.memory_bytes_per_device + missed_bytes,
        step_s=other.forecast.step_s,
    )


def _with_sizes(spec: Spec, mesh: dict[str, int]) -> MeshRequest:
    """The spec's request with those sizes of the axes inside a pod."""
    return replace(spec.resources.mesh, **{axis: mesh[axis] for axis in ICI_AXES})


def less_recompute(spec: Spec, plan: Plan) -> list[Plan]:
    """Plans on the same mesh that compute less twice, by the Forecast; the least first."""
    names = [name for name, policy in POLICIES.items() if not policy.needs_host]
    candidates = [_plan_with(spec, name, plan.mesh) for name in names]
    better = [one for one in candidates if one and recompute_flops(one) < recompute_flops(plan)]
    return sorted(better, key=recompute_flops)


def recompute_flops(plan: Plan) -> float:
    """FLOPs that a plan's policy computes twice, by its Forecast."""
    return sum(line.inputs["flops"] for line in plan.forecast.time if line.kind in RECOMPUTE)
