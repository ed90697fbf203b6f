"""The mixture of experts of a block, as each chip runs it.

b sequences, S positions, T tokens of this chip, k choices of a token, E experts, D d_model, F d_ff
of an expert, C rows of an expert for each sequence, where a capacity factor limits them

Every chip of a tensor group routes all its tokens, and has a part of each expert's width. A row is
a token's numbers on their way through one expert. Dropless, rows lie in groups by expert, empty
ones last. With a capacity, experts have C rows: the last choices find none.
"""

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

from orchestrator.network.decoder import decoder
from orchestrator.network.description import MLP, Matmul, Mixture, Norm
from orchestrator.network.mesh_axes import ICI_AXES, PIPELINE
from orchestrator.network.mlp import BALANCE_BIAS, expert_rows
from orchestrator.planning.kernels import MOST_TILE, grouped_tile
from orchestrator.values.model import MixtureOfExperts
from orchestrator.values.plan import Plan
from trainers.llama import collectives
from trainers.llama.collectives import EXPERT, TENSOR, all_gather, all_reduce, line, reduce_scatter
from trainers.llama.layers import Grouped, Runtime, activate
from trainers.llama.parameters import Parameters, norm

# Which experts a token goes to, with what weights, and what keeps the experts evenly loaded


class Routing(NamedTuple):
    experts: jax.Array  # [b, S, k]
    weights: jax.Array  # [b, S, k] fp32
    penalty: jax.Array  # this chip's share of what is added to the loss summed over tokens
    load: jax.Array  # [E] choices of each expert


def _route(moe: MixtureOfExperts, logits: jax.Array, bias: jax.Array | None) -> Routing:
    """The experts of each token. logits [b, S, E] fp32, bias [E]"""
    sigmoid = moe.router == "sigmoid"
    scores = jax.nn.sigmoid(logits) if sigmoid else jax.nn.softmax(logits)
    preference = jax.lax.stop_gradient(scores if bias is None else scores + bias)
    if moe.groups > 1:
        # The preference for experts of the best groups; no other is chosen. A group is as good as
        # its best expert, and with a sigmoid as its two best together.
        grouped = preference.reshape(*preference.shape[:-1], moe.groups, -1)
        counted = min(2, grouped.shape[-1]) if sigmoid else 1
        best = jax.lax.top_k(grouped, counted)[0].sum(-1)
        chosen = jax.lax.top_k(best, moe.top_groups)[1]
        is_chosen = jax.nn.one_hot(chosen, moe.groups, dtype=bool).any(-2)
        preference = jnp.where(is_chosen[..., None], grouped, -jnp.inf).reshape(preference.shape)
    experts = jax.lax.top_k(preference, moe.top_k)[1]
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if moe.normalized:
        weights = weights / weights.sum(-1, keepdims=True)
    load = jax.nn.one_hot(experts, moe.experts, dtype=jnp.float32).sum((1, 2))  # [b, E]
    penalty = jnp.float32(0)  # summed over tokens
    if moe.balance_loss:
        # For each sequence E x the experts' shares of its choices times their mean scores: one
        # where all are alike.
        whole = jax.lax.stop_gradient(all_reduce(load, collectives.SEQUENCE))  # [b, E]
        shares = whole / whole.sum(-1, keepdims=True)
        relative = scores / scores.sum(-1, keepdims=True)
        penalty += moe.balance_loss * moe.experts * jnp.einsum("be,bse->", shares, relative)
    if moe.z_loss:
        # The squared logarithm of the softmax's denominator.
        penalty += moe.z_loss * jnp.sum(jax.nn.logsumexp(logits, axis=-1) ** 2)
    if bias is not None:
        penalty += _excess_in_backward(bias, load.sum(0))
    share = 1 / jax.lax.axis_size(TENSOR)  # every chip of a tensor group has the same tokens
    return Routing(experts, moe.scale * weights, share * penalty, share * load.sum(0))


@jax.custom_vjp
def _excess_in_backward(bias: jax.Array, load: jax.Array) -> jax.Array:
    """Zero. Its gradient of the bias is each expert's load beyond the mean."""
    # So what sums gradients over chips and microbatches adds up the load; the optimizer takes only
    # the sign.
    return jnp.float32(0)


_excess_in_backward.defvjp(
    lambda bias, load: (_excess_in_backward(bias, load), load),
    lambda load, gradient: (gradient * (load - load.mean()), None),
)


class Routed(NamedTuple):
    """What routers did with this chip's tokens, a row for each layer; each chip has its share."""

    penalty: jax.Array  # [layers] summed over tokens
    load: jax.Array  # [layers, E] choices of each expert
    dropped: jax.Array  # [layers] choices without a row


