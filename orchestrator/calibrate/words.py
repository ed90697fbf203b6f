"""Calibrate room: what is asked of the processes that measure, and what they tell. Plain values."""

from dataclasses import dataclass

from orchestrator.types.chip_profile import Benchmarks, CollectiveTime, KernelTime


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What one of the processes is to do. They meet at `address`, where there are several."""

    wishes: Benchmarks
    process: int = 0
    processes: int = 1
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What JAX finds."""

    platform: str
    kind: str
    count: int
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Told:
    """One thing that the first process tells: what it found, that one more wish is ready to be run,
    a time, or what went wrong.
    """

    devices: Devices | None = None
    ready: bool = False
    kernel: KernelTime | None = None
    exchange: CollectiveTime | None = None
    error: str | None = None
