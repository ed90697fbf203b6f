"""The section of a spec about failures: what its user knows better than the catalog."""

from dataclasses import dataclass
from typing import Annotated

from orchestrator.types.spec_fields import NonNegativeNumber, PositiveInteger, PositiveNumber, about


@dataclass(frozen=True, kw_only=True)
class FailureOptions:
    """What fails, and how long it takes to go on. What is left out is the catalog's."""

    machines_per_day: Annotated[
        NonNegativeNumber | None,
        about(
            "The share of machines (hosts) that fail in a day; the chip's rate when left out.",
            "0.08%",
            notation="rate",
        ),
    ] = None
    cables_per_day: Annotated[
        NonNegativeNumber | None,
        about(
            "The share of cables between chips that fail in a day; the chip's rate when left out.",
            "0.005%",
            notation="rate",
        ),
    ] = None
    switches_per_day: Annotated[
        NonNegativeNumber | None,
        about(
            "The share of optical switches that fail in a day; the chip's rate when left out.",
            "0.04%",
            notation="rate",
        ),
    ] = None
    restart_s: Annotated[
        PositiveNumber | None,
        about(
            "The time that processes take to start, join and compile, without the time to restore;"
            " 5 minutes, as published, when left out.",
            "5m",
            notation="duration",
        ),
    ] = None
    repair_s: Annotated[
        PositiveNumber | None,
        about(
            "The time until a slice that lost a machine is whole again; 10 minutes when left out.",
            "10m",
            notation="duration",
        ),
    ] = None
    storage_bytes_per_s: Annotated[
        PositiveInteger | None,
        about(
            "The bytes a second that the storage takes from all hosts together; 25 GB/s when left"
            " out.",
            "25B",
            notation="count",
        ),
    ] = None
