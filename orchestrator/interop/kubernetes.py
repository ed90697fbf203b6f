"""The kinds of Kubernetes manifests that a plan can be exported as."""

import hashlib
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from orchestrator.catalog.chips import GkeNames, chip_of
from orchestrator.errors import SpecError
from orchestrator.plugins import pinned
from orchestrator.storage.addresses import is_address
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec

# Names and metadata of Kubernetes objects.


DIGEST = 6


def label(name: str, most: int) -> str:
    """A name as a DNS label of at most so many characters; one that is cut has a digest."""
    named = name if name[0].isalpha() else f"run-{name}"
    if len(named) > most:
        digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST]
        named = f"{named[: most - DIGEST - 1].rstrip('-')}-{digest}"
    return named.rstrip("-")


def metadata(spec: Spec, name: str, *, queued: bool = True) -> dict[str, Any]:
    """The metadata of an object; Kueue admits what has the label of a queue."""
    options = spec.cluster.kubernetes
    named: dict[str, Any] = {"name": name}
    if options.namespace:
        named["namespace"] = options.namespace
    if options.queue and queued:
        named["labels"] = {"kueue.x-k8s.io/queue-name": options.queue}
    return named


# The pods of a run: one for each host of its slices, and those without chips.


Manifest = dict[str, Any]

MOUNT = "/mnt/runs"  # where a storage is mounted that the spec names by a relative path
CHIPS = "google.com/tpu"
SPOT = "cloud.google.com/gke-spot"
# Of a host's memory, the rest is for the node itself and for what Google runs on it.
MEMORY_SHARE = 0.75
# KubeRay's own example for a v6e host of four chips requests 24.
CPUS_PER_CHIP = 6
SLICE_PORT = {"name": "mxla", "containerPort": 8081}  # where slices of one run meet


def storage(spec: Spec) -> str:
    """The folder of the runs, in every pod; or their place in a bucket, which no pod mounts."""
    if is_address(spec.run.storage):
        return spec.run.storage
    path = PurePosixPath(spec.run.storage)
    return str(path) if path.is_absolute() else MOUNT


