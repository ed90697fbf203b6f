"""ChipProfile: how fast the devices of one machine were measured to be. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.spec_fields import DType

# What is timed. Each has an amount that its seconds grow with.
Operation = Literal[
    "matmul",  # FLOPs of a product and of both products of its backward pass
    "attention",  # FLOPs of a forward and a backward pass, as the ledger counts them
    "elementwise",  # bytes that the operations between matmuls read and write
    "copy",  # bytes read and written
    "all-gather",  # bytes of the gathered array, as the next two
    "reduce-scatter",
    "all-reduce",
    "permute",  # bytes that each device sends
]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """An operation to time on `devices` devices at once, in so many processes.

    A collective runs in every group of `group` devices that lie `stride` apart. `length` and
    `head_dim` are those of attention.
    """

    operation: Operation
    dtype: DType
    devices: int
    processes: int = 1
    group: int = 1
    stride: int = 1
    length: int = 0
    head_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median seconds of a benchmark for each amount of work, smallest first.

    `best_per_s` is the highest rate of one device in any run. `spread` is the width of the middle
    half of the runs over their median, for the amount where it is largest.
    """

    benchmark: Benchmark
    points: tuple[tuple[float, float], ...]  # amount, seconds
    best_per_s: float
    spread: float

    def seconds(self, amount: float) -> float:
        """A straight line between the two nearest points, extended beyond the last.

        Less than the smallest measured amount costs as much as that one.
        """
        amount = max(amount, self.points[0][0])
        below = sum(known < amount for known, _ in self.points[1:-1])
        (low, low_s), (high, high_s) = self.points[below : below + 2]
        return low_s + max(high_s - low_s, 0.0) / (high - low) * (amount - low)


@dataclass(frozen=True, kw_only=True)
class BenchmarkRequest:
    """What the measuring processes time; several of them meet at `address`."""

    benchmarks: tuple[Benchmark, ...]
    processes: int
    address: str


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """The devices that JAX reports, and the timings."""

    platform: str
    device_kind: str
    devices: int
    timings: tuple[Timing, ...]


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
    """The measured rates of a machine. Its digest is its name.

    Another day or another benchmark makes another profile.
    """

    schema: int
    machine: Machine
    measured_on: str
    timings: tuple[Timing, ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether the devices are CPU devices, which take turns on the machine's cores."""
        return self.machine.platform == "cpu"
