"""The parts of Ray that are private or meant for tests; no other file uses any. Ray's public
functions count resources as a whole, ask a dashboard that may be down, wait for ever, and start
needless processes. Ray is pinned; tests/test_ray_private_api.py checks these parts.
"""

import inspect
import time
from collections.abc import Mapping
from typing import Any

_TRIED = ("2.60.0",)  # versions of Ray, the newest last
_NODE_LIMIT_S = 300.0  # for each node, on a machine that does other work too
POLL_S = 0.2
_REQUEST_LIMIT_S = 30.0  # without a byte of an answer


def free_resources() -> Mapping[str, Mapping[str, float]]:
    from ray._private.state import available_resources_per_node  # noqa: PLC0415

    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    return free


def live_jobs() -> set[str]:
    from ray._private.state import jobs  # noqa: PLC0415

    return {job["JobID"] for job in jobs() if not job["IsDead"]}


def process_of_actor(actor_id: str | None) -> tuple[str, int] | None:
    """Return the node id and the process id of an actor that Ray knows; it may have ended."""
    from ray._private.state import actors  # noqa: PLC0415

    found = actors(actor_id) if actor_id else {}
    return (found["Address"]["NodeID"], found["Pid"]) if found else None


def job_client(address: str) -> Any:
    """A client of a job server whose requests end when no answer comes."""
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415  it takes seconds

    base: Any = JobSubmissionClient

    class Client(base):  # type: ignore[misc]
        """Ray passes on the options of a request, and sets no timeout."""

        def _do_request(self, *values: Any, **named: Any) -> Any:
            return super()._do_request(*values, **{"timeout": _REQUEST_LIMIT_S, **named})

    return Client(address)


def head_cluster(**head: Any) -> Any:
    """A cluster on this machine with a head node; it has `add_node` and `head_node`."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415  it takes seconds

    return Cluster(initialize_head=True, head_node_args=head)


def jax_trainer(*, private: bool) -> Any:
    """Ray Train's `JaxTrainer` without the processes that a run has no use for: that which serves
    data sets and, in a private cluster, that which frees the slices of a controller that died.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback  # noqa: PLC0415
    from ray.train.v2._internal.callbacks.placement_group_callback import (  # noqa: PLC0415
        PlacementGroupCleanerCallback,
    )
    from ray.train.v2.jax import JaxTrainer  # noqa: PLC0415

    base: Any = JaxTrainer
    left_out = (DatasetsCallback, PlacementGroupCleanerCallback) if private else (DatasetsCallback,)

    class LeanTrainer(base):  # type: ignore[misc]
        """Each of these is a process that takes seconds to start."""

        def _create_default_callbacks(self) -> list[Any]:
            every: list[Any] = super()._create_default_callbacks()
            return [callback for callback in every if not isinstance(callback, left_out)]

    return LeanTrainer


def allow_slow_start() -> None:
    """Let nodes take their time to start. Ray gives a node 30 s and its agents 15 s."""
    from ray import _raylet  # noqa: PLC0415
    from ray._private import services  # noqa: PLC0415

    raylet: Any = _raylet
    get_node: Any = services.get_node
    start_raylet: Any = services.start_raylet
    signature = inspect.signature(start_raylet)

    def get_node_patiently(address: str, node: str) -> Any:
        deadline = time.monotonic() + _NODE_LIMIT_S
        while True:
            try:
                return get_node(address, node)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def start_raylet_with_ports(*values: Any, **named: Any) -> Any:
        # Ray passes on every port but this one, which it looks for in a file.
        given = signature.bind(*values, **named).arguments
        folder, node = given["session_dir"], given["node_id"]
        port = given["dashboard_agent_listen_port"]
        raylet.persist_port(folder, node, raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME, port)
        return start_raylet(*values, **named)

    services.get_node = get_node_patiently
    services.start_raylet = start_raylet_with_ports
