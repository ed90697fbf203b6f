"""The MLP, as each chip runs it: F d_ff, split Y ways over `tensor`."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.description import MLP
from orchestrator.types.model import Activation
from trainers.llama.parameters import Parameters
from trainers.llama.ring import all_gather_matmul, matmul_reduce_scatter
from trainers.llama.runtime import Runtime, concatenate_matrices

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


def mlp(runtime: Runtime, kind: MLP, layer: Parameters, y: jax.Array) -> jax.Array:
    """The MLP's addition to the stream. y [b, S/(s Y), D]"""
    shards = [layer[matmul.weight.name] for matmul in kind.inputs]  # [D/X, F/Y]
    products = all_gather_matmul(
        y, runtime.gather_matrix(concatenate_matrices(shards), 0)
    )  # Groups of 2 F/Y, or F/Y
    biases = [layer[matmul.bias.name] for matmul in kind.inputs if matmul.bias]
    hidden = jax.tree.map(partial(activated, kind, biases), products)
    y = matmul_reduce_scatter(hidden, runtime.gather_matrix(layer[kind.output.weight.name], 1))
    return y if kind.output.bias is None else y + layer[kind.output.bias.name].astype(y.dtype)


def activated(kind: MLP, biases: list[jax.Array], products: jax.Array) -> jax.Array:
    """The input of the last matmul, from the products of the first matmuls side by side."""
    if biases:
        products += jnp.concatenate(biases).astype(products.dtype)
    return activate(kind, jnp.split(products, len(kind.inputs), axis=-1))


def activate(kind: MLP, products: Sequence[jax.Array]) -> jax.Array:
    """The same, from the products one by one."""
    first, *others = (
        checkpoint_name(part, matmul.output.name)
        for part, matmul in zip(products, kind.inputs, strict=True)
    )
    inner = ACTIVATIONS[kind.activation](first)
    return inner * others[0] if others else inner
