"""What a realizable plan decides or counts differently from a derivation by hand. Plain values."""

from dataclasses import dataclass

from orchestrator.types.plan import DeviceGroup, Estimate, MemoryPhase, PlanWarning
from orchestrator.types.refusal import Reason, Suggestion
from orchestrator.types.spec import Remat


@dataclass(frozen=True, kw_only=True)
class MeshSplit:
    """The powers of two that the derivation splits a pod into; `used` is their product."""

    fsdp: int
    tensor: int
    used: int


@dataclass(frozen=True, kw_only=True)
class MeshDifference:
    """The derivation's split of a pod, None on one chip, and the plan's axes inside a pod."""

    chips: int
    split: MeshSplit | None
    devices: int
    axes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class BatchDifference:
    """Another batch than requested. With the requested one a token takes `longer`, as a share of
    its time; or there is no plan, for a `reason`, and these are the `nearest` batches with one.
    """

    requested: int
    sequences: int
    tolerance: float
    longer: float | None
    reason: Reason | None
    nearest: tuple[Suggestion, ...]


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """Tensor `ways` on a longer torus axis: a line, with a `share` of the ring's rate.

    On a ring compute binds above `least` tokens a chip; the batch has `tokens`.
    """

    ways: int
    length: int
    share: float
    tokens: float
    least: float


@dataclass(frozen=True, kw_only=True)
class LinkDifference:
    """The links of each group of devices in a pod."""

    groups: tuple[DeviceGroup, ...]
    switched: bool


@dataclass(frozen=True, kw_only=True)
class MixedBound:
    """Tokens a chip over the least that are compute-bound: by F, and by all matmuls of a layer."""

    by_f: float
    by_all_matmuls: float


@dataclass(frozen=True, kw_only=True)
class BoundDifference:
    """The bound of FSDP + tensor, None on one chip, and what binds the plan."""

    mixed: MixedBound | None
    bound: str
    bound_by: float
    mfu: Estimate


@dataclass(frozen=True, kw_only=True)
class MemoryDifference:
    """Bytes of a chip, counted in two ways, and the plan's largest phase.

    State is split so many `ways` on the devices of a pod.
    """

    by_d_bytes: float
    by_6f_bytes: float
    phase: MemoryPhase
    parameters: str
    moments: str
    ways: int
    devices: int
    remat: Remat


@dataclass(frozen=True, kw_only=True)
class RecomputeDifference:
    """The share of the step that the plan computes again, with nothing hidden."""

    remat: Remat
    share: float


@dataclass(frozen=True, kw_only=True)
class DaysDifference:
    """Days at an assumed MFU, by 6 P and as MFU counts, and those of the plan."""

    mfu: float
    by_6p: float
    by_mfu: float
    planned: Estimate


@dataclass(frozen=True, kw_only=True)
class RentingDifference:
    """Slices that exist and that nobody rents."""

    pods: int
    topology: str
    obstacles: tuple[PlanWarning, ...]


@dataclass(frozen=True, kw_only=True)
class PlanDifferences:
    """All differences, in the order of the derivation; None where there is none."""

    mesh: MeshDifference
    batch: BatchDifference | None
    tensor: TensorDifference | None
    links: LinkDifference | None
    bound: BoundDifference
    memory: MemoryDifference
    recompute: RecomputeDifference
    days: DaysDifference
    renting: RentingDifference | None
