"""Why no plan serves a spec, and the nearest specs that one serves, as values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.plan import Estimate

ReasonCode = Literal[
    "memory",
    "more_chips_needed",
    "slice_factors",
    "batch_not_divisible",
    "dimension_not_divisible",
    "requested_mesh",
    "mesh_size",
    "no_mesh",
]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One thing that stands in the way: a code, and the figures that belong to it."""

    code: ReasonCode
    figures: dict[str, int | float | str]


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Overrides that lead to a plan, and what that plan comes to.

    `batch_change` is by what share the batch moves, `idle_chips` are those that the request has
    and the plan leaves out; None where the overrides touch neither.
    """

    overrides: tuple[str, ...]
    mesh: dict[str, int]
    chips: int
    mfu: Estimate
    batch_change: float | None = None
    idle_chips: int | None = None
