"""Reads published weights into the shards of a plan. A process reads what its own devices hold."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from orchestrator.errors import DataUnusable, SpecError
from orchestrator.network.published import PublishedWeight
from orchestrator.storage.addresses import address, input_path
from trainers.contract import Program
from trainers.huggingface.folder import WeightFolder

# How a trainer's parameters are stored in the files of an architecture.


Shape = tuple[int, ...]


def stored_weights(program: Program, model_type: str) -> Sequence[PublishedWeight]:
    """The program's parameters as checkpoints of that `model_type` have them."""
    if program.published is None:
        raise SpecError(
            f"trainer {program.plan.trainer} does not say how checkpoints store its parameters"
        )
    return program.published(model_type)


def stored_shapes(weights: Sequence[PublishedWeight]) -> dict[str, Shape]:
    """The shape of each array of the files, by its name."""
    return {
        weight.name_at(index): weight.published_shape
        for weight in weights
        for index in np.ndindex(*weight.stacked)
    }


def selection(places: np.ndarray) -> slice | np.ndarray:
    """These places of an axis: as a slice, which copies nothing, where they are evenly spaced."""
    steps = np.diff(places)
    if steps.size and ((steps != steps[0]).any() or steps[0] < 1):
        return places
    return slice(int(places[0]), int(places[-1]) + 1, int(steps[0]) if steps.size else 1)


Tree = dict[str, Any]
Ranges = tuple[range, ...]  # of a shard, in each dimension
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
    with WeightFolder.open(input_path(folder, start.huggingface)) as source:
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
    expected, where = stored_shapes(weights), address(folder.path)
    if absent := sorted(expected.keys() - folder.names()):
        raise DataUnusable(f"{where}: the model has weights that it lacks: {_shown(absent)}")
    others = sorted(folder.names() - expected.keys())
    unknown = [name for name in others if not name.endswith(CACHES)]
    if unknown and not _is_tied_head(unknown, expected, folder):
        raise DataUnusable(f"{where}: weights that the model lacks: {_shown(unknown)}")
    for name, shape in expected.items():
        if folder.shape(name) != shape:
            raise DataUnusable(
                f"{where}: {name} is {list(folder.shape(name))}, against {list(shape)}"
            )


def _is_tied_head(names: list[str], expected: Mapping[str, Any], folder: WeightFolder) -> bool:
    """Whether the only other weight is a head that some writers store a second time."""
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    if names != [head] or folder.shape(head) != expected[embedding]:
        return False
    return bool(np.array_equal(folder.read(head), folder.read(embedding)))


def _array(leaf: jax.ShapeDtypeStruct, weight: PublishedWeight, folder: WeightFolder) -> jax.Array:
    """A leaf of the tree. What it has beyond the weight's rows is zero.

    Each array of the files is read for all devices of this process before the next one is.
    """
    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    shards = {ranges: _zeros(leaf, ranges) for ranges in {_ranges(leaf, one) for one in indices}}
    for place in np.ndindex(*weight.stacked):
        for ranges, shard in shards.items():
            _fill(shard, weight, folder, ranges, place)
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: shards[_ranges(leaf, index)]
    )


def _zeros(leaf: jax.ShapeDtypeStruct, ranges: Ranges) -> np.ndarray:
    return np.zeros([len(one) for one in ranges], leaf.dtype)


def _ranges(leaf: jax.ShapeDtypeStruct, index: tuple[slice, ...] | None) -> Ranges:
    assert index is not None  # it is for keys of random numbers alone
    return tuple(range(*one.indices(size)) for one, size in zip(index, leaf.shape, strict=True))


def _fill(
    shard: np.ndarray,
    weight: PublishedWeight,
    folder: WeightFolder,
    ranges: Ranges,
    place: tuple[int, ...],
) -> None:
    """Read the part of a layer's and expert's weight that a shard has."""
    stacked = len(weight.stacked)
    if not all(at in one for at, one in zip(place, ranges, strict=False)):
        return
    inside = [
        range(one.start, min(one.stop, size))
        for one, size in zip(ranges[stacked:], weight.shape, strict=True)
    ]
    if not all(inside):
        return
    here = tuple(one.index(at) for at, one in zip(place, ranges, strict=False))
    filled = tuple(slice(len(one)) for one in inside)
    array = part_of(weight, folder, weight.name_at(place), inside)
    shard[here][filled] = array.astype(shard.dtype)


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
