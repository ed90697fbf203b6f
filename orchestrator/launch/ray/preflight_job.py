"""Launch room: a look at a named cluster from inside, before a run exists. A root of its own.

    python -m orchestrator.launch.ray.preflight_job WANTED    # a Ray Job of `orch submit`

It takes no chip. WANTED is a `Wanted` as JSON; the last line that it prints is the `Survey`.
"""

import os
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from orchestrator.launch import provenance
from orchestrator.launch.preflight import PreflightHost, PreflightReport, PreflightRequest
from orchestrator.launch.ray.attempt import join_cluster
from orchestrator.launch.ray.job_client import ClusterUnusable
from orchestrator.launch.ray.slice_discovery import WORKER_ID, is_free, kind_of, name_of
from orchestrator.types import codec

MARK = "orch survey: "
ANSWER_LIMIT_S = 120.0  # a host may have to fetch and unpack the code first


def main(argv: list[str]) -> None:
    """Join the cluster, look, and say what is there."""
    wanted = codec.from_json(argv[0], PreflightRequest)
    join_cluster(os.environ["RAY_ADDRESS"])
    print(MARK + codec.to_json(look(wanted)).decode(), flush=True)


def told(log: str) -> PreflightReport:
    """The survey in what this job has written."""
    lines = [line for line in log.splitlines() if line.startswith(MARK)]
    if not lines:
        raise ClusterUnusable("the look at the cluster said nothing: see its job's log there")
    return codec.from_json(lines[-1].removeprefix(MARK), PreflightReport)


def look(wanted: PreflightRequest) -> PreflightReport:
    """What the cluster that was joined has for a run."""
    import ray  # noqa: PLC0415
    from ray._private.state import available_resources_per_node  # noqa: PLC0415
    from ray.util.tpu import get_num_tpu_slices  # noqa: PLC0415

    left = available_resources_per_node()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    heads = [kind_of(node) for node in nodes if (node.get("Labels") or {}).get(WORKER_ID) == "0"]
    others = Counter(name for name in heads if name and name != wanted.pod_type)
    of_kind = [node for node in nodes if kind_of(node) == wanted.pod_type]
    present = get_num_tpu_slices(wanted.topology, wanted.accelerator)
    # Ray's own count of ready slices takes a host whose chips are all in use for a new one.
    used = {name_of(node) for node in of_kind if not is_free(node, left)}
    return PreflightReport(
        present=present,
        free=max(present - len(used), 0),
        others=dict(others),
        hosts=_hosts(of_kind, wanted),
    )


def _hosts(nodes: list[dict[str, Any]], wanted: PreflightRequest) -> tuple[PreflightHost, ...]:
    """Ask every host of those slices, all at once, and this one, where the driver will run."""
    import ray  # noqa: PLC0415
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    ask, me = ray.remote(num_cpus=0, max_retries=0)(here), ray.get_runtime_context().get_node_id()
    asked = {}
    for node in nodes:
        if node["NodeID"] == me:
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[ask.options(scheduling_strategy=there).remote(wanted)] = _name(node)
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_LIMIT_S)
    return (here(wanted), *(_answer(one, name, one in answered) for one, name in asked.items()))


def _name(node: dict[str, Any]) -> str:
    return str(node["NodeManagerAddress"])


def _answer(asked: Any, name: str, answered: bool) -> PreflightHost:
    import ray  # noqa: PLC0415

    try:
        found: PreflightHost = ray.get(asked) if answered else PreflightHost(name=name)
    except ray.exceptions.RayError:  # the host went, or cannot start a process
        return PreflightHost(name=name)
    return found


def here(wanted: PreflightRequest) -> PreflightHost:
    """This host: its versions, whether it can write where the run will, what it lacks."""
    file = Path(wanted.file)
    return PreflightHost(
        name=socket.gethostname(),
        versions=provenance.versions(),
        reaches=file.exists() and os.access(file.parent, os.W_OK),
        lacks=tuple(name for name in wanted.secrets if not os.environ.get(name)),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
