"""The policies and numbers of microbatches with which a mesh may be fastest. A policy changes what
is recomputed, the HBM traffic of activations, exposed transfers to the host, and a collective over
`tensor`. For each number of microbatches the cheapest policy wins; a larger number costs time
elsewhere, so it has to win by more. Since the ranking knows more, two other ways stay: the best
without offloading and, where gradients cross slices, the fewest microbatches.
"""

import numpy as np

from orchestrator.network.mesh_axes import GROUPS
from orchestrator.planning import flops, step_work
from orchestrator.planning.layout import Training
from orchestrator.planning.memory import peak_bytes, stream_bytes
from orchestrator.planning.time import activation_peak, activation_traffic_bytes, device_peak
from orchestrator.planning.torus import Floats, Ints, distinct

# The bottleneck counts twice in the rule, and it is the matmuls, HBM, or something else. The
# weights of recomputation and of HBM traffic, in each case.
_WEIGHTS = ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
_EQUAL = 1e-9  # costs that differ by less, as a share, are the same


Ways = tuple[Ints, Ints, Ints]  # the key, the policy and the microbatches of each
# The least HBM of any way, and the least memory of the host where HBM suffices.
LeastMemory = tuple[float, float]


def fastest_ways(layout: Training, key: Ints, margin: float) -> tuple[Ways, LeastMemory]:
    """Return the ways that may be fastest. `layout` has a row per policy and a column per key and
    number of microbatches, ascending; `margin` is the share of memory left free.
    """
    peaks, hosts = np.broadcast_arrays(peak_bytes(layout), step_work.host_bytes(layout))
    if np.any(layout.stages > 1):  # a pipeline keeps nothing on the host
        peaks = np.where((hosts == 0) | (layout.stages == 1), peaks, np.inf)
    fits = peaks <= layout.chip.hbm_usable_bytes.value * (1 - margin)
    least = float(peaks.min(initial=np.inf)), float(hosts[fits].min(initial=np.inf))
    if not fits.any():
        nothing = np.zeros(0, np.int64)
        return (nothing, nothing, nothing), least
    fits &= hosts <= step_work.host_limit_bytes(layout.chip) * (1 - margin)
    # Seconds of a step: of recomputation, of HBM traffic of activations, and of all else that a
    # policy costs: its collective at the rate of a whole torus axis, and what nothing hides, which
    # does not count in the mean.
    chip = layout.chip
    repeated_s = flops.blocks_recompute_flops(layout) / device_peak(layout)
    attention_s = flops.attention_recompute_flops(layout) / activation_peak(layout)
    # Attention's output is scattered over `tensor` again: (1 - 1/n) of it, on two links.
    ways = layout.devices_along(GROUPS["tensor"])
    scatters = layout.microbatches * layout.over_layers(
        lambda block: layout.repeats_output(block.attention)
    )
    link_bytes_per_s = 2 * chip.ici_link_bytes_per_s.value / chip.devices
    scattered_s = scatters * stream_bytes(layout) * (1 - 1 / ways) / link_bytes_per_s
    repeated = repeated_s + attention_s
    traffic = activation_traffic_bytes(layout) / step_work.hbm_rate(layout)
    others = scattered_s + step_work.transfers(layout).exposed_s() + 2 * step_work.between_s(layout)
    columns = np.arange(len(key))
    place_in_key = columns - np.searchsorted(key, key)
    # The second number of microbatches is the fewest that accumulate gradients.
    stay = (place_in_key == 1) & step_work.crosses(layout)

    def winners(costs: Floats) -> Ints:
        """Return the best policy of each column that beats all columns of its key before it or has
        to `stay`, as places in the flat array; infinite costs never win.
        """
        best = costs.argmin(axis=0)
        least_cost = costs[best, columns]
        # For each column the least of those before it with its key; infinite for the first.
        row = key - key[:1]
        shape = int(row.max(initial=-1)) + 1, int(place_in_key.max(initial=-1)) + 2
        table = np.full(shape, np.inf)
        table[row, place_in_key + 1] = least_cost
        before = np.minimum.accumulate(table, axis=1)[row, place_in_key]
        wins = (least_cost < before * (1 - _EQUAL)) | (stay & np.isfinite(least_cost))
        return np.asarray((best * len(key) + columns)[wins])

    chosen = [
        winners(np.where(allowed, repeat * repeated + move * traffic + others, np.inf))
        for repeat, move in _WEIGHTS
        for allowed in (fits, fits & (hosts == 0))
    ]
    remat, column = np.divmod(distinct(np.concatenate(chosen)), len(key))
    order = np.lexsort((remat, column))
    remat, column = remat[order], column[order]
    return (key[column], remat, np.asarray(layout.microbatches)[column]), least
