"""Trainer llama: the names of the mesh axes, as its bodies use them. Knows JAX's mesh alone."""

import jax
from jax.sharding import AbstractMesh, Mesh

# Where the kv heads are fewer than the chips of a tensor group, each stands on several of them. So
# the plan's `tensor` axis is seen here as two: kv heads lie over `tensor`, repeated over `copies`.
MESH = ("pods", "data", "fsdp", "sequence", "tensor", "copies")

BATCH = ("pods", "data", "fsdp")  # sequences
WEIGHTS = ("fsdp", "sequence")  # d_model of every matrix: the book's X
TENSOR = ("tensor", "copies")  # heads, d_ff, vocabulary: the book's Y
KV = "tensor"  # kv heads
SLICE = (*WEIGHTS, *TENSOR)  # the chips that hold one copy of the parameters between them


def with_copies(mesh: Mesh | AbstractMesh, kv_heads: int) -> Mesh | AbstractMesh:
    """The five-axis mesh with its `tensor` axis split for that many kv heads."""
    *outer, tensor = mesh.axis_sizes
    heads = min(tensor, kv_heads)
    shape = (*outer, heads, tensor // heads)
    types = (jax.sharding.AxisType.Auto,) * len(MESH)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(shape, MESH, axis_types=types)
    return Mesh(mesh.devices.reshape(shape), MESH, axis_types=types)
