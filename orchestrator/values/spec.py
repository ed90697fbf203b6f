"""A Spec, which says what to train and on which chips. It holds nothing computed and no secrets.

Docstrings, descriptions, bounds and examples are published: the JSON Schema of a spec is generated
from them by `orchestrator.reading.schema`, which also knows the notations.
"""

from dataclasses import field
from typing import Annotated, Any, Literal

from msgspec import Meta

from orchestrator.values.codec import (
    COMPUTED,
    FROM_STAGES,
    AxisSize,
    DecayRate,
    DType,
    MatmulType,
    Microbatches,
    MomentType,
    Name,
    NonNegativeInteger,
    NonNegativeNumber,
    OptionName,
    PodCount,
    PositiveInteger,
    PositiveNumber,
    Share,
    Text,
    Treatment,
    Value,
    about,
)
from orchestrator.values.model import Model
from orchestrator.values.run_options import (
    ClusterOptions,
    FailureOptions,
    RunOptions,
    TrackingOptions,
)


class Batch(Value):
    """The global batch of a step."""

    sequences: Annotated[
        int, about("The number of sequences in a step, over all pods.", 1024, ge=1, le=10_000_000)
    ]
    length: Annotated[int, about("The number of tokens in a sequence.", 4096, ge=1, le=100_000_000)]
    tolerance: Annotated[
        float,
        Meta(ge=0, le=0.5),
        about(
            "The share by which the plan may raise or lower `sequences`, so that the mesh"
            " divides it. 10% of 1024 allows 922 to 1126.",
            "10%",
            notation="tolerance",
        ),
    ] = 0.0
    # The search takes the fewest that fit where it is None.
    microbatches: Annotated[
        Microbatches | None,
        about(
            "The number of parts of its sequences that a replica trains one after another; their"
            " gradients add up. With auto it is the least that fits in memory.",
            2,
            notation="microbatches",
        ),
    ] = None


class Optimizer(Value):
    """The optimizer, with linear warm-up."""

    name: Annotated[
        Literal["adamw", "adafactor", "muon"],
        about(
            "AdamW; Adafactor, with second moments only of rows and columns, whose steps are in"
            " proportion to its parameters; or Muon, with one moment that is made orthogonal for"
            " matrices of layers, and AdamW for all else. Muon can be planned and not trained."
        ),
    ] = "adamw"
    peak_lr: Annotated[
        PositiveNumber, about("The highest learning rate, at the end of the warm-up.")
    ] = 3e-4
    end_lr: Annotated[
        NonNegativeNumber,
        about("The learning rate at the last step; a constant schedule does not reach it."),
    ] = 0.0
    warmup_steps: Annotated[
        NonNegativeInteger,
        about("The number of steps over which the learning rate rises from 0 to `peak_lr`."),
    ] = 2000
    decay: Annotated[
        Literal["cosine", "linear", "constant"],
        about("How the learning rate falls from `peak_lr` to `end_lr` after the warm-up."),
    ] = "cosine"
    beta1: Annotated[DecayRate, about("The decay rate of the first moment, per step.")] = 0.9
    beta2: Annotated[DecayRate, about("The decay rate of the second moment, per step.")] = 0.95
    epsilon: Annotated[
        PositiveNumber, about("A small number that is added to the root of the second moment.")
    ] = 1e-8
    weight_decay: Annotated[
        NonNegativeNumber,
        about(
            "The decoupled weight decay of matrices. Vectors, such as the weights of a norm,"
            " have none."
        ),
    ] = 0.1
    clip_norm: Annotated[
        PositiveNumber,
        about(
            "The limit of the global norm of the gradients. Larger gradients are scaled down to it."
        ),
    ] = 1.0
    z_loss: Annotated[
        NonNegativeNumber,
        about("The weight of the z-loss: the squared logarithm of the softmax's denominator."),
    ] = 0.0


class Precision(Value):
    """Types of what is stored, computed and sent. Accumulation is always fp32."""

    parameters: Annotated[DType, about("The type in which parameters are stored.")] = "fp32"
    compute: Annotated[
        MatmulType,
        about(
            "The type of matrix multiplications and activations. With int8 and fp8 the blocks'"
            " matrices multiply in that type, and all else is bf16: the trainer has none of the"
            " two, so it can be planned and not trained."
        ),
    ] = "bf16"
    gradients: Annotated[
        DType, about("The type in which devices send gradients to each other.")
    ] = "bf16"
    optimizer: Annotated[
        MomentType,
        about(
            "The type in which the optimizer's moments are stored. int8 has an fp32 scale for each"
            " 256 of them: it can be planned and not trained. Adafactor's are always fp32."
        ),
    ] = "fp32"
    first_moment: Annotated[
        DType | None,
        about(
            "The type in which only the first moment is stored; that of `optimizer` when left out."
            " Adafactor has none.",
            "bf16",
        ),
    ] = None


