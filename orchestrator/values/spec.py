"""A Spec, which says what to train and on which chips. It holds nothing computed and no secrets.
Docstrings, descriptions, bounds and examples are published: the JSON Schema of a spec is generated
from them by `orchestrator.reading.schema`, which also knows the notations.
"""

from dataclasses import field
from typing import Annotated, Any, Literal

from msgspec import Meta

from orchestrator.values import codec, run_options
from orchestrator.values.model import Model


class Batch(codec.Value):
    """The global batch of a step.

    Attributes:
        sequences: The number of sequences in a step, over all pods.
        length: The number of tokens in a sequence.
        tolerance: The share by which the plan may raise or lower `sequences`, so that the mesh
            divides it. 10% of 1024 allows 922 to 1126.
        microbatches: The number of parts of its sequences that a replica trains one after another;
            their gradients add up. With auto it is the least that fits in memory.
    """

    sequences: Annotated[int, codec.about(1024, ge=1, le=10_000_000)]
    length: Annotated[int, codec.about(4096, ge=1, le=100_000_000)]
    tolerance: Annotated[float, codec.about("10%", notation="tolerance", ge=0, le=0.5)] = 0.0
    # The search takes the fewest that fit where it is None.
    microbatches: Annotated[codec.Microbatches | None, codec.about(2, notation="microbatches")] = (
        None
    )


class Optimizer(codec.Value):
    """The optimizer, with linear warm-up.

    Attributes:
        name: AdamW; Adafactor, with second moments only of rows and columns, whose steps are in
            proportion to its parameters; or Muon, with one moment that is made orthogonal for
            matrices of layers, and AdamW for all else. Muon can be planned and not trained.
        peak_lr: The highest learning rate, at the end of the warm-up.
        end_lr: The learning rate at the last step; a constant schedule does not reach it.
        warmup_steps: The number of steps over which the learning rate rises from 0 to `peak_lr`.
        decay: How the learning rate falls from `peak_lr` to `end_lr` after the warm-up.
        beta1: The decay rate of the first moment, per step.
        beta2: The decay rate of the second moment, per step.
        epsilon: A small number that is added to the root of the second moment.
        weight_decay: The decoupled weight decay of matrices. Vectors, such as the weights of a
            norm, have none.
        clip_norm: The limit of the global norm of the gradients. Larger gradients are scaled down
            to it.
        z_loss: The weight of the z-loss: the squared logarithm of the softmax's denominator.
    """

    name: Literal["adamw", "adafactor", "muon"] = "adamw"
    peak_lr: codec.PositiveNumber = 3e-4
    end_lr: codec.NonNegativeNumber = 0.0
    warmup_steps: codec.NonNegativeInteger = 2000
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    beta1: codec.DecayRate = 0.9
    beta2: codec.DecayRate = 0.95
    epsilon: codec.PositiveNumber = 1e-8
    weight_decay: codec.NonNegativeNumber = 0.1
    clip_norm: codec.PositiveNumber = 1.0
    z_loss: codec.NonNegativeNumber = 0.0


class Precision(codec.Value):
    """Types of what is stored, computed and sent. Accumulation is always fp32.

    Attributes:
        parameters: The type in which parameters are stored.
        compute: The type of matrix multiplications and activations. With int8 and fp8 the blocks'
            matrices multiply in that type, and all else is bf16: the trainer has none of the two,
            so it can be planned and not trained.
        gradients: The type in which devices send gradients to each other.
        optimizer: The type in which the optimizer's moments are stored. int8 has an fp32 scale for
            each 256 of them: it can be planned and not trained. Adafactor's are always fp32.
        first_moment: The type in which only the first moment is stored; that of `optimizer` when
            left out. Adafactor has none.
    """

    parameters: codec.DType = "fp32"
    compute: codec.MatmulType = "bf16"
    gradients: codec.DType = "bf16"
    optimizer: codec.MomentType = "fp32"
    first_moment: Annotated[codec.DType | None, codec.about("bf16")] = None


