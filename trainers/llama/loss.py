"""Next-token loss over a vocabulary split over stages and `tensor`, one chunk of tokens at a time:
the logits [M, V] are never whole, nor computed twice. M tokens of this tensor group, C tokens of a
chunk, D d_model, V/Y words of this chip; Y counts the stages too.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp

from orchestrator.planning.kernels import TILE, loss_chunks
from trainers.llama.collectives import TENSOR, VOCAB, all_gather, of_stages

_LOGIT_BYTES = 4
NO_WORD = -1  # the target of a place that predicts nothing
# Parts of the gradient of a table that is summed in each chunk: while one is summed, the next is
# computed.
_PARTS = 4

_Sums = tuple[jax.Array, jax.Array, jax.Array]  # the table's gradient, cross-entropy, penalty


class Loss(NamedTuple):
    """Sums over tokens. `objective` is the sum of the others, and only it has a gradient."""

    objective: jax.Array
    cross_entropy: jax.Array
    z_penalty: jax.Array


class SplitTable(NamedTuple):
    """How to gather a table from the chips that split its d_model, and to sum its gradient."""

    gather: Callable[[jax.Array], jax.Array]
    scatter: Callable[[jax.Array], jax.Array]


class Logits(NamedTuple):
    """How a loss is made."""

    z_loss: float  # the weight of its penalty
    vocab: int  # how many words there are
    chunk_tokens: int  # the fewest of a chunk
    cap: float | None = None  # of logits
    some_predict_nothing: bool = False
    # Each chunk sums its part of the table's gradient over chips: the whole one never exists.
    split: SplitTable | None = None


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def token_loss(x: jax.Array, table: jax.Array, targets: jax.Array, how: Logits) -> Loss:
    """This chip's share of the sum over tokens: the shares of a tensor group add up to it. x [M, D]
    and targets [M] are those of the group; table [D, V/Y] has the chip's words, or [D/X, V/Y] where
    `how` has a split. A token's penalty is how.z_loss x its log-sum-exp squared. Columns beyond
    `how.vocab` have no probability.
    """
    return _forward(x, table, targets, how)[0]


def _forward(
    x: jax.Array, table: jax.Array, targets: jax.Array, how: Logits
) -> tuple[Loss, tuple[jax.Array, jax.Array]]:
    stored, words = table, table.shape[1]
    if how.split is not None:
        table = how.split.gather(stored)
    chunks = int(loss_chunks(x.shape[0], _LOGIT_BYTES * words, how.chunk_tokens))
    size = x.shape[0] // chunks
    own_words = jax.lax.axis_index(VOCAB) * words + jnp.arange(words)
    # Parts of the table with about equally many words, in whole tiles except the last.
    tiles = -(-words // TILE[1])
    ends = [min(tiles * part // _PARTS * TILE[1], words) for part in range(_PARTS + 1)]
    parts = [(first, end) for first, end in pairwise(ends) if end > first]

    def step(carry: _Sums, chunk: tuple[jax.Array, jax.Array]) -> tuple[_Sums, jax.Array]:
        d_table, entropy, penalty = carry
        x, targets = chunk  # [C, D], [C]
        logits = jnp.einsum("cd,dv->cv", x, table, preferred_element_type=jnp.float32)
        slope_of_cap: jax.Array | float = 1.0
        if how.cap is not None:
            capped = jnp.tanh(logits / how.cap)
            logits, slope_of_cap = how.cap * capped, 1 - capped**2
        if words * jax.lax.axis_size(VOCAB) > how.vocab:
            logits = jnp.where(own_words < how.vocab, logits, -jnp.inf)
        hit = targets[:, None] == own_words
        # Log-sum-exp over all words and the target's logit, both [C], in one small exchange.
        mine = jnp.stack([jax.nn.logsumexp(logits, axis=1), jnp.where(hit, logits, 0).sum(1)])
        log_sums, target_logits = of_stages(all_gather(mine[:, None], TENSOR, 1), 1)  # [2, Y, C]
        log_sum, target = jax.nn.logsumexp(log_sums, axis=0), target_logits.sum(0)
        slope = 1 + 2 * how.z_loss * log_sum[:, None]
        d_logits = jnp.exp(logits - log_sum[:, None]) * slope - hit
        d_logits = d_logits * slope_of_cap if how.cap else d_logits
        if how.some_predict_nothing:
            predicts = targets != NO_WORD
            d_logits = jnp.where(predicts[:, None], d_logits, 0)
            log_sum, target = (jnp.where(predicts, logit, 0) for logit in (log_sum, target))
        d_logits = d_logits.astype(x.dtype)
        dx = jnp.einsum("cv,dv->cd", d_logits, table)
        # In fp32: of the whole table, or of this chip's rows.
        product = partial(jnp.einsum, "cd,cv->dv", preferred_element_type=jnp.float32)
        if how.split is None:
            d_table += product(x, d_logits)
        else:
            split = how.split
            rows = [split.scatter(product(x, d_logits[:, first:end])) for first, end in parts]
            d_table += jnp.concatenate(rows, axis=1).astype(jnp.float32)
        sums = entropy + (log_sum - target).sum(), penalty + (how.z_loss * log_sum**2).sum()
        return (d_table, *sums), dx  # of this chunk [C, D]

    every = x.reshape(chunks, size, x.shape[1]), targets.reshape(chunks, size)
    start = jnp.zeros(stored.shape, jnp.float32), jnp.float32(0), jnp.float32(0)
    (d_table, entropy, penalty), dx = jax.lax.scan(step, start, every)
    share = 1 / jax.lax.axis_size(VOCAB)
    loss = Loss(share * (entropy + penalty), share * entropy, share * penalty)
    return loss, (dx.reshape(x.shape), d_table.astype(stored.dtype))


def _backward(
    how: Logits, gradients: tuple[jax.Array, jax.Array], d_loss: Loss
) -> tuple[jax.Array, jax.Array, None]:
    """Each chip's gradient is through its own words; the group's gradients add up to the whole."""
    dx, d_table = gradients
    scale = d_loss.objective
    return (scale * dx).astype(dx.dtype), (scale * d_table).astype(d_table.dtype), None


token_loss.defvjp(_forward, _backward)
