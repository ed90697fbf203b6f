"""Catalog room: what real runs reach, as learned by `make score` from the published ones."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from orchestrator.catalog.tables import table

LEARNED = "efficiency.toml"


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A constant, and the published runs that it was learned from.

    `unsure` is the standard deviation, as a share of the value, with which it changes as documents
    are left out.
    """

    value: float
    unsure: float = 0.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What a kind of chip reaches on each kind of work.

    `matmul` and `attention` are shares of the peak, in (0, 1]. `exposed` is the share of the time
    of collectives that the compiler does not hide, in [0, 1]. A reduction between n slices waits
    `slice_wait_s` times the root of n. `spread` is the half width of the 80 % interval, as the
    logarithm of a factor.
    """

    matmul: Learned
    attention: Learned
    exposed: Learned
    slice_wait_s: Learned
    between_steps_s: Learned
    spread: Learned


@cache
def efficiency(chip: str) -> Efficiency | None:
    """What that kind of chip reaches; None where no run of it was ever published here."""
    learned = table(LEARNED)
    if chip not in learned["matmul"]:
        return None
    shared = {name: _learned(entry) for name, entry in learned["shared"].items()}
    return Efficiency(matmul=_learned(learned["matmul"][chip]), **shared)


def _learned(entry: dict[str, Any]) -> Learned:
    return Learned(
        value=float(entry["value"]), unsure=float(entry["unsure"]), rows=tuple(entry["rows"])
    )
