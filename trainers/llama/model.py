"""The forward pass as each chip runs it, every collective in sight.

    b sequences, S positions split s ways over `sequence`, D d_model, F d_ff, N heads, K kv heads,
    H head_dim, V vocabulary; Y ways of `tensor` (kv heads: K/Y, at least one)

Between blocks the residual stream is split over `tensor` too, by position: [b, S/(s Y), D].
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network import rematerialization
from orchestrator.network.decoder import BLOCK_INPUT
from orchestrator.network.description import Block, LatentAttention, Mixture, Segment, Stack
from orchestrator.values.spec import Remat
from trainers.llama import attention_kernels
from trainers.llama.attention_layers import grouped_query_attention, latent_attention
from trainers.llama.collectives import (
    TENSOR,
    WEIGHTS_OVER_DCN,
    all_gather,
    reduce_in_backward,
    reduce_scatter,
    together_in_backward,
)
from trainers.llama.loss import Logits, Loss, SplitTable, token_loss
from trainers.llama.mixture import Routed, mixture_part
from trainers.llama.mlp import mlp
from trainers.llama.parameters import Parameters, norm, shardings
from trainers.llama.runtime import DTYPES, Runtime

# Word vectors from a vocabulary split over `tensor`.


@jax.custom_vjp
def lookup(table: jax.Array, words: jax.Array) -> jax.Array:
    """Vectors [b, T, D] of words [b, T] from this chip's table [V/Y, D]; zero for others' words.

    Its gradient is summed in fp32, because a frequent word gets many small parts.
    """
    own, is_own = _own(table, words)
    return jnp.where(is_own[..., None], table[own], 0)


def _forward(table: jax.Array, words: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return lookup(table, words), (table, words)


def _backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None]:
    table, words = saved
    own, is_own = _own(table, words)
    parts = jnp.where(is_own[..., None], gradient, 0).astype(jnp.float32)
    return jnp.zeros(table.shape, jnp.float32).at[own].add(parts).astype(table.dtype), None


lookup.defvjp(_forward, _backward)


def _own(table: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of this chip's table, row 0 for others' words; and which words are its own."""
    rows = words - jax.lax.axis_index(TENSOR) * table.shape[0]
    is_own = (rows >= 0) & (rows < table.shape[0])
    return jnp.where(is_own, rows, 0), is_own


# The plan's rematerialization policy, as a `jax.checkpoint` policy.


ATTENTION = "attention"
# The forward pass of cuDNN attention: the log-sum-exp among its results cannot be named.
CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"


def policy(remat: Remat) -> Callable[..., Any]:
    """Which tensors of a block stay for its backward pass, in HBM or on the host."""
    plan = rematerialization.policy(remat)
    by_name = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[*plan.keep],
        names_which_can_be_offloaded=[*plan.offload],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def decide(primitive: Any, *operands: Any, **parameters: Any) -> Any:
        if primitive.name == CUDNN_FORWARD:
            return not plan.recomputes(ATTENTION)
        return by_name(primitive, *operands, **parameters)

    return decide


def batch_loss(
    runtime: Runtime, parameters: Parameters, batch: dict[str, jax.Array]
) -> tuple[Loss, Routed | None]:
    """This chip's share of the loss summed over tokens, and what routers did with its tokens.

    inputs, targets and, where there are several, documents [b, S/s]
    """
    inputs, targets = batch["inputs"], batch["targets"]
    if "documents" in batch:
        own = batch["documents"]
        runtime = replace(runtime, documents=(own, attention_kernels.gather(own, runtime.ways)))
    parameters = _reduce_ends_on_the_way(runtime, parameters)
    x, routed = residual_stream(runtime, parameters, inputs)
    network, plan = runtime.network, runtime.plan
    x = all_gather(norm(network.norm, parameters, x), TENSOR, 1)  # [b, S/s, D]
    shard = parameters[network.head.name]
    x, shard = together_in_backward(x, shard)
    rows, split = jnp.moveaxis(shard, 1, 0), None
    if plan.loss_gradient == "per_chunk":
        split = SplitTable(partial(runtime.gather_matrix, dimension=0), runtime.scatter_rows)
    else:
        rows = runtime.gather_matrix(rows, 0)
    tokens = x.reshape(-1, x.shape[-1])
    gaps = "documents" in batch or runtime.some_predict_nothing
    how = Logits(
        plan.optimizer.z_loss,
        plan.model.vocab,
        plan.loss_chunk_tokens,
        network.logit_cap,
        gaps,
        split,
    )
    return token_loss(tokens, rows, targets.reshape(-1), how), routed


