"""Runs on Ray: a private cluster that emulates slices on this machine, or a named one."""

import sys
from contextlib import AbstractContextManager

from orchestrator.launch.backend import AttemptSpec
from orchestrator.launch.ray.attempt_process import AttemptProcess
from orchestrator.launch.ray.job_client import RayJobs
from orchestrator.launch.ray.local_cluster import PrivateCluster, private_cluster
from orchestrator.launch.ray.slices import emulated_hosts
from orchestrator.values import codec
from orchestrator.values.plan import Plan


class RayBackend:
    """Starts, watches and stops the processes of a run on Ray."""

    def emulate(self, plan: Plan, command: str) -> AbstractContextManager[PrivateCluster]:
        """A private cluster on this machine with the plan's slices, which runs a command."""
        return private_cluster(emulated_hosts(plan), plan.devices_per_host, command)

    def connect(self, address: str) -> RayJobs:
        """The job server of a named cluster."""
        return RayJobs(address)

    def attempt(self, spec: AttemptSpec) -> AttemptProcess:
        """An attempt on the cluster of RAY_ADDRESS, in whose job the driver runs."""
        module = ("-m", "orchestrator.launch.ray.attempt")
        return AttemptProcess([sys.executable, *module, codec.to_json(spec).decode()])
