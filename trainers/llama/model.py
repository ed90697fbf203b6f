"""The forward pass as each chip runs it, every collective in sight.

    b sequences, S positions split s ways over `sequence`, D d_model, F d_ff, N heads, K kv heads,
    H head_dim, V vocabulary; Y ways of `tensor` (kv heads: K/Y, at least one)

Between blocks the residual stream is split over `tensor` too, by position: [b, S/(s Y), D].
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.decoder import BLOCK_INPUT
from orchestrator.network.mlp import INPUTS
from orchestrator.network.mlp import kind_of as mlp_kind
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Model
from trainers.llama import zigzag
from trainers.llama.attention import Attend
from trainers.llama.axes import SEQUENCE, TENSOR
from trainers.llama.checkpoint_policy import policy
from trainers.llama.collectives import (
    matrix,
    reduced_in_backward,
    summed,
    together_in_backward,
    whole,
)
from trainers.llama.embedding import lookup
from trainers.llama.loss import Loss, token_loss
from trainers.llama.parameters import Parameters, shardings
from trainers.llama.ring import as_come, gathered_matmul, in_order, matmul_scattered

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


@dataclass(frozen=True)
class Runtime:
    """A plan's model and the attention kernel of its platform."""

    plan: Plan
    attend: Attend

    @property
    def ways(self) -> int:
        return self.plan.mesh[SEQUENCE]

    def matrix(self, shard: jax.Array, dimension: int) -> jax.Array:
        """A matrix gathered from the chips along `fsdp` and `sequence`."""
        precision = self.plan.precision
        return matrix(shard, dimension, DTYPES[precision.compute], DTYPES[precision.gradients])


def batch_loss(net: Runtime, parameters: Parameters, inputs: jax.Array, targets: jax.Array) -> Loss:
    """This chip's share of the loss summed over tokens. inputs, targets [b, S/s]."""
    parameters = _at_once(net, parameters, layers=False)
    x = stream(net, parameters, inputs)
    x = whole(norm(net, x, parameters["norm"]), TENSOR, 1)  # [b, S/s, D]
    shard = parameters["embedding" if net.plan.model.tied else "unembedding"]
    x, shard = together_in_backward(x, shard)
    table = net.matrix(shard, 1)  # [V/Y, D]
    tokens = x.reshape(-1, x.shape[-1])
    return token_loss(tokens, table, targets.reshape(-1), net.plan.optimizer.z_loss)


def stream(net: Runtime, parameters: Parameters, words: jax.Array) -> jax.Array:
    """Words [b, S/s] -> the residual stream after the last block [b, S/(s Y), D]."""
    table = net.matrix(parameters["embedding"], 1)  # [V/Y, D]
    x = summed(lookup(table, words), TENSOR, 1)  # [b, S/(s Y), D]
    angles = rotary_angles(net)  # [S/s, H/2]

    @partial(jax.checkpoint, prevent_cse=False, policy=policy(net.plan.remat))
    def step(x: jax.Array, layer: Parameters) -> tuple[jax.Array, None]:
        return block(net, _at_once(net, layer, layers=True), x, angles), None

    x, _ = jax.lax.scan(step, x, parameters["layers"])
    return x


def block(net: Runtime, layer: Parameters, x: jax.Array, angles: jax.Array) -> jax.Array:
    """One transformer block. x [b, S/(s Y), D], layer: one layer's shards."""
    x = checkpoint_name(x, BLOCK_INPUT)
    x = x + attention_part(net, layer, norm(net, x, layer["attention_norm"]), angles)
    x = checkpoint_name(x, "mid")
    return x + mlp_part(net, layer, norm(net, x, layer["mlp_norm"]))


def attention_part(net: Runtime, layer: Parameters, y: jax.Array, angles: jax.Array) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    shards = [layer[name] for name in ("query", "key", "value")]  # [D/X, heads of each, H]
    made = in_order(gathered_matmul(y, net.matrix(side_by_side(shards), 0)))
    made = made.reshape(*made.shape[:2], -1, net.plan.model.head_dim)  # [b, S/s, (N + 2 K)/Y, H]
    n, k = (shard.shape[1] for shard in shards[:2])
    q, k, v = jnp.split(made, [n, n + k], axis=2)
    q = checkpoint_name(rotated(q, angles), "q")  # [b, S/s, N/Y, H]
    k = checkpoint_name(rotated(k, angles), "k")  # [b, S/s, K/Y, H]
    v = checkpoint_name(v, "v")
    y = net.attend(q, zigzag.gather(k, net.ways), zigzag.gather(v, net.ways))
    shard = layer["output"]  # [N/Y, H, D/X]
    output = net.matrix(shard.reshape(-1, shard.shape[-1]), 1)  # [N/Y H, D]
    return matmul_scattered(as_come(y.reshape(*y.shape[:2], -1)), output)


def mlp_part(net: Runtime, layer: Parameters, y: jax.Array) -> jax.Array:
    """The MLP's addition to the stream. y [b, S/(s Y), D]"""
    names = INPUTS[mlp_kind(net.plan.model)]
    shards = [layer[name] for name in names]  # [D/X, F/Y]
    products = gathered_matmul(y, net.matrix(side_by_side(shards), 0))  # Groups of 2 F/Y, or F/Y
    hidden = jax.tree.map(partial(activation, net.plan.model), products)
    return matmul_scattered(hidden, net.matrix(layer["down"], 1))


ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
    "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
    "gelu": jax.nn.gelu,
}


def activation(model: Model, products: jax.Array) -> jax.Array:
    """The input of the MLP's last matmul, from the products of its first matmuls side by side."""
    kind = mlp_kind(model)
    parts = jnp.split(products, len(INPUTS[kind]), axis=-1)
    named = zip(parts, INPUTS[kind], strict=True)
    return ACTIVATIONS[kind](*(checkpoint_name(part, name) for part, name in named))


def side_by_side(shards: list[jax.Array]) -> jax.Array:
    """Matrices [D/X, ...] with the same input, as one: they travel and multiply together."""
    return jnp.concatenate([shard.reshape(shard.shape[0], -1) for shard in shards], axis=1)


def norm(net: Runtime, x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMSNorm over D, in fp32."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide**2, axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean_square + net.plan.model.norm_epsilon)
    return (normed * scale).astype(x.dtype)


def rotary_angles(net: Runtime) -> jax.Array:
    """RoPE angles of this chip's positions [S/s, H/2]."""
    model = net.plan.model
    exponents = jnp.arange(0, model.head_dim, 2) / model.head_dim
    positions = zigzag.here(net.plan.batch.length, net.ways)
    return positions[:, None] * model.rope_theta**-exponents


def rotated(x: jax.Array, angles: jax.Array) -> jax.Array:
    """RoPE: the halves of each head's vector, turned by the angles of its position."""
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


def _at_once(net: Runtime, parameters: Parameters, layers: bool) -> Parameters:
    """Where the plan reduces layer by layer, parameters whose gradients are reduced on the way.

    Those of a layer are reduced as one, the others as each is there.
    """
    if net.plan.gradient_reduction != "per_layer":
        return parameters
    wire = DTYPES[net.plan.precision.gradients]
    specs = shardings(net.plan.model)
    specs = specs["layers"] if layers else {k: v for k, v in specs.items() if k != "layers"}
    marked = dict(parameters)
    for names in [list(specs)] if layers else [[name] for name in specs]:
        leaves, their = [parameters[name] for name in names], tuple(specs[name] for name in names)
        marked |= zip(names, reduced_in_backward(leaves, their, wire), strict=True)
    return marked
