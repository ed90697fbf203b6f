"""The MLP, as each chip runs it: F d_ff, split Y ways over `tensor`."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.description import MLP, Matmul
from orchestrator.values.model import Activation
from trainers.llama.collectives import TENSOR, together_in_backward
from trainers.llama.parameters import Parameters
from trainers.llama.ring import matmul_reduce_scatter
from trainers.llama.runtime import Runtime

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


CLAMP, GAIN = 7.0, 1.702  # of gpt-oss
FEW_TOKENS = 16_384  # of a device; docs/proof.md has what was compiled on either side


def clamped_swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    gate, up = jnp.minimum(gate, CLAMP), jnp.clip(up, -CLAMP, CLAMP)
    return gate * jax.nn.sigmoid(GAIN * gate) * (up + 1)


def mlp(runtime: Runtime, kind: MLP, layer: Parameters, y: jax.Array) -> jax.Array:
    """The MLP's addition to the stream. y [b, S/(s Y), D]"""
    shards, in_turn = [layer[one.weight.name] for one in kind.inputs], gradients_in_turn(runtime, y)
    products = runtime.products(y, shards, in_turn=in_turn)
    output = runtime.gather_rows(layer[kind.output.weight.name], 1)
    if in_turn:
        products, output = together_in_backward(products, output)
    hidden = activate(kind, with_biases(kind.inputs, layer, products))  # [Y, b, S/(s Y), F/Y]
    if jax.lax.axis_size(TENSOR) > 1:
        # Without a ring the activation is part of a product, from which this would part it.
        hidden, output = together_in_backward(hidden, output)
    y = matmul_reduce_scatter(hidden, output)
    return y if kind.output.bias is None else y + layer[kind.output.bias.name].astype(y.dtype)


def gradients_in_turn(runtime: Runtime, y: jax.Array) -> bool:
    """Whether the backward pass makes the gradient of each matrix before it goes on.

    The compiler would go on first, and hold what is for the gradient meanwhile. It may where sums
    over a whole pod run beside products, and few tokens make the products short: what comes after
    them hides the sums too.
    """
    return runtime.plan.loss_gradient == "at_end" or y.shape[0] * y.shape[1] > FEW_TOKENS


def with_biases(
    matmuls: Sequence[Matmul], layer: Parameters, products: Sequence[jax.Array]
) -> list[jax.Array]:
    """The products of these matmuls, with the bias of each that has one."""
    return [
        product if one.bias is None else product + layer[one.bias.name].astype(product.dtype)
        for one, product in zip(matmuls, products, strict=True)
    ]


def activate(kind: MLP, products: Sequence[jax.Array]) -> jax.Array:
    """The input of the last matmul, from the products of the first matmuls."""
    first, *others = (
        checkpoint_name(part, matmul.output.name)
        for part, matmul in zip(products, kind.inputs, strict=True)
    )
    if kind.activation == "clamped_swiglu":
        return clamped_swiglu(first, *others)
    inner = ACTIVATIONS[kind.activation](first)
    return inner * others[0] if others else inner
