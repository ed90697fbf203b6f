"""The kinds of Kubernetes manifests that a plan can be exported as."""

from typing import Literal, get_args

from orchestrator.export.jobset_manifest import job_set
from orchestrator.export.ray_manifests import ray_cluster, ray_job
from orchestrator.export.slice_pods import Manifest, gke
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

ManifestKind = Literal["ray", "rayjob", "jobset"]
KINDS: tuple[ManifestKind, ...] = get_args(ManifestKind)


def manifests(kind: ManifestKind, spec: Spec, plan: Plan, spec_text: str) -> list[Manifest]:
    """The objects of that kind, in the order in which they are created."""
    gke(plan)
    if kind == "ray":
        return ray_cluster(spec, plan)
    if kind == "rayjob":
        return ray_job(spec, plan, spec_text)
    return job_set(spec, plan, spec_text)
