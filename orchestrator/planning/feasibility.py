"""Which meshes a model, a batch and a slice allow: every axis must divide what it splits. In which
types chips and trainers multiply, and what is refused because they do not.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.network.decoder import decoder, split_sizes
from orchestrator.network.mesh_axes import (
    COPIED,
    DCN_AXES,
    ICI_AXES,
    LOGICAL_AXES,
    MODEL_OVER_DCN,
    PADDED,
    PIPELINE,
    SLICE_REPLICAS,
    in_slice,
    ways,
)
from orchestrator.network.mlp import EXPERTS
from orchestrator.planning.torus import Bools, Ints, Torus, axis_sizes, divisors, factor_rows
from orchestrator.values.model import Model
from orchestrator.values.plan import ReasonCode
from orchestrator.values.spec import Batch, MeshRequest

Sizes = dict[str, Any]  # of each mesh axis inside a pod, as Ints


@dataclass(frozen=True)
class _Rule:
    """One divisibility: what is split, by what, and which meshes satisfy it. A rule is `inherited`
    if a size that breaks it still breaks it when multiplied. `code` is what breaking it is called.
    """

    name: str
    total: int
    ways: str
    holds: Callable[[Sizes], Bools]
    inherited: bool = True
    code: ReasonCode = "dimension_not_divisible"


def model_rules(model: Model, length: int) -> list[_Rule]:
    """Return the rules of the model and the sequence length. The vocabulary is padded."""

    def dimension_rule(axis: str, name: str, total: int) -> _Rule:
        """KV heads may also be replicated evenly: 8 heads suit 24 devices, but not 3."""
        axes, may_replicate = " x ".join(LOGICAL_AXES[axis]), axis == COPIED

        def holds(sizes: Sizes) -> Bools:
            parts = ways(sizes, axis)
            return np.asarray((total % parts == 0) | (may_replicate & (parts % total == 0)))

        suffix = " (or divides it)" if may_replicate else ""
        is_dense = axis == EXPERTS and model.moe is None
        code: ReasonCode = "no_mixture" if is_dense else "dimension_not_divisible"
        return _Rule(name, total, f"{axes}{suffix}", holds, inherited=not may_replicate, code=code)

    rules = [dimension_rule(*size) for size in split_sizes(model) if size[0] != PADDED]
    if model.moe is not None and model.moe.capacity_factor is not None:
        # Experts have a capacity for each sequence: no axis splits its positions.
        axes = " x ".join(LOGICAL_AXES["length"])
        rules.append(
            _Rule("moe.capacity_factor", 1, axes, lambda sizes: ways(sizes, "length") == 1,
                 code="sequences_not_whole")
        )  # fmt: skip
    # Chunks of a pipeline repeat one pattern of layers.
    segments = decoder(model).segments
    cut = segments[0].repeats if len(segments) == 1 else 1
    axes = " x ".join(PIPELINE)
    code: ReasonCode = "too_few_layers" if cut > 1 else "no_pattern"
    rules.append(_Rule("layers", cut, axes, lambda sizes: ways(sizes, "layers") <= cut, code=code))

    def divides_length(sizes: Sizes) -> Bools:
        # `sequence` takes two halves of each part of the residual stream.
        halves = 1 + (ways(sizes, "length") > 1)
        return np.asarray(length % (ways(sizes, "residual_length") * halves) == 0)

    axes = " x ".join(LOGICAL_AXES["residual_length"])
    return [*rules, _Rule("length", length, f"{axes}, in two halves for zigzag", divides_length)]


def realizable(rules: list[_Rule], mesh: MeshRequest, sizes: Sizes) -> Bools:
    every: Sizes = {**sharing(mesh), **sizes}
    return np.asarray(np.logical_and.reduce([rule.holds(every) for rule in rules]))


def sharing(mesh: MeshRequest) -> dict[str, int]:
    """Return the slices that hold one copy of the model, by mesh axis: where it is requested."""
    return {axis: getattr(mesh, axis) or 1 for axis in MODEL_OVER_DCN}


def meshes_between(slice_torus: Torus, model: Model, mesh: MeshRequest, pods: int) -> Ints:
    """Return the ways to lay a mesh over slices, rows x DCN_AXES: the requested one, and for chips
    in switched domains all of the axes that are left open.
    """
    searched = [axis for axis in MODEL_OVER_DCN if getattr(mesh, axis) is None]
    if not slice_torus.switched:
        searched = []
    elif model.moe is None:
        searched = [axis for axis in searched if axis not in LOGICAL_AXES[EXPERTS]]
    fixed = sharing(mesh)
    left, over = divmod(pods, prod(fixed.values()))
    rows = [
        {**fixed, **dict(zip(searched, sizes, strict=True)), SLICE_REPLICAS: left // prod(sizes)}
        for sizes in _products_within(left, len(searched))
        if not over
    ]
    return np.array([[row[axis] for axis in DCN_AXES] for row in rows], np.int64).reshape(
        -1, len(DCN_AXES)
    )


def _products_within(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every tuple of so many numbers whose product divides a total."""
    if not parts:
        yield ()
        return
    for first in divisors(total):
        for others in _products_within(total // first, parts - 1):
            yield (first, *others)


def sizes_by_name(rows: Ints) -> Sizes:
    """Return the columns of a table by axis: those of a slice, and any between slices."""
    axes = (*ICI_AXES, *DCN_AXES)[: rows.shape[-1]]
    return {axis: rows[..., column] for column, axis in enumerate(axes)}


def usable_axes(model: Model) -> tuple[str, ...]:
    """Return the axes of a slice that have something of the model to split."""
    idle = {*PIPELINE, *(() if model.moe else LOGICAL_AXES[EXPERTS])}
    return tuple(axis for axis in ICI_AXES if axis not in idle)


# On chips that no switch connects, the search leaves these to the spec.
ASKED_AXES = (*MODEL_OVER_DCN, *in_slice(PIPELINE))


def pinned_sizes(
    model: Model, mesh: Mapping[str, int], chunks: int, *, switched: bool
) -> dict[str, int]:
    """Return the keys of a mesh request that the search answers with this mesh. For a switched chip
    it chooses axes between domains too, so all have their size.
    """
    others = [axis for axis in ASKED_AXES if axis in mesh or switched]
    if model.moe is None:
        others = [axis for axis in others if axis not in LOGICAL_AXES[EXPERTS]]
    found = {axis: mesh.get(axis, 1) for axis in (*usable_axes(model), *others)}
    found = {axis: n for axis, n in found.items() if n > 1 or switched or axis not in others}
    return found | ({"pipeline_chunks": chunks} if ways(mesh, "layers") > 1 else {})


def placements(
    slice_torus: Torus, model: Model, length: int, mesh: MeshRequest, most_replicas: int
) -> Ints:
    """Return all placements on a torus whose meshes are realizable: rows x torus axes x ICI_AXES.
    Built one torus axis at a time. A size that divides nothing now divides nothing later either, so
    each step drops what the rules (and `most_replicas`, which no batch exceeds) already forbid. Of
    placements that are mirror images, because torus axes are alike, one stays.
    """
    rules = model_rules(model, length)
    inherited = [rule for rule in rules if rule.inherited]
    axes = usable_axes(model)
    if slice_torus.switched or (mesh.pipeline or 1) > 1:
        axes = (*in_slice(PIPELINE), *axes)
    requested = {axis: size for axis in ICI_AXES if (size := getattr(mesh, axis)) is not None}
    factors = np.ones((1, 0, len(ICI_AXES)), np.int64)
    for i, axis in enumerate(slice_torus.axes):
        parts = factor_rows(axis.length, axes)
        old = np.repeat(factors, len(parts), axis=0)
        new = np.tile(parts, (len(factors), 1))[:, None, :]
        factors = np.concatenate([old, new], axis=1)
        sizes = sizes_by_name(axis_sizes(factors))
        # Whether sizes can still grow, by whole factors, into a realizable mesh.
        grows = realizable(inherited, mesh, sizes) & (ways(sizes, "batch") <= most_replicas)
        for name, size in requested.items():
            grows &= size % sizes[name] == 0
        # On two equal torus axes, a number orders the factors: the later axis has the lower one.
        for twin in reversed(range(i)):
            if replace(slice_torus.axes[twin], name=axis.name) == axis:
                digits = (1 + axis.length) ** np.arange(len(ICI_AXES))
                grows &= factors[:, i] @ digits <= factors[:, twin] @ digits
                break
        factors = factors[grows]
    sizes = sizes_by_name(axis_sizes(factors))
    holds = realizable(rules, mesh, sizes)
    for name, size in requested.items():
        holds &= sizes[name] == size
    return factors[holds]


def batches_next_to(batch: Batch, multiples: Ints) -> list[Ints]:
    """Return each mesh's batch at or next below and above the requested; 0 beyond the tolerance."""
    low, high = batch_range(batch)
    below = batch.sequences // multiples * multiples
    above = np.where(below == batch.sequences, 0, below + multiples)
    return [np.where(below >= low, below, 0), np.where(above <= high, above, 0)]


def batch_range(batch: Batch) -> tuple[int, int]:
    slack = int(batch.sequences * batch.tolerance + 1e-9)
    return batch.sequences - slack, batch.sequences + slack


# --- types

_KEY = "experiment.precision.compute"


def multiplies_in(chip: Chip, compute: str) -> bool:
    """Whether a chip gains from that type: it has a rate, for a narrow type above that of bf16."""
    rates, narrow = chip.peak_flops_per_s, compute in ("int8", "fp8")
    return compute in rates and (not narrow or rates[compute].value > rates["bf16"].value)


def check_chip(chip: Chip, compute: str) -> None:
    if multiplies_in(chip, compute):
        return
    why = f"no rate of {chip.name} is known for it"
    if compute in chip.peak_flops_per_s:
        why = f"{chip.name} multiplies in it no faster than in bf16, and less exactly"
    faster = [name for name in ("int8", "fp8") if multiplies_in(chip, name)]
    others = [name for name in catalog.chips() if multiplies_in(catalog.chip(name), compute)]
    raise SpecError(
        f"{_KEY} {compute}: {why}\n"
        f"Plan in {' or '.join([*faster, 'bf16'])}: --set {_KEY}=bf16\n"
        f"Chips that gain from {compute}: {', '.join(others)}"
    )


def check_experts(model: Model, compute: str) -> None:
    if compute == "fp8" and model.moe is not None and model.moe.capacity_factor is None:
        raise SpecError(
            f"{_KEY} fp8: the trainer cannot multiply the experts of {model.name} in fp8; a mixture"
            " that drops no choice has groups of rows of any size, and no kernel for these in fp8\n"
            "Give experiment.model.moe a capacity_factor, which makes groups alike, or --set"
            f" {_KEY}=bf16"
        )
