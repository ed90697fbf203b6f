"""The spec of a run as a ConfigMap, and the volume through which a pod reads it."""

from orchestrator.export.object_names import metadata
from orchestrator.export.slice_pods import Manifest
from orchestrator.types.spec import Spec

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
