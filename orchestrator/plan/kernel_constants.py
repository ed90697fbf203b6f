"""Tile and chunk sizes that the trainer uses and the ledgers count with.

They have a file of their own, so that a proof stays valid when a formula changes.
"""

from math import ceil, log2
from typing import Any

import numpy as np

# The loss takes tokens whose fp32 logits are so many bytes at a time, or the `loss_chunk_tokens` of
# the plan's chip, where they are more. Beyond LEAST_LOSS_CHUNK_TOKENS it takes no more than
# MOST_LOSS_CHUNK_BYTES of logits, which are memory that a policy could use.
LOSS_CHUNK_BYTES, MOST_LOSS_CHUNK_BYTES = 256 * 2**20, 2**30
LEAST_LOSS_CHUNK_TOKENS = 1024
LOSS_CHUNK_SLACK = 1.1  # so much less than what balances the chunk will do
TILE = (128, 128)  # elements, of which a device reduces whole ones: fewer, and TPU pads them
# Rows of experts that our grouped matmul takes at a time, at most and at least. A tile that two
# experts share is computed for both.
MOST_ROWS, LEAST_ROWS = 512, 128
MOST_TILE = 1024  # elements of the weights' dimensions that ours takes at a time, at most


def loss_chunk_tokens(peak_flops_per_s: float, hbm_bytes_per_s: float) -> int:
    """Tokens that the loss takes at a time, a power of two.

    Each chunk reads and writes the fp32 gradient of the table, which takes as long as the products
    of 4 x peak / HBM rate tokens: 664 on v5p, 896 on v4, 962 on v5e, 1,250 on tpu7x, 2,242 on v6e.
    Fewer leave the matrix units without work, more only take memory.
    """
    balanced = 4 * peak_flops_per_s / hbm_bytes_per_s / LOSS_CHUNK_SLACK
    return 1 << ceil(log2(min(max(balanced, LEAST_LOSS_CHUNK_TOKENS), MOST_LOSS_CHUNK_BYTES)))


def loss_chunk_bytes(tokens: int, token_bytes: Any) -> Any:
    """Bytes of logits that the loss makes at a time, where a token's are `token_bytes`."""
    wanted = np.maximum(LOSS_CHUNK_BYTES, tokens * token_bytes)
    return np.minimum(
        wanted, np.maximum(MOST_LOSS_CHUNK_BYTES, LEAST_LOSS_CHUNK_TOKENS * token_bytes)
    )


def loss_chunks(tokens: Any, token_bytes: Any, least: int) -> Any:
    """Chunks of as many tokens each that the loss takes: the fewest whose logits, `token_bytes` for
    a token, are within the bytes that it makes at a time.
    """
    most = np.floor(loss_chunk_bytes(least, token_bytes) / token_bytes)
    chunks = np.ceil(tokens / most)
    while np.any(unequal := (tokens % chunks != 0) & (chunks < tokens)):
        chunks = np.where(unequal, chunks + 1, chunks)
    return chunks


def grouped_tile(rows: Any, experts: Any) -> Any:
    """Rows that our grouped matmul takes at a time: about a quarter of an expert's, a power of two
    within bounds.
    """
    wanted = np.clip(rows / (4 * experts), LEAST_ROWS, MOST_ROWS)
    return 2 ** np.floor(np.log2(wanted))
