"""The ranks whose processes Ray saw die, and where they were."""

from collections.abc import Iterator

from orchestrator.launch.dead_rank import DeadRank
from orchestrator.launch.ray import private_api, slices

HOW = "died; Ray does not tell by which signal"


def find_dead_ranks(error: BaseException) -> tuple[DeadRank, ...]:
    """Those of an error of Ray Train. What only raised an exception has told it itself."""
    return tuple(_deaths(error))


def _deaths(error: BaseException) -> Iterator[DeadRank]:
    import ray  # noqa: PLC0415

    failures = getattr(error, "worker_failures", None) or {}
    for rank, failure in sorted(failures.items()):
        actor_error = getattr(failure, "health_check_failure", failure)
        process = private_api.process_of_actor(getattr(actor_error, "actor_id", None))
        nodes = {node["NodeID"]: node for node in ray.nodes()} if process else {}
        if process and (node := nodes.get(process.node_id)):
            host = f"{node['NodeManagerHostname']}, process {process.pid}"
            yield DeadRank(rank=rank, host=host, slice_name=slices.name_of(node), how=HOW)
