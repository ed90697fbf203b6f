"""Plan room: why no plan serves a spec, with the arithmetic, and the nearest specs that can."""

from dataclasses import replace
from itertools import product
from math import gcd

import numpy as np

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.plan import torus as links
from orchestrator.plan.feasibility import (
    as_sizes,
    batch_range,
    model_rules,
    placements,
    realizable,
    replicas_in_pod,
)
from orchestrator.plan.forecast import step_bounds, utilization
from orchestrator.plan.search import (
    Choice,
    SearchRequest,
    SearchResult,
    plain_layout,
    ranked,
    search,
)
from orchestrator.plan.time import step_time, time_lines
from orchestrator.plan.torus import Ints
from orchestrator.types.spec import MeshRequest

GIB = 2**30
ANY_REPLICAS = 2**62
NEAR = 0.05  # how far from what was asked a better batch is looked for
MESHES = 2  # that are offered in place of a wish


class Infeasible(SpecError):
    """No plan: what fails, and `--set` overrides that would do instead."""

    is_prose = True

    def __init__(self, reasons: list[str], instead: list[str]) -> None:
        self.reasons, self.instead = reasons, instead
        lines = ["no realizable plan", *(f"  {reason}" for reason in reasons)]
        if instead:
            lines += ["", "closest specs that work:", *(f"  {spec}" for spec in instead)]
        super().__init__("\n".join(lines))


def refusal(ask: SearchRequest, found: SearchResult) -> Infeasible:
    """The error for a search that came back empty."""
    if found.realizable:
        return does_not_fit(ask, found)
    meshes = all_meshes(ask)
    if len(meshes):
        return batch_does_not_divide(ask, meshes)
    wish_free = replace(ask, mesh=MeshRequest())
    if len(all_meshes(wish_free)):
        return mesh_is_not_realizable(ask)
    return Infeasible(model_reasons(ask), other_slices(ask))


def all_meshes(ask: SearchRequest) -> Ints:
    """Meshes that the model and the wish allow, whatever the batch."""
    found = placements(
        ask.torus, ask.experiment.model, ask.experiment.batch.length, ask.mesh, ANY_REPLICAS
    )
    return np.unique(links.sizes(found), axis=0)


def does_not_fit(ask: SearchRequest, found: SearchResult) -> Infeasible:
    usable = ask.chip.hbm_usable_bytes.value
    reason = (
        f"memory: the least that any of {found.realizable:,} placements needs is"
        f" {found.smallest_bytes / GIB:,.2f} GiB a device, of {usable / GIB:,.2f} GiB that"
        f" {ask.chip.name} allows"
    )
    instead = []
    if ask.experiment.remat not in ("auto", "full"):
        instead.append("--set experiment.remat=full")
    if found.smallest_bytes > usable:
        share = int(np.ceil(found.smallest_bytes / usable))
        instead.append(f"a topology of at least {share} times the chips, or a smaller model")
    return Infeasible([reason], instead)


def batch_does_not_divide(ask: SearchRequest, meshes: Ints) -> Infeasible:
    """Every mesh splits the batch in ways that no batch within the tolerance is a multiple of."""
    batch = ask.experiment.batch
    replicas = np.unique(ask.pods * replicas_in_pod(as_sizes(meshes)))
    common = gcd(*map(int, replicas))
    low, high = batch_range(batch)
    asked = f"{batch.sequences:,} sequences"
    if batch.tolerance:
        asked += f" (within {batch.tolerance:.0%}: {low:,} to {high:,})"
    reasons = [*slice_reasons(ask)]
    if batch.sequences % common:
        reasons.append(
            f"pods x data x fsdp is a multiple of {common:,} in every mesh that divides these, and"
            f" {asked} hold no multiple of it"
        )
    else:
        ways = ", ".join(f"{r:,}" for r in replicas[:8])
        reasons.append(f"meshes split sequences in {ways}... ways; {asked} hold no multiple")
    return Infeasible(reasons, [*other_batches(ask, replicas), *other_slices(ask)])


def slice_reasons(ask: SearchRequest) -> list[str]:
    """What a slice's chips factor into, and what can be split that way."""
    model, batch = ask.experiment.model, ask.experiment.batch
    dims = {
        "heads": model.heads,
        "d_ff": model.d_ff,
        "vocab": model.vocab,
        "d_model": model.d_model,
        "length": batch.length,
        "sequences": batch.sequences,
    }
    devices = ask.torus.devices
    return [
        f"{ask.pods} x {ask.topology}: {devices:,} devices a pod = {factored(devices)}, to split:",
        *(f"  {name:10}{size:9,} = {factored(size)}" for name, size in dims.items()),
    ]


def model_reasons(ask: SearchRequest) -> list[str]:
    return [*slice_reasons(ask), "no mesh of that many devices divides what its axes shard"]


def mesh_is_not_realizable(ask: SearchRequest) -> Infeasible:
    """The wished mesh breaks rules: name each one that its own sizes break."""
    wish = {axis: getattr(ask.mesh, axis) or 1 for axis in ICI_AXES}
    sizes = as_sizes(np.array([[wish[axis] for axis in ICI_AXES]], np.int64))
    rules = model_rules(ask.experiment.model, ask.experiment.batch.length)
    broken = [
        f"{rule.name} {rule.total:,} is not divided by {rule.ways}"
        for rule in rules
        if not realizable([rule], sizes)[0]
    ]
    asked = {axis: size for axis in ICI_AXES if (size := getattr(ask.mesh, axis))}
    devices = ask.torus.devices
    ways = int(np.prod(list(asked.values())))
    text = ", ".join(f"{axis} {size}" for axis, size in asked.items())
    if devices % ways or (len(asked) == len(ICI_AXES) and devices != ways):
        broken.append(f"{text}: {ways:,} devices, against {devices:,} in a pod of {ask.topology}")
    reasons = [f"mesh {text}", *(broken or model_reasons(ask))]
    return Infeasible(reasons, [*other_wishes(ask, asked), free_mesh(ask)])


