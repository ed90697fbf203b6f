"""How Ray describes TPU slices: the nodes that emulate a plan's, and those that a cluster shows."""

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any

from orchestrator import catalog
from orchestrator.catalog.chips import RayNames
from orchestrator.errors import SpecError
from orchestrator.launch.backend import Slice
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan

_SLICE_NAME = "ray.io/tpu-slice-name"
_POD_TYPE = "ray.io/tpu-pod-type"
WORKER_ID = "ray.io/tpu-worker-id"
_PROBE_S = 2.0
_PROBES_AT_ONCE = 64
_Node = Mapping[str, Any]  # as `ray.nodes()` describes it
_Free = Mapping[str, Mapping[str, float]]  # unused resources of each node


def accelerator_type(plan: Plan) -> str:
    return _names(plan).accelerator


def pod_type(plan: Plan) -> str:
    """Ray's name of the plan's slice: v5p-8 is four chips."""
    names = _names(plan)
    return f"{names.pod_type}-{plan.chips // plan.pods * names.named_per_chip}"


def _names(plan: Plan) -> RayNames:
    names = catalog.chip_of(plan).ray
    if names is None:
        known = ", ".join(name for name in catalog.chips() if catalog.chip(name).ray)
        raise SpecError(f"{plan.chip}: only TPU slices can be launched or rehearsed: {known}")
    return names


class EmulatedHost(Value):
    resources: dict[str, float]
    labels: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)


def emulated_hosts(plan: Plan, spares: int = 0) -> tuple[EmulatedHost, ...]:
    """The nodes of a cluster that emulates the plan's slices, and spare slices after them."""
    kind, chip, hosts = pod_type(plan), accelerator_type(plan), []
    for number in range((plan.pods + spares) * plan.hosts_per_slice):
        pod, worker = divmod(number, plan.hosts_per_slice)
        resources = {"TPU": float(plan.chips_per_host), f"accelerator_type:{chip}": 1.0}
        if worker == 0:
            resources[f"TPU-{kind}-head"] = 1.0
        labels = {_SLICE_NAME: f"pod-{pod}", WORKER_ID: str(worker), _POD_TYPE: kind}
        labels |= {"ray.io/tpu-topology": plan.topology, "ray.io/accelerator-type": chip}
        environment = {"TPU_NAME": f"pod-{pod}", "TPU_WORKER_ID": str(worker)}
        environment |= {"TPU_ACCELERATOR_TYPE": kind, "TPU_TOPOLOGY": plan.topology}
        hosts.append(EmulatedHost(resources=resources, labels=labels, environment=environment))
    return tuple(hosts)


def slices_of(
    nodes: Sequence[_Node], free: _Free, plan: Plan, answers: Callable[[_Node], bool]
) -> tuple[Slice, ...]:
    """The slices of the plan's kind. A node that does not answer is gone, whatever Ray says."""
    alive = [node for node in nodes if node["Alive"] and kind_of(node) == pod_type(plan)]
    by_slice: dict[str, list[_Node]] = {}
    for node in alive:
        by_slice.setdefault(name_of(node), []).append(node)
    with ThreadPoolExecutor(min(_PROBES_AT_ONCE, max(len(alive), 1))) as pool:
        answering = dict(zip(map(id, alive), pool.map(answers, alive), strict=True))
    return tuple(
        Slice(
            name=name,
            hosts=sum(answering[id(node)] for node in members),
            size=plan.hosts_per_slice,
            free=all(is_free(node, free) for node in members),
            settled=all(answering[id(node)] for node in members),
        )
        for name, members in sorted(by_slice.items())
    )


def kind_of(node: _Node) -> str | None:
    return (node.get("Labels") or {}).get(_POD_TYPE)


def name_of(node: _Node) -> str:
    """The slice of a node. A node without one is a slice by itself."""
    return str((node.get("Labels") or {}).get(_SLICE_NAME) or node["NodeID"])


def is_free(node: _Node, free: _Free) -> bool:
    """Whether nobody uses chips of a node. A new node has not reported what is free yet."""
    left = free.get(node["NodeID"])
    return left is None or left.get("TPU", 0.0) >= node["Resources"].get("TPU", 0.0)


def heads_of_others(nodes: Sequence[_Node], plan: Plan, chosen: Sequence[str]) -> list[_Node]:
    alive = [node for node in nodes if node["Alive"] and kind_of(node) == pod_type(plan)]
    heads = [node for node in alive if (node.get("Labels") or {}).get(WORKER_ID, "0") == "0"]
    return [node for node in heads if name_of(node) not in chosen]


def answers(node: _Node) -> bool:
    """Whether a node's raylet accepts a connection."""
    address = (node["NodeManagerAddress"], node["NodeManagerPort"])
    try:
        with socket.create_connection(address, timeout=_PROBE_S):
            return True
    except OSError:
        return False
