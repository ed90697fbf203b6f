"""Prove room: plans near one, with what its compilation taught about the Forecast's error."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.network.rematerialization import POLICIES
from orchestrator.plan.planner import ask_of, make_plan
from orchestrator.plan.search import ranked, search
from orchestrator.types.plan import Plan
from orchestrator.types.spec import MeshRequest, Spec


def fitting(spec: Spec, plan: Plan, missed_bytes: float) -> tuple[str, ...]:
    """Overrides of the spec that lead to plans that fit, the most like this one first.

    `missed_bytes` is how much more the program of this plan needs than its Forecast said.
    """
    limit = plan.forecast.hbm_bytes_per_device - missed_bytes
    near = [_best_within(changed, limit) for changed in _variants(spec, plan)]
    # The search may choose fewer microbatches once it is told the mesh and the remat alone.
    fit = [other for other in near if other and other.forecast.memory_bytes_per_device <= limit]
    return tuple(dict.fromkeys(overrides(spec, other) for other in fit))


def _variants(spec: Spec, plan: Plan) -> Iterator[Spec]:
    """The same with another remat, on another mesh, with both."""
    pinned = replace(spec.resources, mesh=MeshRequest(**_in_pod(plan)))
    free = replace(spec.resources, mesh=MeshRequest())
    any_remat = replace(spec.experiment, remat="auto")
    same_remat = replace(spec.experiment, remat=plan.remat)
    yield replace(spec, experiment=any_remat, resources=pinned)
    yield replace(spec, experiment=same_remat, resources=free)
    yield replace(spec, experiment=any_remat, resources=free)


def _best_within(spec: Spec, limit_bytes: float) -> Plan | None:
    """The plan of the best choice as if the chip had less memory."""
    ask = ask_of(spec)
    usable = replace(ask.chip.hbm_usable_bytes, value=limit_bytes)
    ask = replace(ask, chip=replace(ask.chip, hbm_usable_bytes=usable))
    choices = ranked(ask, search(ask).candidates, 1)
    if not choices:
        return None
    return _planned(spec, choices[0].remat, dict(zip(ICI_AXES, choices[0].mesh, strict=True)))


def _planned(spec: Spec, remat: str, mesh: dict[str, int]) -> Plan | None:
    """The plan of the spec with that policy on that mesh, if there is one."""
    experiment = replace(spec.experiment, remat=remat)
    resources = replace(spec.resources, mesh=MeshRequest(**mesh))
    return _made(replace(spec, experiment=experiment, resources=resources))


def _made(spec: Spec) -> Plan | None:
    try:
        return make_plan(spec)
    except SpecError:
        return None


def overrides(spec: Spec, other: Plan) -> str:
    """What leads from a spec to a plan: the remat, and the mesh where that is not enough."""
    words = [f"experiment.remat={other.remat}"]
    alone = replace(spec, experiment=replace(spec.experiment, remat=other.remat))
    made = _made(alone)
    if made is None or made.digest != other.digest:
        words += [f"resources.mesh.{axis}={size}" for axis, size in _in_pod(other).items()]
    return " ".join(f"--set {word}" for word in words)


def _in_pod(plan: Plan) -> dict[str, int]:
    return {axis: size for axis, size in plan.mesh.items() if axis != "pods"}


def less_recompute(spec: Spec, plan: Plan) -> list[Plan]:
    """Plans on the same mesh that compute less twice, by the Forecast; the least first."""
    names = [name for name, policy in POLICIES.items() if not policy.needs_host]
    candidates = [_planned(spec, name, _in_pod(plan)) for name in names]
    better = [other for other in candidates if other and repeated(other) < repeated(plan)]
    return sorted(better, key=repeated)


def repeated(plan: Plan) -> float:
    """FLOPs that a plan's policy computes twice, by its Forecast."""
    return sum(
        line.inputs["flops"]
        for line in plan.forecast.time
        if "recompute" in line.name and "flops" in line.inputs
    )
