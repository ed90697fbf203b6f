"""Launch room: Plan to Run, on emulated slices here. The only room that knows Ray."""

from orchestrator.launch.private import Cluster, private_cluster
from orchestrator.launch.slices import Host, emulated_hosts

__all__ = ["Cluster", "Host", "emulated_hosts", "private_cluster"]
