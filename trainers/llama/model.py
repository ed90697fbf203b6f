"""The forward pass as each chip runs it, every collective in sight.

    b sequences, S positions split s ways over `sequence`, D d_model, F d_ff, N heads, K kv heads,
    H head_dim, V vocabulary; Y ways of `tensor` (kv heads: K/Y, at least one)

Between blocks the residual stream is split over `tensor` too, by position: [b, S/(s Y), D].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.decoder import BLOCK_INPUT, decoder
from orchestrator.network.description import Attention, Block, Mixture, Segment, Stack
from orchestrator.network.mlp import INPUTS
from orchestrator.network.mlp import kind_of as mlp_kind
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Model
from trainers.llama import zigzag
from trainers.llama.attention import Attend
from trainers.llama.axes import SEQUENCE, TENSOR, WEIGHTS, WEIGHTS_OF_EXPERTS
from trainers.llama.checkpoint_policy import policy
from trainers.llama.collectives import (
    all_gather,
    gather_matrix,
    reduce_in_backward,
    reduce_scatter,
    together_in_backward,
)
from trainers.llama.embedding import lookup
from trainers.llama.grouped import Grouped
from trainers.llama.loss import Loss, token_loss
from trainers.llama.mixture import Routed, mixture_part
from trainers.llama.mlp import activate
from trainers.llama.parameters import Parameters, shardings
from trainers.llama.ring import all_gather_matmul, in_arrival_order, in_order, matmul_reduce_scatter

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


@dataclass(frozen=True)
class Runtime:
    """A plan's model and the attention kernels of its platform, by the window of a block."""

    plan: Plan
    kernels: Mapping[int | None, Attend]
    grouped: Grouped

    @property
    def ways(self) -> int:
        return self.plan.mesh[SEQUENCE]

    def gather_matrix(self, shard: jax.Array, dimension: int) -> jax.Array:
        """A matrix gathered from the chips that split its d_model."""
        return self._gathered(shard, dimension, WEIGHTS)

    def gather_experts(self, shard: jax.Array, dimension: int) -> jax.Array:
        """The same for matrices of this chip's experts."""
        return self._gathered(shard, dimension, WEIGHTS_OF_EXPERTS)

    def _gathered(self, shard: jax.Array, dimension: int, axes: tuple[str, ...]) -> jax.Array:
        precision = self.plan.precision
        types = DTYPES[precision.compute], DTYPES[precision.gradients]
        return gather_matrix(shard, dimension, *types, axes)


def batch_loss(
    runtime: Runtime, parameters: Parameters, inputs: jax.Array, targets: jax.Array
) -> tuple[Loss, Routed | None]:
    """This chip's share of the loss summed over tokens, and what routers did with its tokens.

    inputs, targets [b, S/s]
    """
    parameters = _reduce_ends_on_the_way(runtime, parameters)
    x, routed = residual_stream(runtime, parameters, inputs)
    x = all_gather(norm(runtime, x, parameters["norm"]), TENSOR, 1)  # [b, S/s, D]
    shard = parameters["embedding" if runtime.plan.model.tied else "unembedding"]
    x, shard = together_in_backward(x, shard)
    table = runtime.gather_matrix(shard, 1)  # [V/Y, D]
    tokens = x.reshape(-1, x.shape[-1])
    z_loss, vocab = runtime.plan.optimizer.z_loss, runtime.plan.model.vocab
    return token_loss(tokens, table, targets.reshape(-1), z_loss, vocab), routed


def residual_stream(
    runtime: Runtime, parameters: Parameters, words: jax.Array
) -> tuple[jax.Array, Routed | None]:
    """Words [b, S/s] -> the residual stream after the last block [b, S/(s Y), D]."""
    table = runtime.gather_matrix(parameters["embedding"], 1)  # [V/Y, D]
    x = reduce_scatter(lookup(table, words), TENSOR, 1)  # [b, S/(s Y), D]
    angles = rotary_angles(runtime)  # [S/s, H/2]

    every = []
    for segment in decoder(runtime.plan.model).segments:
        x, routed = pattern_of_blocks(runtime, segment, parameters, x, angles)
        every += routed
    return x, jax.tree.map(lambda *rows: jnp.concatenate(rows), *every) if every else None


def pattern_of_blocks(
    runtime: Runtime, segment: Segment, parameters: Parameters, x: jax.Array, angles: jax.Array
) -> tuple[jax.Array, list[Routed]]:
    """The layers of a segment: a loop over the repeats of its pattern."""

    def step(x: jax.Array, repeat: list[Parameters]) -> tuple[jax.Array, list[Routed]]:
        every = []
        for stack, layer in zip(segment.stacks, repeat, strict=True):
            one = partial(block_of_stack, runtime, stack, angles)
            remat = policy(runtime.plan.remat)
            x, routed = jax.checkpoint(one, prevent_cse=False, policy=remat)(x, layer)
            every += [routed] if routed else []
        return x, every

    return jax.lax.scan(step, x, [parameters[stack.name] for stack in segment.stacks])


def block_of_stack(
    runtime: Runtime, stack: Stack, angles: jax.Array, x: jax.Array, layer: Parameters
) -> tuple[jax.Array, Routed | None]:
    """One block; if the plan reduces per layer, the backward pass reduces its gradients."""
    layer = _reduce_layer_on_the_way(runtime, stack, layer)
    return block(runtime, stack.block, layer, x, angles)


