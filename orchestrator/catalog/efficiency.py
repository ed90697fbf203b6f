"""What real runs reach, learned by `make score` from published runs."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from orchestrator.catalog.tables import table

LEARNED = "efficiency.toml"


@dataclass(frozen=True, kw_only=True)
class LearnedConstant:
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
    of collectives that the compiler does not hide, in [0, 1]. A reduction between n slices
    takes `slice_wait_s`, and `slice_hop_s` for each of its n - 1 hops. `spread` is the half width
    of the 80 % interval, as the logarithm of a factor.
    """

    matmul: LearnedConstant
    attention: LearnedConstant
    exposed: LearnedConstant
    slice_wait_s: LearnedConstant
    slice_hop_s: LearnedConstant
    between_steps_s: LearnedConstant
    spread: LearnedConstant


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What the runs had that all of it was learned from: no step shorter, no run of more chips."""

    step_s: float
    chips: int


@cache
def efficiency(chip: str) -> Efficiency | None:
    """What that kind of chip reaches; None where no run of it was ever published here."""
    learned = table(LEARNED)
    if chip not in learned["matmul"]:
        return None
    shared = {name: _learned(entry) for name, entry in learned["shared"].items()}
    return Efficiency(matmul=_learned(learned["matmul"][chip]), **shared)


@cache
def reach(chip: str) -> Reach | None:
    """How far the published runs of that kind of chip go; None where there is none."""
    known = table(LEARNED)["reach"]
    if chip not in known["chips"]:
        return None
    return Reach(step_s=float(known["step_s"]), chips=int(known["chips"][chip]))


def _learned(entry: dict[str, Any]) -> LearnedConstant:
    return LearnedConstant(
        value=float(entry["value"]), unsure=float(entry["unsure"]), rows=tuple(entry["rows"])
    )
