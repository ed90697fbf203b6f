"""The collectives of the trainer, with their backward passes where autodiff would choose others.
Every loss and gradient is this chip's part of a sum: the transpose of a gather is a reduce-scatter.
Every operation names the ledger's `line` that prices it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from orchestrator.network import mesh_axes as plan_axes
from orchestrator.network.mesh_axes import (
    GATHERED,
    LOGICAL_AXES,
    PIPELINE,
    between_slices,
    in_slice,
)
from orchestrator.planning.kernels import TILE
from orchestrator.values.plan import LineKind

# If there are fewer kv heads than chips in a tensor group, several chips have the same kv head. So
# the plan's `tensor` axis is two axes here: `tensor` splits the kv heads, `copies` repeats them.
COPIES = "copies"
MESH = (*plan_axes.AXES, COPIES)


def mesh_axes(logical_axis: str) -> tuple[str, ...]:
    """The mesh axes that split a logical axis; `copies` splits all but kv heads."""
    axes = LOGICAL_AXES[logical_axis]
    if axes[-1:] == LOGICAL_AXES[plan_axes.COPIED] and logical_axis != plan_axes.COPIED:
        return (*axes, COPIES)
    return axes


BATCH = mesh_axes("batch")
SEQUENCE = mesh_axes("length")
# The chips along which a matrix is split (the book's X); those between slices are innermost.
WEIGHTS = mesh_axes(GATHERED)
WEIGHTS_OVER_DCN = between_slices(WEIGHTS)
EXPERT = mesh_axes("experts")
WEIGHTS_OF_EXPERTS = mesh_axes(plan_axes.GATHERED_OF_EXPERTS)  # of each expert
TENSOR = mesh_axes("heads")  # the book's Y
VOCAB = mesh_axes("vocab")  # the stages of a pipeline, and TENSOR in each
# Chips that together have a copy of the parameters.
COPY = (*PIPELINE, *plan_axes.PARAMETER_AXES, COPIES)


@contextmanager
def line(kind: LineKind) -> Iterator[None]:
    """Name the operations inside after the ledger's line that prices them; the innermost counts."""
    with jax.named_scope(kind):
        yield


def platform(mesh: Mesh | AbstractMesh) -> str:
    """The platform of a mesh; one without devices is traced as a CPU's."""
    return "cpu" if isinstance(mesh, AbstractMesh) else str(mesh.devices.flat[0].platform)


