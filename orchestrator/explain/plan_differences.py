"""Where the realizable plan differs from the derivation, and why."""

from dataclasses import replace
from math import prod

import numpy as np

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.explain.book import mixed_times
from orchestrator.explain.inputs import axes_of, power_of_two
from orchestrator.explain.wording import assumed, bound_by
from orchestrator.formatting import GIB, four_digits, in_memory, lasting, percent, signed_percent
from orchestrator.network.mesh_axes import GROUPS, ICI_AXES, PARAMETER_AXES
from orchestrator.network.rematerialization import text_of
from orchestrator.plan.infeasible import Infeasible
from orchestrator.plan.infeasible_text import factored, likeliest, reason_text
from orchestrator.plan.nearest_specs import nearest_batches
from orchestrator.plan.planner import make_plan
from orchestrator.plan.torus import Torus, group_rate, make_torus
from orchestrator.types.explanation import Difference
from orchestrator.types.plan import Plan, TorusSpan, WarningCode
from orchestrator.types.spec import Batch, Spec

GB = 1e9
RENTED: dict[WarningCode, str] = {
    "slice_not_rented": "at most {most_chips:,} {chip} chips as one slice ({largest_slice})",
    "slices_not_joined": "at most {most_chips:,.0f} {chip} chips by Multislice",
}
RECOMPUTED = ("matmul_recompute", "attention_recompute")


def differences(spec: Spec, plan: Plan, numbers: dict[str, float]) -> tuple[Difference, ...]:
    """What the plan decides or counts differently, in the order of the derivation."""
    every = (
        mesh(plan, numbers),
        batch(spec, plan),
        tensor(plan, numbers),
        links_used(plan),
        binding(plan, numbers),
        memory(plan, numbers),
        remat(plan),
        days(plan, numbers),
        availability(spec, plan),
    )
    return tuple(difference for difference in every if difference is not None)


def mesh(plan: Plan, numbers: dict[str, float]) -> Difference:
    inside = [axis for axis in plan.axes if axis.link == "ici"]
    sizes = " x ".join(f"{axis.name} {axis.size}" for axis in inside)
    chips = int(numbers["n"])
    derived, why = "one chip, no axes", "a pod of one chip has nothing to split"
    if "used" in numbers:
        used = int(numbers["used"])
        derived = f"X {numbers['X']:,.0f} x Y {numbers['Y']:,.0f} = {used:,} of {chips:,} chips"
        why = (
            "the plan weighs all collectives of a step, not one MLP's"
            if used == chips
            else f"{chips:,} = {factored(chips)}: powers of two leave {chips - used:,} chips idle"
        )
    devices = plan.devices_per_slice
    return Difference(
        about="mesh of a pod", derived=derived, planned=f"{sizes} = {devices:,} devices", why=why
    )


def batch(spec: Spec, plan: Plan) -> Difference | None:
    """Only if the plan changed the batch."""
    size = plan.batch
    if size.sequences == size.requested_sequences:
        return None
    moved = size.sequences / size.requested_sequences - 1
    return Difference(
        about="batch",
        derived=f"{size.requested_sequences:,} sequences",
        planned=f"{size.sequences:,} sequences ({signed_percent(moved)})",
        why=why_moved(spec, plan),
    )


def why_moved(spec: Spec, plan: Plan) -> str:
    """What the requested batch would lead to."""
    requested = spec.experiment.batch
    exact = Batch(sequences=requested.sequences, length=requested.length)
    try:
        unmoved = make_plan(replace(spec, experiment=replace(spec.experiment, batch=exact)))
    except Infeasible as error:
        nearest = "; ".join(
            f"{' '.join(one.overrides)} (MFU {percent(likeliest(one.mfu))})"
            for one in nearest_batches(error.spec)
        )
        within = f"of those within {percent(requested.tolerance)} the plan takes the fastest"
        return f"{reason_text(error.reasons[-1])}; nearest: {nearest}; {within}"
    per_token = [p.forecast.step_s.unoverlapped / p.batch.tokens for p in (unmoved, plan)]
    longer = per_token[0] / per_token[1] - 1
    return f"with the requested batch, a token takes {percent(longer)} longer with nothing hidden"


def tensor(plan: Plan, numbers: dict[str, float]) -> Difference | None:
    """The book gives tensor a whole ring; its largest power of two rarely fills one."""
    chip = catalog.chip_of(plan)
    topology = catalog.topology(chip, plan.topology)
    axes = axes_of(chip, topology)
    if axes is None or axes.shared or numbers["Y_most"] < 2 or numbers["X_opt"] > numbers["n"]:
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
    verdict = "above" if tokens > least / share else "below"
    return Difference(
        about=f"tensor {ways} on an axis of {length}",
        derived=f"a ring of its own, it takes {four_digits(least)} tokens a chip",
        planned=f"no ring, {share:.2g} of the bandwidth: it takes {four_digits(least / share)}"
        " tokens a chip",
        why=f"this batch has {four_digits(tokens)}, {verdict} that; the plan prices each group by"
        " the line or ring that it has",
    )


def line_rate(torus: Torus, ways: int) -> float:
    """The rate of `tensor` on so many innermost chips of the first axis."""
    factors = np.ones((1, len(torus.axes), len(ICI_AXES)), np.int64)
    factors[0, 0, 0], factors[0, 0, -1] = torus.axes[0].length // ways, ways
    return float(group_rate(torus, factors, GROUPS["tensor"])[0])