def host_pod(spec: Spec, plan: Plan, name: str, **container: Any) -> Manifest:
    """The pod of a host with its chips. `container` adds to what its one container says."""
    chips = plan.chips_per_host
    resources = {
        "cpu": str(CPUS_PER_CHIP * chips),
        "memory": _memory(plan, chips),
        CHIPS: str(chips),
    }
    pod = _pod(spec, name, resources, [*_tpu_environment(), *secrets(spec)], container)
    pod["nodeSelector"] = {
        "cloud.google.com/gke-tpu-accelerator": gke(plan).accelerator,
        "cloud.google.com/gke-tpu-topology": plan.topology,
    }
    pod["tolerations"] = [{"key": CHIPS, "operator": "Exists", "effect": "NoSchedule"}]
    if spec.cluster.kubernetes.spot:
        pod["nodeSelector"][SPOT] = "true"
        pod["tolerations"].append(
            {"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        )
    return pod


def chipless_pod(spec: Spec, name: str, cpus: int, gigabytes: int, **container: Any) -> Manifest:
    """A pod without chips, such as that of a cluster's head."""
    resources = {"cpu": str(cpus), "memory": f"{gigabytes}G"}
    return _pod(spec, name, resources, secrets(spec), container)


def gke(plan: Plan) -> GkeNames:
    """What Google Kubernetes Engine calls the chip; a chip that it has no slices of is refused."""
    chip = chip_of(plan)
    if chip.switched:
        raise SpecError(f"resources.chip: {plan.chip} is a GPU; manifests are for slices of TPUs")
    if chip.gke is None:
        raise SpecError(
            f"resources.chip: {plan.chip} names no accelerator of GKE: its file needs [gke]"
        )
    return chip.gke


def secrets(spec: Spec) -> list[Manifest]:
    """The environment variables of `run.secrets`, by reference."""
    secret = spec.cluster.kubernetes.secret
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
        for name in spec.run.secrets
    ]


def _memory(plan: Plan, chips: int) -> str:
    """Most of the host's memory; of a chip whose hosts nobody describes, as much as its HBM."""
    chip = chip_of(plan)
    if chip.host_bytes is None:
        return f"{int(chips * chip.hbm_bytes.value // 1e9)}G"
    return f"{int(MEMORY_SHARE * chips * chip.host_bytes.value // 1e9)}G"


def _tpu_environment() -> list[Manifest]:
    """What a TPU runtime in a container needs to know; Google's node runs one service on 8353."""
    return [
        {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "VBAR_CONTROL_SERVICE_URL", "value": "$(NODE_IP):8353"},
        {"name": "JAX_PLATFORMS", "value": "tpu,cpu"},
        {"name": "ENABLE_PJRT_COMPATIBILITY", "value": "true"},
    ]


def _pod(
    spec: Spec, name: str, resources: Manifest, environment: Sequence[Manifest], container: Manifest
) -> Manifest:
    """A pod of one container with the runs' storage; `container` may bring more volumes."""
    options = spec.cluster.kubernetes
    mounts, volumes = container.pop("volumeMounts", []), container.pop("volumes", [])
    if not is_address(spec.run.storage):
        mounts = [{"name": "runs", "mountPath": storage(spec)}, *mounts]
        claim = {"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}}
        volumes = [claim, *volumes]
    pod: Manifest = {
        "containers": [
            {
                "name": name,
                "image": options.image,
                **container,
                "resources": {"requests": resources, "limits": dict(resources)},
                **({"env": list(environment)} if environment else {}),
                **({"volumeMounts": mounts} if mounts else {}),
            }
        ],
        **({"volumes": volumes} if volumes else {}),
    }
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    return pod


# The spec of a run as a ConfigMap, and the volume through which a pod reads it.


FOLDER, FILE = "/etc/orch", "spec.yaml"
PATH = f"{FOLDER}/{FILE}"


def config_map(spec: Spec, name: str, spec_text: str) -> Manifest:
    """The ConfigMap of the run of that name."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(spec, _map_name(name), queued=False),
        "data": {FILE: spec_text},
    }


def mounted(name: str) -> Manifest:
    """What a container needs to read the spec at PATH: a mount and its volume."""
    return {
        "volumeMounts": [{"name": "spec", "mountPath": FOLDER}],
        "volumes": [{"name": "spec", "configMap": {"name": _map_name(name)}}],
    }


def _map_name(name: str) -> str:
    return f"{name}-spec"


# JobSet's webhook refuses names that make the name of a pod, NAME-slice-31-2239-abcde, too long.
LONGEST = 40
DRIVER_CPUS, DRIVER_GIGABYTES = 4, 16
NODE_POOL = "cloud.google.com/gke-nodepool"
ONE_POOL_EACH = "alpha.jobset.sigs.k8s.io/exclusive-topology"
SLICE_INDEX = "jobset.sigs.k8s.io/job-index"
# A host that comes again joins again; the run itself counts its retries. The driver resumes a run.
HOST_RETRIES, DRIVER_RETRIES = 1_000, 3
JOBSET_RESTARTS = 3


def job_set(spec: Spec, plan: Plan, spec_text: str) -> list[Manifest]:
    """The spec in a ConfigMap, and the JobSet that runs it."""
    name = label(spec.name, LONGEST)
    driver = _driver(spec, name)
    return [
        config_map(spec, name, spec_text),
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata(spec, name),
            "spec": {
                "successPolicy": {"operator": "All", "targetReplicatedJobs": ["driver"]},
                "failurePolicy": {"maxRestarts": JOBSET_RESTARTS},
                "replicatedJobs": [
                    _job("driver", (1, 1), DRIVER_RETRIES, driver),
                    _slices(spec, plan, name),
                ],
            },
        },
    ]


def meeting(spec: Spec, name: str) -> str:
    """Where the hosts and the driver meet, in the runs' storage. No run has such a name."""
    hidden = "_hosts" if is_address(spec.run.storage) else ".hosts"
    return f"{storage(spec)}/{hidden}/{name}"


def _slices(spec: Spec, plan: Plan, name: str) -> Manifest:
    """A job for each slice, each on a node pool of its own."""
    size = plan.hosts_per_slice
    pod = host_pod(
        spec,
        plan,
        "host",
        command=["python", "-m", "orchestrator.launch.hosts.host_process"],
        args=[
            meeting(spec, name),
            *("--slice", "slice-$(SLICE_INDEX)"),
            *("--host", "$(JOB_COMPLETION_INDEX)"),
            *("--hosts", str(size)),
            *("--kind", plan.slice_kind),
        ],
        ports=[SLICE_PORT],
    )
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{SLICE_INDEX}']"}}
    pod["containers"][0]["env"].append({"name": "SLICE_INDEX", "valueFrom": index})
    pools = {"annotations": {ONE_POOL_EACH: NODE_POOL}}
    return _job("slice", (plan.pods, size), HOST_RETRIES, pod, metadata=pools)


def _driver(spec: Spec, name: str) -> Manifest:
    """A pod without chips that submits the spec; if it comes again, it resumes the run."""
    folder, runs = meeting(spec, name), storage(spec)
    submit = (
        f"orch submit {PATH} --set run.storage={runs}"
        f" --set cluster.backend=hosts --code installed --no-prove --key {name}"
    )
    resume = f"orch resume {name} --storage {runs}"
    prepared = "" if is_address(runs) else f"mkdir -p {folder}; "
    is_there = f"orch status {name} --storage {runs} >/dev/null 2>&1"
    known = f"if {is_there}; then {resume} $with; else {submit} $with; fi"
    return chipless_pod(
        spec,
        "driver",
        DRIVER_CPUS,
        DRIVER_GIGABYTES,
        command=["sh", "-c"],
        args=[f"{prepared}with='--address {folder} --yes'; {known}"],
        **mounted(name),
    )


def _job(
    name: str, size: tuple[int, int], retries: int, pod: Manifest, **about: dict[str, Any]
) -> Manifest:
    """So many jobs of so many pods, which all run at once."""
    replicas, pods = size
    return {
        "name": name,
        "replicas": replicas,
        "template": {
            **about,
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "backoffLimit": retries,
                "template": {"spec": {**pod, "restartPolicy": "OnFailure"}},
            },
        },
    }


# KubeRay appends to these names, and its webhook refuses longer ones.
LONGEST_CLUSTER, LONGEST_JOB = 53, 47
HEAD_CPUS, HEAD_GIGABYTES = 8, 32
PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001}
DASHBOARD = f"http://127.0.0.1:{PORTS['dashboard']}"