def mixture(
    runtime: Runtime, kind: Mixture, moe: MixtureOfExperts, layer: Parameters, y: jax.Array
) -> tuple[jax.Array, Routed]:
    """The mixture's addition to the stream. y [b, S/(s Y), D]"""
    parts, routed = mixture_parts(runtime, kind, moe, layer, all_gather(y, TENSOR, 1))
    added = [norm(after, layer, reduce_scatter(part, TENSOR, 1)) for part, after in parts]
    return sum(added[1:], added[0]), routed


def mixture_parts(
    runtime: Runtime,
    kind: Mixture,
    moe: MixtureOfExperts,
    layer: Parameters,
    x: jax.Array,
    through: Callable[..., tuple[jax.Array, jax.Array]] | None = None,
) -> tuple[list[tuple[jax.Array, Norm | None]], Routed]:
    """What this chip adds to the stream for x [b, S/s, D], each part with the norm of its sum.
    `through` takes the place of `_chosen_experts`.
    """
    of_experts, added_by_experts, of_router = kind.own_norms or (None, None, None)
    routed_x = norm(of_router, layer, x)
    if kind.router_scales:
        scale = layer[kind.router_scales[0].name] * x.shape[-1] ** -0.5
        routed_x = (routed_x * scale).astype(x.dtype)
    router = runtime.gather_matrix(layer["router"], 0)  # [D, E]
    with line("matmul"):
        logits = jnp.einsum("bsd,de->bse", routed_x, router, preferred_element_type=jnp.float32)
    if kind.router.bias is not None:
        logits = logits + layer[kind.router.bias.name]
    routing = _route(moe, logits, layer.get(BALANCE_BIAS))
    if kind.router_scales:
        scales = layer[kind.router_scales[1].name][routing.experts]
        routing = routing._replace(weights=routing.weights * scales)
    chosen_x = norm(of_experts, layer, x)
    through = through or _chosen_experts
    out, dropped = through(runtime, kind, moe, layer, chosen_x, routing)
    parts = [(out, added_by_experts)]
    if kind.shared is not None:
        # The output of the experts that every token goes to, or of the MLP.
        matrices = _gathered_each(runtime.gather_matrix, kind.shared, layer)
        shared_x = norm(kind.shared.before, layer, x)
        hidden = activate(kind.shared, [runtime.matmul(shared_x, matrix) for matrix in matrices])
        down = runtime.gather_matrix(layer[kind.shared.output.weight.name], 1)
        of_all = runtime.matmul(hidden, down)
        if kind.own_norms:
            parts.append((of_all, kind.shared.after))
        else:
            parts = [(out + of_all, None)]
    share = 1 / jax.lax.axis_size(TENSOR)
    return parts, Routed(routing.penalty, routing.load, share * dropped)


def _gathered_each(
    gather: Callable[[jax.Array, int], jax.Array], kind: MLP, layer: Parameters
) -> list[jax.Array]:
    """Matrices [..., D/X, F/Y] with the same input, each by itself: to join them costs copies."""
    names = [matmul.weight.name for matmul in kind.inputs]
    return [gather(layer[name], layer[name].ndim - 2) for name in names]


