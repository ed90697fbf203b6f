"""The host's part of a step: memory for what is offloaded, and transfers there and back.

A tensor leaves in the forward pass and returns in the backward pass. Each way hides behind the
matmuls and the attention of its own pass; what takes longer is exposed.
"""

from dataclasses import dataclass

import numpy as np

from orchestrator.catalog import Chip
from orchestrator.plan import flops
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.memory import activation_bytes
from orchestrator.plan.time import device_peak, host_lines


def knows_host(chip: Chip) -> bool:
    """Whether the catalog has the rate of the link to the host, and the host's memory."""
    return chip.host_link_bytes_per_s is not None and chip.host_bytes is not None


def host_bytes(layout: Layout) -> Number:
    """Memory of the host for one chip: the offloaded activations of a microbatch."""
    return layout.chip.devices * layout.model.layers * activation_bytes(layout, "offload")


def host_limit_bytes(chip: Chip) -> float:
    """Memory of the host for one chip; without limit where it is unknown."""
    return np.inf if chip.host_bytes is None else chip.host_bytes.value


@dataclass(frozen=True)
class Transfers:
    """Seconds of a step's transfers one way, and of the computation of each pass at its peak."""

    one_way_s: Number
    forward_s: Number
    backward_s: Number

    @property
    def hidden_s(self) -> Number:
        """Seconds of both ways that computation hides."""
        return np.minimum(self.one_way_s, self.forward_s) + np.minimum(
            self.one_way_s, self.backward_s
        )

    @property
    def exposed_s(self) -> Number:
        return 2 * self.one_way_s - self.hidden_s


def transfers(layout: Layout) -> Transfers:
    """What a step sends to the host and fetches again, beside the passes that hide it."""
    both_ways_s = sum(line.value for line in host_lines(layout))
    blocks, peak = flops.blocks_forward_flops(layout), device_peak(layout)
    repeated = flops.blocks_recompute_flops(layout) + flops.attention_recompute_flops(layout)
    forward = blocks + flops.attention_forward_flops(layout)
    backward = flops.BACKWARD_OVER_FORWARD * blocks + flops.attention_backward_flops(layout)
    return Transfers(both_ways_s / 2, forward / peak, (backward + repeated) / peak)
