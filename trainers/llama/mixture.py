"""The mixture of experts of a block, as each chip runs it.

Every chip of a tensor group routes all tokens of the group, and has its part of the width of each
expert.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from orchestrator.network.description import MLP, Matmul, Mixture
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.network.mlp import BALANCE_BIAS, expert_rows
from orchestrator.values.model import MixtureOfExperts
from orchestrator.values.plan import Plan
from trainers.llama.collectives import (
    COPIES,
    EXPERT,
    MESH,
    SEQUENCE,
    TENSOR,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from trainers.llama.experts import (
    Grouped,
    Multiply,
    dropless_rows,
    limited_rows,
    multiply,
    through_experts,
)
from trainers.llama.mlp import activate
from trainers.llama.parameters import Parameters

# Which experts a token goes to, with what weights, and what keeps the experts evenly loaded.


class Routing(NamedTuple):
    """The choices of tokens. `penalty` is added to the loss summed over tokens, each chip its
    share; `load` counts the choices of each expert.
    """

    experts: jax.Array  # [b, S, k]
    weights: jax.Array  # [b, S, k] fp32
    penalty: jax.Array
    load: jax.Array  # [E]


def route(moe: MixtureOfExperts, logits: jax.Array, bias: jax.Array | None) -> Routing:
    """The experts of each token. logits [b, S, E] fp32, bias [E]"""
    sigmoid = moe.router == "sigmoid"
    scores = jax.nn.sigmoid(logits) if sigmoid else jax.nn.softmax(logits)
    preference = scores if bias is None else scores + bias
    preference = jax.lax.stop_gradient(preference)
    if moe.groups > 1:
        preference = in_best_groups(moe, preference)
    experts = jax.lax.top_k(preference, moe.top_k)[1]
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if moe.normalized:
        weights = weights / weights.sum(-1, keepdims=True)
    load = jax.nn.one_hot(experts, moe.experts, dtype=jnp.float32).sum((1, 2))  # [b, E]
    penalty = balance_penalty(moe, scores, load) + z_penalty(moe, logits)
    if bias is not None:
        penalty += excess_in_backward(bias, load.sum(0))
    share = 1 / jax.lax.axis_size(TENSOR)  # every chip of a tensor group has the same tokens
    return Routing(experts, moe.scale * weights, share * penalty, share * load.sum(0))


def in_best_groups(moe: MixtureOfExperts, preference: jax.Array) -> jax.Array:
    """The preference for experts of the best groups; no other is chosen.

    A group is as good as its best expert, and with a sigmoid as its two best together.
    """
    grouped = preference.reshape(*preference.shape[:-1], moe.groups, -1)
    counted = min(2, grouped.shape[-1]) if moe.router == "sigmoid" else 1
    best = jax.lax.top_k(grouped, counted)[0].sum(-1)
    chosen = jax.lax.top_k(best, moe.top_groups)[1]
    is_chosen = jax.nn.one_hot(chosen, moe.groups, dtype=bool).any(-2)
    return jnp.where(is_chosen[..., None], grouped, -jnp.inf).reshape(preference.shape)


def balance_penalty(moe: MixtureOfExperts, scores: jax.Array, load: jax.Array) -> jax.Array:
    """For each sequence E x the experts' shares of its choices times their mean scores: one where
    all are alike. Summed over tokens.
    """
    if not moe.balance_loss:
        return jnp.float32(0)
    whole = jax.lax.stop_gradient(all_reduce(load, SEQUENCE))  # [b, E]
    shares = whole / whole.sum(-1, keepdims=True)
    scores = scores / scores.sum(-1, keepdims=True)
    return moe.balance_loss * moe.experts * jnp.einsum("be,bse->", shares, scores)


def z_penalty(moe: MixtureOfExperts, logits: jax.Array) -> jax.Array:
    """The squared logarithm of the softmax's denominator, summed over tokens."""
    if not moe.z_loss:
        return jnp.float32(0)
    return moe.z_loss * jnp.sum(jax.nn.logsumexp(logits, axis=-1) ** 2)


