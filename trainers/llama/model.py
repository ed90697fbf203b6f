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
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.decoder import BLOCK_INPUT, decoder
from orchestrator.network.description import Attention, Block, Mixture, Segment, Stack
from orchestrator.network.mlp import INPUTS
from orchestrator.network.mlp import kind_of as mlp_kind
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Model
from trainers.llama import zigzag
from trainers.llama.attention import Attend
from trainers.llama.axes import SEQUENCE, TENSOR
from trainers.llama.checkpoint_policy import policy
from trainers.llama.collectives import (
    all_gather,
    gather_matrix,
    reduce_in_backward,
    reduce_scatter,
    together_in_backward,
)
from trainers.llama.embedding import lookup
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

    @property
    def ways(self) -> int:
        return self.plan.mesh[SEQUENCE]

    def gather_matrix(self, shard: jax.Array, dimension: int) -> jax.Array:
        """A matrix gathered from the chips along `fsdp` and `sequence`."""
        precision = self.plan.precision
        return gather_matrix(
            shard, dimension, DTYPES[precision.compute], DTYPES[precision.gradients]
        )


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
    added, routed = mixture_part(runtime.gather_matrix, kind.mlp, moe, layer, y)
    return x + added, routed


def attention_part(
    runtime: Runtime, kind: Attention, layer: Parameters, y: jax.Array, angles: jax.Array
) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    shards = [layer[name] for name in ("query", "key", "value")]  # [D/X, heads of each, H]
    made = [in_order(product) for product in products_of(runtime, y, shards)]
    q, k, v = (x.reshape(*x.shape[:2], -1, runtime.plan.model.head_dim) for x in made)
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
    kind = mlp_kind(runtime.plan.model)
    products = products_of(runtime, y, [layer[name] for name in INPUTS[kind]])
    hidden = activation(runtime.plan.model, products)  # [Y, b, S/(s Y), F/Y]
    return matmul_reduce_scatter(hidden, runtime.gather_matrix(layer["down"], 1))


def products_of(runtime: Runtime, y: jax.Array, shards: list[jax.Array]) -> list[jax.Array]:
    """Products [Y, b, S/(s Y), F] of y [b, S/(s Y), D] and matrices [D/X, ...], each of size F.

    Over a ring they are one product, which hides the hops. Without a ring that would only cost
    copies: to join the matrices, to part the results, and to join their gradients.
    """
    matrices = [shard.reshape(shard.shape[0], -1) for shard in shards]
    if jax.lax.axis_size(TENSOR) == 1:
        return [all_gather_matmul(y, runtime.gather_matrix(one, 0)) for one in matrices]
    joined = all_gather_matmul(y, runtime.gather_matrix(jnp.concatenate(matrices, axis=1), 0))
    ends = np.cumsum([one.shape[1] for one in matrices])
    return jnp.split(joined, ends[:-1], axis=-1)


def activation(model: Model, products: list[jax.Array]) -> jax.Array:
    """The input of the MLP's last matmul, from the products of its first matmuls."""
    return activate(mlp_kind(model), products)


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
