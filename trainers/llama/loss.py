"""Next-token loss over a vocabulary split over `tensor`, one chunk of tokens at a time.

    M tokens of this tensor group, C tokens of a chunk, D d_model, V/Y words of this chip

The whole logits [M, V] never exist. Each chunk computes loss and gradients in one pass, so that no
logits are computed twice.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from orchestrator.plan.kernel_constants import loss_chunk_bytes
from trainers.llama.axes import TENSOR
from trainers.llama.collectives import all_gather

LOGIT_BYTES = 4
NO_WORD = -1  # the target of a place that predicts nothing

Sums = tuple[jax.Array, jax.Array, jax.Array]  # the table's gradient, cross-entropy, penalty


class Loss(NamedTuple):
    """Sums over tokens. `objective` is the two others together, and alone has a gradient."""

    objective: jax.Array
    cross_entropy: jax.Array
    z_penalty: jax.Array


class Logits(NamedTuple):
    """How a loss is made: the weight of its penalty, how many words there are, the least tokens of
    a chunk, and a cap of logits.
    """

    z_loss: float
    vocab: int
    chunk_tokens: int
    cap: float | None = None
    some_predict_nothing: bool = False


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def token_loss(x: jax.Array, table: jax.Array, targets: jax.Array, how: Logits) -> Loss:
    """This chip's share of the sum over tokens: the shares of a tensor group add up to it.

    x [M, D] and targets [M] are the same on all chips of the group, table [D, V/Y] has the chip's
    own words. The penalty of a token is how.z_loss x its log-sum-exp squared. A column beyond
    `how.vocab` has no word, and no probability.
    """
    return _forward(x, table, targets, how)[0]


def _forward(
    x: jax.Array, table: jax.Array, targets: jax.Array, how: Logits
) -> tuple[Loss, tuple[jax.Array, jax.Array]]:
    words = table.shape[1]
    size = _chunk_tokens(x.shape[0], words, how.chunk_tokens)
    own_words = jax.lax.axis_index(TENSOR) * words + jnp.arange(words)

    def step(carry: Sums, chunk: tuple[jax.Array, jax.Array]) -> tuple[Sums, jax.Array]:
        d_table, entropy, penalty = carry
        x, targets = chunk  # [C, D], [C]
        logits = jnp.einsum("cd,dv->cv", x, table, preferred_element_type=jnp.float32)
        slope_of_cap: jax.Array | float = 1.0
        if how.cap is not None:
            capped = jnp.tanh(logits / how.cap)
            logits, slope_of_cap = how.cap * capped, 1 - capped**2
        if words * jax.lax.axis_size(TENSOR) > how.vocab:
            logits = jnp.where(own_words < how.vocab, logits, -jnp.inf)
        hit = targets[:, None] == own_words
        log_sum, target = _of_group(logits, hit)
        slope = 1 + 2 * how.z_loss * log_sum[:, None]
        d_logits = jnp.exp(logits - log_sum[:, None]) * slope - hit
        d_logits = d_logits * slope_of_cap if how.cap else d_logits
        if how.some_predict_nothing:
            predicts = targets != NO_WORD
            d_logits = jnp.where(predicts[:, None], d_logits, 0)
            log_sum, target = (jnp.where(predicts, one, 0) for one in (log_sum, target))
        d_logits = d_logits.astype(x.dtype)
        dx = jnp.einsum("cv,dv->cd", d_logits, table)
        d_table += jnp.einsum("cd,cv->dv", x, d_logits, preferred_element_type=jnp.float32)
        sums = entropy + (log_sum - target).sum(), penalty + (how.z_loss * log_sum**2).sum()
        return (d_table, *sums), dx  # of this chunk [C, D]

    chunks = x.reshape(-1, size, x.shape[1]), targets.reshape(-1, size)
    start = jnp.zeros(table.shape, jnp.float32), jnp.float32(0), jnp.float32(0)
    (d_table, entropy, penalty), dx = jax.lax.scan(step, start, chunks)
    share = 1 / jax.lax.axis_size(TENSOR)
    loss = Loss(share * (entropy + penalty), share * entropy, share * penalty)
    return loss, (dx.reshape(x.shape), d_table.astype(table.dtype))


def _backward(
    how: Logits, gradients: tuple[jax.Array, jax.Array], d_loss: Loss
) -> tuple[jax.Array, jax.Array, None]:
    """Each chip's gradient is through its own words; the group's gradients add up to the whole."""
    dx, d_table = gradients
    scale = d_loss.objective
    return (scale * dx).astype(dx.dtype), (scale * d_table).astype(d_table.dtype), None


token_loss.defvjp(_forward, _backward)


def _of_group(logits: jax.Array, hit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-sum-exp over all words and the target's logit, both [C], in one small exchange."""
    mine = jnp.stack([jax.nn.logsumexp(logits, axis=1), jnp.where(hit, logits, 0).sum(1)])
    log_sums, targets = all_gather(mine[:, None], TENSOR, 1)  # [2, Y, C]
    return jax.nn.logsumexp(log_sums, axis=0), targets.sum(0)


def _chunk_tokens(tokens: int, words: int, least: int) -> int:
    """The most tokens that divide all, with logits within the bytes that the plan counts."""
    most = int(loss_chunk_bytes(least, LOGIT_BYTES * words)) // (LOGIT_BYTES * words)
    return max(size for size in range(1, min(tokens, most) + 1) if tokens % size == 0)