class TensorTreatments(Value):
    """What becomes of each tensor of a block until its backward pass: kept in HBM, offloaded to the
    host's memory, or recomputed. What is not named is recomputed; the block's input is kept.
    """

    block_input: Annotated[
        Literal["keep", "offload"], about("The residual stream at the block's begin.")
    ] = "keep"
    latent: Annotated[
        Treatment, about("Latent attention: what queries, keys and values are made from.")
    ] = "recompute"
    query: Annotated[Treatment, about("Queries, after RoPE.")] = "recompute"
    key: Annotated[Treatment, about("Keys, after RoPE.")] = "recompute"
    value: Annotated[Treatment, about("Values.")] = "recompute"
    attention: Annotated[
        Treatment, about("What attention gives the output projection, with its log-sum-exp.")
    ] = "recompute"
    mlp_input: Annotated[Treatment, about("The residual stream after attention.")] = "recompute"
    gate: Annotated[Treatment, about("The gate of a gated MLP.")] = "recompute"
    up: Annotated[Treatment, about("The MLP's other projection.")] = "recompute"


AUTO_TOPOLOGY = "auto"  # whoever reads the spec is to choose slices first
Remat = str | TensorTreatments  # a policy by its name, or tensor by tensor


class DataSource(Value):
    """What is trained on."""

    kind: Annotated[
        Literal["synthetic", "tokens"],
        about(
            "The source of the tokens: random ones (synthetic), or a token set on disk (tokens)."
        ),
    ] = "synthetic"
    path: Annotated[
        Text | None,
        about(
            "The path of the token set's manifest, relative to the spec, or its address on a"
            " bucket: gs://BUCKET/SET/manifest.json, or s3:// likewise; only for kind tokens.",
            "tokens/manifest.json",
        ),
    ] = None
    separator: Annotated[
        NonNegativeInteger | None,
        about(
            "The token that ends each document. A token then attends only to its own document,"
            " and nothing is predicted from a document's end; when left out, a sequence is one"
            " document.",
            128_001,
        ),
    ] = None


class StartingWeights(Value):
    """Weights that training starts from."""

    huggingface: Annotated[
        Text,
        about(
            "The folder of a Hugging Face model (config.json and safetensors), relative to the"
            " spec, or its address, gs://BUCKET/MODEL or s3://BUCKET/MODEL.",
            "SmolLM2-135M",
        ),
    ]


class TrainingStage(Value):
    """A part of the training with a batch, an optimizer and data of its own.

    `restarts_schedule`: the learning rate has a schedule that begins with this stage. Only a
    rehearsal has a `mesh` and a `remat` here, those of the stage that it copies.
    """

    tokens: int
    batch: Batch
    optimizer: Optimizer = Optimizer()
    data: DataSource = DataSource()
    restarts_schedule: bool = False
    mesh: Annotated["MeshRequest | None", COMPUTED] = None
    remat: Annotated[Remat | None, COMPUTED] = None


class Experiment(Value):
    """The identity of a run: what is trained, on what, and how precisely."""

    model: Annotated[
        Model,
        about(
            "The model: the name of a known one, a shape, or a Hugging Face config.json.",
            "llama3-70b",
            notation="model",
        ),
    ]
    tokens: Annotated[
        PositiveInteger,
        about(
            "The number of tokens to train on. Days and dollars are counted for them. With stages"
            " it may be left out: it is their sum.",
            "15T",
        ),
        FROM_STAGES,
    ]
    batch: Annotated[Batch, Meta(examples=[{"sequences": 1024, "length": 4096}]), FROM_STAGES]
    stages: Annotated[
        tuple[TrainingStage, ...],
        about(
            "Parts of the training, one after another. What a stage leaves out is as in the stage"
            " before it, and in the first as in the experiment. When left out, steps are alike.",
            [{"tokens": "252M", "batch": 1024, "length": 4096}, {"tokens": "15T", "batch": 2048}],
            notation="stages",
        ),
    ] = ()
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    remat: Annotated[
        Remat,
        about(
            "What the backward pass recomputes: nothing (none), every layer (full), or all that a"
            " policy does not keep or offload. A mapping decides tensor by tensor. `auto` searches"
            " all policies for the fastest that fits in memory.",
            {"block_input": "offload", "query": "keep"},
            notation="remat",
        ),
    ] = "auto"
    compiler_options: Annotated[
        dict[
            OptionName,
            Annotated[bool | int | float | str, Meta(extra_json_schema={"notation": "option"})],
        ],
        about(
            "XLA options, besides those in the chip's file. The plan's digest covers them.",
            default={},
        ),
    ] = field(default_factory=dict)
    data: DataSource = DataSource()
    start: Annotated[
        StartingWeights | None,
        about(
            "Weights that training starts from, in place of random ones. The model is theirs.",
            {"huggingface": "SmolLM2-135M"},
        ),
    ] = None
    seed: Annotated[
        int,
        about("The seed of the initial weights and of the order of the data.", ge=0, le=2**31 - 1),
    ] = 0


