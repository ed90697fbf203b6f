"""A mixture of experts as a textbook has it: every expert sees every token, and most count zero.

x [sequences, positions, d_model]; no sorting, no rows, no code of the trainers.
"""

from math import ceil
from typing import Any

import jax
import jax.numpy as jnp

from orchestrator.values.model import MixtureOfExperts, Model

Tree = Any


def mixture(
    x: jax.Array, layer: Tree, model: Model, of_router: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The mixture's addition to the stream, and its penalty, summed over tokens. A router may have
    an input of its own.
    """
    moe = model.moe
    assert moe is not None
    logits = (x if of_router is None else of_router) @ layer["router"] + layer.get(
        "router_bias", 0.0
    )
    scores = jax.nn.sigmoid(logits) if moe.router == "sigmoid" else jax.nn.softmax(logits)
    chosen = choices(moe, scores + layer.get("balance_bias", 0.0))
    weights = scores * chosen
    if moe.normalized:
        weights = weights / weights.sum(-1, keepdims=True)
    weights = moe.scale * weights * kept(moe, chosen) * layer.get("expert_scale", 1.0)
    out = jnp.zeros_like(x)
    for e in range(moe.experts):
        one = {name: layer[f"expert_{name}"][e] for name in names(model)}
        if moe.biases:
            one |= {f"{name}_bias": layer[f"expert_{name}_bias"][e] for name in names(model)}
        out = out + weights[..., e : e + 1] * mlp(x, one, model.activation)
    if moe.shared_experts:
        out = out + mlp(x, {name: layer[f"shared_{name}"] for name in names(model)})
    return out, penalty(moe, logits, scores, chosen)


def names(model: Model) -> tuple[str, ...]:
    return ("gate", "up", "down") if model.gated else ("up", "down")


def mlp(x: jax.Array, weights: Tree, activation: str | None = None) -> jax.Array:
    up = x @ weights["up"] + weights.get("up_bias", 0.0)
    if "gate" not in weights:
        inner = jax.nn.gelu(up)
    else:
        gate = x @ weights["gate"] + weights.get("gate_bias", 0.0)
        if activation == "clamped_swiglu":
            gate, up = (
                jnp.where(gate > 7, 7, gate),
                jnp.where(up > 7, 7, jnp.where(up < -7, -7, up)),
            )
            gate, up = gate / (1 + jnp.exp(-1.702 * gate)), up + 1
        else:
            gate = jax.nn.gelu(gate) if activation == "gelu" else jax.nn.silu(gate)
        inner = gate * up
    out: jax.Array = inner @ weights["down"] + weights.get("down_bias", 0.0)
    return out


def choices(moe: MixtureOfExperts, preference: jax.Array) -> jax.Array:
    """One where a token goes to an expert, zero elsewhere."""
    if moe.groups > 1:
        grouped = preference.reshape(*preference.shape[:-1], moe.groups, -1)
        count = 2 if moe.router == "sigmoid" else 1
        best = jnp.sort(grouped, axis=-1)[..., -count:].sum(-1)
        allowed = jnp.repeat(largest(best, moe.top_groups), grouped.shape[-1], axis=-1)
        preference = jnp.where(allowed > 0, preference, -jnp.inf)
    return jax.lax.stop_gradient(largest(preference, moe.top_k))


def largest(values: jax.Array, count: int) -> jax.Array:
    """One at the largest values, zero elsewhere."""
    place = jnp.argsort(jnp.argsort(-values, axis=-1), axis=-1)
    return (place < count).astype(jnp.float32)


def kept(moe: MixtureOfExperts, chosen: jax.Array) -> jax.Array:
    """Zero where an expert has taken as many earlier positions of the sequence as it can."""
    if moe.capacity_factor is None:
        return jnp.ones_like(chosen)
    length = chosen.shape[1]
    rows = ceil(moe.capacity_factor * length * moe.top_k / moe.experts)
    before = jnp.cumsum(chosen, axis=1) - chosen
    return (before < rows).astype(jnp.float32)


def penalty(
    moe: MixtureOfExperts, logits: jax.Array, scores: jax.Array, chosen: jax.Array
) -> jax.Array:
    """The load-balancing loss of each sequence and the z-loss of each token, summed over tokens."""
    scores = scores / scores.sum(-1, keepdims=True)
    shares = chosen.mean(1) / moe.top_k  # [b, E]
    balance = moe.experts * (shares * scores.mean(1)).sum(-1) * logits.shape[1]
    log_z = jnp.log(jnp.exp(logits).sum(-1))
    return moe.balance_loss * balance.sum() + moe.z_loss * (log_z**2).sum()