def with_copies(mesh: Mesh | AbstractMesh, kv_heads: int) -> Mesh | AbstractMesh:
    """The plan's mesh with its last axis, `tensor`, split for that many kv heads."""
    *outer, tensor = mesh.axis_sizes
    heads = min(tensor, kv_heads)
    shape = (*outer, heads, tensor // heads)
    types = (jax.sharding.AxisType.Auto,) * len(MESH)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(shape, MESH, axis_types=types)
    return Mesh(mesh.devices.reshape(shape), MESH, axis_types=types)


_Axes = str | tuple[str, ...]
# The lines of a gather over these axes, and of the scatter that is its transpose.
_LINES: dict[_Axes, tuple[LineKind, LineKind]] = {
    TENSOR: ("activation_gather", "activation_scatter"),
    SEQUENCE: ("kv_gather", "kv_scatter"),
    EXPERT: ("expert_gather", "expert_scatter"),
    **{
        part(axes): ("weight_gather", "gradient_scatter")
        for axes in (WEIGHTS, WEIGHTS_OF_EXPERTS)
        for part in (in_slice, between_slices)
    },
}


def _parts(axes: _Axes) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The axes between slices and those inside, if there are several chips along both."""
    names = (axes,) if isinstance(axes, str) else axes
    across, inside = (
        between_slices(names),
        tuple(n for n in names if n not in between_slices(names)),
    )
    both = jax.lax.axis_size(across) > 1 and jax.lax.axis_size(inside) > 1
    return (across, inside) if both else None


_Leaves = list[jax.Array]  # parameters, or their gradients
_Shardings = tuple[P, ...]  # of each leaf


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def all_gather(x: jax.Array, axes: _Axes, dimension: int) -> jax.Array:
    if jax.lax.axis_size(axes) == 1:
        return x
    with line(_LINES[axes][0]) if axes in _LINES else nullcontext():
        if not (parts := _parts(axes)):
            return jax.lax.all_gather(x, axes, axis=dimension, tiled=True)
        # Only a chip's own part travels between slices: it is gathered there first.
        across, inside = parts
        own = jax.lax.all_gather(x, across, axis=dimension)
        parts_of_all = jax.lax.all_gather(own, inside, axis=dimension + 1)
        return parts_of_all.reshape(*x.shape[:dimension], -1, *x.shape[dimension + 1 :])


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def reduce_scatter(x: jax.Array, axes: _Axes, dimension: int) -> jax.Array:
    """Sum the chips' parts; each chip keeps its shard along a dimension."""
    # Reshaped to (chip, rest), or XLA pads the dimension on TPU, or uses an all-reduce if those
    # before it are 1. TPU cannot reduce-scatter over an odd number of chips.
    ways = jax.lax.axis_size(axes)
    if ways == 1:
        return x
    cut = x.reshape(*x.shape[:dimension], ways, -1, *x.shape[dimension + 1 :])
    with line(_LINES[axes][1]) if axes in _LINES else nullcontext():
        if parts := _parts(axes):
            across, inside = parts
            sizes = jax.lax.axis_size(across), jax.lax.axis_size(inside)
            cut = cut.reshape(*x.shape[:dimension], *sizes, *cut.shape[dimension + 1 :])
            own = reduce_scatter(cut, inside, dimension + 1)
            own = reduce_scatter(own, across, dimension)
            return own.reshape(*x.shape[:dimension], -1, *x.shape[dimension + 1 :])
        if ways % 2:
            total, mine = jax.lax.psum(cut, axes), jax.lax.axis_index(axes)
            return jax.lax.dynamic_index_in_dim(total, mine, dimension, keepdims=False)
        return jax.lax.psum_scatter(cut, axes, scatter_dimension=dimension)


all_gather.defvjp(
    lambda x, axes, dimension: (all_gather(x, axes, dimension), None),
    lambda axes, dimension, _, gradient: (reduce_scatter(gradient, axes, dimension),),
)
reduce_scatter.defvjp(
    lambda x, axes, dimension: (reduce_scatter(x, axes, dimension), None),
    lambda axes, dimension, _, gradient: (all_gather(gradient, axes, dimension),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def gather_matrix(
    shard: jax.Array, dimension: int, compute: Any, wire: Any, axes: tuple[str, ...] = WEIGHTS
) -> jax.Array:
    """A matrix gathered along d_model: in the compute type, and its gradient in `wire`."""
    # Only a chip's own part travels between slices: first of the gather, last of the scatter.
    with line("weight_gather"):
        own = all_gather(shard.astype(compute), between_slices(axes), dimension)
        return all_gather(own, in_slice(axes), dimension)


def scatter_matrix(
    gradient: jax.Array, dimension: int, wire: Any, axes: tuple[str, ...] = WEIGHTS
) -> jax.Array:
    """A matrix's gradient as this chip's part of the sum over chips, in the type it travels in."""
    sent, inside = gradient.astype(wire), in_slice(axes)
    if sent.shape[dimension] // jax.lax.axis_size(inside) % TILE[0] == 0:
        own = reduce_scatter(sent, inside, dimension)
    else:
        # XLA would split the operands of the gradient's product instead. Rows are a dimension of
        # the activations there, and parts of fewer than 128 cost copies of them. With the barrier
        # it splits the gradient, with its rows first, as the product can write them.
        first = jax.lax.optimization_barrier(jnp.moveaxis(sent, dimension, 0))
        own = jnp.moveaxis(reduce_scatter(first, inside, 0), 0, dimension)
    return reduce_scatter(own, between_slices(axes), dimension)


gather_matrix.defvjp(
    lambda shard, *how: (gather_matrix(shard, *how), jnp.empty((0,), shard.dtype)),
    lambda dimension, _, wire, axes, like, gradient: (
        scatter_matrix(gradient, dimension, wire, axes).astype(like.dtype),
    ),
)


def all_to_all(x: jax.Array, axis: _Axes, split: int, concatenated: int) -> jax.Array:
    """Part i of a dimension goes to chip i; the parts that arrive follow one another in another."""
    if jax.lax.axis_size(axis) == 1:
        return x
    with line("expert_exchange"):
        return jax.lax.all_to_all(x, axis, split, concatenated, tiled=True)


def all_reduce(x: jax.Array, axes: _Axes) -> jax.Array:
    return jax.lax.psum(x, axes) if jax.lax.axis_size(axes) > 1 else x


# Stages of a pipeline


def over_stages(x: jax.Array) -> jax.Array:
    """The sum over stages: inside each slice, then between slices."""
    with line("stage_exchange"):
        return all_reduce(all_reduce(x, in_slice(PIPELINE)), between_slices(PIPELINE))


def of_stages(x: jax.Array, dimension: int) -> jax.Array:
    """Everyone's x, of all stages."""
    with line("stage_exchange"):
        inside = all_gather(x, in_slice(PIPELINE), dimension)
        return all_gather(inside, between_slices(PIPELINE), dimension)


def from_stage(x: jax.Array, step: int, *, around: bool) -> jax.Array:
    """The array of the stage `step` before; `around`, the first stage's neighbour is the last."""
    stages = jax.lax.axis_size(PIPELINE)
    pairs = [(stage, (stage + step) % stages) for stage in range(stages)]
    if not around:
        pairs = [(stage, other) for stage, other in pairs if other - stage == step]
    with line("stage_exchange"):
        return jax.lax.ppermute(x, PIPELINE, pairs) if stages > 1 else x


def reduce_gradients(gradients: _Leaves, shardings: _Shardings, wire: Any) -> _Leaves:
    """The gradients of parameters, summed in fp32 over all chips that have a replica. First within
    one copy of all parameters, then over replicas: scatter over `data`, add over `pods`, gather
    back. So only 1/data of it crosses pods.
    """
    with line("gradient_reduction"):
        sums = []
        for gradient, sharding in zip(gradients, shardings, strict=True):
            # Over the chips that repeat a parameter: in a stage, over stages, then between slices.
            axes = replicated_axes(sharding)
            across = between_slices(axes)
            stages = in_slice(axis for axis in PIPELINE if axis in axes)
            inside = tuple(axis for axis in axes if axis not in (*across, *stages))
            own = all_reduce(all_reduce(gradient.astype(wire), inside), stages)
            sums.append(all_reduce(own, across))
        if jax.lax.axis_size("data") > 1:
            # One message with all gradients: each by itself would be padded for every chip.
            message = jnp.concatenate([gradient.reshape(-1) for gradient in sums])
            quantum = jax.lax.axis_size("data") * TILE[0] * TILE[1]
            padded = jnp.pad(message, (0, -message.size % quantum)).reshape(-1, *TILE)
            parts = all_reduce(reduce_scatter(padded, "data", 0), plan_axes.SLICE_REPLICAS)
            total = all_gather(parts, "data", 0).reshape(-1)
            ends = np.cumsum([gradient.size for gradient in sums])
            pieces = jnp.split(total[: message.size], ends[:-1])
            sums = [piece.reshape(like.shape) for piece, like in zip(pieces, sums, strict=True)]
        else:
            sums = [all_reduce(gradient, plan_axes.SLICE_REPLICAS) for gradient in sums]
        return [gradient.astype(jnp.float32) for gradient in sums]


def replicated_axes(sharding: P) -> tuple[str, ...]:
    """The axes, among those of one copy of all parameters, over which this one is repeated."""
    split = axes_of(sharding)
    return tuple(axis for axis in COPY if axis not in split)


def axes_of(entries: Iterable[Any]) -> tuple[str, ...]:
    """The mesh axes in entries of a sharding: None, a name, or several names."""
    named = [(entry,) if isinstance(entry, str) else entry or () for entry in entries]
    return tuple(name for names in named for name in names)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def reduce_in_backward(parameters: _Leaves, shardings: _Shardings, wire: Any) -> _Leaves:
    """The parameters unchanged; the backward pass reduces their gradients at once."""
    return parameters


def _reduce(shardings: _Shardings, wire: Any, _: None, gradients: _Leaves) -> tuple[_Leaves]:
    sums = reduce_gradients(gradients, shardings, wire)
    return ([total.astype(like.dtype) for total, like in zip(sums, gradients, strict=True)],)


reduce_in_backward.defvjp(lambda parameters, *_: (parameters, None), _reduce)


@jax.custom_vjp
def together_in_backward(x: Any, parameters: Any) -> tuple[Any, Any]:
    """Both unchanged; the backward pass continues from x once the parameters' gradients are ready:
    a delayed product or scatter would keep its operands, or the whole gradient, in memory.
    """
    return x, parameters


together_in_backward.defvjp(
    lambda x, parameters: ((x, parameters), None),
    lambda _, gradients: jax.lax.optimization_barrier(gradients),
)
