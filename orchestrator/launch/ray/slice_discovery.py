"""Launch room: the slices that a cluster has, as its nodes show them. Knows what Ray calls them."""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from orchestrator.launch.ray.protocol import Slice
from orchestrator.launch.ray.slices import hosts_per_slice, pod_type
from orchestrator.types.plan import Plan

Node = Mapping[str, Any]  # as `ray.nodes()` describes it
SLICE_NAME = "ray.io/tpu-slice-name"
POD_TYPE = "ray.io/tpu-pod-type"
WORKER_ID = "ray.io/tpu-worker-id"
PROBE_S = 2.0
PROBES_AT_ONCE = 64


def slices_of(
    nodes: Sequence[Node],
    free: Mapping[str, Mapping[str, float]],
    plan: Plan,
    answers: Callable[[Node], bool],
) -> tuple[Slice, ...]:
    """The slices of the plan's kind, by name. `free` are the resources left on each node; a node
    that the cluster counts as alive and that does not answer is one whose end it has not noticed.
    """
    alive = [node for node in nodes if node["Alive"] and kind_of(node) == pod_type(plan)]
    by_slice: dict[str, list[Node]] = {}
    for node in alive:
        by_slice.setdefault(name_of(node), []).append(node)
    there = dict(zip((id(node) for node in alive), _all_answers(alive, answers), strict=True))
    return tuple(
        Slice(
            name=name,
            hosts=sum(there[id(node)] for node in members),
            of=hosts_per_slice(plan),
            free=all(is_free(node, free) for node in members),
            settled=all(there[id(node)] for node in members),
        )
        for name, members in sorted(by_slice.items())
    )


def kind_of(node: Node) -> str | None:
    """Ray's name of the kind of slice that a node belongs to."""
    return (node.get("Labels") or {}).get(POD_TYPE)


def name_of(node: Node) -> str:
    """The slice of a node; one without a name is a slice by itself."""
    return str((node.get("Labels") or {}).get(SLICE_NAME) or node["NodeID"])


def is_free(node: Node, free: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether nobody uses chips of a node. One that is new has not said what is left on it."""
    left = free.get(node["NodeID"])
    return left is None or left.get("TPU", 0.0) >= node["Resources"].get("TPU", 0.0)


def heads_of_others(nodes: Sequence[Node], plan: Plan, chosen: Sequence[str]) -> list[Node]:
    """The first host of every slice of the plan's kind that is not chosen, where it is there."""
    return [
        node
        for node in nodes
        if node["Alive"]
        and kind_of(node) == pod_type(plan)
        and name_of(node) not in chosen
        and (node.get("Labels") or {}).get(WORKER_ID, "0") == "0"
    ]


def _all_answers(nodes: Sequence[Node], answers: Callable[[Node], bool]) -> Iterable[bool]:
    if not nodes:
        return []
    with ThreadPoolExecutor(min(PROBES_AT_ONCE, len(nodes))) as pool:
        return list(pool.map(answers, nodes))


def answers(node: Node) -> bool:
    """Whether a node's raylet takes a connection."""
    try:
        with socket.create_connection(
            (node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=PROBE_S
        ):
            return True
    except OSError:
        return False