def other_wishes(ask: SearchRequest, asked: dict[str, int]) -> list[str]:
    """The wishes for the same axes that are nearest to the asked one, by ratio, and can be had."""
    columns = [ICI_AXES.index(axis) for axis in asked]
    sizes = np.unique(all_meshes(replace(ask, mesh=MeshRequest()))[:, columns], axis=0)
    far = np.abs(np.log(sizes / np.array(list(asked.values())))).sum(axis=1)
    found: list[str] = []
    for row in sizes[np.argsort(far, kind="stable")[: 2 * MESHES]]:
        wish = dict(zip(asked, map(int, row), strict=True))
        tried = replace(ask, mesh=MeshRequest(**wish))
        if len(found) < MESHES and (choice := chosen(tried)):
            text = ", ".join(f"{axis}: {size}" for axis, size in wish.items())
            found.append(f"--set resources.mesh='{{{text}}}'  ({rate(tried, choice)})")
    return found


def free_mesh(ask: SearchRequest) -> str:
    """The mesh that would be chosen without a wish."""
    free = replace(ask, mesh=MeshRequest())
    choice = chosen(free)
    said = f"  (mesh {mesh_text(choice.mesh)}; {rate(free, choice)})" if choice else ""
    return f"--set resources.mesh=auto{said}"


def chosen(ask: SearchRequest) -> Choice | None:
    """What would be planned."""
    return next(iter(ranked(ask, search(ask).candidates, 1)), None)


def rate(ask: SearchRequest, choice: Choice) -> str:
    """How fast that would be: the MFU to expect, or the bound where no run tells."""
    layout = plain_layout(ask, choice)
    lines = time_lines(layout)
    step_s = step_bounds(layout, lines, step_time(layout, lines))
    mfu = utilization(layout, ask.experiment, step_s)["mfu"]
    if mfu.expected is None:
        return f"MFU {mfu.lower:.1%} at most"
    return f"MFU {mfu.expected:.1%} expected"


def other_batches(ask: SearchRequest, replicas: Ints) -> list[str]:
    """Batches that fit: next to the asked one on either side, and the fastest that is near it."""
    asked = ask.experiment.batch.sequences
    below = {int(asked // r * r) for r in replicas} - {0}
    above = {int(-(-asked // r) * r) for r in replicas}
    offered = {*sorted(below)[-1:], *sorted(above)[:1]}
    if fastest := chosen(on_batch(ask, asked, max(NEAR, ask.experiment.batch.tolerance))):
        offered.add(fastest.sequences)
    found = []
    for sequences in sorted(offered):
        tried = on_batch(ask, sequences, 0.0)
        if choice := chosen(tried):
            found.append(
                f"--set experiment.batch.sequences={sequences}  ({sequences / asked - 1:+.1%};"
                f" {rate(tried, choice)}; mesh {mesh_text(choice.mesh)})"
            )
    return found


def on_batch(ask: SearchRequest, sequences: int, tolerance: float) -> SearchRequest:
    """The same with another batch."""
    batch = replace(ask.experiment.batch, sequences=sequences, tolerance=tolerance)
    return replace(ask, experiment=replace(ask.experiment, batch=batch))


def mesh_text(mesh: tuple[int, ...]) -> str:
    sizes = zip(ICI_AXES, mesh, strict=True)
    return ", ".join(f"{axis} {size}" for axis, size in sizes)


def other_slices(ask: SearchRequest) -> list[str]:
    """The largest smaller slice that serves the spec as it stands."""
    shapes = sorted(smaller_shapes(ask), key=lambda shape: -int(np.prod(shape)))
    for shape in shapes:
        text = "x".join(map(str, shape))
        try:
            topology = catalog.topology(ask.chip, text)
        except SpecError:
            continue
        tried = replace(ask, topology=topology, torus=links.torus(ask.chip, topology))
        if ranked(tried, search(tried).candidates, 1):
            idle = (ask.topology.chips - topology.chips) * ask.pods
            chips = f"{topology.chips * ask.pods:,} chips, {idle:,} left idle"
            return [f"--set resources.topology={topology}  ({chips})"]
    return []


def smaller_shapes(ask: SearchRequest) -> list[tuple[int, ...]]:
    """Shapes within the asked one whose chips are a smaller number."""
    ranges = [
        links.divisors(length) + list(range(4, length + 1, 4)) for length in ask.topology.shape
    ]
    shapes = {tuple(sorted(shape)) for shape in product(*ranges)}
    return [shape for shape in shapes if int(np.prod(shape)) < ask.topology.chips]


def factored(number: int) -> str:
    """A number as the product of its primes: 8,960 = 2^8 x 5 x 7."""
    parts, left, prime = [], number, 2
    while left > 1:
        power = 0
        while left % prime == 0:
            left, power = left // prime, power + 1
        if power:
            parts.append(f"{prime}^{power}" if power > 1 else str(prime))
        prime += 1
    return " x ".join(parts) or "1"
