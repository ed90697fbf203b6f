"""Reads published weights into the shards of a plan. A process reads what its own devices hold."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.network.published import PublishedWeight
from trainers.contract import Program
from trainers.huggingface.folder import WeightFolder
from trainers.huggingface.stored_weights import selection, stored_shapes, stored_weights

Tree = dict[str, Any]
# Arrays that no network has, by the ends of their names: caches that old releases stored.
CACHES = (".rotary_emb.inv_freq", ".masked_bias", ".attention.bias")
SHOWN = 3  # names in a message


def new_state(program: Program, folder: Path) -> Tree:
    """The state before the first step: with the weights that the plan starts from, if it does.

    Their relative path begins at `folder`, the spec's.
    """
    start, seed = program.plan.start, program.plan.seed
    if start is None:
        return program.init(seed)
    with WeightFolder.open(folder / start.huggingface) as source:
        weights = weights_of(program, source)
        state = program.init(seed)
        jax.tree.map(lambda array: array.delete(), state["parameters"])  # there may be no more room
        read = with_published(program.state["parameters"], weights, source)
    return state | {"parameters": read}


def weights_of(program: Program, source: WeightFolder) -> Sequence[PublishedWeight]:
    """How the folder stores the program's parameters; `DataUnusable` unless it has them all."""
    weights = stored_weights(program, source.model_type)
    check(weights, source)
    return weights


def with_published(tree: Tree, weights: Sequence[PublishedWeight], folder: WeightFolder) -> Tree:
    """Arrays as `tree` shapes, types and shards them, with the weights of a folder."""
    read = dict(tree)
    for weight in weights:
        _replace(read, weight.path, _array(_leaf(tree, weight.path), weight, folder))
    return read


def check(weights: Sequence[PublishedWeight], folder: WeightFolder) -> None:
    """`DataUnusable` unless the folder has these weights and no others."""
    expected = stored_shapes(weights)
    if absent := sorted(expected.keys() - folder.names()):
        raise DataUnusable(f"{folder.path}: the model has weights that it lacks: {_shown(absent)}")
    others = sorted(folder.names() - expected.keys())
    unknown = [name for name in others if not name.endswith(CACHES)]
    if unknown and not _is_tied_head(unknown, expected, folder):
        raise DataUnusable(f"{folder.path}: weights that the model lacks: {_shown(unknown)}")
    for name, shape in expected.items():
        if folder.shape(name) != shape:
            raise DataUnusable(
                f"{folder.path}: {name} is {list(folder.shape(name))}, against {list(shape)}"
            )


def _is_tied_head(names: list[str], expected: Mapping[str, Any], folder: WeightFolder) -> bool:
    """Whether the only other weight is a head that some writers store a second time."""
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    if names != [head] or folder.shape(head) != expected[embedding]:
        return False
    return bool(np.array_equal(folder.read(head), folder.read(embedding)))


def _array(leaf: jax.ShapeDtypeStruct, weight: PublishedWeight, folder: WeightFolder) -> jax.Array:
    """A leaf of the tree. What it has beyond the weight's rows is zero."""
    parts: dict[Any, np.ndarray] = {}

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None  # it is for keys of random numbers alone
        ranges = tuple(
            range(*one.indices(size)) for one, size in zip(index, leaf.shape, strict=True)
        )
        if ranges not in parts:
            parts[ranges] = _part(leaf.dtype, weight, folder, ranges)
        return parts[ranges]

    return jax.make_array_from_callback(leaf.shape, leaf.sharding, shard)


def _part(
    dtype: Any, weight: PublishedWeight, folder: WeightFolder, ranges: tuple[range, ...]
) -> np.ndarray:
    stacked = len(weight.stacked)
    out = np.zeros([len(one) for one in ranges], dtype)
    inside = [
        range(one.start, min(one.stop, size))
        for one, size in zip(ranges[stacked:], weight.shape, strict=True)
    ]
    if not all(inside):
        return out
    filled = tuple(slice(len(one)) for one in inside)
    for place in np.ndindex(*out.shape[:stacked]):
        index = tuple(one[at] for one, at in zip(ranges, place, strict=False))
        array = part_of(weight, folder, weight.name_at(index), inside)
        out[(*place, *filled)] = array.astype(dtype)
    return out


def part_of(
    weight: PublishedWeight, folder: WeightFolder, name: str, wanted: Sequence[range]
) -> np.ndarray:
    """A part of a weight of one layer and expert, in the order of the trainer's dimensions."""
    places = [axis.places(wanted) for axis in weight.axes]
    bounds = [slice(int(one.min()), int(one.max()) + 1) for one in places]
    array = folder.read(name, *bounds)
    for number, (inside, bound) in enumerate(zip(places, bounds, strict=True)):
        array = array[(slice(None),) * number + (selection(inside - bound.start),)]
    order = weight.order
    return array.reshape([len(wanted[place]) for place in order]).transpose(np.argsort(order))


def _leaf(tree: Tree, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _replace(tree: Tree, path: tuple[str, ...], array: jax.Array) -> None:
    """Put an array in its place, in copies of the dicts on the way."""
    for key in path[:-1]:
        tree[key] = dict(tree[key])
        tree = tree[key]
    tree[path[-1]] = array


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
