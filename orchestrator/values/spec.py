"""A Spec, which says what to train and on which chips, after its sections that no digest covers:
how to run, place and track it. It holds nothing computed and no secrets. Docstrings, descriptions,
bounds and examples are published: the JSON Schema of a spec is generated from them by
`orchestrator.reading.schema`, which also knows the notations.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from orchestrator.values import codec
from orchestrator.values.model import Model


class CheckpointOptions(codec.Value):
    """When checkpoints are written, and how many are kept.

    Attributes:
        every: The number of steps between checkpoints. With auto it is the interval with the
            highest goodput.
        keep: The number of checkpoints on disk. Older ones are deleted.
    """

    # The plan has the best interval where it is None.
    every: Annotated[codec.PositiveInteger | None, codec.about(200, notation="every")] = 200
    keep: Annotated[int, codec.about(ge=1, le=1_000_000)] = 3


class RetryLimits(codec.Value):
    """How often a run is started again.

    Attributes:
        failures: The number of restarts after failures of the run itself.
        preemptions: The number of restarts after the cluster took chips away.
    """

    failures: codec.RetryCount = 3
    preemptions: codec.RetryCount = 100


class EvaluationOptions(codec.Value):
    """When the loss on text that the run does not train on is measured.

    Attributes:
        path: The path of the manifest of a token set of its own, relative to the spec, or its
            address; only for kind tokens. Synthetic data has sequences of another seed.
        every: The number of steps between evaluations; the last step has one too.
        sequences: The number of sequences of an evaluation: the first of the token set, each time
            the same, of `experiment.batch.length` tokens.
    """

    path: Annotated[codec.Text | None, codec.about("held-out/manifest.json")] = None
    every: codec.PositiveInteger = 1000
    sequences: codec.PositiveInteger = 512


class RunOptions(codec.Value):
    """How the run is carried out; outside every digest.

    Attributes:
        trainer: The trainer: llama, mlp, the name that an installed package registers, or a module
            of your own as package.module.
        steps: The number of steps after which the run stops; all of `tokens` when left out.
        storage: The folder of journals, checkpoints and logs: a local path, one that all hosts
            mount, or a place in a bucket: gs://BUCKET/RUNS or s3://BUCKET/RUNS.
        evaluation: The loss and perplexity of held-out text while training; none when left out.
        hang_limit_s: The time without progress after which a run is stopped and started again.
        deadline: When the run should have ended: a date (00:00 UTC), or the time since its
            submission. `orch status` says how likely that is; none when left out.
        secrets: The names of environment variables that the run receives, never their values.
        preflight: Whether every host is timed before the first step of each attempt: `orch
            preflight` has what is tested.
        record_diff: Whether the run's folder keeps the uncommitted changes of the project's code.
            They are kept as they are, secrets too, in a file that only its owner can read.
    """

    trainer: Annotated[
        str,
        Meta(
            title="the name or the module of a trainer",
            pattern="^[A-Za-z_][A-Za-z0-9_.]*(:[A-Za-z_][A-Za-z0-9_.]*)?$",
        ),
    ] = "llama"
    steps: Annotated[codec.PositiveInteger | None, codec.about(1000, notation="count")] = None
    storage: codec.Address = "runs/"
    checkpoint: CheckpointOptions = CheckpointOptions()
    evaluation: Annotated[
        EvaluationOptions | None,
        codec.about({"path": "held-out/manifest.json", "every": 500, "sequences": 256}),
    ] = None
    retries: RetryLimits = RetryLimits()
    hang_limit_s: Annotated[codec.PositiveNumber, codec.about(notation="duration")] = 600.0
    deadline: Annotated[str | None, codec.about("30d", notation="deadline")] = None
    secrets: Annotated[
        tuple[codec.Variable, ...],
        codec.about(["HF_TOKEN"]),
        Meta(
            title="a list of names of environment variables",
            extra_json_schema={"uniqueItems": True, "writeOnly": True},
        ),
    ] = ()
    preflight: bool = False
    record_diff: bool = False


class KubernetesOptions(codec.Value):
    """Settings of exported Kubernetes manifests that the plan does not have.

    Attributes:
        image: The container image of head and hosts; docs/launch.md shows how to build it.
        namespace: The namespace; that of `kubectl` when left out.
        service_account: The service account of the pods; that of the namespace when left out.
        claim: The PersistentVolumeClaim of `run.storage`; every pod mounts it there.
        secret: The Secret that has the variables of `run.secrets`, each under its own name.
        queue: The Kueue LocalQueue that admits the run; none when left out.
        spot: Whether the hosts are spot nodes.
    """

    image: codec.Text = "orch:latest"
    namespace: codec.Name | None = None
    service_account: codec.Name | None = None
    claim: codec.Name = "runs"
    secret: codec.Name = "orch-secrets"
    queue: codec.Name | None = None
    spot: bool = False


class ClusterOptions(codec.Value):
    """What runs the processes, and where; this machine when left out.

    Attributes:
        backend: The backend that starts processes: ray, hosts, or your own as package.module:class.
        address: The address of a cluster; this machine rehearses the run with auto or when left
            out.
    """

    backend: codec.Text = "ray"
    address: Annotated[codec.Address | None, codec.about("auto")] = None
    kubernetes: KubernetesOptions = KubernetesOptions()


class TrackingOptions(codec.Value):
    """Where runs are recorded.

    Attributes:
        tracker: What records runs: mlflow, lines, wandb, or your own as package.module:class.
        uri: The address of an MLflow server; auto is a SQLite file with the runs.
        experiment: The MLflow experiment in which runs are recorded.
    """

    tracker: codec.Text = "mlflow"
    uri: codec.Address = "auto"
    experiment: codec.Text = "orch"


class FailureOptions(codec.Value):
    """How often parts fail, and how long it takes to go on. Keys left out have the catalog's value.

    Attributes:
        machines_per_day: The share of machines (hosts) that fail in a day; the chip's rate when
            left out.
        cables_per_day: The share of cables between chips that fail in a day; the chip's rate when
            left out.
        switches_per_day: The share of optical switches that fail in a day; the chip's rate when
            left out.
        restart_s: The time that processes take to start, join and compile, without the time to
            restore; 5 minutes, as published, when left out.
        repair_s: The time until a slice that lost a machine is whole again; 10 minutes when left
            out.
        storage_bytes_per_s: The bytes per second that the storage takes from all hosts together; 25
            GB/s when left out.
    """

    machines_per_day: Annotated[
        codec.NonNegativeNumber | None, codec.about("0.08%", notation="rate")
    ] = None
    cables_per_day: Annotated[
        codec.NonNegativeNumber | None, codec.about("0.005%", notation="rate")
    ] = None
    switches_per_day: Annotated[
        codec.NonNegativeNumber | None, codec.about("0.04%", notation="rate")
    ] = None
    restart_s: Annotated[codec.PositiveNumber | None, codec.about("5m", notation="duration")] = None
    repair_s: Annotated[codec.PositiveNumber | None, codec.about("10m", notation="duration")] = None
    storage_bytes_per_s: Annotated[
        codec.PositiveInteger | None, codec.about("25B", notation="count")
    ] = None


class SubmitOptions(codec.Value):
    """How a spec or a study is carried out."""

    # The cluster; else RAY_ADDRESS or cluster.address of the spec, or this machine rehearses it.
    address: str | None = None
    prove: bool = True  # compile the plan first
    calibrate: bool = True  # measure this machine before a rehearsal
    steps: int | None = None  # of a rehearsal 20, of a run on a cluster those of its spec
    devices_per_pod: int | None = None
    profile: tuple[int, int] | None = None  # a range of steps to trace
    code: Literal["sent", "installed"] = "sent"  # where a cluster has the project's code from
    key: str | None = None  # the same key twice is one run
    # Which run of that key is gone on with: one that nothing drives any more, or any that stopped.
    resume: Literal["lost", "stopped"] | None = None
    detach: bool = False  # return once the cluster has it
    checks_only: bool = False  # time the hosts, and train nothing


class Proposal(codec.Value):
    """What is about to run. It takes chips on the cluster at `address`, or none on this machine."""

    name: str
    runs: int
    address: str | None


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
            matrices multiply in that type, and all else is bf16. The trainer has no int8: it can
            be planned and not trained.
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
    """Sizes of the mesh axes inside a pod, and of those that join pods to one copy of the model.

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
            and only gradients cross; the search chooses it where an NVLink domain of
            GPUs has no room for a copy.
        pipeline: The number of stages inside a pod, each with its own layers: microbatches pass
            from one to the next.
        pipeline_dcn: The number of pods over which the stages of a pipeline lie; with pipeline each
            of these has several. It divides the number of pods.
        sequence_dcn: The number of pods over which the positions of a sequence are split; with
            sequence also inside each. Only for GPUs, unless requested.
        expert_dcn: The number of pods over which the experts of a mixture are split; with expert
            also inside each. Only for GPUs, unless requested.
        pipeline_chunks: The number of parts into which the layers of a stage are cut: microbatches
            pass all stages once for each. More chunks shorten the wait for the first microbatch,
            and send more.
    """

    # The search chooses what is None. It shares weights between TPU pods only on request.
    data: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    expert: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    fsdp: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    sequence: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    tensor: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    fsdp_dcn: Annotated[codec.AxisSize | None, codec.about(2, notation="axis")] = None
    pipeline: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    pipeline_dcn: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    sequence_dcn: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    expert_dcn: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None
    pipeline_chunks: Annotated[codec.AxisSize | None, codec.about(notation="axis")] = None


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
    failures: FailureOptions = field(default_factory=FailureOptions)
    dollars_per_chip_hour: Annotated[codec.NonNegativeNumber | None, codec.about(4.2)] = None

    @property
    def has_open_topology(self) -> bool:
        return self.topology == AUTO_TOPOLOGY


class CompilersChoice(codec.Value):
    """What `orch prove --search N --write FILE` notes beside the mesh, the remat and the
    microbatches that it pins. A plan that is no longer the chosen one says so.

    Attributes:
        program: The first characters of the digest of the program that was chosen.
        scheduled_s: The seconds of a step, by the compiler's schedule.
        compared: The number of programs that were compared.
        compiler: The compiler, with its version.
    """

    program: Annotated[codec.Text, codec.about("79374eb1")]
    scheduled_s: Annotated[codec.PositiveNumber, codec.about(6.36)]
    compared: Annotated[codec.PositiveInteger, codec.about(6)]
    compiler: Annotated[codec.Text, codec.about("libtpu 0.0.42.1")]


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
    run: RunOptions = field(default_factory=RunOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    tracking: TrackingOptions = field(default_factory=TrackingOptions)
    choice: CompilersChoice | None = None
    # The `--set key=value` texts that were applied, so that a plan can show them.
    overrides: Annotated[tuple[str, ...], codec.COMPUTED] = ()
