"""Which experts a token goes to, with what weights, and what keeps the experts evenly loaded.

    b sequences, S positions of this chip, E experts, k experts of a token (top_k)

The losses are of a sequence, so that neither the mesh nor microbatches change them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from orchestrator.types.moe import MixtureOfExperts
from trainers.llama.axes import SEQUENCE, TENSOR
from trainers.llama.collectives import all_reduce


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