@jax.custom_vjp
def excess_in_backward(bias: jax.Array, load: jax.Array) -> jax.Array:
    """Zero. Its gradient of the bias is each expert's load beyond the mean.

    So the sums over chips and microbatches that gradients go through add up the load; the
    optimizer takes the sign alone.
    """
    return jnp.float32(0)


def _excess_backward(load: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None]:
    return gradient * (load - load.mean()), None


excess_in_backward.defvjp(
    lambda bias, load: (excess_in_backward(bias, load), load), _excess_backward
)


SLICE = (*ICI_AXES, COPIES)
Gather = Callable[[jax.Array, int], jax.Array]  # a matrix's shard and its dimension of d_model


class Gathers(Protocol):
    """How matrices are gathered: from their shards and the dimension of d_model; and how rows of
    experts are multiplied by them.
    """

    @property
    def grouped(self) -> Grouped: ...

    def gather_matrix(self, shard: jax.Array, dimension: int) -> jax.Array: ...

    def gather_experts(self, shard: jax.Array, dimension: int) -> jax.Array: ...


class Routed(NamedTuple):
    """What routers did with this chip's tokens, a row for each layer; each chip has its share."""

    penalty: jax.Array  # [layers] summed over tokens
    load: jax.Array  # [layers, E] choices of each expert
    dropped: jax.Array  # [layers] choices without a row


def mixture_part(
    gather: Gathers, kind: Mixture, moe: MixtureOfExperts, layer: Parameters, y: jax.Array
) -> tuple[jax.Array, Routed]:
    """The mixture's addition to the stream. y [b, S/(s Y), D]"""
    x = all_gather(y, TENSOR, 1)  # [b, S/s, D]
    router = gather.gather_matrix(layer["router"], 0)  # [D, E]
    logits = jnp.einsum("bsd,de->bse", x, router, preferred_element_type=jnp.float32)
    if kind.router.bias is not None:
        logits = logits + layer[kind.router.bias.name]
    routing = route(moe, logits, layer.get(BALANCE_BIAS))
    out, dropped = routed_part(gather, kind, moe, layer, x, routing)
    if kind.shared is not None:
        out = out + shared_part(gather, kind.shared, layer, x)
    share = 1 / jax.lax.axis_size(TENSOR)
    routed = Routed(routing.penalty, routing.load, share * dropped)
    return reduce_scatter(out, TENSOR, 1), routed


def shared_part(gather: Gathers, kind: MLP, layer: Parameters, x: jax.Array) -> jax.Array:
    """What the experts make that every token has."""
    names = [matmul.weight.name for matmul in kind.inputs]
    products = [x @ one for one in gathered_each(gather.gather_matrix, layer, names)]
    down = gather.gather_matrix(layer[kind.output.weight.name], 1)
    return activate(kind, products) @ down


def routed_part(
    gather: Gathers,
    kind: Mixture,
    moe: MixtureOfExperts,
    layer: Parameters,
    x: jax.Array,
    routing: Routing,
) -> tuple[jax.Array, jax.Array]:
    """What the chosen experts make of x [b, S/s, D], and how many choices none takes."""
    tokens, weights = x.reshape(-1, x.shape[-1]), routing.weights.reshape(-1, moe.top_k)
    limit = expert_rows(moe, x.shape[1])
    if limit is not None:
        rows = limited_rows(routing.experts, moe.experts, limit)
        out = through_experts(tokens, weights, rows, partial(sent_apart, gather, kind, layer))
        return out.reshape(x.shape), rows.dropped
    everyones = all_gather(tokens, EXPERT, 0)
    chosen = routing.experts.reshape(-1, moe.top_k)
    experts = jax.lax.all_gather(chosen, EXPERT, tiled=True)
    rows = dropless_rows(experts, moe.experts)
    transform = partial(experts_part, gather, kind, layer, rows.sizes)
    out = through_experts(everyones, all_gather(weights, EXPERT, 0), rows, transform)
    return reduce_scatter(out, EXPERT, 0).reshape(x.shape), jnp.int32(0)


