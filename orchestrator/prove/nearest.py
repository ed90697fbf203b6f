"""Prove room: plans near one, with what its compilation taught about the Forecast's error."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import Unservable
from orchestrator.plan.make import ask_of, make_plan
from orchestrator.plan.remat import POLICIES
from orchestrator.plan.search import ranked, search
from orchestrator.stations.plan import Plan
from orchestrator.stations.spec import MeshWish, Spec


def fitting(spec: Spec, plan: Plan, missed_bytes: float) -> tuple[str, ...]:
    """Overrides of the spec that lead to plans that fit, the most like this one first.

    `missed_bytes` is how much more the program of this plan needs than its Forecast said.
    """
    limit = plan.forecast.hbm_bytes_per_device - missed_bytes
    found: list[str] = []
    for changed in _variants(spec, plan):
        other = _best_within(changed, limit)
        # The search may choose fewer microbatches once it is told the mesh and the remat alone.
        if other and other.forecast.memory_bytes_per_device <= limit:
            found.append(overrides(plan, other))
    return tuple(dict.fromkeys(text for text in found if text))


def _variants(spec: Spec, plan: Plan) -> Iterator[Spec]:
    """The same with another remat, on another mesh, with both."""
    pinned = replace(spec.resources, mesh=_wish(plan))
    free = replace(spec.resources, mesh=MeshWish())
    any_remat = replace(spec.experiment, remat="auto")
    same_remat = replace(spec.experiment, remat=plan.remat)
    yield replace(spec, experiment=any_remat, resources=pinned)
    yield replace(spec, experiment=same_remat, resources=free)
    yield replace(spec, experiment=any_remat, resources=free)


def _best_within(spec: Spec, limit_bytes: float) -> Plan | None:
    """The best plan of a spec as if the chip had less memory."""
    ask = ask_of(spec)
    usable = replace(ask.chip.hbm_usable_bytes, value=limit_bytes)
    ask = replace(ask, chip=replace(ask.chip, hbm_usable_bytes=usable))
    choices = ranked(ask, search(ask).candidates, 1)
    if not choices:
        return None
    return _planned(replace(spec, experiment=replace(spec.experiment, remat=choices[0].remat)),
                    MeshWish(*choices[0].mesh))  # fmt: skip


def _planned(spec: Spec, mesh: MeshWish) -> Plan | None:
    try:
        return make_plan(replace(spec, resources=replace(spec.resources, mesh=mesh)))
    except Unservable:
        return None


def overrides(plan: Plan, other: Plan) -> str:
    """What to set to get from one plan to the other."""
    words = [] if plan.remat == other.remat else [f"experiment.remat={other.remat}"]
    if plan.mesh != other.mesh:
        words += [f"resources.mesh.{axis}={size}" for axis, size in _in_pod(other).items()]
    return " ".join(f"--set {word}" for word in words)


def _wish(plan: Plan) -> MeshWish:
    return MeshWish(**_in_pod(plan))


def _in_pod(plan: Plan) -> dict[str, int]:
    return {axis: size for axis, size in plan.mesh.items() if axis != "pods"}


def less_recompute(spec: Spec, plan: Plan) -> list[Plan]:
    """Plans on the same mesh that compute less twice, by the Forecast; the least first."""
    candidates = [
        _planned(replace(spec, experiment=replace(spec.experiment, remat=name)), _wish(plan))
        for name, policy in POLICIES.items()
        if not policy.needs_host
    ]
    better = [other for other in candidates if other and repeated(other) < repeated(plan)]
    return sorted(better, key=repeated)


def repeated(plan: Plan) -> float:
    """FLOPs that a plan's policy computes twice, by its Forecast."""
    return sum(
        line.inputs["flops"]
        for line in plan.forecast.time
        if "recompute" in line.name and "flops" in line.inputs
    )
