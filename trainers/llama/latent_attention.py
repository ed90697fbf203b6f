"""Multi-head latent attention, as each chip runs it.

b sequences, S positions split s ways over `sequence`, N heads, R the rank of a latent;
Y ways of `tensor`

Each chip of a tensor group makes the latents of its own positions, and the group gathers them.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.description import LatentAttention, Matmul
from orchestrator.network.latent_attention import LATENT
from trainers.llama import zigzag
from trainers.llama.axes import TENSOR
from trainers.llama.collectives import all_gather
from trainers.llama.grouped_query import QueriesKeysValues, attended
from trainers.llama.norm import norm
from trainers.llama.parameters import Parameters
from trainers.llama.ring import in_order
from trainers.llama.rotary import rotate
from trainers.llama.runtime import Runtime


def latent_attention(
    runtime: Runtime, kind: LatentAttention, layer: Parameters, y: jax.Array
) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    return attended(runtime, kind, layer, queries_keys_values(runtime, kind, layer, y))


def queries_keys_values(
    runtime: Runtime, kind: LatentAttention, layer: Parameters, y: jax.Array
) -> QueriesKeysValues:
    """All positions of the tensor group: [b, S/s, N/Y, H] twice, [b, S/s, N/Y, V]."""
    query, key, value = kind.inputs
    *of_queries, of_keys_and_values, turned = (
        checkpoint_name(y @ runtime.gather_matrix(layer[matmul.weight.name], 0), LATENT)
        for matmul in kind.latents
    )
    source = norm(kind.query_latent_norm, layer, of_queries[0] if of_queries else y)
    [q] = heads_of(runtime, layer, source, query)
    source = norm(kind.kv_latent_norm, layer, of_keys_and_values)
    k, v = heads_of(runtime, layer, source, key, value)
    positions = zigzag.own_positions(runtime.plan.batch.length, runtime.ways)
    shared = rotate(kind.rotary, all_gather(turned, TENSOR, 1)[:, :, None], positions)
    k = jnp.concatenate([k, jnp.broadcast_to(shared, (*k.shape[:-1], shared.shape[-1]))], axis=-1)
    still, turning = q[..., : kind.nope], q[..., kind.nope :]
    q = jnp.concatenate([still, rotate(kind.rotary, turning, positions)], axis=-1)
    return q, k, v


def heads_of(
    runtime: Runtime, layer: Parameters, source: jax.Array, *matmuls: Matmul
) -> list[jax.Array]:
    """Heads [b, S/s, N/Y, H] of all positions, from sources [b, S/(s Y), R] of this chip's."""
    shards = [layer[matmul.weight.name] for matmul in matmuls]  # [R/X, N/Y, H]
    return [in_order(product) for product in runtime.products(source, shards, joined=2)]
