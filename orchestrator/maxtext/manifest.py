"""The chips that a Kubernetes manifest asks for: a JobSet's, or a Job's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator import catalog
from orchestrator.errors import SpecError

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
# The second is of a part of a node pool's slice.
TOPOLOGIES = ("cloud.google.com/gke-tpu-slice-topology", "cloud.google.com/gke-tpu-topology")
NOTHING: Mapping[str, Any] = {}


class OddManifest(SpecError):
    """A manifest whose chips are not one kind of slice."""


def is_manifest(documents: Sequence[Any]) -> bool:
    """Whether YAML documents are objects of Kubernetes."""
    return any(isinstance(one, dict) and {"apiVersion", "kind"} <= one.keys() for one in documents)


def slices_of(documents: Sequence[Any]) -> tuple[str, int] | None:
    """A slice as xpk calls it (v6e-16x16), and how many; None where no pod asks for one."""
    found = [(kind, count) for one in documents for kind, count in _asked(one, 1)]
    if not found:
        return None
    kinds = {kind for kind, _ in found}
    if len(kinds) > 1:
        raise OddManifest(f"its pods are on {', '.join(sorted(kinds))}: slices must be of one kind")
    return kinds.pop(), sum(count for _, count in found)


def _asked(
    node: Any, replicas: int, annotations: Mapping[str, Any] = NOTHING
) -> Iterator[tuple[str, int]]:
    """The slices of each pod's template below a node. What is replicated are whole jobs.

    `annotations` are those of the object that the node is the specification of.
    """
    if isinstance(node, list):
        for one in node:
            yield from _asked(one, replicas)
    if not isinstance(node, dict):
        return
    labels = node.get("nodeSelector")
    if isinstance(labels, dict) and ACCELERATOR in labels:
        yield _slice({**labels, **annotations}), replicas
    count = node.get("replicas", 1)
    annotations = _annotations(node)
    for one in node.values():
        yield from _asked(one, replicas * (count if type(count) is int else 1), annotations)


def _annotations(node: dict[str, Any]) -> dict[str, Any]:
    metadata = node.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return (
        {key: found[key] for key in TOPOLOGIES if key in found} if isinstance(found, dict) else {}
    )


def _slice(selector: dict[str, Any]) -> str:
    label = selector[ACCELERATOR]
    shape = next((selector[key] for key in TOPOLOGIES if key in selector), None)
    if shape is None:
        raise OddManifest(f"{ACCELERATOR}={label}: no label beside it says the topology")
    for name in catalog.chips():
        gke = catalog.chip(name).gke
        if gke is not None and gke.accelerator == label:
            return f"{name}-{shape}"
    raise OddManifest(f"{ACCELERATOR}={label}: no chip of the catalog has it")
