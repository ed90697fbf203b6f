"""Launch room: Plan to Run, on emulated slices here or on a named cluster. Alone knows Ray."""

from orchestrator.launch.ray.local_cluster import LocalCluster, private_cluster
from orchestrator.launch.ray.slices import emulated_hosts

__all__ = ["LocalCluster", "emulated_hosts", "private_cluster"]