class Pods(Value):
    """How many pods the run may have."""

    min: Annotated[PodCount, about("The smallest number of pods on which the run may continue.", 2)]
    max: Annotated[
        PodCount, about("The number of pods that are requested. The plan is for this number.", 4)
    ]
    spare: Annotated[
        int,
        Meta(ge=0, le=10_000),
        about(
            "The number of further pods that are rented, of which one takes the place of a pod that"
            " fails. Chip-hours and dollars include them.",
            1,
        ),
    ] = 0


class MeshRequest(Value):
    """Sizes of the mesh axes inside a pod, and the number of pods that share weights."""

    # The search chooses what is None. It shares weights between pods only on request.
    data: Annotated[
        AxisSize | None, about("The number of replicas of the model inside a pod.", notation="axis")
    ] = None
    expert: Annotated[
        AxisSize | None,
        about(
            "The number of parts into which the sequences of a batch and the experts of a mixture"
            " are split: tokens travel to their experts.",
            notation="axis",
        ),
    ] = None
    fsdp: Annotated[
        AxisSize | None,
        about(
            "The number of parts into which the sequences of a batch and the weights are split.",
            notation="axis",
        ),
    ] = None
    sequence: Annotated[
        AxisSize | None,
        about(
            "The number of parts into which the positions of a sequence and the weights are split.",
            notation="axis",
        ),
    ] = None
    tensor: Annotated[
        AxisSize | None,
        about(
            "The number of parts into which heads, d_ff and the vocabulary are split.",
            notation="axis",
        ),
    ] = None
    fsdp_dcn: Annotated[
        AxisSize | None,
        about(
            "The number of pods that share one copy of the weights over the data-center network;"
            " it divides the number of pods. With auto it is 1: each pod has its own copy, and only"
            " gradients cross.",
            2,
            notation="axis",
        ),
    ] = None


class Resources(Value):
    """The requested chips. The same experiment on other chips has another plan."""

    chip: Annotated[
        str,
        about(
            "The kind of chip: the name of a known one, or a file of your own.",
            "v5p",
            notation="chip",
        ),
    ]
    # The content of the chip's file, where it is not a chip of the catalog.
    chip_definition: Annotated[dict[str, Any] | None, COMPUTED] = None
    topology: Annotated[
        str,
        about(
            "The shape of one pod (slice) in chips, such as 16x20x28, or its accelerator"
            " type, such as v5p-128. With auto, `orch plan` lists slices that can be rented.",
            "4x4x4",
            notation="topology",
        ),
    ] = AUTO_TOPOLOGY
    pods: Annotated[
        Pods,
        about(
            "The number of pods (slices), which the data-center network joins. With min and max"
            " the run may go on with fewer than it requests.",
            notation="pods",
        ),
    ] = Pods(min=1, max=1)
    mesh: Annotated[
        MeshRequest,
        about(
            "The sizes of the mesh axes. The search chooses an axis that is auto or left out.",
            notation="mesh",
        ),
    ] = MeshRequest()
    goodput: Annotated[
        Share | None,
        about(
            "The share of time that makes progress, by which days and dollars are divided. When"
            " left out, it is predicted from failures, restarts and saves.",
            "90%",
            notation="share",
        ),
    ] = None
    failures: FailureOptions = field(default_factory=FailureOptions)
    dollars_per_chip_hour: Annotated[
        NonNegativeNumber | None,
        about(
            "The price of a chip in US dollars per hour; the list price of the catalog when"
            " left out.",
            4.2,
        ),
    ] = None

    @property
    def has_open_topology(self) -> bool:
        """Whether slices are to be chosen before there is a plan."""
        return self.topology == AUTO_TOPOLOGY


class Spec(Value):
    """One training experiment, the chips it requests, and how to run, place and track it. A key
    that is left out has the default named here. Suffixes K, M, B and T are decimal.
    """

    name: Annotated[
        Name,
        about(
            "The name of runs of this spec. No digest covers it: a new name makes no other plan.",
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
    run: RunOptions = field(default_factory=RunOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    tracking: TrackingOptions = field(default_factory=TrackingOptions)
    # The `--set key=value` texts that were applied, so that a plan can show them.
    overrides: Annotated[tuple[str, ...], COMPUTED] = ()
