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
from orchestrator.network.description import Mixture, Segment, Stack
from trainers.llama import attention_kernels, collectives
from trainers.llama.collectives import TENSOR, VOCAB, all_gather, line, over_stages, reduce_scatter
from trainers.llama.layers import Runtime, attention, mlp
from trainers.llama.loss import Logits, Loss, SplitTable, token_loss
from trainers.llama.mixture import Routed, mixture
from trainers.llama.parameters import DTYPES, Parameters, norm, shardings


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(table: jax.Array, words: jax.Array, on_gpu: bool) -> jax.Array:
    """Vectors [b, T, D] of words [b, T] from this chip's table [V/Y, D]; zero for others' words."""
    row, is_own = _own_rows(table, words)
    return jnp.where(is_own[..., None], table[row], 0)


def _lookup_backward(
    on_gpu: bool, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None]:
    table, words = saved
    row, is_own = _own_rows(table, words)
    # Summed in fp32, because a frequent word gets many small parts.
    parts = jnp.where(is_own[..., None], gradient, 0).astype(jnp.float32)
    zeros = jnp.zeros(table.shape, jnp.float32)
    if on_gpu:
        # The compiler for GPUs would make them before the layers' backward pass: a whole table.
        zeros = zeros + 0 * parts[0, 0, 0]
    return zeros.at[row].add(parts).astype(table.dtype), None


lookup.defvjp(
    lambda table, words, on_gpu: (lookup(table, words, on_gpu), (table, words)), _lookup_backward
)


