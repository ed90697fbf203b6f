"""The Kubernetes manifests that a plan can be exported as: a RayCluster, a RayJob or a JobSet."""

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from orchestrator.catalog.chips import GPU_DOMAIN, GkeNames, chip_of
from orchestrator.errors import SpecError, UnknownName
from orchestrator.planning.planner import ON_GPUS
from orchestrator.plugins import pinned
from orchestrator.storage.addresses import is_address
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec

ManifestKind = Literal["ray", "rayjob", "jobset"]
_Manifest = dict[str, Any]
_OBJECTS: dict[ManifestKind, tuple[str, str]] = {
    "ray": ("ray.io/v1", "RayCluster"),
    "rayjob": ("ray.io/v1", "RayJob"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
}

_MOUNT = "/mnt/runs"  # where a storage is mounted that the spec names by a relative path
_FOLDER, SPEC_FILE = "/etc/orch", "spec.yaml"  # where a pod reads its spec
_PATH = f"{_FOLDER}/{SPEC_FILE}"
_TPUS, _GPUS = "google.com/tpu", "nvidia.com/gpu"
_SPOT, _ARCH = "cloud.google.com/gke-spot", "kubernetes.io/arch"
_NODE_POOL = "cloud.google.com/gke-nodepool"
_ONE_POOL_EACH = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_SLICE_INDEX = "jobset.sigs.k8s.io/job-index"
_QUEUE = "kueue.x-k8s.io/queue-name"
# The rest of a host's memory is for the node itself and for what Google runs on it.
_MEMORY_SHARE = 0.75
_CPUS_PER_CHIP = 6  # KubeRay's own example for a v6e host of four chips requests 24
_SLICE_PORT = {"name": "mxla", "containerPort": 8081}  # where slices of one run meet
_RAY_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001}
_HEAD = {"cpu": "8", "memory": "32G"}
_DRIVER = {"cpu": "4", "memory": "16G"}
# JobSet's webhook refuses names that make the name of a pod, NAME-slice-31-2239-abcde, too long;
# KubeRay appends to its names, and its webhook refuses longer ones.
_LONGEST: dict[ManifestKind, int] = {"jobset": 40, "ray": 53, "rayjob": 47}
_DIGEST = 6
# A host that comes again joins again; the run itself counts its retries. A driver that comes again
# goes on with a run whose driver is lost, until the run, the spec or its plan is what ends it.
_HOST_RETRIES, _DRIVER_RETRIES, _JOBSET_RESTARTS = 1_000, 3, 3
_ENDS = [2, 3, 4]  # exit codes of orch submit that another try would end with, too
# The environment of a TPU runtime in a container; Google's node runs a service on port 8353.
_TPU_ENVIRONMENT = (
    {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    {"name": "VBAR_CONTROL_SERVICE_URL", "value": "$(NODE_IP):8353"},
    {"name": "JAX_PLATFORMS", "value": "tpu,cpu"},
    {"name": "ENABLE_PJRT_COMPATIBILITY", "value": "true"},
)
_GPU_ENVIRONMENT = tuple({"name": name, "value": value} for name, value in ON_GPUS.items())


def manifests(
    kind: ManifestKind, spec: Spec, plan: Plan, files: Mapping[str, str]
) -> list[_Manifest]:
    """Return the objects of that kind, in the order in which they are created. `files` are the
    spec and what goes along with it.
    """
    if kind not in _OBJECTS:
        raise UnknownName("kind of manifests", kind, [*_OBJECTS])
    _gke(plan)
    # The spec's name as a DNS label; one that is cut has a digest.
    name = spec.name if spec.name[0].isalpha() else f"run-{spec.name}"
    if len(name) > _LONGEST[kind]:
        digest = hashlib.sha256(spec.name.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: _LONGEST[kind] - _DIGEST - 1].rstrip('-')}-{digest}"
    name, options, runs = name.rstrip("-"), spec.cluster.kubernetes, runs_folder(spec)
    content: _Manifest
    if kind == "ray":  # a cluster for `orch submit --address`, which brings its spec
        content = _cluster(spec, plan, name)
    elif kind == "rayjob":
        # A cluster that exists for one run, and the job that submits it. The key makes a second
        # start of the job follow the same run.
        submit = (
            f"orch submit {_PATH} --set run.storage={runs}"
            f" --address http://127.0.0.1:{_RAY_PORTS['dashboard']} --key {name} --resume lost"
            " --code installed --no-prove --yes"
        )
        content = {
            "entrypoint": submit,
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 0,  # the run retries by itself, from its last checkpoint
            "rayClusterSpec": _cluster(spec, plan, name, reads=name),
        }
    else:
        # A job for each slice, and a driver that submits the spec from its ConfigMap. They meet in
        # a folder of the runs' storage; no run has its name.
        meeting = f"{runs}/{'_hosts' if is_address(runs) else '.hosts'}/{name}"
        over = {"name": "over", "action": "FailJobSet", "targetReplicatedJobs": ["driver"]}
        over["onJobFailureReasons"] = ["PodFailurePolicy"]  # its exit code is one of _ENDS
        content = {
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["driver"]},
            "failurePolicy": {"maxRestarts": _JOBSET_RESTARTS, "rules": [over]},
            "replicatedJobs": _jobs(spec, plan, name, meeting),
        }
    namespace = {"namespace": options.namespace} if options.namespace else {}
    queue = {"labels": {_QUEUE: options.queue}} if options.queue else {}  # for Kueue to admit
    api, object_kind = _OBJECTS[kind]
    metadata = {"name": name, **namespace, **queue}
    made = [{"apiVersion": api, "kind": object_kind, "metadata": metadata, "spec": content}]
    if kind != "ray":
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-spec", **namespace},
            "data": dict(files),
        }
        made = [config_map, *made]
    if _spans_nodes(plan):
        # NVIDIA's driver starts an IMEX domain on the nodes of each NVLink domain that its pods are
        # on, however many those are; it makes the template, here of the same name, of the claims
        # that join them.
        channel = {"resourceClaimTemplate": {"name": name}}
        domain = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": name, **namespace},
            "spec": {"numNodes": 0, "channel": channel},
        }
        made = [domain, *made]
    return made


