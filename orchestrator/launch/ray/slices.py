"""How Ray describes slices of TPUs and nodes of GPUs: the nodes that emulate a plan's slices, and
those that a cluster shows.
"""

import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import field

from orchestrator import catalog
from orchestrator.catalog.chips import GPU_DOMAIN
from orchestrator.errors import SpecError
from orchestrator.launch.backend import Slice
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan

_SLICE_NAME = "ray.io/tpu-slice-name"
_POD_TYPE = "ray.io/tpu-pod-type"
_WORKER_ID = "ray.io/tpu-worker-id"
_TYPE = "accelerator_type:"  # begins the resource that names a node's accelerator
_PROBE_S = 2.0
_PROBES_AT_ONCE = 64
_SHORT = 8
_Node = Mapping[str, Any]  # as `ray.nodes()` describes it


class SliceKind(Value):
    """What Ray calls a plan's slices: `hosts` nodes, each with `chips` of a `resource`. A node of
    GPUs is a slice by itself, unless its NVLink domain has several.
    """

    name: str
    accelerator: str
    resource: str
    chips: int
    hosts: int

    @property
    def has_gpus(self) -> bool:
        return self.resource == "GPU"

    @property
    def queue(self) -> str:
        """The queue in which runs wait: one for all slices that the same nodes can form."""
        return f"{self.accelerator}-{self.chips}" if self.has_gpus else self.name

    def is_made_of(self, node: _Node) -> bool:
        if not self.has_gpus:
            return _label(node, _POD_TYPE) == self.name
        resources = node["Resources"]
        return f"{_TYPE}{self.accelerator}" in resources and resources.get("GPU") == self.chips


def kind_of(plan: Plan) -> SliceKind:
    """Return the kind of the plan's slices: v5p-8 is four chips, and H100-8 eight."""
    chip = catalog.chip_of(plan)
    if chip.ray is None:
        raise SpecError(
            f"resources.chip: {plan.chip} has no name in Ray: its file needs [ray], or the run"
            " --set cluster.backend=hosts"
        )
    return SliceKind(
        name=f"{chip.ray.pod_type}-{plan.chips // plan.pods * chip.ray.named_per_chip}",
        accelerator=chip.ray.accelerator,
        resource="GPU" if chip.switched else "TPU",
        chips=plan.chips_per_host,
        hosts=plan.hosts_per_slice,
    )


class EmulatedHost(Value):
    resources: dict[str, float]
    labels: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)


def emulated_hosts(plan: Plan, spares: int = 0) -> tuple[EmulatedHost, ...]:
    """The nodes of a cluster that emulates the plan's slices, and spare slices after them."""
    kind, hosts = kind_of(plan), []
    for number in range((plan.pods + spares) * kind.hosts):
        pod, worker = divmod(number, kind.hosts)
        resources = {kind.resource: float(kind.chips), f"{_TYPE}{kind.accelerator}": 1.0}
        labels = {"ray.io/accelerator-type": kind.accelerator}
        environment = {}
        if not kind.has_gpus:
            if worker == 0:
                resources[f"TPU-{kind.name}-head"] = 1.0
            labels |= {_SLICE_NAME: f"pod-{pod}", _WORKER_ID: str(worker), _POD_TYPE: kind.name}
            labels["ray.io/tpu-topology"] = plan.topology
            environment = {"TPU_NAME": f"pod-{pod}", "TPU_WORKER_ID": str(worker)}
            environment |= {"TPU_ACCELERATOR_TYPE": kind.name, "TPU_TOPOLOGY": plan.topology}
        elif kind.hosts > 1:
            labels[GPU_DOMAIN] = f"pod-{pod}"
        hosts.append(EmulatedHost(resources=resources, labels=labels, environment=environment))
    return tuple(hosts)


