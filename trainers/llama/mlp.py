"""The activation functions of MLPs, and how their matrices are gathered."""

from collections.abc import Callable, Sequence

import jax
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.mlp import INPUTS

Gather = Callable[[jax.Array, int], jax.Array]  # a matrix's shard and its dimension of d_model

ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
    "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
    "gelu": jax.nn.gelu,
}


def activate(kind: str, products: Sequence[jax.Array]) -> jax.Array:
    """The input of an MLP's last matmul, from the products of its first matmuls."""
    named = zip(products, INPUTS[kind], strict=True)
    return ACTIVATIONS[kind](*(checkpoint_name(part, name) for part, name in named))