def _gke(plan: Plan) -> GkeNames:
    """Return what GKE calls the chip; refuse a chip that GKE has no slices of."""
    chip = chip_of(plan)
    if chip.gke is None:
        raise SpecError(
            f"resources.chip: {plan.chip} names no accelerator of GKE: its file needs [gke]"
            f"{'; orch export slurm needs none' if chip.switched else ''}"
        )
    return chip.gke


def _spans_nodes(plan: Plan) -> bool:
    """Return whether a slice is an NVLink domain of several nodes."""
    return chip_of(plan).switched and plan.hosts_per_slice > 1


# Pods: one for each host of the slices, and those without chips.


def runs_folder(spec: Spec) -> str:
    """Return the folder of the runs, in every pod; or their bucket, which no pod mounts."""
    if is_address(spec.run.storage):
        return spec.run.storage
    path = PurePosixPath(spec.run.storage)
    return str(path) if path.is_absolute() else _MOUNT


def _host_pod(spec: Spec, plan: Plan, owner: str, name: str, **container: Any) -> _Manifest:
    """Return the pod of a host and its chips for `owner`; `container` adds to its one container."""
    chip, chips = chip_of(plan), plan.chips_per_host
    resource, environment = (
        (_GPUS, _GPU_ENVIRONMENT) if chip.switched else (_TPUS, _TPU_ENVIRONMENT)
    )
    # Most of the host's memory; where nobody describes the hosts of a chip, the bytes of its HBM.
    share, each = (_MEMORY_SHARE, chip.host_bytes) if chip.host_bytes else (1, chip.hbm_bytes)
    resources = {
        "cpu": str(_CPUS_PER_CHIP * chips),
        "memory": f"{int(share * chips * each.value // 1e9)}G",
        resource: str(chips),
    }
    container["env"] = [*environment, *_secrets(spec), *container.get("env", ())]
    if chip.switched:
        # GPUs of a node exchange buffers there; a container has 64 MiB of it by default.
        memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
        container["volumes"] = [memory]
        container["volumeMounts"] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
        selector = {"cloud.google.com/gke-accelerator": _gke(plan).accelerator}
    else:
        container["ports"] = [_SLICE_PORT]
        selector = {
            "cloud.google.com/gke-tpu-accelerator": _gke(plan).accelerator,
            "cloud.google.com/gke-tpu-topology": plan.topology,
        }
    pod = _pod(spec, name, resources, **container)
    pod["nodeSelector"] = selector
    pod["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    _place(pod, {_ARCH: _gke(plan).arch, _SPOT: "true" if spec.cluster.kubernetes.spot else None})
    if _spans_nodes(plan):
        claim = {"name": "imex"}
        pod["resourceClaims"] = [claim | {"resourceClaimTemplateName": owner}]
        pod["containers"][0]["resources"]["claims"] = [claim]
    return pod


def _place(pod: _Manifest, labels: Mapping[str, str | None]) -> None:
    """Put a pod on nodes with the labels that have a value. GKE taints such nodes, too."""
    for key, value in labels.items():
        if value:
            pod.setdefault("nodeSelector", {})[key] = value
            taint = {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
            pod.setdefault("tolerations", []).append(taint)


def _chipless_pod(
    spec: Spec, plan: Plan, name: str, resources: _Manifest, reads: str | None, **container: Any
) -> _Manifest:
    """Return a pod without chips, which may read the spec of the run of that name. Its nodes are
    of the hosts' architecture: the image is one, and so are the versions that a run compares.
    """
    if reads:
        container["volumeMounts"] = [{"name": "spec", "mountPath": _FOLDER}]
        container["volumes"] = [{"name": "spec", "configMap": {"name": f"{reads}-spec"}}]
    pod = _pod(spec, name, resources, env=_secrets(spec), **container)
    _place(pod, {_ARCH: _gke(plan).arch})
    return pod


def _secrets(spec: Spec) -> list[_Manifest]:
    """Return the environment variables of `run.secrets`, by reference."""
    secret = spec.cluster.kubernetes.secret
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
        for name in spec.run.secrets
    ]


def _pod(spec: Spec, name: str, resources: _Manifest, **container: Any) -> _Manifest:
    """Return a pod of one container with the runs' storage; `container` may bring volumes."""
    options, environment = spec.cluster.kubernetes, container.pop("env")
    mounts, volumes = container.pop("volumeMounts", []), container.pop("volumes", [])
    if not is_address(spec.run.storage):
        mounts = [{"name": "runs", "mountPath": runs_folder(spec)}, *mounts]
        claim = {"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}}
        volumes = [claim, *volumes]
    account = options.service_account
    return {
        "containers": [
            {
                "name": name,
                "image": options.image,
                **container,
                "resources": {"requests": resources, "limits": dict(resources)},
                **({"env": environment} if environment else {}),
                **({"volumeMounts": mounts} if mounts else {}),
            }
        ],
        **({"volumes": volumes} if volumes else {}),
        **({"serviceAccountName": account} if account else {}),
    }


# A JobSet: a driver, and a job for each slice.


def _jobs(spec: Spec, plan: Plan, name: str, meeting: str) -> list[_Manifest]:
    # A pod without chips submits the spec, or goes on with its run.
    runs = runs_folder(spec)
    prepared = "" if is_address(runs) else f"mkdir -p {meeting} && "
    submit = (
        f"{prepared}exec orch submit {_PATH} --set run.storage={runs}"
        f" --set cluster.backend=hosts --code installed --no-prove --key {name} --resume lost"
        f" --address {meeting} --yes"
    )
    command = {"command": ["sh", "-c"], "args": [submit]}
    driver = _chipless_pod(spec, plan, "driver", _DRIVER, name, **command)
    ends = {"containerName": "driver", "operator": "In", "values": _ENDS}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    failures = [
        {"action": "FailJob", "onExitCodes": ends},
        {"action": "Ignore", "onPodConditions": [disrupted]},  # evictions are no try
    ]
    # Each slice of several hosts is on a node pool of its own, and so is each of TPUs.
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{_SLICE_INDEX}']"}}
    host = _host_pod(
        spec,
        plan,
        name,
        "host",
        command=["python", "-P", "-m", "orchestrator.launch.hosts.host_process"],
        args=[
            meeting,
            *("--slice", "slice-$(SLICE_INDEX)"),
            *("--host", "$(JOB_COMPLETION_INDEX)"),
            *("--hosts", str(plan.hosts_per_slice)),
            *("--kind", plan.slice_kind),
        ],
        env=[{"name": "SLICE_INDEX", "valueFrom": index}],
    )
    is_node = chip_of(plan).switched and not _spans_nodes(plan)
    about = {} if is_node else {"metadata": {"annotations": {_ONE_POOL_EACH: _NODE_POOL}}}
    jobs = [
        _job("driver", 1, 1, _DRIVER_RETRIES, driver),
        _job("slice", plan.pods, plan.hosts_per_slice, _HOST_RETRIES, host, **about),
    ]
    first = jobs[0]["template"]["spec"]
    first["podFailurePolicy"] = {"rules": failures}
    first["template"]["spec"]["restartPolicy"] = "Never"  # as such a policy requires
    return jobs


def _job(
    name: str, replicas: int, pods: int, retries: int, pod: _Manifest, **about: _Manifest
) -> _Manifest:
    """Return jobs of so many pods, which all run at once."""
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


# A Ray cluster with the plan's slices, for `orch submit --address` or for one run.


def _cluster(spec: Spec, plan: Plan, name: str, reads: str | None = None) -> _Manifest:
    """Return a head, which may read the spec of a run, and a group whose replicas are slices."""
    ports = [{"name": name, "containerPort": port} for name, port in _RAY_PORTS.items()]
    groups = [
        {
            "groupName": chip_of(plan).name,
            "replicas": plan.pods,
            "minReplicas": spec.resources.pods.min,  # an elastic run may start with fewer
            "maxReplicas": plan.pods,
            "numOfHosts": plan.hosts_per_slice,
            "rayStartParams": {},
            "template": {"spec": _host_pod(spec, plan, name, "ray-worker")},
        }
    ]
    if _spans_nodes(plan):
        groups = [_domain(groups[0], name, number) for number in range(plan.pods)]
    return {
        "rayVersion": pinned()["ray"],
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": {"spec": _chipless_pod(spec, plan, "ray-head", _HEAD, reads, ports=ports)},
        },
        "workerGroupSpecs": groups,
    }


def _domain(group: _Manifest, cluster: str, number: int) -> _Manifest:
    """Return the group of one NVLink domain of several nodes: its pods tell Ray that they share it,
    and have a node pool of their own, as KubeRay places the pods of a replica anywhere.
    """
    label = {GPU_DOMAIN: f"{cluster}-{number}"}
    selectors = {
        "podAffinity": {"matchLabels": label},
        "podAntiAffinity": {
            "matchExpressions": [
                {"key": GPU_DOMAIN, "operator": "Exists"},
                {"key": GPU_DOMAIN, "operator": "NotIn", "values": [label[GPU_DOMAIN]]},
            ]
        },
    }
    rule, same_pool = "requiredDuringSchedulingIgnoredDuringExecution", {"topologyKey": _NODE_POOL}
    affinity = {
        name: {rule: [{**same_pool, "labelSelector": selector}]}
        for name, selector in selectors.items()
    }
    return group | {
        "groupName": f"{group['groupName']}-{number}",
        "replicas": 1,
        "minReplicas": int(number < group["minReplicas"]),
        "maxReplicas": 1,
        "labels": label,
        "template": {
            "metadata": {"labels": label},
            "spec": group["template"]["spec"] | {"affinity": affinity},
        },
    }
