"""A pseudo-random permutation of 0 .. size - 1 in constant memory.

A Feistel network permutes the smallest domain of 2^(2h) numbers that holds `size` of them. An image
outside `size` goes through the network again until it lands inside. Both are bijections, so the
whole is one, and any element is computed without the others: shuffling an epoch needs no list.
"""

import numpy as np

ROUNDS = 6


def permuted(indices: np.ndarray, size: int, *, seed: int, epoch: int) -> np.ndarray:
    """Where the permutation of (seed, epoch) sends each of the indices in 0 .. size - 1."""
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(ROUNDS)
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    images = _network(indices.astype(np.uint64), keys, half_bits)
    while (outside := images >= size).any():
        images[outside] = _network(images[outside], keys, half_bits)
    return images.astype(np.int64)


def _network(values: np.ndarray, keys: np.ndarray, half_bits: int) -> np.ndarray:
    """The Feistel network: each round swaps the halves and hashes one into the other."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_hashed(right ^ key) & mask)
    joined: np.ndarray = (left << shift) | right
    return joined


def _hashed(values: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each value: every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    hashed: np.ndarray = values ^ (values >> np.uint64(32))
    return hashed
