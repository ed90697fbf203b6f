"""Station Spec: what was asked. Holds nothing computed and no secrets."""

from dataclasses import dataclass, field
from typing import Literal

DType = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer of the Llama family."""

    name: str
    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool = True
    tied: bool = False
    rope_theta: float = 500_000.0
    norm_epsilon: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Global batch as asked; `tolerance` is the fraction it may move to become realizable."""

    sequences: int
    length: int
    tolerance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with linear warm-up."""

    name: Literal["adamw"] = "adamw"
    peak_lr: float = 3e-4
    end_lr: float = 0.0
    warmup_steps: int = 2000
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    z_loss: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Precision:
    """`gradients` is the type on the wire; accumulation is always fp32."""

    parameters: DType = "fp32"
    compute: DType = "bf16"
    gradients: DType = "bf16"
    optimizer: DType = "fp32"


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """`path` names the manifest of a token set, from the spec's folder; for `tokens` alone."""

    kind: Literal["synthetic", "tokens"] = "synthetic"
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The identity of a run: the same experiment on other chips is another Plan of it."""

    model: Model
    tokens: int
    batch: Batch
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    remat: str = "auto"
    compiler_options: dict[str, bool | int | float | str] = field(default_factory=dict)
    data: DataSource = DataSource()
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Pods:
    """How many slices: `max` is asked, `min` is what the run may shrink to."""

    min: int
    max: int


@dataclass(frozen=True, kw_only=True)
class MeshRequest:
    """Sizes of the mesh axes inside a pod; None is chosen by the search."""

    data: int | None = None
    fsdp: int | None = None
    sequence: int | None = None
    tensor: int | None = None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The chips asked for. `topology` is as written: a shape or an accelerator type."""

    chip: str
    topology: str
    pods: Pods = Pods(min=1, max=1)
    mesh: MeshRequest = MeshRequest()
    goodput: float = 1.0
    dollars_per_chip_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    every: int = 200
    keep: int = 3


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    failures: int = 3
    preemptions: int = 100


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the run is carried out; outside every digest."""

    trainer: str = "llama"
    steps: int | None = None
    storage: str = "runs/"
    checkpoint: CheckpointOptions = CheckpointOptions()
    retries: RetryLimits = RetryLimits()
    hang_limit_s: float = 600.0
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where Ray is; an address of None is this machine."""

    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrackingOptions:
    tracker: str = "mlflow"
    uri: str = "auto"
    experiment: str = "orch"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One experiment on some resources, and how to run, place and track it.

    `overrides` are the `--set key=value` texts that were applied, so that a plan can show them.
    """

    name: str
    experiment: Experiment
    resources: Resources
    run: RunOptions = RunOptions()
    cluster: ClusterOptions = ClusterOptions()
    tracking: TrackingOptions = TrackingOptions()
    overrides: tuple[str, ...] = ()
