"""Which meshes a model, a batch and a slice allow, and which rules forbid the others.

A mesh is realizable if every axis divides what it splits. The search filters arrays with these
rules; `infeasible` names the rules that a request breaks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orchestrator.network.decoder import split_sizes
from orchestrator.network.mesh_axes import (
    COPIED,
    ICI_AXES,
    LOGICAL_AXES,
    PADDED,
    SHARED_OVER_DCN,
    ways,
)
from orchestrator.network.mlp import EXPERTS
from orchestrator.planning.torus import Bools, Ints, Torus, axis_sizes, factor_rows
from orchestrator.values.model import Model
from orchestrator.values.refusal import ReasonCode
from orchestrator.values.spec import Batch, MeshRequest

Sizes = dict[str, Any]  # of each mesh axis inside a pod, as Ints


@dataclass(frozen=True)
class Rule:
    """One divisibility: what is split, by what, and which meshes satisfy it.

    A rule is `inherited` if a size that breaks it still breaks it when multiplied. `code` is the
    reason where it is broken.
    """

    name: str
    total: int
    ways: str
    holds: Callable[[Sizes], Bools]
    inherited: bool = True
    code: ReasonCode = "dimension_not_divisible"


def split(sizes: Sizes, logical_axis: str) -> Ints:
    """Parts of a logical axis inside a pod."""
    return np.asarray(ways(sizes, logical_axis))


def model_rules(model: Model, length: int) -> list[Rule]:
    """The rules of the model and the sequence length; the batch has its own.

    The vocabulary has none: it is padded.
    """
    rules = [
        dimension_rule(axis, key, size) for axis, key, size in split_sizes(model) if axis != PADDED
    ]
    if model.moe is not None and model.moe.capacity_factor is not None:
        rules.append(whole_sequences_rule())
    return [*rules, length_rule(length)]


def dimension_rule(axis: str, name: str, total: int) -> Rule:
    """A dimension divides evenly; copied heads may also be fewer than the devices."""
    axes = " x ".join(LOGICAL_AXES[axis])

    def divides(sizes: Sizes) -> Bools:
        return np.asarray(total % split(sizes, axis) == 0)

    def divides_or_copies(sizes: Sizes) -> Bools:
        return np.asarray(divides(sizes) | (split(sizes, axis) % total == 0))

    if axis == COPIED:
        # 3 does not suit 8 heads, nor does it divide them, but its multiple 24 is copied evenly.
        return Rule(name, total, f"{axes} (or divides it)", divides_or_copies, inherited=False)
    return Rule(name, total, axes, divides)


def whole_sequences_rule() -> Rule:
    """Experts have a capacity for each sequence: no axis splits its positions."""

    def is_whole(sizes: Sizes) -> Bools:
        return np.asarray(split(sizes, "length") == 1)

    axes = " x ".join(LOGICAL_AXES["length"])
    return Rule("moe.capacity_factor", 1, axes, is_whole, code="sequences_not_whole")


def length_rule(length: int) -> Rule:
    """Positions divide over the residual stream; `sequence` takes two halves of each part."""

    def divides(sizes: Sizes) -> Bools:
        halves = 1 + (split(sizes, "length") > 1)
        return np.asarray(length % (split(sizes, "residual_length") * halves) == 0)

    axes = " x ".join(LOGICAL_AXES["residual_length"])
    return Rule("length", length, f"{axes}, in two halves for zigzag", divides)


def realizable(rules: list[Rule], mesh: MeshRequest, sizes: Sizes) -> Bools:
    """Meshes that break no rule."""
    every: Sizes = {**sizes, **sharing(mesh)}
    return np.asarray(np.logical_and.reduce([rule.holds(every) for rule in rules]))


def sharing(mesh: MeshRequest) -> dict[str, int]:
    """Slices that share weights, by mesh axis: only where it is requested."""
    return {axis: getattr(mesh, axis) or 1 for axis in SHARED_OVER_DCN}


def requested(mesh: MeshRequest, sizes: Sizes) -> Bools:
    """Meshes with the requested sizes."""
    holds = np.ones(len(next(iter(sizes.values()))), bool)
    for axis in ICI_AXES:
        size = getattr(mesh, axis)
        holds &= size is None or sizes[axis] == size
    return holds


def sizes_by_name(rows: Ints) -> Sizes:
    """Columns by the names of ICI_AXES."""
    return {axis: rows[:, column] for column, axis in enumerate(ICI_AXES)}


def replicas_in_pod(sizes: Sizes) -> Ints:
    """Ways in which a pod splits the sequences of its batch."""
    return split(sizes, "batch")


def usable_axes(model: Model) -> tuple[str, ...]:
    """The axes of a slice that have something of the model to split."""
    idle = () if model.moe else LOGICAL_AXES[EXPERTS]
    return tuple(axis for axis in ICI_AXES if axis not in idle)


def placements(
    slice_torus: Torus, model: Model, length: int, mesh: MeshRequest, most_replicas: int
) -> Ints:
    """All placements on a torus whose meshes are realizable: rows x torus axes x ICI_AXES.

    Built one torus axis at a time. A size that divides nothing now divides nothing later either, so
    each step drops what the rules (and `most_replicas`, which no batch exceeds) already forbid. Of
    placements that are mirror images, because torus axes are alike, one stays.
    """
    rules = model_rules(model, length)
    factors = np.ones((1, 0, len(ICI_AXES)), np.int64)
    for i, axis in enumerate(slice_torus.axes):
        parts = factor_rows(axis.length, usable_axes(model))
        old = np.repeat(factors, len(parts), axis=0)
        new = np.tile(parts, (len(factors), 1))[:, None, :]
        factors = np.concatenate([old, new], axis=1)
        sizes = sizes_by_name(axis_sizes(factors))
        keep = partly_realizable(rules, mesh, sizes, most_replicas)
        if twin := last_twin(slice_torus, i):
            keep &= rank(factors[:, i], axis.length) <= rank(factors[:, i - twin], axis.length)
        factors = factors[keep]
    sizes = sizes_by_name(axis_sizes(factors))
    return factors[realizable(rules, mesh, sizes) & requested(mesh, sizes)]


def last_twin(slice_torus: Torus, i: int) -> int:
    """How many torus axes before axis i the last equal one is; zero if there is none."""
    axis = slice_torus.axes[i]
    for back, other in enumerate(reversed(slice_torus.axes[:i]), start=1):
        if replace(other, name=axis.name) == axis:
            return back
    return 0


def rank(parts: Ints, length: int) -> Ints:
    """A number that orders the factors on torus axes of a length, the largest `tensor` last."""
    return np.asarray(parts @ (1 + length) ** np.arange(parts.shape[1]))


def partly_realizable(
    rules: list[Rule], mesh: MeshRequest, sizes: Sizes, most_replicas: int
) -> Bools:
    """Whether sizes can still grow, by whole factors, into a realizable mesh."""
    holds = realizable([rule for rule in rules if rule.inherited], mesh, sizes)
    for axis in ICI_AXES:
        if size := getattr(mesh, axis):
            holds &= size % sizes[axis] == 0
    return np.asarray(holds & (replicas_in_pod(sizes) <= most_replicas))


def batches_next_to(batch: Batch, of: Ints) -> list[Ints]:
    """The batch that each mesh would take: the requested one, or the multiples next to it.

    Two arrays like `of`, of batches below and above; zero where there is none within the
    tolerance. A batch moves no farther than its mesh needs.
    """
    low, high = batch_range(batch)
    below = batch.sequences // of * of
    above = np.where(below == batch.sequences, 0, below + of)
    return [
        np.where((below >= low) & (below > 0), below, 0),
        np.where((above <= high) & (above > 0), above, 0),
    ]


def batch_range(batch: Batch) -> tuple[int, int]:
    """Fewest and most sequences within the tolerance."""
    slack = int(batch.sequences * batch.tolerance + 1e-9)
    return batch.sequences - slack, batch.sequences + slack
