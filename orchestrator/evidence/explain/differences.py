"""Where the realizable plan differs from the derivation: figures by kind, and their words."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.evidence.explain.book import axes_of, mixed_times, power_of_two, tensor_pays
from orchestrator.evidence.explain.formula import PlanDifferences, assumed, bound_by
from orchestrator.formatting import GIB, four_digits, in_memory, lasting, percent, signed_percent
from orchestrator.network.mesh_axes import ICI_AXES, PARAMETER_AXES, sizes
from orchestrator.network.rematerialization import text_of
from orchestrator.planning.infeasible import Infeasible, factored
from orchestrator.planning.nearest_specs import nearest_batches
from orchestrator.planning.planner import make_plan
from orchestrator.planning.torus import Torus, find_links, make_torus
from orchestrator.values import plan as values
from orchestrator.values.spec import Batch, Spec

_Figures = dict[str, Any]
_GB = 1e9
_RENTED = {
    "slice_not_rented": "at most {most_chips:,} {chip} chips as one slice ({largest_slice})",
    "slices_not_joined": "at most {most_chips:,.0f} {chip} chips by Multislice",
}
# What differs, the figure of the derivation, that of the plan, and why they differ.
_Words = tuple[str, str, str, str]


def differences(spec: Spec, plan: values.Plan, numbers: dict[str, float]) -> PlanDifferences:
    """Return what the plan decides or counts differently, in the order of the derivation."""
    chip, forecast, precision = catalog.chip_of(plan), plan.forecast, plan.precision
    topology = catalog.topology(chip, plan.topology)
    groups = tuple(group for group in plan.groups.values() if group.link == "ici")
    first, other = precision.first_moment, precision.optimizer
    kinds = ("matmul_recompute", "attention_recompute")
    recomputed_s = sum(line.value for line in forecast.time if line.kind in kinds)
    obstacles = catalog.rental_warnings(chip, topology, plan.pods)
    renting = {"pods": spec.resources.pods.max, "topology": plan.topology, "obstacles": obstacles}
    split, mixed = None, None  # on one chip
    if "used" in numbers:
        names = {"fsdp": "X", "tensor": "Y", "used": "used"}
        split = {name: int(numbers[symbol]) for name, symbol in names.items()}
        least = {"by_f": "mixed_least", "by_all_matmuls": "mixed_least_eff"}
        mixed = {name: mixed_times(numbers, symbol) for name, symbol in least.items()}
    return {
        "mesh": {
            "chips": int(numbers["n"]),
            "split": split,
            "devices": plan.devices_per_slice,
            "axes": {axis.name: axis.size for axis in plan.axes if axis.link == "ici"},
        },
        "batch": _batch(spec, plan),
        "tensor": _tensor(chip, topology, numbers),
        "links": {"groups": groups, "switched": chip.switched} if groups else None,
        "bound": {
            "mixed": mixed,
            "bound": forecast.bound,
            "bound_by": forecast.bound_by,
            "mfu": forecast.mfu,
        },
        "memory": {
            "by_d_bytes": numbers["b_chip"],
            "by_6f_bytes": numbers["b_chip_6F"],
            "phase": max(forecast.memory, key=lambda phase: phase.bytes),
            "parameters": precision.parameters,
            "moments": other if first in (None, other) else f"{first} first and {other} second",
            "ways": prod(sizes(plan.mesh, PARAMETER_AXES).values()),  # `data` has replicas
            "devices": plan.devices_per_slice,
            "remat": plan.remat,
        },
        "recompute": {"remat": plan.remat, "share": recomputed_s / forecast.step_s.unoverlapped},
        "days": {
            "mfu": numbers["mfu"],
            "by_6p": numbers["days"],
            "by_mfu": numbers["days_mfu"],
            "planned": forecast.days,
        },
        "renting": renting if obstacles else None,
    }


def difference_texts(found: PlanDifferences) -> list[_Words]:
    say: dict[str, Callable[..., _Words]] = {
        "mesh": _say_mesh,
        "batch": _say_batch,
        "tensor": _say_tensor,
        "links": _say_links,
        "bound": _say_bound,
        "memory": _say_memory,
        "recompute": lambda remat, share: (
            "recompute",
            "4 checkpoints a layer; what is computed again is not counted",
            f"remat `{text_of(remat)}`: {percent(share)} of the step, with nothing hidden",
            "what is computed again is no model FLOP: where matmuls bind, it lowers MFU",
        ),
        "days": _say_days,
        "renting": lambda pods, topology, obstacles: (
            "renting",
            f"{pods} x {topology}",
            "the compiler takes it, Google Cloud does not rent it",
            "; ".join(_RENTED[warning.code].format(**warning.figures) for warning in obstacles),
        ),
    }
    return [say[code](**figures) for code, figures in found.items() if figures is not None]


def _say_mesh(
    chips: int, split: dict[str, int] | None, devices: int, axes: dict[str, int]
) -> _Words:
    sizes = " x ".join(f"{name} {size}" for name, size in axes.items())
    about, planned = "mesh of a pod", f"{sizes} = {devices:,} devices"
    if split is None:
        return about, "one chip, no axes", planned, "a pod of one chip has nothing to split"
    fsdp, tensor, used = split["fsdp"], split["tensor"], split["used"]
    why = "the plan weighs all collectives of a step, not one MLP's"
    if used < chips:
        why = f"{chips:,} = {factored(chips)}: powers of two leave {chips - used:,} chips idle"
    return about, f"X {fsdp:,} x Y {tensor:,} = {used:,} of {chips:,} chips", planned, why


def _batch(spec: Spec, plan: values.Plan) -> _Figures | None:
    """Return what the requested batch would lead to, if the plan changed it: a token then takes
    `longer`, as a share, or there is a `reason` for no plan, and the `nearest` batches.
    """
    size, requested = plan.batch, spec.experiment.batch
    if size.sequences == size.requested_sequences:
        return None
    figures: _Figures = {
        "requested": size.requested_sequences,
        "sequences": size.sequences,
        "tolerance": requested.tolerance,
        "longer": None,
        "reason": None,
        "nearest": (),
    }
    exact = Batch(sequences=requested.sequences, length=requested.length)
    try:
        unmoved = make_plan(replace(spec, experiment=replace(spec.experiment, batch=exact)))
    except Infeasible as error:
        nearest = tuple(nearest_batches(error.spec))
        return figures | {"reason": error.reasons[-1], "nearest": nearest}
    per_token = [p.forecast.step_s.unoverlapped / p.batch.tokens for p in (unmoved, plan)]
    return figures | {"longer": per_token[0] / per_token[1] - 1}


def _say_batch(
    requested: int, sequences: int, tolerance: float, longer: float | None,
    reason: values.Reason | None, nearest: tuple[values.Suggestion, ...],
) -> _Words:  # fmt: skip
    planned = f"{sequences:,} sequences ({signed_percent(sequences / requested - 1)})"
    if reason is None:
        longer_text = percent(longer or 0.0)
        why = f"with the requested batch, a token takes {longer_text} longer with nothing hidden"
    else:
        batches = "; ".join(
            f"{' '.join(batch.overrides)} (MFU {percent(batch.mfu.likeliest)})" for batch in nearest
        )
        within = f"of those within {percent(tolerance)} the plan takes the fastest"
        why = f"{reason.text}; nearest: {batches}; {within}"
    return "batch", f"{requested:,} sequences", planned, why


def _tensor(chip: Chip, topology: Topology, numbers: dict[str, float]) -> _Figures | None:
    """Return tensor `ways` on a longer torus axis: a line, with a `share` of the ring's rate. The
    book's whole ring is compute-bound above `least` tokens per chip; powers of two rarely fill one.
    """
    axes = axes_of(chip, topology)
    if axes is None or axes.shared or numbers["Y_most"] < 2 or not tensor_pays(numbers):
        return None
    ways = power_of_two(numbers["Y_most"])
    torus = make_torus(chip, topology)
    length = torus.axes[0].length
    if length % ways or length <= ways:
        return None
    share = _line_rate(torus, ways) / _line_rate(torus, length)
    if share == 1:
        return None
    tokens, least = numbers["tokens"], numbers["mixed_least"]
    return {"ways": ways, "length": length, "share": share, "tokens": tokens, "least": least}


def _line_rate(torus: Torus, ways: int) -> float:
    """Return the rate of `tensor` on the `ways` innermost chips of the first axis."""
    factors = np.ones((1, len(torus.axes), len(ICI_AXES)), np.int64)
    data = ICI_AXES.index("data")
    factors[0, 0, data], factors[0, 0, -1] = torus.axes[0].length // ways, ways
    return float(find_links(torus, factors).rates["tensor"][0])


def _say_tensor(ways: int, length: int, share: float, tokens: float, least: float) -> _Words:
    takes = least / share
    derived = f"a ring of its own, it takes {four_digits(least)} tokens a chip"
    planned = f"no ring, {share:.2g} of the bandwidth: it takes {four_digits(takes)} tokens a chip"
    why = f"this batch has {four_digits(tokens)}, {'above' if tokens > takes else 'below'} that;"
    why += " the plan prices each group by the line or ring that it has"
    return f"tensor {ways} on an axis of {length}", derived, planned, why


def _say_links(groups: tuple[values.DeviceGroup, ...], *, switched: bool) -> _Words:
    texts = []
    for group in groups:  # ring of 16 on x, line of 2 on y, ring of 10 on y by 2
        where = " + ".join(
            f"{'ring' if part.ring else 'line'} of {part.size} on {part.torus}"
            + (f" by {part.stride}" if part.stride > 1 else "")
            for part in group.spans
        )
        rate = f"{group.bytes_per_s / _GB:.4g} GB/s"
        texts.append(f"{' x '.join(group.axes)} {group.size}: {where}, {rate}")
    why = "an inner part of a torus axis is an open line and has half of it; an outer part closes,"
    why += " but shares each link with the groups between"
    if switched:
        why = "a switch gives every group all links of its chips"
    return "links", "every axis a whole ring, all of it for one group", "; ".join(texts), why


def _say_bound(**figures: Any) -> _Words:
    mixed, mfu = figures["mixed"], figures["mfu"]
    derived, why = "matmuls: one chip exchanges nothing", ""
    if mixed:
        by_f, by_all = mixed["by_f"], mixed["by_all_matmuls"]
        derived = f"{bound_by(by_f)} counting F, {bound_by(by_all)} counting F_eff"
        turns = ", and that turns the answer" if (by_f > 1) != (by_all > 1) else ""
        why = f"F_eff has attention's matmuls in it{turns}; "
    least, most = percent(mfu.unoverlapped), percent(mfu.lower)
    planned = f"{figures['bound']}: {percent(figures['bound_by'])} longer than the next; MFU {most}"
    planned += f" at the bound, {least} with nothing hidden"
    why += "the plan adds attention, the unembedding, recompute, HBM and every collective"
    return "what binds", derived, planned, why


def _say_memory(**figures: Any) -> _Words:
    phase: values.MemoryPhase = figures["phase"]
    by_d, by_6f = figures["by_d_bytes"] / _GB, figures["by_6f_bytes"] / _GB
    lines = ", ".join(f"{line.name} {line.value / GIB:.2f}" for line in phase.lines)
    peak = f"{in_memory(phase.bytes)} a device at its peak"
    why = f"{figures['parameters']} parameters, {figures['moments']} moments, fp32 gradients; state"
    why += f" split {figures['ways']:,} ways on the {figures['devices']:,} devices of a pod;"
    why += f" activations as remat `{text_of(figures['remat'])}` keeps them"
    derived = f"{by_d:.3g} GB a chip by [B, D], {by_6f:.3g} GB by 6F"
    return "memory", derived, f"{peak}, in the phase {phase.name}: {lines}", why


def _say_days(mfu: float, by_6p: float, by_mfu: float, planned: values.Estimate) -> _Words:
    low, high, middle = planned.lower, planned.unoverlapped, planned.expected
    expected = f"{lasting(middle)} expected, " if middle is not None else ""
    if by_mfu < low:
        why = "no run of this plan reaches the assumed MFU: the bound is slower"
    elif by_mfu <= high:
        why = "the assumed MFU is reached if enough of the communication is hidden"
    else:
        why = "the assumed MFU is below the plan's, even with nothing hidden: the plan has peak"
        why += " rates"
    derived = f"{lasting(by_6p)} at {assumed(mfu)} by 6 P, {lasting(by_mfu)} as MFU counts"
    planned_days = f"{lasting(low)} at the bound, {expected}{lasting(high)} with nothing hidden"
    return "days", derived, planned_days, why
