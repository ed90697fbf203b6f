"""Station Proof: what the TPU compiler said about one Plan. Plain values, no opinions."""

from dataclasses import dataclass

from orchestrator.types.plan import Link


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One figure of the compiled program beside the Forecast's; None where it has no such line."""

    name: str
    compiled: float
    forecast: float | None


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A large buffer of the compiled program: `name` is where the trainer makes it."""

    name: str
    shape: str
    bytes: float


@dataclass(frozen=True, kw_only=True)
class ComparedCollective:
    """Collectives of one kind, group of axes, link and type: logical payload per device and step.

    All-gather and reduce-scatter V (n - 1) / n, an all-reduce twice that; neither padding nor what
    the compiler runs in place of it is in `bytes_per_step`: these stand in `Proof.changes`.
    """

    axes: tuple[str, ...]
    link: Link
    kind: str
    dtype: str
    bytes_per_step: float
    forecast_bytes_per_step: float
    calls_per_step: float


@dataclass(frozen=True, kw_only=True)
class CompilerChange:
    """Bytes that the compiler adds to a collective: by padding it, or by running another kind."""

    what: str
    axes: tuple[str, ...]
    link: Link
    bytes_per_step: float


@dataclass(frozen=True, kw_only=True)
class DcnCrossing:
    """One operation that crosses pods, where the trainer asks for it, and whether it may."""

    name: str
    kind: str
    dtype: str
    bytes_per_step: float
    calls_per_step: float
    places: tuple[str, ...]
    is_gradient: bool


@dataclass(frozen=True, kw_only=True)
class CompilerRefusal:
    """Why the compiler would not have the plan; the figures are then of what it would have been.

    `said` is the compiler's own sentence. `nearest` are overrides that lead to a plan like this one
    that fits by the Forecast, corrected by what the Forecast missed here.
    """

    said: str
    needed_bytes: float
    nearest: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The compiler's verdict on a Plan, held against its Forecast.

    `fits`: the compiler accepted the program; it compares the peak with `hbm_bytes_per_device`, and
    `margin_bytes` is what is left. `agrees`: the Forecast is right within tolerances; where it is
    not, `disagreements` say by how much. `memory` is the compiler's own account by class, `ledger`
    what is held when the most is held, while `peak_at` runs. FLOPs are those of the compiled
    program: what is computed twice counts twice. `only_gradients_cross_pods` is true where nothing
    crosses; `crossing_faults` say what may not cross and does. `hints` are overrides worth a try.
    """

    schema: int
    plan_digest: str
    trainer: str
    fits: bool
    agrees: bool
    refusal: CompilerRefusal | None
    hbm_bytes_per_device: float
    peak_hbm_bytes_per_device: float
    forecast_peak_hbm_bytes_per_device: float
    margin_bytes: float
    memory: dict[str, float]
    ledger: tuple[Comparison, ...]
    peak_at: str
    buffers: tuple[Buffer, ...]
    collectives: tuple[ComparedCollective, ...]
    changes: tuple[CompilerChange, ...]
    only_gradients_cross_pods: bool
    crossing_faults: tuple[str, ...]
    crossings: tuple[DcnCrossing, ...]
    flops_per_device: float
    forecast_flops_per_device: float
    flops: tuple[Comparison, ...]
    disagreements: tuple[str, ...]
    hints: tuple[str, ...]
    compile_s: float
    compiler_memory_bytes: float
    versions: dict[str, str]

    @property
    def passes(self) -> bool:
        """Whether the plan may run as it is."""
        return self.fits and self.only_gradients_cross_pods
