"""Of all policies and numbers of microbatches, those with which a mesh may be fastest.

A policy changes four things of a step: what it computes again, the HBM traffic of activations,
transfers that nothing hides, and a collective over `tensor`. At one number of microbatches the
policy with the least of them wins; a larger number costs time elsewhere, so it has to win more.
Two kinds of ways stay beside the winners, since the ranking knows what this does not: the best that
offloads nothing, and, where gradients cross slices, the fewest microbatches that accumulate them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.network.mesh_axes import GROUPS
from orchestrator.planning import flops
from orchestrator.planning.layout import Number, Training
from orchestrator.planning.memory import peak_bytes, stream_bytes
from orchestrator.planning.step_work import (
    crosses,
    hbm_rate,
    host_bytes,
    host_limit_bytes,
    transfers,
)
from orchestrator.planning.time import activation_peak, activation_traffic_bytes, device_peak
from orchestrator.planning.torus import Bools, Floats, Ints

# The bottleneck counts twice in the rule, and it is the matmuls, HBM, or something else. The
# weights of what is computed again and of HBM traffic, in each case.
WEIGHTS = ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
EQUAL = 1e-9  # costs that differ by less, as a share, are the same


@dataclass(frozen=True)
class Ways:
    """Ways to run a mesh with a batch, in the order of their `key`: the mesh and batch."""

    key: Ints
    remat: Ints
    microbatches: Ints


@dataclass(frozen=True)
class LeastMemory:
    """The least HBM of any way, and the least memory of the host where HBM suffices."""

    hbm_bytes: float
    host_bytes: float


def fastest_ways(layout: Training, key: Ints, margin: float) -> tuple[Ways, LeastMemory]:
    """The ways that may be fastest. `layout` has a row for each policy, and a column for each key
    and number of microbatches, ascending for each key; `margin` is the share of memory left free.
    """
    peaks, hosts = np.broadcast_arrays(peak_bytes(layout), host_bytes(layout))
    fits = peaks <= layout.chip.hbm_usable_bytes.value * (1 - margin)
    least = LeastMemory(
        hbm_bytes=float(peaks.min(initial=np.inf)),
        host_bytes=float(hosts[fits].min(initial=np.inf)),
    )
    fits &= hosts <= host_limit_bytes(layout.chip) * (1 - margin)
    repeated, traffic, others = costs_of_policy(layout)
    stay = (place_in_key(key) == 1) & crosses(layout)
    chosen = [
        winners(np.where(some, repeat * repeated + move * traffic + others, np.inf), key, stay)
        for repeat, move in WEIGHTS
        for some in (fits, fits & (hosts == 0))
    ]
    remat, column = np.divmod(np.unique(np.concatenate(chosen)), len(key))
    order = np.lexsort((remat, column))
    remat, column = remat[order], column[order]
    return Ways(key[column], remat, np.asarray(layout.microbatches)[column]), least


def joined(parts: Sequence[tuple[Ways, LeastMemory]]) -> tuple[Ways, LeastMemory]:
    """The ways of parts of all keys, in their order."""
    ways, least = zip(*parts, strict=True)
    return Ways(
        key=np.concatenate([one.key for one in ways]),
        remat=np.concatenate([one.remat for one in ways]),
        microbatches=np.concatenate([one.microbatches for one in ways]),
    ), LeastMemory(
        hbm_bytes=min(one.hbm_bytes for one in least),
        host_bytes=min(one.host_bytes for one in least),
    )


def costs_of_policy(layout: Training) -> tuple[Number, Number, Number]:
    """Seconds of a step: what is computed again, HBM traffic of activations, and what else a
    policy costs, its collective at the rate of a whole torus axis.
    """
    chip = layout.chip
    repeated_s = flops.blocks_recompute_flops(layout) / device_peak(layout)
    attention_s = flops.attention_recompute_flops(layout) / activation_peak(layout)
    ways = layout.devices_along(GROUPS["tensor"])
    scattered = layout.microbatches * layout.over_layers(
        lambda block: layout.repeats_output(block.attention)
    )
    scattered_s = (
        scattered
        * stream_bytes(layout)
        * (1 - 1 / ways)
        / (2 * chip.ici_link_bytes_per_s.value / chip.devices)
    )
    return (
        repeated_s + attention_s,
        activation_traffic_bytes(layout) / hbm_rate(layout),
        scattered_s + transfers(layout).exposed_s(),
    )


def winners(costs: Floats, key: Ints, stay: Bools) -> Ints:
    """The best policy of each column that beats all columns of its key before it or has to `stay`,
    as places in the flat array; infinite costs never win.
    """
    best = costs.argmin(axis=0)
    least = costs[best, np.arange(len(key))]
    wins = (least < before(least, key) * (1 - EQUAL)) | (stay & np.isfinite(least))
    return np.asarray((best * len(key) + np.arange(len(key)))[wins])


def before(values: Floats, key: Ints) -> NDArray[np.float64]:
    """For each value the least of those before it with its key; infinite for the first."""
    place, row = place_in_key(key), key - key[:1]
    table = np.full((int(row.max(initial=-1)) + 1, int(place.max(initial=-1)) + 2), np.inf)
    table[row, place + 1] = values
    return np.asarray(np.minimum.accumulate(table, axis=1)[row, place])


def place_in_key(key: Ints) -> Ints:
    """Which of its key each column is, from zero."""
    return np.asarray(np.arange(len(key)) - np.searchsorted(key, key))
