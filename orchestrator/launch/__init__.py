"""Launch room: Plan to Run, on emulated slices here or on a named cluster. Alone knows Ray."""

from orchestrator.launch.private import Cluster, private_cluster
from orchestrator.launch.slices import emulated_hosts

__all__ = ["Cluster", "emulated_hosts", "private_cluster"]