class TensorTreatments(codec.Value):
    """What becomes of each tensor of a block until its backward pass: kept in HBM, offloaded to the
    host's memory, or recomputed. What is not named is recomputed; the block's input is kept.

    Attributes:
        block_input: The residual stream at the block's begin.
        latent: Latent attention: what queries, keys and values are made from.
        query: Queries, after RoPE.
        key: Keys, after RoPE.
        value: Values.
        attention: What attention gives the output projection, with its log-sum-exp.
        mlp_input: The residual stream after attention.
        gate: The gate of a gated MLP.
        up: The MLP's other projection.
    """

    block_input: Literal["keep", "offload"] = "keep"
    latent: codec.Treatment = "recompute"
    query: codec.Treatment = "recompute"
    key: codec.Treatment = "recompute"
    value: codec.Treatment = "recompute"
    attention: codec.Treatment = "recompute"
    mlp_input: codec.Treatment = "recompute"
    gate: codec.Treatment = "recompute"
    up: codec.Treatment = "recompute"


AUTO_TOPOLOGY = "auto"  # whoever reads the spec is to choose slices first
Remat = str | TensorTreatments  # a policy by its name, or tensor by tensor


class DataSource(codec.Value):
    """What is trained on.

    Attributes:
        kind: The source of the tokens: random ones (synthetic), or a token set on disk (tokens).
        path: The path of the token set's manifest, relative to the spec, or its address on a
            bucket: gs://BUCKET/SET/manifest.json, or s3:// likewise; only for kind tokens.
        separator: The token that ends each document. A token then attends only to its own document,
            and nothing is predicted from a document's end; when left out, a sequence is one
            document.
    """

    kind: Literal["synthetic", "tokens"] = "synthetic"
    path: Annotated[codec.Text | None, codec.about("tokens/manifest.json")] = None
    separator: Annotated[codec.NonNegativeInteger | None, codec.about(128_001)] = None


class StartingWeights(codec.Value):
    """Weights that training starts from.

    Attributes:
        huggingface: The folder of a Hugging Face model (config.json and safetensors), relative to
            the spec, or its address, gs://BUCKET/MODEL or s3://BUCKET/MODEL.
    """

    huggingface: Annotated[codec.Text, codec.about("SmolLM2-135M")]


class TrainingStage(codec.Value):
    """A part of the training with a batch, an optimizer and data of its own. `restarts_schedule`:
    the learning rate has a schedule that begins with this stage. Only a rehearsal has a `mesh` and
    a `remat` here, those of the stage that it copies.
    """

    tokens: int
    batch: Batch
    optimizer: Optimizer = Optimizer()
    data: DataSource = DataSource()
    restarts_schedule: bool = False
    mesh: Annotated["MeshRequest | None", codec.COMPUTED] = None
    remat: Annotated[Remat | None, codec.COMPUTED] = None


class Experiment(codec.Value):
    """The identity of a run: what is trained, on what, and how precisely.

    Attributes:
        model: The model: the name of a known one, a shape, or a Hugging Face config.json.
        tokens: The number of tokens to train on. Days and dollars are counted for them. With stages
            it may be left out: it is their sum.
        stages: Parts of the training, one after another. What a stage leaves out is as in the stage
            before it, and in the first as in the experiment. When left out, steps are alike.
        remat: What the backward pass recomputes: nothing (none), every layer (full), or all that a
            policy does not keep or offload. A mapping decides tensor by tensor. `auto` searches all
            policies for the fastest that fits in memory.
        compiler_options: XLA options, besides those in the chip's file. The plan's digest covers
            them.
        start: Weights that training starts from, in place of random ones. The model is theirs.
        seed: The seed of the initial weights and of the order of the data.
    """

    model: Annotated[Model, codec.about("llama3-70b", notation="model")]
    tokens: Annotated[codec.PositiveInteger, codec.about("15T"), codec.FROM_STAGES]
    batch: Annotated[Batch, Meta(examples=[{"sequences": 1024, "length": 4096}]), codec.FROM_STAGES]
    stages: Annotated[
        tuple[TrainingStage, ...],
        codec.about(
            [{"tokens": "252M", "batch": 1024, "length": 4096}, {"tokens": "15T", "batch": 2048}],
            notation="stages",
        ),
    ] = ()
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    remat: Annotated[
        Remat, codec.about({"block_input": "offload", "query": "keep"}, notation="remat")
    ] = "auto"
    compiler_options: Annotated[
        dict[
            codec.OptionName,
            Annotated[bool | int | float | str, Meta(extra_json_schema={"notation": "option"})],
        ],
        codec.about(default={}),
    ] = field(default_factory=dict)
    data: DataSource = DataSource()
    start: Annotated[StartingWeights | None, codec.about({"huggingface": "SmolLM2-135M"})] = None
    seed: Annotated[int, codec.about(ge=0, le=2**31 - 1)] = 0