def _chosen_experts(
    runtime: Runtime,
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
        rows = _limited_rows(routing.experts, moe.experts, limit)
        out = _through_experts(tokens, weights, rows, partial(_exchanged, runtime, kind, layer))
        return out.reshape(x.shape), jnp.sum(rows.row == rows.choice.shape[0])
    everyones = all_gather(tokens, EXPERT, 0)
    chosen = routing.experts.reshape(-1, moe.top_k)
    with line("expert_gather"):
        experts = jax.lax.all_gather(chosen, EXPERT, tiled=True)
    # A row for each choice [T, k] of this chip's experts, with room for the most there can be.
    part, ways, _ = runtime.experts_apart
    own = moe.experts // ways
    flat = experts.reshape(-1) - part * own
    is_own = (flat >= 0) & (flat < own)
    expert = jnp.where(is_own, flat, own)
    order = jnp.argsort(expert, stable=True)
    room = experts.shape[0] * min(experts.shape[1], own)
    sizes = jnp.bincount(expert, length=own + 1)[:own].astype(jnp.int32)
    choice = jnp.where(jnp.arange(room) < sizes.sum(), order[:room], flat.size)
    row = jnp.where(is_own, jnp.argsort(order), room)
    rows = _MixtureRows(choice, row.reshape(experts.shape), sizes, complete=ways == 1)
    transform = partial(_own_experts, runtime, kind, layer, rows.sizes)
    out = _through_experts(everyones, all_gather(weights, EXPERT, 0), rows, transform)
    return reduce_scatter(out, EXPERT, 0).reshape(x.shape), jnp.int32(0)


def _exchanged(
    runtime: Runtime, kind: Mixture, layer: Parameters, rows: jax.Array, weights: jax.Array
) -> jax.Array:
    """Rows [E C b, D] sent to the chips of their experts, and what these make of them sent back."""
    count, ways = layer["expert_down"].shape[0], jax.lax.axis_size(EXPERT)

    def send(rows: jax.Array) -> jax.Array:
        by_expert = rows.reshape(ways * count, -1, rows.shape[-1])
        return collectives.all_to_all(by_expert, EXPERT, 0, 1).reshape(rows.shape)

    made = _own_experts(runtime, kind, layer, None, send(rows), send(weights))
    by_expert = made.reshape(count, -1, made.shape[-1])
    return collectives.all_to_all(by_expert, EXPERT, 1, 0).reshape(made.shape)


def _own_experts(
    runtime: Runtime,
    kind: Mixture,
    layer: Parameters,
    sizes: jax.Array | None,
    rows: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    """What this chip's experts make of rows [rows, D], which count by their weights [rows, 1]."""

    @line("matmul")
    def product(
        rows: jax.Array,
        weight: jax.Array,
        multiply: Callable[[jax.Array, jax.Array], jax.Array] = runtime.matmul,
    ) -> jax.Array:
        """Rows, expert after expert, times weights [E, D, F]."""
        if sizes is not None:
            return runtime.grouped(rows, weight, sizes)
        equal = rows.reshape(layer["expert_down"].shape[0], -1, rows.shape[-1])
        return multiply(equal, weight).reshape(-1, weight.shape[-1])

    def bias(matmul: Matmul, times: jax.Array) -> jax.Array | float:
        """`times` [rows, 1] the bias of each row's expert, as one more product, never narrow."""
        if matmul.bias is None:
            return 0.0
        vector = layer[matmul.bias.name][:, None].astype(times.dtype)
        return product(times, vector, jnp.matmul)

    matrices = _gathered_each(runtime.gather_experts, kind, layer)
    ones = jnp.ones_like(weights, rows.dtype)
    products = [
        product(rows, matrix) + bias(matmul, ones)
        for matrix, matmul in zip(matrices, kind.inputs, strict=True)
    ]  # [rows, F/Y]
    hidden = activate(kind, products) * weights
    down = runtime.gather_experts(layer[kind.output.weight.name], 2)
    share = (weights / runtime.experts_apart[2]).astype(rows.dtype)  # every chip adds the bias
    return product(hidden.astype(rows.dtype), down) + bias(kind.output, share)


def router_metrics(plan: Plan, routed: Routed) -> dict[str, jax.Array]:
    """Return the routers' losses, the share of dropped choices, each expert's load over the mean,
    and the busiest one's, mean over layers. Few numbers may cross pods: layers' own loads do not.
    """
    layers, experts = decoder(plan.model).mixture_layers, routed.load.shape[1]
    choices = float(plan.batch.tokens * plan.model.moe.top_k * layers)  # type: ignore[union-attr]
    # A stage of a pipeline has only its own layers; a place without a layer has no load.
    of_layer = tuple(axis for axis in ICI_AXES if axis not in PIPELINE)
    in_slice = all_reduce(routed.load, (*of_layer, collectives.COPIES))
    most = jnp.sum(in_slice.max(1) / jnp.maximum(in_slice.mean(1), 1e-30))
    replicas = jax.lax.axis_size(collectives.MESH) // jax.lax.axis_size(PIPELINE)
    busiest = most / layers / replicas
    sums = jnp.stack([routed.penalty.sum(), routed.dropped.sum(), busiest])
    penalty, dropped, busiest = all_reduce(sums, collectives.MESH)
    load = all_reduce(routed.load.sum(0), collectives.MESH) * experts / choices
    return {
        "router_loss": penalty / plan.batch.tokens,
        "dropped_share": dropped / choices,
        "busiest_expert": busiest,
        **{f"expert_load/{number}": share for number, share in enumerate(load)},
    }


# Rows: tokens on their way through experts


class _MixtureRows(NamedTuple):
    """Where each row comes from, and where it is needed. An index beyond the last is nothing."""

    choice: jax.Array  # [rows] of T k
    row: jax.Array  # [T, k] of rows
    sizes: jax.Array | None  # [E] of groups, one expert after another; None where all are equal
    complete: bool  # every choice has a row, and every row a choice


def _limited_rows(experts: jax.Array, count: int, rows: int) -> _MixtureRows:
    """`rows` rows for each expert and sequence, in the order of expert, sequence, row."""
    # Choices come in the order of positions; those that an expert has no row for are dropped.
    sequences, length, top_k = experts.shape
    choices = length * top_k
    flat = experts.reshape(sequences, choices)
    order = jnp.argsort(flat, axis=1, stable=True)
    # The place of a choice among those of its expert, and with it the row.
    load = jax.nn.one_hot(flat, count, dtype=jnp.int32).sum(1)  # [b, E]
    first = jnp.cumsum(load, axis=1) - load
    place = jnp.argsort(order, axis=1) - jnp.take_along_axis(first, flat, axis=1)
    row = (flat * sequences + jnp.arange(sequences)[:, None]) * rows + place
    row = jnp.where(place < rows, row, count * sequences * rows)
    # The choice in each row.
    source = jnp.minimum(first[..., None] + jnp.arange(rows), choices - 1)  # [b, E, C]
    choice = jnp.take_along_axis(order, source.reshape(sequences, -1), axis=1).reshape(source.shape)
    choice += jnp.arange(sequences)[:, None, None] * choices
    filled = jnp.arange(rows) < load[..., None]
    choice = jnp.where(filled, choice, sequences * choices).swapaxes(0, 1).reshape(-1)
    return _MixtureRows(choice, row.reshape(-1, top_k), None, complete=False)


def _through_experts(
    x: jax.Array,
    weights: jax.Array,
    rows: _MixtureRows,
    transform: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """Each token's weighted sum over its experts: x [T, D], weights [T, k] -> [T, D]. `transform`
    multiplies rows [rows, D] and, before its last matmul, weights [rows, 1].
    """
    token, complete = rows.choice // weights.shape[1], rows.complete
    row_x = _spread(complete, x, token, rows.row)
    row_weights = _spread(complete, weights.reshape(-1, 1), rows.choice, rows.row.reshape(-1, 1))
    return _collect(complete, transform(row_x, row_weights), token, rows.row)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spread(complete: bool, x: jax.Array, source: jax.Array, uses: jax.Array) -> jax.Array:
    """A row of x [n, D] for each of `source` [m], zero beyond the last -> [m, D]."""
    # The gradient of a row of x is the sum of those of its `uses` [n, r]: nothing is scattered.
    return _rows_at(complete, x, source)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _collect(complete: bool, rows: jax.Array, source: jax.Array, uses: jax.Array) -> jax.Array:
    """The way back of `_spread`: the sum of the rows at the `uses` of each token -> [n, D]."""
    # Its gradient is `_spread`, so that no gradient is repeated for each choice of a token.
    return _rows_at(complete, rows, uses).sum(1, dtype=jnp.float32).astype(rows.dtype)


def _rows_at(complete: bool, x: jax.Array, places: jax.Array) -> jax.Array:
    """Rows of x at `places`, zero beyond the last."""
    if complete:  # to make sure, the compiler would read and write everything once more
        return x.at[places].get(mode="promise_in_bounds")
    return x.at[places].get(mode="fill", fill_value=0)


_spread.defvjp(
    lambda complete, x, *places: (_spread(complete, x, *places), places),
    lambda complete, places, gradient: (_collect(complete, gradient, *places), None, None),
)
_collect.defvjp(
    lambda complete, rows, *places: (_collect(complete, rows, *places), places),
    lambda complete, places, gradient: (_spread(complete, gradient, *places), None, None),
)


# Grouped matmuls: rows, expert after expert, each times the weight of its expert


def grouped_on(platform: str) -> Grouped:
    return _grouped_on_tpu if platform == "tpu" else jax.lax.ragged_dot


@jax.custom_vjp
def _grouped_on_tpu(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    """The compiler has a kernel for it and for the gradient of the rows. For the gradient of the
    weights it multiplies all rows by all experts, so that takes a kernel of Pallas.
    """
    return jax.lax.ragged_dot(rows, weights, sizes)


def _backward(
    saved: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, sizes = saved
    d_rows = jax.lax.ragged_dot(gradient, weights.swapaxes(1, 2), sizes)
    count, *edges = weights.shape
    tile = gcd(rows.shape[0], int(grouped_tile(rows.shape[0], count)))
    tiling = (tile, *(min(edge, MOST_TILE) for edge in edges))
    d_weights = tgmm(rows.swapaxes(0, 1), gradient, sizes, weights.dtype, tiling)
    return d_rows, d_weights, None


_grouped_on_tpu.defvjp(lambda *operands: (_grouped_on_tpu(*operands), operands), _backward)
