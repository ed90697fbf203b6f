"""The Ray nodes that come of an exported manifest, without Kubernetes.

KubeRay makes `numOfHosts` pods for each replica, GKE's webhook tells each which host of which slice
of TPUs it is, and GKE's device plugin what kind of slice. From this environment, or the name of its
GPUs, Ray itself, and no code of this project, derives a node's labels and resources.
"""

from typing import Any
from unittest.mock import patch

from ray._private.accelerators import nvidia_gpu, tpu
from ray._private.accelerators.tpu import TPUAcceleratorManager as Node

from orchestrator import catalog
from orchestrator.launch.ray.slices import EmulatedHost

CHIPS, GPUS = "google.com/tpu", "nvidia.com/gpu"
# What the device plugin calls slices on nodes of a kind; the number of cores follows it.
GENERATIONS = {
    "tpu-v4-podslice": "v4",
    "tpu-v5-lite-podslice": "v5litepod",
    "tpu-v5p-slice": "v5p",
    "tpu-v6e-slice": "v6e",
    "tpu7x": "tpu7x",
}
ACCELERATOR_LABEL = "ray.io/accelerator-type"


def hosts_of(manifest: dict[str, Any]) -> tuple[EmulatedHost, ...]:
    """The nodes of all worker groups of a RayCluster, slice after slice."""
    return tuple(
        _host(group, slice_index, worker)
        for group in manifest["spec"]["workerGroupSpecs"]
        for slice_index in range(group["replicas"])
        for worker in range(group["numOfHosts"])
    )


def gpu_type(name: str) -> str:
    """What Ray calls a GPU that NVIDIA's driver calls so."""
    return str(nvidia_gpu.NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(name))


def _host(group: dict[str, Any], slice_index: int, worker: int) -> EmulatedHost:
    pod = group["template"]["spec"]
    [container], selector = pod["containers"], pod["nodeSelector"]
    if GPUS in (limits := container["resources"]["limits"]):
        gpu = gpu_type(catalog.chip(group["groupName"].partition("-")[0]).device_kinds[0])
        return EmulatedHost(
            resources={"GPU": float(limits[GPUS]), f"accelerator_type:{gpu}": 1.0},
            labels={ACCELERATOR_LABEL: gpu, **group.get("labels", {})},
        )
    topology = selector["cloud.google.com/gke-tpu-topology"]
    generation = GENERATIONS[selector["cloud.google.com/gke-tpu-accelerator"]]
    each = tpu.get_tpu_cores_per_chip(tpu.normalize_tpu_accelerator_type(generation))
    cores = each * tpu.get_num_chips_from_topology(topology)
    environment = {
        "TPU_NAME": f"{group['groupName']}-{slice_index}",
        "TPU_WORKER_ID": str(worker),
        "TPU_ACCELERATOR_TYPE": f"{generation}-{cores}",
        "TPU_TOPOLOGY": topology,
    }
    with patch.dict("os.environ", environment):
        kind = Node.get_current_node_accelerator_type()
        more = Node.get_current_node_additional_resources() or {}
        labels = Node.get_current_node_accelerator_labels()
    assert kind is not None
    chips = float(container["resources"]["limits"][CHIPS])
    return EmulatedHost(
        resources={"TPU": chips, f"accelerator_type:{kind}": 1.0, **more},
        labels={**labels, ACCELERATOR_LABEL: kind},
        environment=environment,
    )
