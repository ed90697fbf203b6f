"""The mesh axes as the trainer's bodies use them, from the one table of logical axes."""

import jax
from jax.sharding import AbstractMesh, Mesh

from orchestrator.network.mesh_axes import (
    AXES,
    COPIED,
    GATHERED,
    GATHERED_OF_EXPERTS,
    LOGICAL_AXES,
    PARAMETER_AXES,
    between_slices,
    in_slice,
)

# If there are fewer kv heads than chips in a tensor group, several chips have the same kv head. So
# the plan's `tensor` axis is two axes here: `tensor` splits the kv heads, `copies` repeats them.
COPIES = "copies"
MESH = (*AXES, COPIES)


def mesh_axes(logical_axis: str) -> tuple[str, ...]:
    """The mesh axes that split a logical axis; `copies` splits all but kv heads."""
    axes = LOGICAL_AXES[logical_axis]
    if axes == LOGICAL_AXES[COPIED] and logical_axis != COPIED:
        return (*axes, COPIES)
    return axes


BATCH = mesh_axes("batch")
(SEQUENCE,) = mesh_axes("length")
# The chips along which a matrix is split, inside a slice (the book's X) and between slices.
WEIGHTS, WEIGHTS_OVER_DCN = in_slice(mesh_axes(GATHERED)), between_slices(mesh_axes(GATHERED))
(EXPERT,) = mesh_axes("experts")
WEIGHTS_OF_EXPERTS = in_slice(mesh_axes(GATHERED_OF_EXPERTS))  # of each expert
TENSOR = mesh_axes("heads")  # the book's Y
COPY = (*PARAMETER_AXES, COPIES)  # the chips that together have one copy of the parameters


def with_copies(mesh: Mesh | AbstractMesh, kv_heads: int) -> Mesh | AbstractMesh:
    """The plan's mesh with its last axis, `tensor`, split for that many kv heads."""
    *outer, tensor = mesh.axis_sizes
    heads = min(tensor, kv_heads)
    shape = (*outer, heads, tensor // heads)
    types = (jax.sharding.AxisType.Auto,) * len(MESH)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(shape, MESH, axis_types=types)
    return Mesh(mesh.devices.reshape(shape), MESH, axis_types=types)
