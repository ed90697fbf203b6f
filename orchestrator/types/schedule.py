"""Schedule: a step of a compiled program, priced operation by operation. Plain values.

The seconds are the compiler's own estimates of what a device computes, and the links' rates for
what it sends. They show where a program loses time and which of two programs is faster. They
promise no step time.
"""

from dataclasses import dataclass
from typing import Literal

ScheduledLink = Literal["ici", "dcn", "host", "hbm"]


@dataclass(frozen=True, kw_only=True)
class ScheduledLine:
    """Seconds of one step and device by the source line that asks for them.

    `stack` are the lines that lead to it, the outermost first and itself last. `exposed_s` is
    waited for what it sends or fetches. `flops` are those of its matrix products.
    """

    line: str
    stack: tuple[str, ...]
    products_s: float
    kernels_s: float
    copies_s: float
    other_s: float
    exposed_s: float
    flops: float

    @property
    def total_s(self) -> float:
        return self.products_s + self.kernels_s + self.copies_s + self.other_s + self.exposed_s


@dataclass(frozen=True, kw_only=True)
class ScheduledProduct:
    """Matrix products of one line and shape: seconds of a step, and the share of the peak.

    `shape` is the result's. `fused` are the operations inside the fusion that move data.
    """

    line: str
    shape: str
    fused: tuple[str, ...]
    calls_per_step: float
    flops: float
    seconds: float
    peak_share: float


@dataclass(frozen=True, kw_only=True)
class ScheduledCollective:
    """Alike transfers of one line: on the wire, and waited for.

    `link` is `ici` or `dcn` for what goes to other devices, `host` for what goes to the host, `hbm`
    for what is fetched into the chip's own fast memory. `algorithm` is the compiler's name for how
    it runs; empty where it gives none. A synchronous one hides behind nothing; `behind` is the line
    whose computation runs most while an asynchronous one is on its way, `behind_s` all that runs.
    """

    kind: str
    axes: tuple[str, ...]
    link: ScheduledLink
    algorithm: str
    asynchronous: bool
    line: str
    calls_per_step: float
    bytes_per_step: float
    wire_s: float
    exposed_s: float
    behind: str
    behind_s: float


@dataclass(frozen=True, kw_only=True)
class ScheduledEvent:
    """Something that runs in one round of a loop. `track`: compute, or the link it keeps busy."""

    track: str
    kind: str
    name: str
    line: str
    start_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ScheduledLoop:
    """One round of a loop over layers, and how often it runs in a step."""

    name: str
    trips: int
    round_s: float
    events: tuple[ScheduledEvent, ...]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A step as the compiler schedules it. The five kinds of seconds add up to `total_s`.

    `exposed_s` is all waiting: for collectives, for other pods, for the host and for the chip's own
    memory. `unpriced` are kernels without a formula, and loops whose rounds are not known: they
    count as nothing, or as one round. The longest lines, products and transfers come first.
    """

    total_s: float
    products_s: float
    kernels_s: float
    copies_s: float
    other_s: float
    exposed_s: float
    flops: float
    peak_flops_per_s: float
    lines: tuple[ScheduledLine, ...]
    products: tuple[ScheduledProduct, ...]
    collectives: tuple[ScheduledCollective, ...]
    loops: tuple[ScheduledLoop, ...]
    unpriced: tuple[str, ...]


# --- what a schedule is priced with


@dataclass(frozen=True, kw_only=True)
class SliceTorus:
    """A slice's torus axes, and one direction's rate of a link on each.

    Where a chip is several devices, the last axis joins these: its links belong to a device, the
    other links to a chip.
    """

    lengths: tuple[int, ...]
    wraps: tuple[bool, ...]
    link_bytes_per_s: tuple[float, ...]
    devices_per_chip: int
    hop_s: float


@dataclass(frozen=True, kw_only=True)
class ComputeRates:
    """How fast a device computes. Kernels reach `kernel_share` of the peak."""

    clock_hz: float
    peak_flops_per_s: float
    kernel_share: float


@dataclass(frozen=True, kw_only=True)
class TransferRates:
    """Bytes a second of a device, besides those of the slice's links; None where none is known."""

    hbm_bytes_per_s: float
    host_bytes_per_s: float | None
    dcn_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class ScheduleRates:
    """Everything that turns a compiled program's operations into seconds."""

    compute: ComputeRates
    transfers: TransferRates
    torus: SliceTorus