def residual_stream(
    runtime: Runtime, parameters: Parameters, words: jax.Array
) -> tuple[jax.Array, Routed | None]:
    """Words [b, S/s] -> the residual stream after the last block [b, S/(s Y), D]."""
    table = runtime.gather_matrix(parameters["embedding"], 1)  # [V/Y, D]
    x = reduce_scatter(lookup(table, words), TENSOR, 1)  # [b, S/(s Y), D]
    if runtime.network.embedding_scale != 1:
        x = (x * runtime.network.embedding_scale).astype(x.dtype)
    every = []
    for segment in runtime.network.segments:
        x, routed = pattern_of_blocks(runtime, segment, parameters, x)
        every += routed
    return x, jax.tree.map(lambda *rows: jnp.concatenate(rows), *every) if every else None


def pattern_of_blocks(
    runtime: Runtime, segment: Segment, parameters: Parameters, x: jax.Array
) -> tuple[jax.Array, list[Routed]]:
    """The layers of a segment: a loop over the repeats of its pattern."""

    # Otherwise the compiler recomputes all layers of a pattern at once and holds the results. Where
    # slices share weights, it recomputes a layer while the loss is computed.
    waits = len(segment.stacks) > 1 or jax.lax.axis_size(WEIGHTS_OVER_DCN) > 1

    def step(x: jax.Array, repeat: list[Parameters]) -> tuple[jax.Array, list[Routed]]:
        every = []
        for stack, layer in zip(segment.stacks, repeat, strict=True):
            one = partial(block_of_stack, runtime, stack)
            remat = policy(runtime.plan.remat)
            x, routed = jax.checkpoint(one, prevent_cse=waits, policy=remat)(x, layer)
            every += [routed] if routed else []
        return x, every

    return jax.lax.scan(step, x, [parameters[stack.name] for stack in segment.stacks])


def block_of_stack(
    runtime: Runtime, stack: Stack, x: jax.Array, layer: Parameters
) -> tuple[jax.Array, Routed | None]:
    """One block; if the plan reduces per layer, the backward pass reduces its gradients."""
    layer = _reduce_layer_on_the_way(runtime, stack, layer)
    return block(runtime, stack.block, layer, x)


def block(
    runtime: Runtime, kind: Block, layer: Parameters, x: jax.Array
) -> tuple[jax.Array, Routed | None]:
    """One transformer block. x [b, S/(s Y), D], layer: one layer's shards."""
    x = checkpoint_name(x, BLOCK_INPUT)
    attention, y = kind.attention, norm(kind.attention.before, layer, x)
    if isinstance(attention, LatentAttention):
        added = latent_attention(runtime, attention, layer, y)
    else:
        added = grouped_query_attention(runtime, attention, layer, y)
    x = x + norm(attention.after, layer, added)
    x = checkpoint_name(x, attention.output.output.name)
    y, moe, routed = norm(kind.mlp.before, layer, x), runtime.plan.model.moe, None
    if moe is not None and isinstance(kind.mlp, Mixture):
        added, routed = mixture_part(runtime, kind.mlp, moe, layer, y)
    else:
        added = mlp(runtime, kind.mlp, layer, y)
    return x + norm(kind.mlp.after, layer, added), routed


def _reduce_ends_on_the_way(runtime: Runtime, parameters: Parameters) -> Parameters:
    """All parameters; if the plan reduces per layer, the backward pass reduces the gradients of the
    ends, each by itself.
    """
    if runtime.plan.gradient_reduction != "per_layer":
        return parameters
    stacks = {stack.name for stack in runtime.network.stacks}
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
