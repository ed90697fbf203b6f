"""Checkpoints of one mesh on another: a pipeline stores layers by its stages and chunks.

A stack of L layers is [L, ...], or [chunks, places, ...] for a pipeline. Flat, both have layers in
order; the last places of a pipeline may be empty. So only the shape of an array differs.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

Layers = Mapping[str, int]  # by the name of the part of a state that stacks them
NO_LAYERS: Layers = {}
_Shape = tuple[int, ...]


class _Stacks(NamedTuple):
    """How an array is stacked in a checkpoint and in a program: by one dimension or two."""

    layers: int
    saved: int
    wanted: int


def stacks_of(name: str, saved: _Shape, wanted: _Shape, layers: Layers) -> _Stacks | None:
    """Return how a leaf is stacked, if the checkpoint and the program stack it differently."""
    count = next((layers[part] for part in name.split(".") if part in layers), None)
    more = len(wanted) - len(saved)
    if count is None or saved == wanted or abs(more) > 1:
        return None
    return _Stacks(count, 1 if more > 0 else 2, 1 if more < 0 else 2)


def restacked(name: str, saved: _Shape, wanted: _Shape, layers: Layers) -> _Shape:
    """Return the shape that a saved leaf has in the program's stacks."""
    stacks = stacks_of(name, saved, wanted, layers)
    if stacks is None or prod(saved[: stacks.saved]) < stacks.layers:
        return saved
    return *wanted[: stacks.wanted], *saved[stacks.saved :]


class Restacked(NamedTuple):
    """A leaf to be read as it was saved, on the devices that want it."""

    stacks: _Stacks
    saved: _Shape
    wanted: jax.ShapeDtypeStruct

    def target(self) -> jax.ShapeDtypeStruct:
        """Return what to read: its layers are split where the program splits them."""
        sharding = self.wanted.sharding
        entries = [*sharding.spec, *[None] * len(self.wanted.shape)][: len(self.wanted.shape)]
        entry = entries[self.stacks.wanted - 1]
        names = (entry,) if isinstance(entry, str) else entry or ()
        ways = prod(sharding.mesh.shape[name] for name in names)
        shape, last = list(self.saved), self.stacks.saved - 1
        shape[last] += -shape[last] % ways  # what is beyond the saved ones is zero
        spec = P(*[None] * last, entry, *entries[self.stacks.wanted :])
        return jax.ShapeDtypeStruct(
            tuple(shape), self.wanted.dtype, sharding=NamedSharding(sharding.mesh, spec)
        )

    def converted(self, array: jax.Array) -> jax.Array:
        """Return the leaf as the program stacks it."""
        stacks, wanted = self.stacks, self.wanted
        places, rest = wanted.shape[: stacks.wanted], wanted.shape[stacks.wanted :]

        def convert(array: jax.Array) -> jax.Array:
            saved = array[tuple(map(slice, self.saved[: stacks.saved]))]
            flat = saved.reshape(-1, *rest)[: stacks.layers]
            more = [(0, prod(places) - stacks.layers)] + [(0, 0)] * len(rest)
            return jnp.pad(flat, more).reshape(wanted.shape)

        converted = jax.jit(convert, out_shardings=wanted.sharding)(array)
        array.delete()  # there may be no room for both
        return converted
