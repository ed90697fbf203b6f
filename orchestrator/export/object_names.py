"""Names and metadata of Kubernetes objects."""

import hashlib
from typing import Any

from orchestrator.types.spec import Spec

DIGEST = 6


def label(name: str, most: int) -> str:
    """A name as a DNS label of at most so many characters; one that is cut has a digest."""
    named = name if name[0].isalpha() else f"run-{name}"
    if len(named) > most:
        digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST]
        named = f"{named[: most - DIGEST - 1].rstrip('-')}-{digest}"
    return named.rstrip("-")


def metadata(spec: Spec, name: str, *, queued: bool = True) -> dict[str, Any]:
    """The metadata of an object; Kueue admits what has the label of a queue."""
    options = spec.cluster.kubernetes
    named: dict[str, Any] = {"name": name}
    if options.namespace:
        named["namespace"] = options.namespace
    if options.queue and queued:
        named["labels"] = {"kueue.x-k8s.io/queue-name": options.queue}
    return named
