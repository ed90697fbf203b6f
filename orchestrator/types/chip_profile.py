"""Station ChipProfile: what the devices of one machine were measured to reach. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.spec import DType

# What is timed on the devices alone, and the amount that its seconds grow with.
Kernel = Literal[
    "matmul forward",  # FLOPs
    "matmul",  # FLOPs, of the product and of both products of its backward pass
    "copy",  # bytes read and written
    "norm",  # elements; forward, again and backward, as the next two
    "gate",
    "rotary",
    "logits",  # tokens x words of the loss
    "update",  # parameters that AdamW updates
    "attention forward",  # scores: sequences x heads x queries x keys
    "attention",  # the same, forward and backward
]
Exchanged = Literal["all-gather", "reduce-scatter", "all-reduce", "permute"]


@dataclass(frozen=True, kw_only=True)
class KernelBenchmark:
    """A kernel to be timed on so many devices at once, each with about that amount of work.

    `head_dim` is of attention, and zero elsewhere.
    """

    kernel: Kernel
    dtype: DType
    devices: int
    amount: float
    head_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class CollectiveBenchmark:
    """A collective to be timed: groups of `ways` devices, `stride` apart in the order of all.

    All groups run at once, on `devices` devices in so many processes. `bytes` is the whole of what
    is gathered, scattered or reduced; of a permute, what each device sends. `together` are under
    way at a time, none waiting for another. A CPU turns bf16 into fp32 before it adds or sends.
    """

    kind: Exchanged
    dtype: DType
    processes: int
    devices: int
    ways: int
    stride: int
    bytes: int
    together: int = 1


@dataclass(frozen=True, kw_only=True)
class KernelTime(KernelBenchmark):
    """Seconds until all devices are done: the median of some runs, and the least.

    `spread` is the width of the middle half of the runs over the median.
    """

    seconds: float
    least_s: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class CollectiveTime(CollectiveBenchmark):
    """Seconds of one exchange, likewise; of several together, what each of them adds."""

    seconds: float
    least_s: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """What somebody needs to be measured."""

    kernels: tuple[KernelBenchmark, ...] = ()
    exchanges: tuple[CollectiveBenchmark, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was measured, and by which versions. CPU devices share its cores."""

    platform: str
    device_kind: str
    processor: str
    cores: int
    memory_bytes: int
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class ChipProfile:
    """What a machine reached, with spread, versions and date. Its digest is its name.

    What is measured later, or on another day, makes another profile.
    """

    schema: int
    machine: Machine
    measured_on: str
    kernels: tuple[KernelTime, ...] = ()
    exchanges: tuple[CollectiveTime, ...] = ()