class Pods(codec.Value):
    """How many pods the run may have.

    Attributes:
        min: The smallest number of pods on which the run may continue.
        max: The number of pods that are requested. The plan is for this number.
        spare: The number of further pods that are rented, of which one takes the place of a pod
            that fails. Chip-hours and dollars include them.
    """

    min: Annotated[codec.PodCount, codec.about(2)]
    max: Annotated[codec.PodCount, codec.about(4)]
    spare: Annotated[int, codec.about(1, ge=0, le=10_000)] = 0


class MeshRequest(codec.Value):
    """Sizes of the mesh axes inside a pod, and the number of pods that share weights.

    Attributes:
        data: The number of replicas of the model inside a pod.
        expert: The number of parts into which the sequences of a batch and the experts of a mixture
            are split: tokens travel to their experts.
        fsdp: The number of parts into which the sequences of a batch and the weights are split.
        sequence: The number of parts into which the positions of a sequence and the weights are
            split.
        tensor: The number of parts into which heads, d_ff and the vocabulary are split.
        fsdp_dcn: The number of pods that share one copy of the weights over the data-center
            network; it divides the number of pods. With auto it is 1: each pod has its own copy,
            and only gradients cross.
    """

    # The search chooses what is None. It shares weights between pods only on request.
    data: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    expert: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    fsdp: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    sequence: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    tensor: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    fsdp_dcn: Annotated[codec.AxisSize | None, codec.about(2, notation="axis")] = None


class Resources(codec.Value):
    """The requested chips. The same experiment on other chips has another plan.

    Attributes:
        chip: The kind of chip: the name of a known one, or a file of your own.
        topology: The shape of one pod (slice) in chips, such as 16x20x28, or its accelerator type,
            such as v5p-128. With auto, `orch plan` lists slices that can be rented.
        pods: The number of pods (slices), which the data-center network joins. With min and max the
            run may go on with fewer than it requests.
        mesh: The sizes of the mesh axes. The search chooses an axis that is auto or left out.
        goodput: The share of time that makes progress, by which days and dollars are divided. When
            left out, it is predicted from failures, restarts and saves.
        dollars_per_chip_hour: The price of a chip in US dollars per hour; the list price of the
            catalog when left out.
    """

    chip: Annotated[str, codec.about("v5p", notation="chip")]
    # The content of the chip's file, where it is not a chip of the catalog.
    chip_definition: Annotated[dict[str, Any] | None, codec.COMPUTED] = None
    topology: Annotated[str, codec.about("4x4x4", notation="topology")] = AUTO_TOPOLOGY
    pods: Annotated[Pods, codec.about(notation="pods")] = Pods(min=1, max=1)
    mesh: Annotated[MeshRequest, codec.about(notation="mesh")] = MeshRequest()
    goodput: Annotated[codec.Share | None, codec.about("90%", notation="share")] = None
    failures: run_options.FailureOptions = field(default_factory=run_options.FailureOptions)
    dollars_per_chip_hour: Annotated[codec.NonNegativeNumber | None, codec.about(4.2)] = None

    @property
    def has_open_topology(self) -> bool:
        """Whether slices are to be chosen before there is a plan."""
        return self.topology == AUTO_TOPOLOGY


class Spec(codec.Value):
    """One training experiment, the chips it requests, and how to run, place and track it. A key
    that is left out has the default named here. Suffixes K, M, B and T are decimal.

    Attributes:
        name: The name of runs of this spec. No digest covers it: a new name makes no other plan.
    """

    name: Annotated[codec.Name, codec.about("llama3-70b-4pod")]
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
    run: run_options.RunOptions = field(default_factory=run_options.RunOptions)
    cluster: run_options.ClusterOptions = field(default_factory=run_options.ClusterOptions)
    tracking: run_options.TrackingOptions = field(default_factory=run_options.TrackingOptions)
    # The `--set key=value` texts that were applied, so that a plan can show them.
    overrides: Annotated[tuple[str, ...], codec.COMPUTED] = ()
