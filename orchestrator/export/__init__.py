"""A plan as the input of other tools: Kubernetes manifests. It reads values and writes mappings."""

from orchestrator.export.manifests import KINDS, ManifestKind, manifests

__all__ = ["KINDS", "ManifestKind", "manifests"]