def links_used(plan: Plan) -> Difference | None:
    """Where each group of the plan lies, and its rate."""
    rated = [group for group in plan.groups.values() if group.link == "ici"]
    if not rated:
        return None
    lies = "; ".join(
        f"{' x '.join(group.axes)} {group.size}: {spans_text(group.spans)},"
        f" {group.bytes_per_s / GB:.4g} GB/s"
        for group in rated
    )
    return Difference(
        about="links",
        derived="every axis a whole ring, all of it for one group",
        planned=lies,
        why="a switch gives every group all links of its chips"
        if catalog.chip_of(plan).switched
        else "an inner part of a torus axis is an open line and has half of it; an outer part"
        " closes, but shares each link with the groups between",
    )


def spans_text(spans: tuple[TorusSpan, ...]) -> str:
    """`ring of 16 on x`, `line of 2 on y`, `ring of 10 on y, every 2nd`."""

    def text(span: TorusSpan) -> str:
        stride = f" by {span.stride}" if span.stride > 1 else ""
        return f"{'ring' if span.ring else 'line'} of {span.size} on {span.torus}{stride}"

    return " + ".join(map(text, spans))


def binding(plan: Plan, numbers: dict[str, float]) -> Difference:
    derived, why = "matmuls: one chip exchanges nothing", ""
    if "mixed_least" in numbers:
        by_f, by_all = (mixed_times(numbers, least) for least in ("mixed_least", "mixed_least_eff"))
        flips = ", and that turns the answer" if (by_f > 1) != (by_all > 1) else ""
        derived = f"{bound_by(by_f)} counting F, {bound_by(by_all)} counting F_eff"
        why = f"F_eff has attention's matmuls in it{flips}; "
    forecast = plan.forecast
    return Difference(
        about="what binds",
        derived=derived,
        planned=f"{forecast.bound}, ahead of the next by {percent(forecast.bound_by)}; MFU"
        f" {percent(forecast.mfu.lower)} at the bound, {percent(forecast.mfu.unoverlapped)} with"
        " nothing hidden",
        why=f"{why}the plan adds attention, the unembedding, recompute, HBM and every collective",
    )


def memory(plan: Plan, numbers: dict[str, float]) -> Difference:
    """The plan's largest memory phase against the count of the book and of the notes."""
    largest = max(plan.forecast.memory, key=lambda phase: phase.bytes)
    lines = ", ".join(f"{line.name} {line.value / GIB:.2f}" for line in largest.lines)
    precision = plan.precision
    return Difference(
        about="memory",
        derived=f"{numbers['b_chip'] / GB:.3g} GB a chip by [B, D],"
        f" {numbers['b_chip_6F'] / GB:.3g} GB by 6F",
        planned=f"{in_memory(largest.bytes)} a device at its peak, in the phase {largest.name}:"
        f" {lines}",
        why=f"{precision.parameters} parameters, {precision.optimizer} moments, fp32 gradients;"
        f" state split {split_ways(plan):,} ways on the {plan.devices_per_slice:,} devices of a"
        f" pod; activations as remat `{text_of(plan.remat)}` keeps them",
    )


def split_ways(plan: Plan) -> int:
    """Parts that parameters and optimizer state are split into; `data` has copies."""
    return prod(plan.mesh[axis] for axis in PARAMETER_AXES)


def remat(plan: Plan) -> Difference:
    again = sum(line.value for line in plan.forecast.time if line.kind in RECOMPUTED)
    share = again / plan.forecast.step_s.unoverlapped
    return Difference(
        about="recompute",
        derived="4 checkpoints a layer; what is computed again is not counted",
        planned=f"remat `{text_of(plan.remat)}`: {percent(share)} of the step, with nothing hidden",
        why="what is computed again is no model FLOP: where matmuls bind, it lowers MFU",
    )


def days(plan: Plan, numbers: dict[str, float]) -> Difference:
    forecast = plan.forecast.days
    low, high = forecast.lower, forecast.unoverlapped
    likely = f"{lasting(forecast.expected)} expected, " if forecast.expected is not None else ""
    return Difference(
        about="days",
        derived=f"{lasting(numbers['days'])} at {assumed(numbers['mfu'])} by 6 P,"
        f" {lasting(numbers['days_mfu'])} as MFU counts",
        planned=f"{lasting(low)} at the bound, {likely}{lasting(high)} with nothing hidden",
        why=place_of(numbers["days_mfu"], low, high),
    )


def place_of(assumed: float, low: float, high: float) -> str:
    """Where the days at the assumed MFU lie among the plan's."""
    if assumed < low:
        return "no run of this plan reaches the assumed MFU: the bound is slower"
    if assumed <= high:
        return "the assumed MFU is reached if enough of the communication is hidden"
    return "the assumed MFU is below the plan's, even with nothing hidden: the plan has peak rates"


def availability(spec: Spec, plan: Plan) -> Difference | None:
    """Why these chips cannot be rented, if they cannot."""
    chip = catalog.chip_of(plan)
    obstacles = catalog.schedulable(chip, catalog.topology(chip, plan.topology), plan.pods)
    if not obstacles:
        return None
    return Difference(
        about="renting",
        derived=f"{spec.resources.pods.max} x {plan.topology}",
        planned="the compiler takes it, Google Cloud does not rent it",
        why="; ".join(RENTED[one.code].format(**one.figures) for one in obstacles),
    )


def planned(spec: Spec) -> Plan | SpecError:
    """The realizable plan, or why there is none."""
    try:
        return make_plan(spec)
    except SpecError as error:
        return error
