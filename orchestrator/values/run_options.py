"""The sections of a spec that no digest covers: how to run, place and track it."""

from typing import Annotated, Literal

from msgspec import Meta

from orchestrator.values.codec import (
    Address,
    Name,
    NonNegativeNumber,
    PositiveInteger,
    PositiveNumber,
    RetryCount,
    Text,
    Value,
    Variable,
    about,
)


class CheckpointOptions(Value):
    """When checkpoints are written, and how many are kept.

    Attributes:
        every: The number of steps between checkpoints. With auto it is the interval with the
            highest goodput.
        keep: The number of checkpoints on disk. Older ones are deleted.
    """

    # The plan has the best interval where it is None.
    every: Annotated[PositiveInteger | None, about(200, notation="every")] = 200
    keep: Annotated[int, about(ge=1, le=1_000_000)] = 3


class RetryLimits(Value):
    """How often a run is started again.

    Attributes:
        failures: The number of restarts after failures of the run itself.
        preemptions: The number of restarts after the cluster took chips away.
    """

    failures: RetryCount = 3
    preemptions: RetryCount = 100


class EvaluationOptions(Value):
    """When the loss on text that the run does not train on is measured.

    Attributes:
        path: The path of the manifest of a token set of its own, relative to the spec, or its
            address; only for kind tokens. Synthetic data has sequences of another seed.
        every: The number of steps between evaluations; the last step has one too.
        sequences: The number of sequences of an evaluation: the first of the token set, each time
            the same, of `experiment.batch.length` tokens.
    """

    path: Annotated[Text | None, about("held-out/manifest.json")] = None
    every: PositiveInteger = 1000
    sequences: PositiveInteger = 512


class RunOptions(Value):
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
    steps: Annotated[PositiveInteger | None, about(1000, notation="count")] = None
    storage: Address = "runs/"
    checkpoint: CheckpointOptions = CheckpointOptions()
    evaluation: Annotated[
        EvaluationOptions | None,
        about({"path": "held-out/manifest.json", "every": 500, "sequences": 256}),
    ] = None
    retries: RetryLimits = RetryLimits()
    hang_limit_s: Annotated[PositiveNumber, about(notation="duration")] = 600.0
    deadline: Annotated[str | None, about("30d", notation="deadline")] = None
    secrets: Annotated[
        tuple[Variable, ...],
        about(["HF_TOKEN"]),
        Meta(
            title="a list of names of environment variables",
            extra_json_schema={"uniqueItems": True, "writeOnly": True},
        ),
    ] = ()
    record_diff: bool = False


class KubernetesOptions(Value):
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

    image: Text = "orch:latest"
    namespace: Name | None = None
    service_account: Name | None = None
    claim: Name = "runs"
    secret: Name = "orch-secrets"
    queue: Name | None = None
    spot: bool = False


class ClusterOptions(Value):
    """What runs the processes, and where; this machine when left out.

    Attributes:
        backend: The backend that starts processes: ray, hosts, or your own as package.module:class.
        address: The address of a cluster; this machine rehearses the run with auto or when left
            out.
    """

    backend: Text = "ray"
    address: Annotated[Address | None, about("auto")] = None
    kubernetes: KubernetesOptions = KubernetesOptions()


class TrackingOptions(Value):
    """Where runs are recorded.

    Attributes:
        tracker: The tracker that records runs: mlflow, or your own as package.module:class.
        uri: The address of an MLflow server; auto is a SQLite file with the runs.
        experiment: The MLflow experiment in which runs are recorded.
    """

    tracker: Text = "mlflow"
    uri: Address = "auto"
    experiment: Text = "orch"


class FailureOptions(Value):
    """What fails, and how long it takes to go on. What is left out is the catalog's.

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

    machines_per_day: Annotated[NonNegativeNumber | None, about("0.08%", notation="rate")] = None
    cables_per_day: Annotated[NonNegativeNumber | None, about("0.005%", notation="rate")] = None
    switches_per_day: Annotated[NonNegativeNumber | None, about("0.04%", notation="rate")] = None
    restart_s: Annotated[PositiveNumber | None, about("5m", notation="duration")] = None
    repair_s: Annotated[PositiveNumber | None, about("10m", notation="duration")] = None
    storage_bytes_per_s: Annotated[PositiveInteger | None, about("25B", notation="count")] = None


class SubmitOptions(Value):
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
    detach: bool = False  # return once the cluster has it


class Proposal(Value):
    """What is about to run. It takes chips on the cluster at `address`, or none on this machine."""

    name: str
    runs: int
    address: str | None
