"""The health of this machine, of the place where runs are tracked, and of a named cluster."""

import os
from pathlib import Path

from orchestrator.doctor import machine_checks
from orchestrator.launch.backend import ClusterUnusable, find_backend
from orchestrator.tracking import destination
from orchestrator.types.health import Finding, HealthReport
from orchestrator.types.run_options import TrackingOptions


def health(storage: Path, address: str | None) -> HealthReport:
    """What this machine can do; each thing that it cannot has advice."""
    named = address or os.environ.get("RAY_ADDRESS")
    clusters = (cluster_health(named),) if named else ()
    tracking = machine_checks.store(destination(TrackingOptions(), storage, os.environ))
    return HealthReport(findings=(*machine_checks.of_machine(storage), tracking, *clusters))


def cluster_health(address: str) -> Finding:
    """Whether a named cluster lets us in."""
    try:
        find_backend("ray").connect(address)
    except ClusterUnusable as error:
        return machine_checks.broken("cluster", str(error), "docs/launch.md says how to reach one")
    return machine_checks.good(
        "cluster", f"{address} answers; orch submit SPEC --dry-run asks for slices"
    )
