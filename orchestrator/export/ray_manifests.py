"""A plan as KubeRay's objects: a RayCluster of its slices, and a RayJob that also runs the spec."""

from typing import Any

from orchestrator.catalog import chip_of
from orchestrator.export import spec_volume
from orchestrator.export.object_names import label, metadata
from orchestrator.export.slice_pods import SLICE_PORT, Manifest, chipless_pod, host_pod, storage
from orchestrator.extras import pinned
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

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
    cluster["headGroupSpec"]["template"]["spec"] = _head(spec, **spec_volume.mounted(name))
    return [
        spec_volume.config_map(spec, name, spec_text),
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
        f"orch submit {spec_volume.PATH} --set run.storage={storage(spec)}"
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
        "workerGroupSpecs": [_slices(spec, plan)],
    }


def _head(spec: Spec, **container: Any) -> Manifest:
    """The pod of the head. `container` adds to what its one container says."""
    ports = [{"name": name, "containerPort": port} for name, port in PORTS.items()]
    return chipless_pod(spec, "ray-head", HEAD_CPUS, HEAD_GIGABYTES, ports=ports, **container)


def _slices(spec: Spec, plan: Plan) -> Manifest:
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
