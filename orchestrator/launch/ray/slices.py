"""Launch room: what Ray calls the slices of a plan, and the nodes that emulate them. Pure."""

from dataclasses import dataclass, field

from orchestrator import catalog
from orchestrator.catalog.chip import RayNames
from orchestrator.errors import SpecError
from orchestrator.types.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Host:
    """A Ray node that stands for one host of a slice, and how it tells Ray so."""

    resources: dict[str, float]
    labels: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)


def accelerator_type(plan: Plan) -> str:
    """Ray's name of the plan's chip, as a trainer asks for it."""
    return _names(plan).accelerator


def pod_type(plan: Plan) -> str:
    """Ray's name of the plan's slice: v5p-8 is four chips."""
    names = _names(plan)
    return f"{names.pod_type}-{plan.chips // plan.pods * names.named_per_chip}"


def devices_per_host(plan: Plan) -> int:
    """The devices that each process of the run has."""
    return plan.devices // plan.hosts


def hosts_per_slice(plan: Plan) -> int:
    """The hosts of each slice, which are nodes of a cluster."""
    return plan.hosts // plan.pods


def emulated_hosts(plan: Plan, spares: int = 0) -> tuple[Host, ...]:
    """The nodes of a cluster on which the plan finds its slices, pod after pod, and spare ones."""
    return tuple(
        _host(plan, pod, worker)
        for pod in range(plan.pods + spares)
        for worker in range(hosts_per_slice(plan))
    )


def _names(plan: Plan) -> RayNames:
    names = catalog.chip_of(plan).ray
    if names is None:
        known = ", ".join(name for name in catalog.chips() if catalog.chip(name).ray)
        raise SpecError(f"{plan.chip}: only TPU slices can be launched or rehearsed: {known}")
    return names


def _host(plan: Plan, pod: int, worker: int) -> Host:
    kind, name = pod_type(plan), f"pod-{pod}"
    resources = {"TPU": plan.chips / plan.hosts, f"accelerator_type:{accelerator_type(plan)}": 1.0}
    if worker == 0:
        resources[f"TPU-{kind}-head"] = 1.0
    return Host(
        resources=resources,
        labels={
            "ray.io/tpu-slice-name": name,
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-pod-type": kind,
            "ray.io/tpu-topology": plan.topology,
            "ray.io/accelerator-type": accelerator_type(plan),
        },
        environment={
            "TPU_NAME": name,
            "TPU_WORKER_ID": str(worker),
            "TPU_ACCELERATOR_TYPE": kind,
            "TPU_TOPOLOGY": plan.topology,
        },
    )
