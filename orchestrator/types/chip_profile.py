"""ChipProfile: how fast the devices of one machine were measured to be. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.spec_fields import MatmulType

# What is timed. Each has an amount that its seconds grow with.
Operation = Literal[
    "matmul",  # FLOPs of a product and of both products of its backward pass
    "attention",  # FLOPs of a forward and a backward pass, as the ledger counts them
    "copy",  # bytes read and written
    "step",  # layers of the network: a whole step of the trainer on emulated devices
]

# Medians of nine repeats that spread no more than this are about 15 % off, two of three times.
STEADY_SPREAD = 0.5
QUIET_SHARE = 0.25  # of the cores, that other programs may have meanwhile


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median seconds of an operation for each amount of work, smallest first.

    It runs on one device; a step, on all devices of a plan: `shape` and `source` are the digests of
    what its seconds depend on. `head_dim` is that of attention. `spread` is the width of the middle
    half of the runs over their median, where it is largest. `others` is the share of the machine's
    cores that other programs had meanwhile.
    """

    operation: Operation
    dtype: MatmulType
    points: tuple[tuple[float, float], ...]  # amount, seconds
    spread: float
    head_dim: int = 0
    shape: str = ""
    source: str = ""
    others: float = 0.0

    @property
    def is_steady(self) -> bool:
        """Whether its repeats took about the same, on cores that were its own."""
        return self.spread <= STEADY_SPREAD and self.others <= QUIET_SHARE

    @property
    def per_s(self) -> float:
        """The rate of the largest amount: less of it fits in caches, or leaves units idle."""
        amount, seconds = self.points[-1]
        return amount / seconds


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The devices that JAX reports, and the timings; `others` as in a timing."""

    platform: str
    device_kind: str
    timings: tuple[Timing, ...]
    others: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was measured, and with which versions. Emulated CPU devices share its cores."""

    platform: str
    device_kind: str
    processor: str
    cores: int
    memory_bytes: int
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class ChipProfile:
    """What was measured on a machine, newest last. Its digest is its name."""

    schema: int
    machine: Machine
    measured_on: str
    timings: tuple[Timing, ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether the devices are CPU devices, which take turns on the machine's cores."""
        return self.machine.platform == "cpu"
