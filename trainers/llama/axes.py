"""The mesh axes as the trainer's bodies use them, from the one table of logical axes."""

import jax
from jax.sharding import AbstractMesh, Mesh

from orchestrator.network.mesh_axes import AXES, COPIED, LOGICAL_AXES

# Where the kv heads are fewer than the chips of a tensor group, each stands on several of them. So
# the plan's `tensor` axis is two here: kv heads lie over `tensor`, repeated over `copies`.
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
WEIGHTS = mesh_axes("embed")  # the book's X
TENSOR = mesh_axes("heads")  # the book's Y
SLICE = (*WEIGHTS, *TENSOR)  # the chips that hold one copy of the parameters between them


def with_copies(mesh: Mesh | AbstractMesh, kv_heads: int) -> Mesh | AbstractMesh:
    """The plan's mesh with its last axis, `tensor`, split for that many kv heads."""
    *outer, tensor = mesh.axis_sizes
    heads = min(tensor, kv_heads)
    shape = (*outer, heads, tensor // heads)
    types = (jax.sharding.AxisType.Auto,) * len(MESH)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(shape, MESH, axis_types=types)
    return Mesh(mesh.devices.reshape(shape), MESH, axis_types=types)