def ray_cluster(spec: Spec, plan: Plan) -> list[Manifest]:
    """A cluster with the plan's slices, for `orch submit --address`."""
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": metadata(spec, label(spec.name, LONGEST_CLUSTER)),
            "spec": _cluster(spec, plan),
        }
    ]


def ray_job(spec: Spec, plan: Plan, spec_text: str) -> list[Manifest]:
    """A cluster that exists for one run: the spec in a ConfigMap, and the job that submits it."""
    name = label(spec.name, LONGEST_JOB)
    cluster = _cluster(spec, plan)
    cluster["headGroupSpec"]["template"]["spec"] = _head(spec, **mounted(name))
    return [
        config_map(spec, name, spec_text),
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": metadata(spec, name),
            "spec": {
                "entrypoint": _submit(spec, name),
                "shutdownAfterJobFinishes": True,
                "backoffLimit": 0,  # the run retries by itself, from its last checkpoint
                "rayClusterSpec": cluster,
            },
        },
    ]


def _submit(spec: Spec, name: str) -> str:
    """The command of the job. Its key makes a second start of the job follow the same run."""
    return (
        f"orch submit {PATH} --set run.storage={storage(spec)}"
        f" --address {DASHBOARD} --key {name} --code installed --no-prove --yes"
    )


def _cluster(spec: Spec, plan: Plan) -> Manifest:
    return {
        "rayVersion": pinned()["ray"],
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": {"spec": _head(spec)},
        },
        "workerGroupSpecs": [_ray_slices(spec, plan)],
    }


def _head(spec: Spec, **container: Any) -> Manifest:
    """The pod of the head. `container` adds to what its one container says."""
    ports = [{"name": name, "containerPort": port} for name, port in PORTS.items()]
    return chipless_pod(spec, "ray-head", HEAD_CPUS, HEAD_GIGABYTES, ports=ports, **container)


def _ray_slices(spec: Spec, plan: Plan) -> Manifest:
    """A group whose replicas are slices. An elastic run starts with fewer of them than it wants."""
    chip, pods = chip_of(plan), spec.resources.pods
    return {
        "groupName": chip.name,
        "replicas": plan.pods,
        "minReplicas": pods.min,
        "maxReplicas": plan.pods,
        "numOfHosts": plan.hosts_per_slice,
        "rayStartParams": {},
        "template": {"spec": host_pod(spec, plan, "ray-worker", ports=[SLICE_PORT])},
    }


ManifestKind = Literal["ray", "rayjob", "jobset"]
KINDS: tuple[ManifestKind, ...] = get_args(ManifestKind)


def manifests(kind: ManifestKind, spec: Spec, plan: Plan, spec_text: str) -> list[Manifest]:
    """The objects of that kind, in the order in which they are created."""
    gke(plan)
    if kind == "ray":
        return ray_cluster(spec, plan)
    if kind == "rayjob":
        return ray_job(spec, plan, spec_text)
    return job_set(spec, plan, spec_text)


# A plan as the input of other tools: Kubernetes manifests. It reads values and writes mappings.


__all__ = ["KINDS", "ManifestKind", "manifests"]