def sent_apart(
    gather: Gathers, kind: Mixture, layer: Parameters, rows: jax.Array, weights: jax.Array
) -> jax.Array:
    """Rows [E C b, D] sent to the chips of their experts, and what these make of them sent back."""
    count, ways = layer["expert_down"].shape[0], jax.lax.axis_size(EXPERT)

    def send(rows: jax.Array) -> jax.Array:
        apart = rows.reshape(ways * count, -1, rows.shape[-1])
        return all_to_all(apart, EXPERT, 0, 1).reshape(rows.shape)

    made = experts_part(gather, kind, layer, None, send(rows), send(weights))
    apart = made.reshape(count, -1, made.shape[-1])
    return all_to_all(apart, EXPERT, 1, 0).reshape(made.shape)


def experts_part(
    gather: Gathers,
    kind: Mixture,
    layer: Parameters,
    sizes: jax.Array | None,
    rows: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    """What this chip's experts make of rows [rows, D], which count by their weights [rows, 1]."""
    product = multiply(gather.grouped, sizes, layer["expert_down"].shape[0])
    names = [matmul.weight.name for matmul in kind.inputs]
    matrices = gathered_each(gather.gather_experts, layer, names)
    ones = jnp.ones_like(weights, rows.dtype)
    products = [
        product(rows, one) + biased(product, matmul, layer, ones)
        for one, matmul in zip(matrices, kind.inputs, strict=True)
    ]  # [rows, F/Y]
    hidden = activate(kind, products) * weights
    down = gather.gather_experts(layer[kind.output.weight.name], 2)
    share = (weights / jax.lax.axis_size(TENSOR)).astype(rows.dtype)  # every chip adds the bias
    return product(hidden.astype(rows.dtype), down) + biased(product, kind.output, layer, share)


def biased(
    product: Multiply, matmul: Matmul, layer: Parameters, times: jax.Array
) -> jax.Array | float:
    """So many `times` [rows, 1] the bias of each row's expert, as one more product."""
    if matmul.bias is None:
        return 0.0
    return product(times, layer[matmul.bias.name][:, None].astype(times.dtype))


def gathered_each(gather: Gather, layer: Parameters, names: list[str]) -> list[jax.Array]:
    """Matrices [..., D/X, F/Y] with the same input, each gathered by itself: joined, they would be
    copied to join them, to part them, and to join their gradients.
    """
    return [gather(layer[name], layer[name].ndim - 2) for name in names]


def router_metrics(plan: Plan, routed: Routed) -> dict[str, jax.Array]:
    """Of all tokens: the routers' losses, the share of choices that are dropped, each expert's load
    over the mean, and that of the busiest expert, mean over layers.

    Loads of single layers stay in their slice: only a few numbers may cross pods.
    """
    layers, experts = routed.load.shape
    choices = float(plan.batch.tokens * plan.model.moe.top_k * layers)  # type: ignore[union-attr]
    in_slice = all_reduce(routed.load, SLICE)
    busiest = jnp.mean(in_slice.max(1) / in_slice.mean(1)) / jax.lax.axis_size(MESH)
    sums = jnp.stack([routed.penalty.sum(), routed.dropped.sum(), busiest])
    penalty, dropped, busiest = all_reduce(sums, MESH)
    load = all_reduce(routed.load.sum(0), MESH) * experts / choices
    return {
        "router_loss": penalty / plan.batch.tokens,
        "dropped_share": dropped / choices,
        "busiest_expert": busiest,
        **{f"expert_load/{e}": one for e, one in enumerate(load)},
    }
