"""Grouped-query attention, as each chip runs it.

b sequences, S positions split s ways over `sequence`, N heads, K kv heads, H head_dim;
Y ways of `tensor` (kv heads: K/Y, at least one)
"""

import jax
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.description import Attention, Norm
from trainers.llama import zigzag
from trainers.llama.axes import mesh_axes
from trainers.llama.mlp import with_biases
from trainers.llama.norm import norm, norm_of_heads
from trainers.llama.parameters import Parameters
from trainers.llama.ring import in_arrival_order, in_order, matmul_reduce_scatter
from trainers.llama.rotary import rotate
from trainers.llama.runtime import Runtime

QueriesKeysValues = tuple[jax.Array, jax.Array, jax.Array]


def grouped_query_attention(
    runtime: Runtime, kind: Attention, layer: Parameters, y: jax.Array
) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    return attended(runtime, kind, layer, queries_keys_values(runtime, kind, layer, y))


def attended(
    runtime: Runtime, kind: Attention, layer: Parameters, heads: QueriesKeysValues
) -> jax.Array:
    """What the output projection makes of the attention of queries, keys and values, by the names
    that a policy knows.
    """
    q, k, v = map(checkpoint_name, heads, ("query", "key", "value"))
    sinks = layer[kind.sinks.name] if kind.sinks else None
    attend = runtime.kernels[kind.scores]
    y = attend(
        q, zigzag.gather(k, runtime.ways), zigzag.gather(v, runtime.ways), sinks, runtime.documents
    )
    output = runtime.gather_rows(layer[kind.output.weight.name], 2)  # [D, N/Y, H]
    y = matmul_reduce_scatter(in_arrival_order(y), output)
    return y if kind.output.bias is None else y + layer[kind.output.bias.name].astype(y.dtype)


def queries_keys_values(
    runtime: Runtime, kind: Attention, layer: Parameters, y: jax.Array
) -> QueriesKeysValues:
    """All positions of the tensor group: [b, S/s, N/Y, H], [b, S/s, K/Y, H] twice."""
    shards = [layer[matmul.weight.name] for matmul in kind.inputs]  # [D/X, heads of each, H]
    products = with_biases(kind.inputs, layer, runtime.products(y, shards))
    q, k, v = map(in_order, products)
    positions = zigzag.own_positions(runtime.plan.batch.length, runtime.ways)
    q = rotate(kind.rotary, head_norm(kind.query_norm, layer, q, "heads"), positions)
    k = rotate(kind.rotary, head_norm(kind.key_norm, layer, k, "kv_heads"), positions)
    return q, k, v


def head_norm(kind: Norm | None, layer: Parameters, x: jax.Array, heads: str) -> jax.Array:
    """Queries or keys, each head normalized by itself, or all heads together."""
    if kind is not None and len(kind.scale.dimensions) == 2:
        return norm_of_heads(kind, layer, x, mesh_axes(heads))
    return norm(kind, layer, x)
