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
from orchestrator.plan.time import activation_peak, device_peak, host_lines


def knows_host(chip: Chip) -> bool:
    """Whether the catalog has the rate of the link to the host, and the host's memory."""
    return chip.host_link_bytes_per_s is not None and chip.host_bytes is not None


def host_bytes(layout: Layout) -> Number:
    """Memory of the host for one chip: the offloaded activations of a microbatch."""
    return layout.chip.devices * activation_bytes(layout, "offload")


def host_limit_bytes(chip: Chip) -> float:
    """Memory of the host for one chip; without limit where it is unknown."""
    return np.inf if chip.host_bytes is None else chip.host_bytes.value


@dataclass(frozen=True)
class Transfers:
    """Seconds of a step's transfers one way, and of the matmuls and the attention of each pass at
    their peak.
    """

    one_way_s: Number
    forward_s: tuple[Number, Number]
    backward_s: tuple[Number, Number]

    def hidden_s(
        self, matmul: float = 1.0, attention: float = 1.0, between_s: Number = 0.0
    ) -> Number:
        """Seconds of both ways that computation hides, at these shares of its peak and with so much
        between the matmuls of a pass.
        """
        forward, backward = (
            np.minimum(self.one_way_s, matmul_s / matmul + attention_s / attention + between_s)
            for matmul_s, attention_s in (self.forward_s, self.backward_s)
        )
        return forward + backward

    def exposed_s(
        self, matmul: float = 1.0, attention: float = 1.0, between_s: Number = 0.0
    ) -> Number:
        return 2 * self.one_way_s - self.hidden_s(matmul, attention, between_s)


def transfers(layout: Layout) -> Transfers:
    """What a step sends to the host and fetches again, beside the passes that hide it."""
    both_ways_s = sum(line.value for line in host_lines(layout))
    blocks, peak = flops.blocks_forward_flops(layout), device_peak(layout)
    backward = flops.BACKWARD_OVER_FORWARD * blocks + flops.blocks_recompute_flops(layout)
    attention = flops.attention_backward_flops(layout) + flops.attention_recompute_flops(layout)
    of_attention = activation_peak(layout)
    return Transfers(
        one_way_s=both_ways_s / 2,
        forward_s=(blocks / peak, flops.attention_forward_flops(layout) / of_attention),
        backward_s=(backward / peak, attention / of_attention),
    )
