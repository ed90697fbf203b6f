"""Where the processes of an attempt listen: on the address of their node alone.

By default JAX's coordinator listens on every address of its host, and gloo on that of the host's
name. Nothing authenticates who connects there. In a private cluster the address of a node is the
loopback; elsewhere it is the one by which the nodes of the cluster know each other.
"""

import os
from typing import Any

import ray.util
from ray.train.v2.jax.config import JaxConfig

from orchestrator.ports import NODE_ADDRESS

BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"  # read by JAX on the first process


class JaxOnNodeAddress(JaxConfig):
    """How Ray Train connects the processes, each of which listens on the address of its node."""

    @property
    def backend_cls(self) -> type:
        return _Backend


class _Backend(JaxConfig().backend_cls):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: JaxConfig) -> None:
        worker_group.execute(_note_node_address)
        super().on_start(_BoundGroup(worker_group), backend_config)


class _BoundGroup:
    """A group of workers. Of the first one Ray asks for the address of the coordinator."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def __len__(self) -> int:
        return len(self._group)

    def execute_single(self, rank: int, function: Any, *values: Any, **named: Any) -> Any:
        """Run a function on a worker; the address that it returns is the one to bind to."""
        address, port = self._group.execute_single(rank, function, *values, **named)
        self._group.execute_single(rank, _bind_coordinator, f"{address}:{port}")
        return address, port


def _note_node_address() -> None:
    os.environ[NODE_ADDRESS] = ray.util.get_node_ip_address()


def _bind_coordinator(address: str) -> None:
    os.environ[BIND_ADDRESS] = address
