"""The policies and numbers of microbatches with which a mesh may be fastest. A policy changes what
is recomputed, the HBM traffic of activations, exposed transfers to the host, and a collective over
`tensor`. For each number of microbatches the cheapest policy wins; a larger number costs time
elsewhere, so it has to win by more. Since the ranking knows more, two other ways stay: the best
without offloading and, where gradients cross slices, the fewest microbatches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations_with_replacement, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.catalog.chips import Chip
from orchestrator.network import rematerialization
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, LatentAttention
from orchestrator.network.mesh_axes import GROUPS
from orchestrator.planning import flops, step_work
from orchestrator.planning.layout import Training
from orchestrator.planning.memory import peak_bytes, stream_bytes
from orchestrator.planning.time import activation_peak, activation_traffic_bytes, device_peak
from orchestrator.planning.torus import Floats, Ints, distinct
from orchestrator.values.codec import Treatment
from orchestrator.values.model import Model
from orchestrator.values.spec import Experiment

# --- the policies that are searched

_TREATMENTS: tuple[Treatment, ...] = ("keep", "offload", "recompute")


@dataclass(frozen=True)
class _PolicyArray:
    """A policy at each place of an array; `treated` has each tensor's treatments, as numbers."""

    treated: dict[str, NDArray[np.int8]]

    def share(self, tensor: str, treatment: Treatment) -> NDArray[np.bool_]:
        return np.equal(self.treated[tensor], _TREATMENTS.index(treatment))

    @property
    def needs_host(self) -> bool:
        return any(self.share(tensor, "offload").any() for tensor in self.treated)

    def __getitem__(self, places: Any) -> "_PolicyArray":
        return _PolicyArray({name: array[places] for name, array in self.treated.items()})


def policy_array(policies: Sequence[rematerialization.Policy], model: Model) -> _PolicyArray:
    treated = {}
    for name in (tensor.name for tensor in decoder(model).tensors):
        numbers = [_TREATMENTS.index(each.treatment(name)) for each in policies]
        treated[name] = np.array(numbers, np.int8)
    return _PolicyArray(treated)


def searched_policies(chip: Chip, experiment: Experiment) -> tuple[rematerialization.Policy, ...]:
    if experiment.remat != rematerialization.AUTO:
        return (rematerialization.policy(experiment.remat),)
    # The catalog has the rate of the link to the host, and the host's memory.
    knows_host = chip.host_link_bytes_per_s is not None and chip.host_bytes is not None
    return _all_policies(experiment.model, offloads=knows_host)


@cache
def _all_policies(model: Model, *, offloads: bool) -> tuple[rematerialization.Policy, ...]:
    """Return every way to treat the tensors of a block, except those that gain nothing. Queries,
    keys and values are treated alike, and all latents. Of the MLP's inputs the first is never
    treated better than the next. The block's input is never recomputed.
    """
    network = decoder(model)
    treatments = [each for each in _TREATMENTS if offloads or each != "offload"]

    # Names of tensors that are treated alike in all blocks: the input, the latents if attention has
    # them, its inputs, its result, the stream after it; last, the inputs of the MLP.
    def tensors(block: Block) -> list[list[str]]:
        attention = block.attention
        latents = attention.latents if isinstance(attention, LatentAttention) else ()
        outputs = [
            [matmul.output.name for matmul in matmuls]
            for matmuls in (latents, attention.inputs, (attention.output,), block.mlp.inputs)
            if matmuls
        ]
        return [[block.input.name], *outputs[:-2], [attention.result.name], *outputs[-2:]]

    by_place = zip(*map(tensors, network.blocks), strict=True)
    *groups, mlp_inputs = [tuple(dict.fromkeys(chain(*blocks))) for blocks in by_place]
    groups += [(name,) for name in mlp_inputs]
    mlp_treatments = list(combinations_with_replacement(treatments[::-1], len(mlp_inputs)))[::-1]
    others = len(groups) - len(mlp_inputs) - 1

    def treated(each: rematerialization.Policy) -> tuple[Treatment, ...]:
        return tuple(each.treatment(tensor.name) for tensor in network.tensors)

    # An MLP without a gate has fewer tensors, and policies with the names of those with one.
    named = {treated(known): known for known in rematerialization.POLICIES.values()}
    found = []
    for first, *middle, mlp in product(
        [each for each in treatments if each != "recompute"],
        *[treatments] * others,
        mlp_treatments,
    ):
        chosen = list(zip(groups, (first, *middle, *mlp), strict=True))
        keep, offload = (
            frozenset(chain(*(group for group, treatment in chosen if treatment == wanted)))
            for wanted in ("keep", "offload")
        )
        made = rematerialization.Policy(keep=keep, offload=offload)
        found.append(named.get(treated(made), made))
    return tuple(found)


# --- those that may be fastest, with their microbatches

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