def block(
    runtime: Runtime, kind: Block, layer: Parameters, x: jax.Array, angles: jax.Array
) -> tuple[jax.Array, Routed | None]:
    """One transformer block. x [b, S/(s Y), D], layer: one layer's shards."""
    x = checkpoint_name(x, BLOCK_INPUT)
    y = norm(runtime, x, layer["attention_norm"])
    x = x + attention_part(runtime, kind.attention, layer, y, angles)
    x = checkpoint_name(x, "mlp_input")
    y = norm(runtime, x, layer["mlp_norm"])
    moe = runtime.plan.model.moe
    if moe is None or not isinstance(kind.mlp, Mixture):
        return x + mlp_part(runtime, layer, y), None
    added, routed = mixture_part(runtime, kind.mlp, moe, layer, y)
    return x + added, routed


def attention_part(
    runtime: Runtime, kind: Attention, layer: Parameters, y: jax.Array, angles: jax.Array
) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    shards = [layer[name] for name in ("query", "key", "value")]  # [D/X, heads of each, H]
    made = in_order(all_gather_matmul(y, runtime.gather_matrix(concatenate_matrices(shards), 0)))
    made = made.reshape(
        *made.shape[:2], -1, runtime.plan.model.head_dim
    )  # [b, S/s, (N + 2 K)/Y, H]
    n, k = (shard.shape[1] for shard in shards[:2])
    q, k, v = jnp.split(made, [n, n + k], axis=2)
    q = checkpoint_name(rotate(q, angles), "query")  # [b, S/s, N/Y, H]
    k = checkpoint_name(rotate(k, angles), "key")  # [b, S/s, K/Y, H]
    v = checkpoint_name(v, "value")
    attend = runtime.kernels[kind.window]
    y = attend(q, zigzag.gather(k, runtime.ways), zigzag.gather(v, runtime.ways))
    shard = layer["output"]  # [N/Y, H, D/X]
    output = runtime.gather_matrix(shard.reshape(-1, shard.shape[-1]), 1)  # [N/Y H, D]
    return matmul_reduce_scatter(in_arrival_order(y.reshape(*y.shape[:2], -1)), output)


def mlp_part(runtime: Runtime, layer: Parameters, y: jax.Array) -> jax.Array:
    """The MLP's addition to the stream. y [b, S/(s Y), D]"""
    names = INPUTS[mlp_kind(runtime.plan.model)]
    shards = [layer[name] for name in names]  # [D/X, F/Y]
    products = all_gather_matmul(
        y, runtime.gather_matrix(concatenate_matrices(shards), 0)
    )  # Groups of 2 F/Y, or F/Y
    hidden = jax.tree.map(partial(activation, runtime.plan.model), products)
    return matmul_reduce_scatter(hidden, runtime.gather_matrix(layer["down"], 1))


def activation(model: Model, products: jax.Array) -> jax.Array:
    """The input of the MLP's last matmul, from the products of its first matmuls side by side."""
    kind = mlp_kind(model)
    return activate(kind, jnp.split(products, len(INPUTS[kind]), axis=-1))


def concatenate_matrices(shards: list[jax.Array]) -> jax.Array:
    """Matrices [D/X, ...] with the same input, as one: they travel and multiply together."""
    return jnp.concatenate([shard.reshape(shard.shape[0], -1) for shard in shards], axis=1)


def norm(runtime: Runtime, x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMSNorm over D, in fp32."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide**2, axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean_square + runtime.plan.model.norm_epsilon)
    return (normed * scale).astype(x.dtype)


def rotary_angles(runtime: Runtime) -> jax.Array:
    """RoPE angles of this chip's positions [S/s, H/2]."""
    model = runtime.plan.model
    exponents = jnp.arange(0, model.head_dim, 2) / model.head_dim
    positions = zigzag.own_positions(runtime.plan.batch.length, runtime.ways)
    return positions[:, None] * model.rope_theta**-exponents


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """RoPE: the halves of each head's vector, turned by the angles of its position."""
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


def _reduce_ends_on_the_way(runtime: Runtime, parameters: Parameters) -> Parameters:
    """All parameters; if the plan reduces per layer, the backward pass reduces the gradients of the
    ends, each by itself.
    """
    if runtime.plan.gradient_reduction != "per_layer":
        return parameters
    stacks = {stack.name for stack in decoder(runtime.plan.model).stacks}
    specs = {
        name: spec for name, spec in shardings(runtime.plan.model).items() if name not in stacks
    }
    reduced = {
        name: _reduced_together(runtime, {name: parameters[name]}, {name: spec})[name]
        for name, spec in specs.items()
    }
    return {**parameters, **reduced}


def _reduce_layer_on_the_way(runtime: Runtime, stack: Stack, layer: Parameters) -> Parameters:
    """A layer's parameters; likewise, and its gradients are reduced together."""
    if runtime.plan.gradient_reduction != "per_layer":
        return layer
    return _reduced_together(runtime, layer, shardings(runtime.plan.model)[stack.name])


def _reduced_together(runtime: Runtime, parameters: Parameters, specs: Parameters) -> Parameters:
    wire = DTYPES[runtime.plan.precision.gradients]
    leaves = [parameters[name] for name in specs]
    marked = reduce_in_backward(leaves, tuple(specs.values()), wire)
    return {**parameters, **dict(zip(specs, marked, strict=True))}