def members(
    nodes: Sequence[_Node], kind: SliceKind, pinned: Mapping[str, Collection[str]] | None = None
) -> dict[str, list[_Node]]:
    """Return the live nodes of each slice of a kind, by the slice's name. `pinned` slices of GPUs
    keep the nodes with these ids: no spare node of a domain takes the place of a lost one.
    """
    alive = [node for node in nodes if node["Alive"]]
    found: dict[str, list[_Node]] = defaultdict(list)
    if not kind.has_gpus:
        for node in filter(kind.is_made_of, alive):
            found[_name_of(node)].append(node)
        return found
    for name, ids in (pinned or {}).items():
        found[name] = [node for node in alive if node["NodeID"] in ids]
    used = {node["NodeID"] for group in found.values() for node in group}
    domains: dict[str, list[_Node]] = defaultdict(list)
    for node in sorted(filter(kind.is_made_of, alive), key=lambda node: str(node["NodeID"])):
        if node["NodeID"] not in used:
            domains[_domain(node) if kind.hosts > 1 else node["NodeID"]].append(node)
    for domain in domains.values():
        for start in range(0, len(domain), kind.hosts):
            group, first = domain[start : start + kind.hosts], domain[start]
            if start == 0 or len(group) == kind.hosts:  # what is left of a domain is no slice
                where = _label(first, GPU_DOMAIN) or first["NodeManagerHostname"]
                found[f"{where}-{first['NodeID'][:_SHORT]}"] = group
    return found


def slices_of(
    groups: Mapping[str, Sequence[_Node]],
    free: Mapping[str, Mapping[str, float]],  # unused resources of each node
    kind: SliceKind,
    answers: Callable[[_Node], bool],
) -> tuple[Slice, ...]:
    """The slices of these nodes. A node that does not answer is gone, whatever Ray says."""
    alive = [node for group in groups.values() for node in group]
    with ThreadPoolExecutor(min(_PROBES_AT_ONCE, max(len(alive), 1))) as pool:
        answering = dict(zip(map(id, alive), pool.map(answers, alive), strict=True))

    def is_free(node: _Node) -> bool:  # a new node has not reported what is free yet
        left = free.get(node["NodeID"])
        return left is None or left.get(kind.resource, 0) >= node["Resources"][kind.resource]

    return tuple(
        Slice(
            name=name,
            hosts=sum(answering[id(node)] for node in group),
            size=kind.hosts,
            free=all(map(is_free, group)),
            settled=all(answering[id(node)] for node in group),
        )
        for name, group in sorted(groups.items())
    )


def others(nodes: Sequence[_Node], kind: SliceKind) -> Counter[str]:
    """Count the slices of other kinds: of TPUs by Ray's name, domains of GPUs by type and size."""
    groups = members(nodes, kind).values()
    used = {node["NodeID"] for group in groups if len(group) == kind.hosts for node in group}
    counts: Counter[str] = Counter()
    domains: dict[str, list[_Node]] = defaultdict(list)
    for node in nodes:
        pod_type = _label(node, _POD_TYPE)
        if node["Alive"] and node["Resources"].get("GPU"):
            domains[_domain(node)].append(node)
        elif node["Alive"] and _label(node, _WORKER_ID) == "0" and pod_type not in ("", kind.name):
            counts[pod_type] += 1
    for domain in domains.values():
        if not any(node["NodeID"] in used for node in domain):
            types = [name for name in sorted(domain[0]["Resources"]) if name.startswith(_TYPE)]
            gpus = sum(int(node["Resources"]["GPU"]) for node in domain)
            counts[f"{types[0].removeprefix(_TYPE) if types else 'GPU'}-{gpus}"] += 1
    return counts


def _label(node: _Node, name: str) -> str:
    return str((node.get("Labels") or {}).get(name) or "")


def _name_of(node: _Node) -> str:
    """The slice of a node. A node without one is a slice by itself."""
    return _label(node, _SLICE_NAME) or str(node["NodeID"])


def _domain(node: _Node) -> str:
    """The NVLink domain of a node, which is one by itself where nobody says so."""
    return _label(node, GPU_DOMAIN) or str(node["NodeID"])


def heads_of_others(
    nodes: Sequence[_Node], kind: SliceKind, chosen: Collection[str]
) -> list[tuple[str, _Node]]:
    """Return the first host of each slice of TPUs that is not chosen, after the slice's name."""
    alive = [node for node in nodes if node["Alive"] and kind.is_made_of(node)]
    heads = [node for node in alive if (_label(node, _WORKER_ID) or "0") == "0"]
    return [(_name_of(node), node) for node in heads if _name_of(node) not in chosen]


def answers(node: _Node) -> bool:
    """Whether a node's raylet accepts a connection."""
    address = (node["NodeManagerAddress"], node["NodeManagerPort"])
    try:
        with socket.create_connection(address, timeout=_PROBE_S):
            return True
    except OSError:
        return False
