"""What arrays take in memory. A TPU stores an array in tiles of its two minor dimensions."""

from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

Number = Any  # a plain number, or a numpy array of them

TPU_TILE = (8, 128)  # sublanes and lanes; openxla.org/xla/tiled_layout
NO_TILE = (1, 1)


def whole(size: Number, part: int) -> Number:
    """The size as a multiple of a part."""
    return -(-size // part) * part if part > 1 else size


def tiled(second: Number, minor: Number, tile: tuple[int, int]) -> Number:
    """The elements that an array with these two minor dimensions takes.

    The compiler has tiles of 1, 2 and 4 rows as well, for arrays that have no more.
    """
    if tile == NO_TILE:
        return second * minor
    fewer = 2 ** np.ceil(np.log2(second))
    return np.where(second < tile[0], fewer, whole(second, tile[0])) * whole(minor, tile[1])


def elements_in_order(sizes: Sequence[Number], tile: tuple[int, int]) -> Number:
    """The elements that an array takes with its last dimension as the minor one."""
    if len(sizes) < 2:
        return prod(sizes)
    return prod(sizes[:-2]) * tiled(sizes[-2], sizes[-1], tile)


def fewest_elements(sizes: Sequence[Number], tile: tuple[int, int]) -> Number:
    """The elements that an array takes in the order of its dimensions that pads least."""
    if len(sizes) < 2 or tile == NO_TILE:
        return prod(sizes)
    orders = []
    for second, minor in permutations(range(len(sizes)), 2):
        rest = prod(size for place, size in enumerate(sizes) if place not in (second, minor))
        orders.append(rest * tiled(sizes[second], sizes[minor], tile))
    return np.minimum.reduce(np.broadcast_arrays(*orders))
