"""Tile and chunk sizes of trainer and ledgers; a file of their own keeps proofs valid."""

from collections.abc import Iterable
from math import ceil, log2
from typing import Any

import numpy as np

# The loss takes tokens whose fp32 logits are so many bytes at a time, or the `loss_chunk_tokens` of
# the plan's chip, where they are more. Beyond _LEAST_LOSS_CHUNK_TOKENS it takes no more
# than _MOST_LOSS_CHUNK_BYTES of logits, which are memory that a policy could use.
_LOSS_CHUNK_BYTES, _MOST_LOSS_CHUNK_BYTES = 256 * 2**20, 2**30
_LEAST_LOSS_CHUNK_TOKENS, _MOST_LOSS_CHUNK_TOKENS = 1024, 2**30
_LOSS_CHUNK_SLACK = 1.1  # so much less than what balances the chunk will do
TILE = (128, 128)  # elements, of which a device reduces whole ones: fewer, and TPU pads them
# Rows of experts that our grouped matmul takes at a time, at most and at least. A tile that two
# experts share is computed for both.
_MOST_ROWS, _LEAST_ROWS = 512, 128
MOST_TILE = 1024  # elements of the weights' dimensions that ours takes at a time, at most


def loss_chunk_tokens(peak_flops_per_s: float, hbm_bytes_per_s: float) -> int:
    """Tokens that the loss takes at a time, a power of two. Each chunk reads and writes the fp32
    gradient of the table, which takes as long as the products of 4 x peak / HBM rate tokens: 664 on
    v5p, 2,242 on v6e. Fewer leave the matrix units idle.
    """
    balanced = 4 * peak_flops_per_s / hbm_bytes_per_s / _LOSS_CHUNK_SLACK
    tokens = min(max(balanced, _LEAST_LOSS_CHUNK_TOKENS), _MOST_LOSS_CHUNK_TOKENS)
    return 1 << ceil(log2(tokens))


def loss_chunk_bytes(tokens: int, token_bytes: Any) -> Any:
    """Bytes of logits that the loss makes at a time, where a token's are `token_bytes`."""
    wanted = np.maximum(_LOSS_CHUNK_BYTES, tokens * token_bytes)
    return np.minimum(
        wanted, np.maximum(_MOST_LOSS_CHUNK_BYTES, _LEAST_LOSS_CHUNK_TOKENS * token_bytes)
    )


def loss_chunks(tokens: Any, token_bytes: Any, least: int) -> Any:
    """The fewest equal chunks of tokens whose logits are within the bytes that the loss makes."""
    most = np.floor(loss_chunk_bytes(least, token_bytes) / token_bytes)
    chunks = np.ceil(tokens / most)
    while np.any(unequal := (tokens % chunks != 0) & (chunks < tokens)):
        chunks = np.where(unequal, chunks + 1, chunks)
    return chunks


def grouped_tile(rows: Any, experts: Any) -> Any:
    """Rows that our grouped matmul takes: about a quarter of an expert's, a power of two."""
    wanted = np.clip(rows / (4 * experts), _LEAST_ROWS, _MOST_ROWS)
    return 2 ** np.floor(np.log2(wanted))


# How many queries and keys the TPU's attention kernels take at a time: the trainer uses these
# blocks, and the ledgers count with them.
LANES = 128  # of which every block is a multiple
MOST_KEYS = 512  # in a block of attention in plain JAX, where a platform has no kernel
_BLOCK = 1024
_HEAD_BYTES = 512  # of the widest head with which blocks of that size fit: 256 in bf16
# Along a window, what a block has outside it is computed as well.
_WINDOW_BLOCK, _LEAST_WINDOW = 512, 2048
# One backward kernel writes the gradient of every query once for each block of keys, to be added
# up. From _LONG positions on it takes more keys at a time, where heads leave room for them; beyond
# so many sums, two kernels take less memory.
_LONG, _LONG_KEYS, _LONG_HEAD_BYTES = 8192, 2048, 256
_MOST_PARTIAL_SUMS = 8
_QUERY_KEYS = 512  # keys that a kernel of the queries' gradients alone takes at a time
# Keys of a block whose scores are made at a time: more of them need more of the fast memory.
_FORWARD_KEYS, _BACKWARD_KEYS = 512, 256


def attention_block(length: int, ways: Any, window: int | None, head_bytes: float) -> Any:
    """Positions of a block, a divisor of the contiguous positions on a device; 0 where the kernels
    cannot take the sequence. `head_bytes` are those of the wider head.
    """
    narrow = window is not None and window < min(_LEAST_WINDOW, length)
    most = _WINDOW_BLOCK if narrow else _BLOCK
    while most * head_bytes > _BLOCK * _HEAD_BYTES and most > LANES:
        most //= 2
    in_piece = _largest_block(length // np.where(ways > 1, 2 * ways, 1), most)
    return np.where(in_piece > 0, in_piece, _largest_block(length // ways, most))


def partial_sums(length: int, block: Any, window: int | None, head_bytes: float) -> Any:
    """Blocks of keys of a backward pass in one kernel; 0 with separate kernels for queries and
    keys. One kernel also fetches blocks outside a window.
    """
    fits = length >= _LONG and length % _LONG_KEYS == 0 and head_bytes <= _LONG_HEAD_BYTES
    keys = np.where(fits & (block == _BLOCK), _LONG_KEYS, np.maximum(block, 1))
    sees_all = window is None or window >= length
    return np.where(sees_all & (length // keys <= _MOST_PARTIAL_SUMS), length // keys, 0)


def query_keys(block: Any) -> Any:
    """Keys of a kernel that makes only the gradients of queries, by blocks of `block` queries."""
    return np.maximum(_largest_block(block, _QUERY_KEYS), np.minimum(block, LANES))


def block_sizes(length: int, ways: int, window: int | None, head_bytes: float) -> dict[str, Any]:
    """All sizes of the kernels, by the names that splash attention has for them."""
    block = int(attention_block(length, ways, window, head_bytes))
    sums = int(partial_sums(length, block, window, head_bytes))
    keys = length // sums if sums else block
    return {
        "block_q": block,
        "block_kv": block,
        "block_kv_compute": int(_largest_block(block, _FORWARD_KEYS)),
        "block_q_dkv": block,
        "block_kv_dkv": keys,
        "block_kv_dkv_compute": int(_largest_block(keys, _BACKWARD_KEYS)),
        "block_q_dq": None if sums else block,
        "block_kv_dq": None if sums else int(query_keys(block)),
        "use_fused_bwd_kernel": bool(sums),
    }


def head_bytes(widths: Iterable[int], compute_bytes: int) -> int:
    """Bytes of the widest head, as the fast memory stores it."""
    return -(-max(widths) // LANES) * LANES * compute_bytes


def _largest_block(positions: Any, most: int) -> Any:
    """The largest that divides them, or 0."""
    sizes = np.arange(LANES, most + 1, LANES)
    return np.where(np.expand_dims(positions, -1) % sizes == 0, sizes, 0).max(axis=-1)