def _own_rows(table: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of this chip's table, row 0 for others' words; and which words are its own."""
    rows = words - jax.lax.axis_index(VOCAB) * table.shape[0]
    is_own = (rows >= 0) & (rows < table.shape[0])
    return jnp.where(is_own, rows, 0), is_own


# The forward pass of cuDNN attention: the log-sum-exp among its results cannot be named.
_CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"


def batch_loss(
    runtime: Runtime, parameters: Parameters, batch: dict[str, jax.Array]
) -> tuple[Loss, Routed | None]:
    """This chip's share of the loss over tokens, and its routers' work; the batch is [b, S/s]."""
    runtime = with_documents(runtime, batch)
    # If the plan reduces per layer, the gradients of tables and norm are reduced each by itself.
    stacks = {stack.name for stack in runtime.network.stacks}
    for name, spec in shardings(runtime.training).items():
        if name not in stacks:
            reduced = _reduced_in_backward(runtime, {name: parameters[name]}, {name: spec})
            parameters = {**parameters, **reduced}
    x, routed_layers = embed(runtime, parameters, batch["inputs"]), list[Routed]()
    for segment in runtime.network.segments:
        x, routed = pattern_of_blocks(runtime, segment, parameters, x)  # [b, S/(s Y), D]
        routed_layers += routed
    return head_loss(runtime, parameters, x, batch["targets"]), joined(routed_layers)


def joined(routed_layers: list[Routed]) -> Routed | None:
    """The rows of all layers that have a router."""
    if not routed_layers:
        return None
    return jax.tree.map(lambda *rows: jnp.concatenate(rows), *routed_layers)


def with_documents(runtime: Runtime, batch: dict[str, jax.Array]) -> Runtime:
    if "documents" not in batch:
        return runtime
    own = batch["documents"]
    return replace(runtime, documents=(own, attention_kernels.gather(own, runtime.ways)))


def head_loss(runtime: Runtime, parameters: Parameters, x: jax.Array, targets: jax.Array) -> Loss:
    """This chip's share of the loss of the stream after the last block [b, S/(s Y), D]."""
    network, plan = runtime.network, runtime.training
    with line("elementwise"):
        x = norm(network.norm, parameters, x)
    x = all_gather(x, TENSOR, 1)  # [b, S/s, D]
    shard = parameters[network.head.name]
    x, shard = collectives.together_in_backward(x, shard)
    rows, split = jnp.moveaxis(shard, 1, 0), None
    if plan.loss_gradient == "per_chunk":
        split = SplitTable(partial(runtime.gather_matrix, dimension=0), runtime.scatter_rows)
    else:
        rows = runtime.gather_matrix(rows, 0)
    how = Logits(
        plan.optimizer.z_loss,
        plan.model.vocab,
        plan.loss_chunk_tokens,
        network.logit_cap,
        plan.data.separator is not None or runtime.some_predict_nothing,
        split,
    )
    with line("unembedding"):
        return token_loss(x.reshape(-1, x.shape[-1]), rows, targets.reshape(-1), how)


@line("elementwise")  # all operations between products and collectives
def embed(runtime: Runtime, parameters: Parameters, words: jax.Array) -> jax.Array:
    """Words [b, S/s] -> the residual stream before the first block [b, S/(s Y), D]."""
    table = runtime.gather_matrix(parameters["embedding"], 1)  # [V/Y, D]
    x = lookup(table, words, runtime.on_gpu)
    if runtime.network.positions is not None:
        learned = runtime.gather_matrix(parameters["positions"], 1)  # [P/Y, D]
        places = attention_kernels.own_positions(runtime.training.batch.length, runtime.ways)
        x = x + lookup(learned, jnp.broadcast_to(places, words.shape), runtime.on_gpu)
    x = over_stages(reduce_scatter(x, TENSOR, 1))  # [b, S/(s Y), D]
    if runtime.network.embedding_scale != 1:
        x = (x * runtime.network.embedding_scale).astype(x.dtype)
    return x


@line("elementwise")
def pattern_of_blocks(
    runtime: Runtime,
    segment: Segment,
    parameters: Parameters,
    x: jax.Array,
    is_filled: jax.Array | None = None,
    taken: Callable[[Stack, Parameters, jax.Array | None], Parameters] | None = None,
) -> tuple[jax.Array, list[Routed]]:
    """The layers of a segment: a loop over the repeats of its pattern. A repeat that is not filled
    passes its input on. `taken` gives the weights of a layer where these are not the parameters.
    """
    # Otherwise the compiler recomputes all layers of a pattern at once and holds the results. Where
    # slices share weights, it recomputes a layer while the loss is computed.
    waits = len(segment.stacks) > 1 or jax.lax.axis_size(collectives.WEIGHTS_OVER_DCN) > 1
    # Which tensors of a block stay for its backward pass, in HBM or on the host.
    remat = rematerialization.policy(runtime.training.remat)
    by_name = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[*remat.keep],
        names_which_can_be_offloaded=[*remat.offload],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def stays(primitive: Any, *operands: Any, **options: Any) -> Any:
        if primitive.name == _CUDNN_FORWARD:
            return not remat.recomputes("attention")
        return by_name(primitive, *operands, **options)

    def run(
        stack: Stack, x: jax.Array, layer: Parameters, place: jax.Array | None
    ) -> tuple[jax.Array, Routed | None]:
        return _block(runtime, stack, x, taken(stack, layer, place) if taken else layer)

    def step(
        entering: jax.Array, repeat: tuple[list[Parameters], jax.Array | None, jax.Array | None]
    ) -> tuple[jax.Array, list[Routed]]:
        x, routed_layers = entering, list[Routed]()
        layers, filled, place = repeat
        for stack, layer in zip(segment.stacks, layers, strict=True):
            block = jax.checkpoint(partial(run, stack), prevent_cse=waits, policy=stays)
            x, routed = block(x, layer, place)
            routed_layers += [routed] if routed else []
        if filled is None:
            return x, routed_layers
        x = jnp.where(filled, x, entering)
        return x, jax.tree.map(lambda value: jnp.where(filled, value, 0), routed_layers)

    layers = [parameters[stack.name] for stack in segment.stacks]
    places = jnp.arange(len(jax.tree.leaves(layers)[0])) if taken else None
    return jax.lax.scan(step, x, (layers, is_filled, places))


def _block(
    runtime: Runtime, stack: Stack, x: jax.Array, layer: Parameters
) -> tuple[jax.Array, Routed | None]:
    """One transformer block. x [b, S/(s Y), D], layer: one layer's shards."""
    kind, moe, routed = stack.block, runtime.plan.model.moe, None
    layer = _reduced_in_backward(runtime, layer, shardings(runtime.training)[stack.name])
    x = checkpoint_name(x, BLOCK_INPUT)
    added = attention(runtime, kind.attention, layer, norm(kind.attention.before, layer, x))
    x = x + norm(kind.attention.after, layer, added)
    x = checkpoint_name(x, kind.attention.output.output.name)
    y = norm(kind.mlp.before, layer, x)
    if moe is not None and isinstance(kind.mlp, Mixture):
        added, routed = mixture(runtime, kind.mlp, moe, layer, y)
    else:
        added = mlp(runtime, kind.mlp, layer, y)
    x = x + norm(kind.mlp.after, layer, added)
    if kind.scale is not None:  # no gradient moves it
        x = x * jax.lax.stop_gradient(layer[kind.scale.name]).astype(x.dtype)
    return x, routed


def _reduced_in_backward(runtime: Runtime, parameters: Parameters, specs: Parameters) -> Parameters:
    """The parameters. If the plan reduces per layer, the backward pass reduces their gradients."""
    if runtime.training.gradient_reduction != "per_layer":
        return parameters
    wire = DTYPES[runtime.plan.precision.gradients]
    leaves = [parameters[name] for name in specs]
    marked = collectives.reduce_in_backward(leaves, tuple(specs.values()), wire)
    return {**parameters, **dict(zip(specs, marked, strict=True))}
