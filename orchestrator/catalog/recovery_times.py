"""What it takes to go on after a failure, where no chip and no spec says so."""

from dataclasses import dataclass
from functools import cache

import msgspec

from orchestrator.catalog.tables import table


@dataclass(frozen=True, kw_only=True)
class RecoveryTime:
    """A number, its 80 % interval, and its source: a key of the catalog."""

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The numbers of `recovery.toml`, which says what each is."""

    restart_s: RecoveryTime
    repair_s: RecoveryTime
    reroute_s: RecoveryTime
    node_loss_s: RecoveryTime
    hang_share: RecoveryTime
    storage_bytes_per_s: RecoveryTime
    save_overhead_s: RecoveryTime
    switches_per_chip: RecoveryTime


@cache
def recovery() -> Recovery:
    """All of them."""
    return msgspec.convert(table("recovery.toml"), Recovery)
