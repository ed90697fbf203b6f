"""What real runs reach, learned by `make score` from published runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from orchestrator.catalog.tables import table

LEARNED = "efficiency.toml"
REFERENCE, OTHER = "maxtext", "other"  # software: most runs are of the first


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
class Range:
    """The least and the most of something among the published runs."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What a kind of chip reaches on each kind of work.

    `matmul` and `attention` are shares of the peak, in (0, 1]. `exposed_gathers` and
    `exposed_tensor` are the shares of the time of collectives that nothing hides, in [0, 1]: of
    gathers and scatters of weights and gradients, and of exchanges over `tensor`. A reduction
    between n slices takes `slice_wait_s`, and `slice_hop_s` for each of its n - 1 hops. `spread` is
    the half width of the 80 % interval, as the logarithm of a factor, for all but REFERENCE.
    `ranges` are those of the published runs, by the axes of `plan.extrapolation`.

    The others are of published runs alone. The older kernel reaches `flash_attention` of the peak
    with a head of 128. A figure that averages a whole run has `run_overhead_s` more than a steady
    step, and `run_share` of it is no step. `software` adds a share to the step of REFERENCE; OTHER
    is for software without runs. `reference_spread` is the spread for REFERENCE.
    """

    matmul: LearnedConstant
    attention: LearnedConstant
    exposed_gathers: LearnedConstant
    exposed_tensor: LearnedConstant
    slice_wait_s: LearnedConstant
    slice_hop_s: LearnedConstant
    spread: LearnedConstant
    flash_attention: LearnedConstant
    run_overhead_s: LearnedConstant
    run_share: LearnedConstant
    reference_spread: LearnedConstant
    software: Mapping[str, LearnedConstant] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)


@cache
def efficiency(chip: str) -> Efficiency | None:
    """What that kind of chip reaches; None where no run of it was ever published here."""
    learned = table(LEARNED)
    if chip not in learned["matmul"]:
        return None
    shared = {name: _learned(entry) for name, entry in learned["shared"].items()}
    software = {name: _learned(entry) for name, entry in learned["software"].items()}
    return Efficiency(
        matmul=_learned(learned["matmul"][chip]),
        software=software,
        ranges=_ranges(learned["range"], chip),
        **shared,
    )


def shared_efficiency(name: str) -> LearnedConstant:
    """A constant that is the same for all kinds of chips."""
    return _learned(table(LEARNED)["shared"][name])


def _ranges(entries: dict[str, Any], chip: str) -> dict[str, Range]:
    """The ranges of all runs, and that of chips among the runs of that kind."""
    own = entries["chips"][chip]
    return {
        axis: Range(low=float(low), high=float(high))
        for axis, (low, high) in {**entries, "chips": own}.items()
    }


def _learned(entry: dict[str, Any]) -> LearnedConstant:
    return LearnedConstant(
        value=float(entry["value"]), unsure=float(entry["unsure"]), rows=tuple(entry["rows"])
    )
