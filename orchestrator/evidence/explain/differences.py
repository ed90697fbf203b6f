"""Where the realizable plan differs from the derivation: figures of both."""

from dataclasses import replace
from math import prod

import numpy as np

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.evidence.explain.book import axes_of, mixed_times, power_of_two, tensor_pays
from orchestrator.evidence.explain.formula import (
    BatchDifference,
    BoundDifference,
    DaysDifference,
    LinkDifference,
    MemoryDifference,
    MeshDifference,
    MeshSplit,
    MixedBound,
    PlanDifferences,
    RecomputeDifference,
    RentingDifference,
    TensorDifference,
)
from orchestrator.network.mesh_axes import GROUPS, ICI_AXES, PARAMETER_AXES
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.nearest_specs import nearest_batches
from orchestrator.planning.planner import make_plan
from orchestrator.planning.torus import Torus, group_rate, make_torus
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Batch, Precision, Spec

RECOMPUTED = ("matmul_recompute", "attention_recompute")


def differences(spec: Spec, plan: Plan, numbers: dict[str, float]) -> PlanDifferences:
    """What the plan decides or counts differently."""
    return PlanDifferences(
        mesh=mesh(plan, numbers),
        batch=batch(spec, plan),
        tensor=tensor(plan, numbers),
        links=links(plan),
        bound=bound(plan, numbers),
        memory=memory(plan, numbers),
        recompute=recompute(plan),
        days=DaysDifference(
            mfu=numbers["mfu"],
            by_6p=numbers["days"],
            by_mfu=numbers["days_mfu"],
            planned=plan.forecast.days,
        ),
        renting=renting(spec, plan),
    )


def mesh(plan: Plan, numbers: dict[str, float]) -> MeshDifference:
    split = None
    if "used" in numbers:
        fsdp, tensor, used = (int(numbers[symbol]) for symbol in ("X", "Y", "used"))
        split = MeshSplit(fsdp=fsdp, tensor=tensor, used=used)
    return MeshDifference(
        chips=int(numbers["n"]),
        split=split,
        devices=plan.devices_per_slice,
        axes={axis.name: axis.size for axis in plan.axes if axis.link == "ici"},
    )


def batch(spec: Spec, plan: Plan) -> BatchDifference | None:
    """Only if the plan changed the batch; and what the requested one would lead to."""
    size, requested = plan.batch, spec.experiment.batch
    if size.sequences == size.requested_sequences:
        return None
    exact = Batch(sequences=requested.sequences, length=requested.length)
    changed = BatchDifference(
        requested=size.requested_sequences,
        sequences=size.sequences,
        tolerance=requested.tolerance,
        longer=None,
        reason=None,
        nearest=(),
    )
    try:
        unmoved = make_plan(replace(spec, experiment=replace(spec.experiment, batch=exact)))
    except Infeasible as error:
        nearest = tuple(nearest_batches(error.spec))
        return replace(changed, reason=error.reasons[-1], nearest=nearest)
    per_token = [p.forecast.step_s.unoverlapped / p.batch.tokens for p in (unmoved, plan)]
    return replace(changed, longer=per_token[0] / per_token[1] - 1)


def tensor(plan: Plan, numbers: dict[str, float]) -> TensorDifference | None:
    """The book gives tensor a whole ring; its largest power of two rarely fills one."""
    chip = catalog.chip_of(plan)
    topology = catalog.topology(chip, plan.topology)
    axes = axes_of(chip, topology)
    if axes is None or axes.shared or numbers["Y_most"] < 2 or not tensor_pays(numbers):
        return None
    ways = power_of_two(numbers["Y_most"])
    torus = make_torus(chip, topology)
    length = torus.axes[0].length
    if length % ways or length <= ways:
        return None
    share = line_rate(torus, ways) / line_rate(torus, length)
    if share == 1:
        return None
    tokens, least = numbers["tokens"], numbers["mixed_least"]
    return TensorDifference(ways=ways, length=length, share=share, tokens=tokens, least=least)


def line_rate(torus: Torus, ways: int) -> float:
    """The rate of `tensor` on so many innermost chips of the first axis."""
    factors = np.ones((1, len(torus.axes), len(ICI_AXES)), np.int64)
    factors[0, 0, 0], factors[0, 0, -1] = torus.axes[0].length // ways, ways
    return float(group_rate(torus, factors, GROUPS["tensor"])[0])


def links(plan: Plan) -> LinkDifference | None:
    """None on one device, which has no group."""
    groups = tuple(group for group in plan.groups.values() if group.link == "ici")
    if not groups:
        return None
    return LinkDifference(groups=groups, switched=catalog.chip_of(plan).switched)


def bound(plan: Plan, numbers: dict[str, float]) -> BoundDifference:
    mixed = None
    if "mixed_least" in numbers:
        mixed = MixedBound(
            by_f=mixed_times(numbers, "mixed_least"),
            by_all_matmuls=mixed_times(numbers, "mixed_least_eff"),
        )
    forecast = plan.forecast
    return BoundDifference(
        mixed=mixed, bound=forecast.bound, bound_by=forecast.bound_by, mfu=forecast.mfu
    )


def _moment_types(precision: Precision) -> str:
    first, other = precision.first_moment, precision.optimizer
    return other if first in (None, other) else f"{first} first and {other} second"


def memory(plan: Plan, numbers: dict[str, float]) -> MemoryDifference:
    """The plan's largest memory phase against the count of the book and of the notes."""
    return MemoryDifference(
        by_d_bytes=numbers["b_chip"],
        by_6f_bytes=numbers["b_chip_6F"],
        phase=max(plan.forecast.memory, key=lambda phase: phase.bytes),
        parameters=plan.precision.parameters,
        moments=_moment_types(plan.precision),
        ways=prod(plan.mesh[axis] for axis in PARAMETER_AXES),  # `data` has copies
        devices=plan.devices_per_slice,
        remat=plan.remat,
    )


def recompute(plan: Plan) -> RecomputeDifference:
    again = sum(line.value for line in plan.forecast.time if line.kind in RECOMPUTED)
    share = again / plan.forecast.step_s.unoverlapped
    return RecomputeDifference(remat=plan.remat, share=share)


def renting(spec: Spec, plan: Plan) -> RentingDifference | None:
    """Why these chips cannot be rented, if they cannot."""
    chip = catalog.chip_of(plan)
    obstacles = catalog.rental_warnings(chip, catalog.topology(chip, plan.topology), plan.pods)
    if not obstacles:
        return None
    pods = spec.resources.pods.max
    return RentingDifference(pods=pods, topology=plan.topology, obstacles=obstacles)


def planned(spec: Spec) -> Plan | SpecError:
    """The realizable plan, or why there is none."""
    try:
        return make_plan(spec)
    except SpecError as error:
        return error
