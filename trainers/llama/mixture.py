"""The mixture of experts of a block, as each chip runs it.

Every chip of a tensor group routes all tokens of the group, and has its part of the width of each
expert.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from orchestrator.network.description import Mixture
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.network.mixture import expert_rows
from orchestrator.types.moe import MixtureOfExperts
from orchestrator.types.plan import Plan
from trainers.llama.axes import COPIES, MESH, TENSOR
from trainers.llama.collectives import all_gather, all_reduce, reduce_scatter
from trainers.llama.experts import Rows, dropless_rows, limited_rows, multiply, through_experts
from trainers.llama.mlp import Gather, activate
from trainers.llama.parameters import Parameters
from trainers.llama.routing import Routing, route

SLICE = (*ICI_AXES, COPIES)


class Routed(NamedTuple):
    """What routers did with this chip's tokens, a row for each layer; each chip has its share."""

    penalty: jax.Array  # [layers] summed over tokens
    load: jax.Array  # [layers, E] choices of each expert
    dropped: jax.Array  # [layers] choices without a row


def mixture_part(
    gather: Gather, kind: Mixture, moe: MixtureOfExperts, layer: Parameters, y: jax.Array
) -> tuple[jax.Array, Routed]:
    """The mixture's addition to the stream. y [b, S/(s Y), D]"""
    x = all_gather(y, TENSOR, 1)  # [b, S/s, D]
    router = gather(layer["router"], 0)  # [D, E]
    logits = jnp.einsum("bsd,de->bse", x, router, preferred_element_type=jnp.float32)
    routing = route(moe, logits, layer.get("router_bias"))
    rows = rows_of(moe, routing, x.shape[1])
    tokens = x.reshape(-1, x.shape[-1])
    transform = partial(experts_part, gather, kind, layer, rows)
    out = through_experts(tokens, routing.weights.reshape(-1, moe.top_k), rows, transform)
    if kind.shared is not None:
        names = [matmul.weight.name for matmul in kind.shared.inputs]
        products = [tokens @ one for one in gathered_side_by_side(gather, layer, names)]
        down = gather(layer[kind.shared.output.weight.name], 1)
        out = out + activate(kind.kind, products) @ down
    share = 1 / jax.lax.axis_size(TENSOR)
    routed = Routed(routing.penalty, routing.load, share * rows.dropped)
    return reduce_scatter(out.reshape(x.shape), TENSOR, 1), routed


def rows_of(moe: MixtureOfExperts, routing: Routing, length: int) -> Rows:
    """The rows that tokens take through their experts."""
    limit = expert_rows(moe, length)
    if limit is None:
        return dropless_rows(routing.experts, moe.experts)
    return limited_rows(routing.experts, moe.experts, limit)


def experts_part(
    gather: Gather,
    kind: Mixture,
    layer: Parameters,
    rows: Rows,
    sent: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    """What experts do with rows [rows, D], which count by their weights [rows, 1]."""
    product = multiply(rows.sizes, layer["router"].shape[-1])
    names = [matmul.weight.name for matmul in kind.inputs]
    products = [
        product(sent, one) for one in gathered_side_by_side(gather, layer, names)
    ]  # [rows, F/Y]
    down = gather(layer[kind.output.weight.name], 2)
    hidden = activate(kind.kind, products) * weights
    return product(hidden.astype(sent.dtype), down)


def gathered_side_by_side(gather: Gather, layer: Parameters, names: list[str]) -> list[jax.Array]:
    """Matrices [..., D/X, F/Y] with the same input, gathered as one."""
    joined = jnp.concatenate([layer[name] for name in names], axis=-1)
    return jnp.split(gather(joined, joined.ndim - 2), len(names), axis=-1)


def router_metrics(plan: Plan, routed: Routed) -> dict[str, jax.Array]:
    """Of all tokens: the routers' losses, the share of choices that are dropped, each expert's load
    over the mean, and that of the busiest expert, mean over layers.

    Loads of single layers stay in their slice: only a few numbers may cross pods.
    """
    layers, experts = routed.load.shape
    choices = plan.batch.tokens * plan.model.moe.top_k * layers  # type: ignore[union-attr]
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
