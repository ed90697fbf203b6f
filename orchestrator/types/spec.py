"""The request of a person: a Spec and its parts. Holds nothing computed and no secrets.

Docstrings, descriptions, bounds and examples are published: the JSON Schema of a spec is generated
from them by `orchestrator.spec.schema`, which also knows the notations.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta


def about(
    description: str,
    *examples: Any,
    notation: str | None = None,
    default: Any = None,
    **constraints: Any,
) -> Meta:
    """What the schema publishes about a field.

    A file may write the value in a `notation` (15T, 10%, auto), and leave out what has a `default`.
    """
    more = {"notation": notation, "default": default}
    return Meta(
        description=description,
        examples=list(examples) or None,
        extra_json_schema={key: value for key, value in more.items() if value is not None},
        **constraints,
    )


# No key of a file: it follows from the others.
COMPUTED = Meta(extra_json_schema={"computed": True})

Name = Annotated[
    str,
    Meta(
        title="a name: 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit",
        pattern="^[a-z0-9][a-z0-9-]{0,62}$",
        examples=["my-run-2"],
    ),
]
Text = Annotated[str, Meta(title="text", min_length=1, max_length=4096)]
Address = Annotated[
    str,
    Meta(
        title="a path or address, without a password",
        pattern="^(?!.*://[^/]*@).",
        max_length=4096,
        extra_json_schema={"writeOnly": True},
    ),
]
Variable = Annotated[
    str,
    Meta(
        title="the name of an environment variable (A-Z, 0-9, _), never its value",
        pattern="^[A-Z_][A-Z0-9_]{0,127}$",
        examples=["HF_TOKEN"],
        extra_json_schema={"writeOnly": True},
    ),
]
OptionName = Annotated[
    str,
    Meta(
        title="the name of an XLA option (a-z, 0-9, _)",
        pattern="^[a-z][a-z0-9_]{0,127}$",
        examples=["xla_tpu_enable_latency_hiding_scheduler"],
    ),
]
Count = Annotated[int, Meta(ge=1, le=10**18, extra_json_schema={"notation": "count"})]
CountOrZero = Annotated[int, Meta(ge=0, le=10**18, extra_json_schema={"notation": "count_or_zero"})]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
DecayRate = Annotated[float, Meta(ge=0, lt=1)]
PodCount = Annotated[int, Meta(ge=1, le=10_000)]
AxisSize = Annotated[int, Meta(ge=1, le=1_000_000)]
Attempts = Annotated[int, Meta(ge=0, le=1_000_000)]
DType = Literal["fp32", "bf16"]
Treatment = Literal["keep", "offload", "recompute"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """The shape of a decoder-only transformer of the Llama family."""

    name: Annotated[Name, about("What plans call the model.", default="custom")]
    layers: Annotated[int, about("Transformer layers.", 32, ge=1, le=10_000)]
    d_model: Annotated[int, about("Width of the residual stream.", 4096, ge=1, le=1_000_000)]
    d_ff: Annotated[
        int,
        about(
            "Width of the MLP; a gated MLP has three matrices of it.", 14_336, ge=1, le=10_000_000
        ),
    ]
    heads: Annotated[int, about("Attention (query) heads.", 32, ge=1, le=10_000)]
    kv_heads: Annotated[
        int, about("Key and value heads; they divide the heads.", 8, ge=1, le=10_000)
    ]
    head_dim: Annotated[
        int, about("Width of a head; even, because RoPE turns pairs.", 128, ge=2, le=10_000)
    ]
    vocab: Annotated[int, about("Rows of the embedding table.", 128_256, ge=2, le=100_000_000)]
    gated: Annotated[bool, about("Whether the MLP is gated (SwiGLU).")] = True
    tied: Annotated[bool, about("Whether the embedding table is the unembedding too.")] = False
    rope_theta: Annotated[Positive, about("Base of the rotary frequencies.")] = 500_000.0
    norm_epsilon: Annotated[Positive, about("Added to the mean square in RMSNorm.")] = 1e-5


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The global batch of a step."""

    sequences: Annotated[
        int, about("Sequences per step, over all pods.", 1024, ge=1, le=10_000_000)
    ]
    length: Annotated[int, about("Tokens per sequence.", 4096, ge=1, le=100_000_000)]
    tolerance: Annotated[
        float,
        about(
            "How far `sequences` may move, up or down, to suit the mesh.",
            "10%",
            ge=0,
            le=0.5,
            notation="tolerance",
        ),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with linear warm-up."""

    name: Annotated[Literal["adamw"], about("The optimizer.")] = "adamw"
    peak_lr: Annotated[Positive, about("Learning rate at the end of the warm-up.")] = 3e-4
    end_lr: Annotated[NotNegative, about("Learning rate that a decay ends at.")] = 0.0
    warmup_steps: Annotated[
        CountOrZero, about("Steps over which the learning rate rises to its peak.")
    ] = 2000
    decay: Annotated[
        Literal["cosine", "linear", "constant"],
        about("How the learning rate falls after the warm-up."),
    ] = "cosine"
    beta1: Annotated[DecayRate, about("Decay of the first moment.")] = 0.9
    beta2: Annotated[DecayRate, about("Decay of the second moment.")] = 0.95
    epsilon: Annotated[Positive, about("Added to the root of the second moment.")] = 1e-8
    weight_decay: Annotated[NotNegative, about("Decoupled weight decay of the matrices.")] = 0.1
    clip_norm: Annotated[Positive, about("Gradients are scaled down to this global norm.")] = 1.0
    z_loss: Annotated[
        NotNegative, about("Weight of the squared log of the softmax's denominator.")
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Types of what is stored, computed and sent. Accumulation is always fp32."""

    parameters: Annotated[DType, about("The parameters as stored.")] = "fp32"
    compute: Annotated[DType, about("Matrix multiplications and activations.")] = "bf16"
    gradients: Annotated[DType, about("Gradients on the wire.")] = "bf16"
    optimizer: Annotated[DType, about("The moments of the optimizer.")] = "fp32"


@dataclass(frozen=True, kw_only=True)
class TensorTreatments:
    """What becomes of each tensor of a block until its backward pass: kept in HBM, offloaded to the
    host's memory, or recomputed. What is not named is recomputed; the block's input is kept.
    """

    block_input: Annotated[
        Literal["keep", "offload"], about("The residual stream at the block's begin.")
    ] = "keep"
    query: Annotated[Treatment, about("Queries, after RoPE.")] = "recompute"
    key: Annotated[Treatment, about("Keys, after RoPE.")] = "recompute"
    value: Annotated[Treatment, about("Values.")] = "recompute"
    attention: Annotated[
        Treatment, about("What attention gives the output projection, with its log-sum-exp.")
    ] = "recompute"
    mlp_input: Annotated[Treatment, about("The residual stream after attention.")] = "recompute"
    gate: Annotated[Treatment, about("The gate of a gated MLP.")] = "recompute"
    up: Annotated[Treatment, about("The MLP's other projection.")] = "recompute"


Remat = str | TensorTreatments  # a policy by its name, or tensor by tensor


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """What is trained on."""

    kind: Annotated[
        Literal["synthetic", "tokens"],
        about("Made up (synthetic), or read from a token set (tokens)."),
    ] = "synthetic"
    path: Annotated[
        Text | None,
        about(
            "The manifest of the token set, relative to the spec; for kind tokens alone.",
            "tokens/manifest.json",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The identity of a run: what is trained, on what, and how precisely."""

    model: Annotated[
        Model,
        about(
            "A model by name, by shape, or by its Hugging Face config.json.",
            "llama3-70b",
            notation="model",
        ),
    ]
    tokens: Annotated[Count, about("Tokens to train on; days and dollars are for these.", "15T")]
    batch: Annotated[Batch, Meta(examples=[{"sequences": 1024, "length": 4096}])]
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    remat: Annotated[
        Remat,
        about(
            "What the backward pass recomputes: nothing (none), every layer (full), what a named"
            " policy does not keep, or what a mapping of tensors says; auto is searched.",
            {"block_input": "offload", "query": "keep"},
            notation="remat",
        ),
    ] = "auto"
    compiler_options: Annotated[
        dict[
            OptionName,
            Annotated[bool | int | float | str, Meta(extra_json_schema={"notation": "option"})],
        ],
        about("XLA options for the chip; part of the plan's digest.", default={}),
    ] = field(default_factory=dict)
    data: DataSource = DataSource()
    seed: Annotated[
        int, about("Of the first weights and of the order of the data.", ge=0, le=2**31 - 1)
    ] = 0


@dataclass(frozen=True, kw_only=True)
class Pods:
    """How many pods the run may have."""

    min: Annotated[PodCount, about("What the run may shrink to.", 2)]
    max: Annotated[PodCount, about("How many are requested; the plan is for these.", 4)]


@dataclass(frozen=True, kw_only=True)
class MeshRequest:
    """Sizes of the mesh axes inside a pod."""

    # The search chooses what is None.
    data: Annotated[
        AxisSize | None, about("Replicas of the model inside a pod.", notation="axis")
    ] = None
    fsdp: Annotated[
        AxisSize | None, about("Ways over which sequences and weights are split.", notation="axis")
    ] = None
    sequence: Annotated[
        AxisSize | None, about("Ways over which positions and weights are split.", notation="axis")
    ] = None
    tensor: Annotated[
        AxisSize | None,
        about("Ways over which heads, d_ff and vocabulary are split.", notation="axis"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The requested chips. The same experiment on other chips has another plan."""

    chip: Annotated[
        str, about("The kind of chip, by name or by its own file.", "v5p", notation="chip")
    ]
    # The content of the chip's file, where it is not a chip of the catalog.
    chip_definition: Annotated[dict[str, Any] | None, COMPUTED] = None
    topology: Annotated[
        str,
        about(
            "One slice: its shape in chips (16x20x28), or an accelerator type (v5p-128).",
            "4x4x4",
            notation="topology",
        ),
    ]
    pods: Annotated[
        Pods,
        about(
            "Slices, joined by the data-center network; or how few the run may shrink to (min)"
            " and how many are requested (max).",
            notation="pods",
        ),
    ] = Pods(min=1, max=1)
    mesh: Annotated[
        MeshRequest,
        about(
            "Sizes of the mesh axes inside a pod; what is auto or not named is chosen.",
            notation="mesh",
        ),
    ] = MeshRequest()
    goodput: Annotated[
        float,
        about(
            "Share of the time that makes progress; days and dollars count it.",
            "90%",
            gt=0,
            le=1,
            notation="share",
        ),
    ] = 1.0
    dollars_per_chip_hour: Annotated[
        NotNegative | None,
        about("What a chip costs; the list price of the catalog when left out.", 4.2),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """When checkpoints are written, and how many are kept."""

    every: Annotated[Count, about("Steps between checkpoints.")] = 200
    keep: Annotated[int, about("Checkpoints kept, newest first.", ge=1, le=1_000_000)] = 3


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """How often a run is started again."""

    failures: Annotated[Attempts, about("After failures of the run itself.")] = 3
    preemptions: Annotated[Attempts, about("After chips were taken away.")] = 100


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the run is carried out; outside every digest."""

    trainer: Annotated[
        str,
        about(
            "The trainer: llama, mlp, one that an installed package registers, or a module of your"
            " own.",
            title="the name or the module of a trainer",
            pattern="^[A-Za-z_][A-Za-z0-9_.]*(:[A-Za-z_][A-Za-z0-9_.]*)?$",
        ),
    ] = "llama"
    steps: Annotated[
        Count | None,
        about("Stop after so many steps, whatever `tokens` says.", 1000, notation="count"),
    ] = None
    storage: Annotated[
        Address, about("Where journals, checkpoints and logs are kept: a path, mounted or local.")
    ] = "runs/"
    checkpoint: CheckpointOptions = CheckpointOptions()
    retries: RetryLimits = RetryLimits()
    hang_limit_s: Annotated[
        Positive,
        about(
            "A run that shows no progress for so long is ended and started again.",
            notation="duration",
        ),
    ] = 600.0
    secrets: Annotated[
        tuple[Variable, ...],
        about(
            "Environment variables that the run is given: their names, never their values.",
            ["HF_TOKEN"],
        ),
        Meta(
            title="a list of names of environment variables",
            extra_json_schema={"uniqueItems": True, "writeOnly": True},
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """What runs the processes, and where; this machine when left out."""

    backend: Annotated[
        Text,
        about("What starts processes: ray, or a backend of your own as package.module:class."),
    ] = "ray"
    address: Annotated[
        Address | None,
        about("auto, or the address of a cluster; this machine when left out.", "auto"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrackingOptions:
    """Where runs are recorded."""

    tracker: Annotated[
        Text,
        about("What records runs: mlflow, or a tracker of your own as package.module:class."),
    ] = "mlflow"
    uri: Annotated[Address, about("auto, or the address of an MLflow server.")] = "auto"
    experiment: Annotated[Text, about("The MLflow experiment that runs are recorded in.")] = "orch"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One training experiment, the chips it requests, and how to run, place and track it. What is
    left out has the default named here. Suffixes K, M, B and T are decimal.
    """

    name: Annotated[
        Name,
        about(
            "What runs of this spec are called. Outside every digest: renaming makes no other"
            " plan.",
            "llama3-70b-4pod",
        ),
    ]
    experiment: Annotated[
        Experiment,
        Meta(
            examples=[
                {
                    "model": "llama3-70b",
                    "tokens": "15T",
                    "batch": {"sequences": 1024, "length": 4096},
                }
            ]
        ),
    ]
    resources: Annotated[
        Resources, Meta(examples=[{"chip": "v5p", "topology": "16x20x28", "pods": 4}])
    ]
    run: RunOptions = RunOptions()
    cluster: ClusterOptions = ClusterOptions()
    tracking: TrackingOptions = TrackingOptions()
    # The `--set key=value` texts that were applied, so that a plan can show them.
    overrides: Annotated[tuple[str, ...], COMPUTED] = ()
