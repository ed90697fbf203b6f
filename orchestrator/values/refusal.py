"""Why a spec has no plan, the specs near it that have one, and errors as values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.notes import Note
from orchestrator.values.codec import Value
from orchestrator.values.plan import Estimate
from orchestrator.values.spec import Remat

ReasonCode = Literal[
    "stage", "memory", "host_memory", "more_chips_needed", "largest_slice", "largest_domain",
    "slice_factors", "batch_not_divisible", "dimension_not_divisible", "sequences_not_whole",
    "requested_mesh", "mesh_size", "pods_not_divisible", "no_mesh", "beyond_all_chips",
    "nothing_near",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reason(Note):
    """One reason: a code, and its figures."""

    code: ReasonCode


class Suggestion(Value):
    """Overrides that lead to a plan, and what that plan takes and costs.

    `batch_change` is the relative change of the requested batch. `dollars` is None where the chip
    has no price.
    """

    overrides: tuple[str, ...]
    chip: str
    topology: str
    pods: int
    chips: int
    mesh: dict[str, int]
    sequences: int
    batch_change: float
    remat: Remat
    memory_bytes_per_device: float
    hbm_bytes_per_device: float
    step_s: Estimate
    mfu: Estimate
    days: Estimate
    dollars: Estimate | None


# What `--json` prints instead of a result when a command fails.


class Hint(Value):
    """What to write or to type instead. `kind` says what `value` is: a value, a name, a command.

    For a spec without a plan `overrides` are those of a spec near it, and `leads_to` has its plan.
    """

    kind: str
    value: str
    text: str
    overrides: tuple[str, ...] = ()
    leads_to: Suggestion | None = None


class ErrorDetail(Value):
    """One thing that is wrong, and where: the key, and a line and a column that count from 1."""

    code: str
    message: str
    key: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    suggestions: tuple[Hint, ...] = ()


class ErrorReport(ErrorDetail):
    """An error, with the fields of its first problem.

    `problems` are all that is wrong with a file, `reasons` why a spec has no plan.
    """

    exit_code: int
    problems: tuple[ErrorDetail, ...] = ()
    reasons: tuple[Reason, ...] = ()
