"""Turns a plan into running processes, on slices that are emulated here or on a named cluster.

`backend` defines what a backend does, and `launch.ray` does it on Ray. This package may import the
journal and planned values.
"""

from orchestrator.launch.ray.local_cluster import LocalCluster, private_cluster
from orchestrator.launch.ray.slices import emulated_hosts

__all__ = ["LocalCluster", "emulated_hosts", "private_cluster"]
