"""What arrays take in memory. A TPU stores an array in tiles of its two minor dimensions.

The compiler chooses the order of the dimensions of what the step is given, so that padding is
least. It cannot choose for what the attention kernel reads and writes: heads are the minor
dimension there, so that a head of 64 takes as much as one of 128.
"""

from itertools import permutations
from math import prod

import numpy as np

from orchestrator.catalog.chip import Chip
from orchestrator.network.description import Tensor, Weight
from orchestrator.plan.layout import Layout, Number

SUBLANES, LANES = 8, 128  # openxla.org/xla/tiled_layout
HEAD_DIM = "head_dim"


def has_tiles(chip: Chip) -> bool:
    """Whether the chip is a TPU; GPUs store arrays as they are."""
    return chip.matrix_unit is not None


def whole(size: Number, part: int) -> Number:
    """The size as a multiple of a part."""
    return np.ceil(size / part) * part


def fewest_elements(layout: Layout, sizes: tuple[Number, ...]) -> Number:
    """The elements of an array with the order of dimensions that pads least."""
    if not has_tiles(layout.chip) or len(sizes) < 2:
        return prod(sizes)
    orders = permutations(range(len(sizes)), 2)
    return np.minimum.reduce(np.broadcast_arrays(*(_tiled(sizes, *order) for order in orders)))


def _tiled(sizes: tuple[Number, ...], second: int, minor: int) -> Number:
    rest = (size for place, size in enumerate(sizes) if place not in (second, minor))
    return prod((*rest, whole(sizes[second], SUBLANES), whole(sizes[minor], LANES)))


def weight_elements(layout: Layout, weight: Weight) -> Number:
    """The elements that a device's part of a weight takes in memory."""
    return fewest_elements(layout, tuple(layout.shard_size(one) for one in weight.dimensions))


def tensor_elements(layout: Layout, tensor: Tensor) -> Number:
    """The elements that an activation of one layer and microbatch takes in memory."""
    if has_tiles(layout.chip) and tensor.dimensions[-1].axis == HEAD_DIM:
        head = tensor.dimensions[-1].size
        return layout.tensor_elements(tensor) * whole(head, LANES) / head
    return layout.tensor_elements(tensor)
