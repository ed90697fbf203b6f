"""Plan room: which meshes a model, a batch and a slice allow, and which rule forbids the others.

A mesh is realizable when every axis divides what it shards. The rules stand here once: the search
filters arrays with them, and the explanation of a refusal reads the same rules.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orchestrator.plan.torus import POD_AXES, Ints, Torus, factorizations
from orchestrator.types.spec import Batch, MeshRequest, Model

Bools = NDArray[np.bool_]
Sizes = dict[str, Ints]


@dataclass(frozen=True)
class Rule:
    """One divisibility: what is sharded, by what, and whether a mesh keeps to it."""

    name: str
    total: int
    ways: str
    holds: Callable[[Sizes], Bools]


def divides(total: int, ways: Ints) -> Bools:
    return np.asarray(total % ways == 0)


def model_rules(model: Model, length: int) -> list[Rule]:
    """What the model and the sequence length demand, batch apart."""
    return [
        Rule("heads", model.heads, "tensor", lambda s: divides(model.heads, s["tensor"])),
        Rule(
            "kv_heads",
            model.kv_heads,
            "tensor (or divides it)",
            lambda s: (model.kv_heads % s["tensor"] == 0) | (s["tensor"] % model.kv_heads == 0),
        ),
        Rule("d_ff", model.d_ff, "tensor", lambda s: divides(model.d_ff, s["tensor"])),
        Rule("vocab", model.vocab, "tensor", lambda s: divides(model.vocab, s["tensor"])),
        Rule(
            "d_model",
            model.d_model,
            "fsdp x sequence",
            lambda s: divides(model.d_model, s["fsdp"] * s["sequence"]),
        ),
        Rule(
            "length",
            length,
            "sequence x tensor, in two halves for zigzag",
            lambda s: divides(length, s["sequence"] * s["tensor"] * (1 + (s["sequence"] > 1))),
        ),
    ]


def realizable(rules: list[Rule], sizes: Sizes) -> Bools:
    """Meshes that keep to all rules."""
    return np.asarray(np.logical_and.reduce([rule.holds(sizes) for rule in rules]))


def wished(mesh: MeshRequest, sizes: Sizes) -> Bools:
    """Meshes with the sizes that were asked for."""
    asked = [(axis, getattr(mesh, axis)) for axis in POD_AXES]
    holds = np.ones(len(sizes["data"]), bool)
    for axis, size in asked:
        holds &= size is None or sizes[axis] == size
    return holds


def as_sizes(rows: Ints) -> Sizes:
    """Columns by the names of POD_AXES."""
    return {axis: rows[:, i] for i, axis in enumerate(POD_AXES)}


def placements(
    slice_torus: Torus, model: Model, length: int, mesh: MeshRequest, most_replicas: int
) -> Ints:
    """All placements on a torus whose meshes are realizable: rows x torus axes x POD_AXES.

    Built one torus axis at a time. A size that divides nothing now divides nothing later either, so
    each step drops what the rules (and `most_replicas`, which no batch exceeds) already forbid. Of
    placements that are mirror images, because torus axes are alike, one is kept.
    """
    rules = model_rules(model, length)
    found = np.ones((1, 0, len(POD_AXES)), np.int64)
    for i, axis in enumerate(slice_torus.axes):
        parts = np.array(factorizations(axis.length, len(POD_AXES)), np.int64)
        old = np.repeat(found, len(parts), axis=0)
        new = np.tile(parts, (len(found), 1))[:, None, :]
        found = np.concatenate([old, new], axis=1)
        sizes = as_sizes(found.prod(axis=1))
        keep = partly_realizable(rules, mesh, sizes, most_replicas)
        if twin := last_twin(slice_torus, i):
            keep &= rank(found[:, i]) <= rank(found[:, i - twin])
        found = found[keep]
    sizes = as_sizes(found.prod(axis=1))
    return found[realizable(rules, sizes) & wished(mesh, sizes)]


def last_twin(slice_torus: Torus, i: int) -> int:
    """How many torus axes before axis i the last one like it stands; zero when there is none."""
    axis = slice_torus.axes[i]
    for back, other in enumerate(reversed(slice_torus.axes[:i]), start=1):
        if replace(other, name=axis.name) == axis:
            return back
    return 0


def rank(parts: Ints) -> Ints:
    """A number that orders the factors on one torus axis, the largest `tensor` last."""
    most = 1 + int(parts.max(initial=1))
    return np.asarray(parts @ most ** np.arange(parts.shape[1]))


def partly_realizable(
    rules: list[Rule], mesh: MeshRequest, sizes: Sizes, most_replicas: int
) -> Bools:
    """Whether sizes can still grow, by whole factors, into a realizable mesh.

    Only `kv_heads` is not inherited (3 does not suit 8 heads, nor does 24 divide them, but 24 is a
    multiple of 8), so it waits for the whole mesh.
    """
    holds = realizable([rule for rule in rules if rule.name != "kv_heads"], sizes)
    for axis in POD_AXES:
        if size := getattr(mesh, axis):
            holds &= divides(size, sizes[axis])
    return np.asarray(holds & (sizes["data"] * sizes["fsdp"] <= most_replicas))


def batches_next_to(batch: Batch, replicas: Ints) -> list[Ints]:
    """The batch each mesh would take: the asked one, or the multiples next to it, below and above.

    Two arrays like `replicas`; zero where there is none within the tolerance. A batch moves no
    farther than its mesh needs.
    """
    low, high = batch_range(batch)
    below = batch.sequences // replicas * replicas
    above = np.where(below == batch.sequences, 0, below + replicas)
    return [
        np.where((below >= low) & (below > 0), below, 0),
        np.where((above <= high) & (above > 0), above, 0),
    ]


def batch_range(batch: Batch) -> tuple[int, int]:
    """Fewest and most sequences within the tolerance."""
    slack = int(batch.sequences * batch.tolerance + 1e-9)
    return batch.sequences - slack, batch.sequences + slack
