"""Trainer llama: every parameter, with its shape, its sharding, and how it starts.

L layers, D d_model, F d_ff, N heads, K kv heads, H head_dim, V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from orchestrator.types.spec import Model
from trainers.llama.axes import KV, TENSOR, WEIGHTS

Parameters = dict[str, Any]  # as `leaves`, with arrays for leaves


@dataclass(frozen=True)
class Parameter:
    """A parameter. `deviation` is of its normal start; a norm scale has none: it starts at one."""

    shape: tuple[int, ...]
    sharding: P
    deviation: float | None

    @property
    def is_matrix(self) -> bool:
        return self.deviation is not None


def leaves(model: Model) -> dict[str, Any]:
    """All parameters. Those of the layers are stacked, to be scanned over."""
    d, v = model.d_model, model.vocab
    tables = {"embedding": Parameter((v, d), P(TENSOR, WEIGHTS), d**-0.5)}
    if not model.tied:
        tables["unembedding"] = Parameter((v, d), P(TENSOR, WEIGHTS), d**-0.5)
    return {**tables, "layers": layer_leaves(model), "norm": Parameter((d,), P(None), None)}


def layer_leaves(model: Model) -> dict[str, Parameter]:
    """One block's parameters, L of each. What writes to the residual stream starts smaller."""
    n_layers, d, f = model.layers, model.d_model, model.d_ff
    n, k, h = model.heads, model.kv_heads, model.head_dim
    into, out = d**-0.5, (2 * n_layers) ** -0.5
    block = {
        "attention_norm": Parameter((n_layers, d), P(None, None), None),
        "query": Parameter((n_layers, d, n, h), P(None, WEIGHTS, TENSOR, None), into),
        "key": Parameter((n_layers, d, k, h), P(None, WEIGHTS, KV, None), into),
        "value": Parameter((n_layers, d, k, h), P(None, WEIGHTS, KV, None), into),
        "output": Parameter(
            (n_layers, n, h, d), P(None, TENSOR, None, WEIGHTS), out * (n * h) ** -0.5
        ),
        "mlp_norm": Parameter((n_layers, d), P(None, None), None),
        "up": Parameter((n_layers, d, f), P(None, WEIGHTS, TENSOR), into),
        "down": Parameter((n_layers, f, d), P(None, TENSOR, WEIGHTS), out * f**-0.5),
    }
    if model.gated:
        block["gate"] = Parameter((n_layers, d, f), P(None, WEIGHTS, TENSOR), into)
    return block


def shardings(model: Model) -> Parameters:
    return jax.tree.map(lambda leaf: leaf.sharding, leaves(model))


def matrices(model: Model) -> Parameters:
    """Which parameters are matrices: these decay, norm scales do not."""
    return jax.tree.map(lambda leaf: leaf.is_matrix, leaves(model))


def start(model: Model, dtype: jnp.dtype, seed: jax.Array) -> Parameters:
    """Parameters before the first step: the same values on every mesh."""
    tree = leaves(model)
    keys = _keys(jax.random.key(seed), len(jax.tree.leaves(tree)))
    return jax.tree.map(lambda leaf: _start(leaf, dtype, next(keys)), tree)


def _keys(key: jax.Array, count: int) -> Iterator[jax.Array]:
    return iter(jax.random.split(key, count))


def _start(leaf: Parameter, dtype: jnp.dtype, key: jax.Array) -> jax.Array:
    if leaf.deviation is None:
        return jnp.ones(leaf.shape, dtype)
    return (leaf.deviation * jax.random.normal(key, leaf.shape)).astype(dtype)
