"""Why a spec has no plan, and the nearest specs that have one."""

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
    "pods_not_divisible",
    "no_mesh",
]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason: a code, and its figures."""

    code: ReasonCode
    figures: dict[str, int | float | str]


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Overrides that lead to a plan, and the mesh, chips and MFU of that plan.

    `batch_change` is the relative change of the batch; `idle_chips` are requested chips that the
    plan does not use. Each is None where the overrides do not change it.
    """

    overrides: tuple[str, ...]
    mesh: dict[str, int]
    chips: int
    mfu: Estimate
    batch_change: float | None = None
    idle_chips: int | None = None
