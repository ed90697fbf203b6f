"""The words of an explanation about its plan: what was derived, what is planned, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.formatting import GIB, four_digits, in_memory, lasting, percent, signed_percent
from orchestrator.network.rematerialization import text_of
from orchestrator.plan.infeasible_text import factored, reason_text
from orchestrator.render.explain_text import assumed, bound_by
from orchestrator.types.plan import DeviceGroup, TorusSpan, WarningCode
from orchestrator.types.plan_differences import (
    BatchDifference,
    BoundDifference,
    DaysDifference,
    LinkDifference,
    MemoryDifference,
    MeshDifference,
    PlanDifferences,
    RecomputeDifference,
    RentingDifference,
    TensorDifference,
)

GB = 1e9
RENTED: dict[WarningCode, str] = {
    "slice_not_rented": "at most {most_chips:,} {chip} chips as one slice ({largest_slice})",
    "slices_not_joined": "at most {most_chips:,.0f} {chip} chips by Multislice",
}


@dataclass(frozen=True)
class DifferenceText:
    """What the derivation has, what the plan has, and why they differ."""

    about: str
    derived: str
    planned: str
    why: str


def difference_texts(differences: PlanDifferences) -> Iterator[DifferenceText]:
    """Return the words of each difference, in the order of the derivation."""
    yield mesh(differences.mesh)
    if differences.batch:
        yield batch(differences.batch)
    if differences.tensor:
        yield tensor(differences.tensor)
    if differences.links:
        yield links(differences.links)
    yield bound(differences.bound)
    yield memory(differences.memory)
    yield recompute(differences.recompute)
    yield days(differences.days)
    if differences.renting:
        yield renting(differences.renting)


def mesh(it: MeshDifference) -> DifferenceText:
    sizes = " x ".join(f"{name} {size}" for name, size in it.axes.items())
    planned = f"{sizes} = {it.devices:,} devices"
    split, about = it.split, "mesh of a pod"
    if split is None:
        why = "a pod of one chip has nothing to split"
        return DifferenceText(about, "one chip, no axes", planned, why)
    idle = it.chips - split.used
    return DifferenceText(
        about,
        f"X {split.fsdp:,} x Y {split.tensor:,} = {split.used:,} of {it.chips:,} chips",
        planned,
        f"{it.chips:,} = {factored(it.chips)}: powers of two leave {idle:,} chips idle"
        if idle
        else "the plan weighs all collectives of a step, not one MLP's",
    )


def batch(it: BatchDifference) -> DifferenceText:
    change = signed_percent(it.sequences / it.requested - 1)
    planned = f"{it.sequences:,} sequences ({change})"
    return DifferenceText("batch", f"{it.requested:,} sequences", planned, why_changed(it))


def why_changed(it: BatchDifference) -> str:
    """Return what the requested batch would lead to."""
    if it.reason is None:
        longer = percent(it.longer or 0.0)
        return f"with the requested batch, a token takes {longer} longer with nothing hidden"
    nearest = "; ".join(
        f"{' '.join(one.overrides)} (MFU {percent(one.mfu.likeliest)})" for one in it.nearest
    )
    within = f"of those within {percent(it.tolerance)} the plan takes the fastest"
    return f"{reason_text(it.reason)}; nearest: {nearest}; {within}"


def tensor(it: TensorDifference) -> DifferenceText:
    takes = it.least / it.share
    verdict = "above" if it.tokens > takes else "below"
    return DifferenceText(
        f"tensor {it.ways} on an axis of {it.length}",
        f"a ring of its own, it takes {four_digits(it.least)} tokens a chip",
        f"no ring, {it.share:.2g} of the bandwidth: it takes {four_digits(takes)} tokens a chip",
        f"this batch has {four_digits(it.tokens)}, {verdict} that; the plan prices each group by"
        " the line or ring that it has",
    )


def links(it: LinkDifference) -> DifferenceText:
    return DifferenceText(
        "links",
        "every axis a whole ring, all of it for one group",
        "; ".join(map(group_text, it.groups)),
        "a switch gives every group all links of its chips"
        if it.switched
        else "an inner part of a torus axis is an open line and has half of it; an outer part"
        " closes, but shares each link with the groups between",
    )


def group_text(group: DeviceGroup) -> str:
    where = " + ".join(map(span_text, group.spans))
    return f"{' x '.join(group.axes)} {group.size}: {where}, {group.bytes_per_s / GB:.4g} GB/s"


def span_text(part: TorusSpan) -> str:
    """Return `ring of 16 on x`, `line of 2 on y`, `ring of 10 on y by 2`."""
    stride = f" by {part.stride}" if part.stride > 1 else ""
    return f"{'ring' if part.ring else 'line'} of {part.size} on {part.torus}{stride}"


def bound(it: BoundDifference) -> DifferenceText:
    derived, why = "matmuls: one chip exchanges nothing", ""
    if it.mixed:
        by_f, by_all = it.mixed.by_f, it.mixed.by_all_matmuls
        derived = f"{bound_by(by_f)} counting F, {bound_by(by_all)} counting F_eff"
        turns = ", and that turns the answer" if (by_f > 1) != (by_all > 1) else ""
        why = f"F_eff has attention's matmuls in it{turns}; "
    return DifferenceText(
        "what binds",
        derived,
        f"{it.bound}: {percent(it.bound_by)} longer than the next; MFU {percent(it.mfu.lower)} at"
        f" the bound, {percent(it.mfu.unoverlapped)} with nothing hidden",
        f"{why}the plan adds attention, the unembedding, recompute, HBM and every collective",
    )


def memory(it: MemoryDifference) -> DifferenceText:
    lines = ", ".join(f"{line.name} {line.value / GIB:.2f}" for line in it.phase.lines)
    peak = f"{in_memory(it.phase.bytes)} a device at its peak"
    return DifferenceText(
        "memory",
        f"{it.by_d_bytes / GB:.3g} GB a chip by [B, D], {it.by_6f_bytes / GB:.3g} GB by 6F",
        f"{peak}, in the phase {it.phase.name}: {lines}",
        f"{it.parameters} parameters, {it.moments} moments, fp32 gradients; state split"
        f" {it.ways:,} ways on the {it.devices:,} devices of a pod; activations as remat"
        f" `{text_of(it.remat)}` keeps them",
    )


def recompute(it: RecomputeDifference) -> DifferenceText:
    return DifferenceText(
        "recompute",
        "4 checkpoints a layer; what is computed again is not counted",
        f"remat `{text_of(it.remat)}`: {percent(it.share)} of the step, with nothing hidden",
        "what is computed again is no model FLOP: where matmuls bind, it lowers MFU",
    )


def days(it: DaysDifference) -> DifferenceText:
    low, high, middle = it.planned.lower, it.planned.unoverlapped, it.planned.expected
    expected = f"{lasting(middle)} expected, " if middle is not None else ""
    return DifferenceText(
        "days",
        f"{lasting(it.by_6p)} at {assumed(it.mfu)} by 6 P, {lasting(it.by_mfu)} as MFU counts",
        f"{lasting(low)} at the bound, {expected}{lasting(high)} with nothing hidden",
        place_of(it.by_mfu, low, high),
    )


def place_of(at_mfu: float, low: float, high: float) -> str:
    """Return where the days at the assumed MFU lie among the plan's."""
    if at_mfu < low:
        return "no run of this plan reaches the assumed MFU: the bound is slower"
    if at_mfu <= high:
        return "the assumed MFU is reached if enough of the communication is hidden"
    return "the assumed MFU is below the plan's, even with nothing hidden: the plan has peak rates"


def renting(it: RentingDifference) -> DifferenceText:
    return DifferenceText(
        "renting",
        f"{it.pods} x {it.topology}",
        "the compiler takes it, Google Cloud does not rent it",
        "; ".join(RENTED[one.code].format(**one.figures) for one in it.obstacles),
    )
