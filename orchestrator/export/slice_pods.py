"""The pods of a run: one for each host of its slices, and those without chips."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from orchestrator.catalog import chip_of
from orchestrator.catalog.chip import GkeNames
from orchestrator.errors import SpecError
from orchestrator.storage import is_address
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

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
