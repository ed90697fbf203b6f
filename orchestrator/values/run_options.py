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
    """When checkpoints are written, and how many are kept."""

    # The plan has the best interval where it is None.
    every: Annotated[
        PositiveInteger | None,
        about(
            "The number of steps between checkpoints. With auto it is the interval with the highest"
            " goodput.",
            200,
            notation="every",
        ),
    ] = 200
    keep: Annotated[
        int, about("The number of checkpoints on disk. Older ones are deleted.", ge=1, le=1_000_000)
    ] = 3


class RetryLimits(Value):
    """How often a run is started again."""

    failures: Annotated[
        RetryCount, about("The number of restarts after failures of the run itself.")
    ] = 3
    preemptions: Annotated[
        RetryCount, about("The number of restarts after the cluster took chips away.")
    ] = 100


class EvaluationOptions(Value):
    """When the loss on text that the run does not train on is measured."""

    path: Annotated[
        Text | None,
        about(
            "The path of the manifest of a token set of its own, relative to the spec, or its"
            " address; only for kind tokens. Synthetic data has sequences of another seed.",
            "held-out/manifest.json",
        ),
    ] = None
    every: Annotated[
        PositiveInteger,
        about("The number of steps between evaluations; the last step has one too."),
    ] = 1000
    sequences: Annotated[
        PositiveInteger,
        about(
            "The number of sequences of an evaluation: the first of the token set, each time the"
            " same, of `experiment.batch.length` tokens."
        ),
    ] = 512


class RunOptions(Value):
    """How the run is carried out; outside every digest."""

    trainer: Annotated[
        str,
        about(
            "The trainer: llama, mlp, the name that an installed package registers, or a module of"
            " your own as package.module.",
            title="the name or the module of a trainer",
            pattern="^[A-Za-z_][A-Za-z0-9_.]*(:[A-Za-z_][A-Za-z0-9_.]*)?$",
        ),
    ] = "llama"
    steps: Annotated[
        PositiveInteger | None,
        about(
            "The number of steps after which the run stops; all of `tokens` when left out.",
            1000,
            notation="count",
        ),
    ] = None
    storage: Annotated[
        Address,
        about(
            "The folder of journals, checkpoints and logs: a local path, one that all hosts"
            " mount, or a place in a bucket: gs://BUCKET/RUNS or s3://BUCKET/RUNS."
        ),
    ] = "runs/"
    checkpoint: CheckpointOptions = CheckpointOptions()
    evaluation: Annotated[
        EvaluationOptions | None,
        about(
            "The loss and perplexity of held-out text while training; none when left out.",
            {"path": "held-out/manifest.json", "every": 500, "sequences": 256},
        ),
    ] = None
    retries: RetryLimits = RetryLimits()
    hang_limit_s: Annotated[
        PositiveNumber,
        about(
            "The time without progress after which a run is stopped and started again.",
            notation="duration",
        ),
    ] = 600.0
    deadline: Annotated[
        str | None,
        about(
            "When the run should have ended: a date (00:00 UTC), or the time since its submission."
            " `orch status` says how likely that is; none when left out.",
            "30d",
            notation="deadline",
        ),
    ] = None
    secrets: Annotated[
        tuple[Variable, ...],
        about(
            "The names of environment variables that the run receives, never their values.",
            ["HF_TOKEN"],
        ),
        Meta(
            title="a list of names of environment variables",
            extra_json_schema={"uniqueItems": True, "writeOnly": True},
        ),
    ] = ()
    record_diff: Annotated[
        bool,
        about(
            "Whether the run's folder keeps the uncommitted changes of the project's code. They are"
            " kept as they are, secrets too, in a file that only its owner can read."
        ),
    ] = False


class KubernetesOptions(Value):
    """Settings of exported Kubernetes manifests that the plan does not have."""

    image: Annotated[
        Text, about("The container image of head and hosts; docs/launch.md shows how to build it.")
    ] = "orch:latest"
    namespace: Annotated[Name | None, about("The namespace; that of `kubectl` when left out.")] = (
        None
    )
    service_account: Annotated[
        Name | None, about("The service account of the pods; that of the namespace when left out.")
    ] = None
    claim: Annotated[
        Name, about("The PersistentVolumeClaim of `run.storage`; every pod mounts it there.")
    ] = "runs"
    secret: Annotated[
        Name, about("The Secret that has the variables of `run.secrets`, each under its own name.")
    ] = "orch-secrets"
    queue: Annotated[
        Name | None, about("The Kueue LocalQueue that admits the run; none when left out.")
    ] = None
    spot: Annotated[bool, about("Whether the hosts are spot nodes.")] = False


class ClusterOptions(Value):
    """What runs the processes, and where; this machine when left out."""

    backend: Annotated[
        Text,
        about(
            "The backend that starts processes: ray, hosts, or your own as package.module:class."
        ),
    ] = "ray"
    address: Annotated[
        Address | None,
        about(
            "The address of a cluster; this machine rehearses the run with auto or when left out.",
            "auto",
        ),
    ] = None
    kubernetes: KubernetesOptions = KubernetesOptions()


class TrackingOptions(Value):
    """Where runs are recorded."""

    tracker: Annotated[
        Text, about("The tracker that records runs: mlflow, or your own as package.module:class.")
    ] = "mlflow"
    uri: Annotated[
        Address, about("The address of an MLflow server; auto is a SQLite file with the runs.")
    ] = "auto"
    experiment: Annotated[Text, about("The MLflow experiment in which runs are recorded.")] = "orch"


class FailureOptions(Value):
    """What fails, and how long it takes to go on. What is left out is the catalog's."""

    machines_per_day: Annotated[
        NonNegativeNumber | None,
        about(
            "The share of machines (hosts) that fail in a day; the chip's rate when left out.",
            "0.08%",
            notation="rate",
        ),
    ] = None
    cables_per_day: Annotated[
        NonNegativeNumber | None,
        about(
            "The share of cables between chips that fail in a day; the chip's rate when left out.",
            "0.005%",
            notation="rate",
        ),
    ] = None
    switches_per_day: Annotated[
        NonNegativeNumber | None,
        about(
            "The share of optical switches that fail in a day; the chip's rate when left out.",
            "0.04%",
            notation="rate",
        ),
    ] = None
    restart_s: Annotated[
        PositiveNumber | None,
        about(
            "The time that processes take to start, join and compile, without the time to restore;"
            " 5 minutes, as published, when left out.",
            "5m",
            notation="duration",
        ),
    ] = None
    repair_s: Annotated[
        PositiveNumber | None,
        about(
            "The time until a slice that lost a machine is whole again; 10 minutes when left out.",
            "10m",
            notation="duration",
        ),
    ] = None
    storage_bytes_per_s: Annotated[
        PositiveInteger | None,
        about(
            "The bytes per second that the storage takes from all hosts together; 25 GB/s when left"
            " out.",
            "25B",
            notation="count",
        ),
    ] = None


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
