"""Looks at a named cluster from inside, before a run exists.

    python -m orchestrator.launch.ray.preflight_job REQUEST TOPOLOGY POD_TYPE ACCELERATOR

`orch submit` starts it as a Ray job that takes no chip. REQUEST is a `PreflightRequest` as JSON,
the others are Ray's names, and the last line that it prints is the `PreflightReport`.
"""

import os
import socket
import sys
from collections import Counter
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray.util.tpu import get_num_tpu_slices

from orchestrator.launch import preflight as this_host
from orchestrator.launch.backend import ClusterUnusable
from orchestrator.launch.preflight import PreflightHost, PreflightReport, PreflightRequest
from orchestrator.launch.ray import private_api
from orchestrator.launch.ray.attempt import join_cluster
from orchestrator.launch.ray.slices import WORKER_ID, is_free, kind_of, name_of
from orchestrator.values import codec

_MARK = "orch preflight: "
_ANSWER_LIMIT_S = 300.0  # a host may have to fetch and unpack the code first
_MOST_OF_FAULT = 300


def main(argv: list[str]) -> None:
    """Join the cluster, look, and print the report."""
    asked, topology, kind, accelerator = argv
    request = codec.from_json(asked, PreflightRequest)
    join_cluster(os.environ["RAY_ADDRESS"])
    free = private_api.free_resources()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    heads = [kind_of(node) for node in nodes if (node.get("Labels") or {}).get(WORKER_ID) == "0"]
    others = Counter(name for name in heads if name and name != kind)
    of_kind = [node for node in nodes if kind_of(node) == kind]
    present = get_num_tpu_slices(topology, accelerator)
    # Ray's own count of ready slices takes a host whose chips are all in use for a new one.
    used = {name_of(node) for node in of_kind if not is_free(node, free)}
    unused, hosts = max(present - len(used), 0), _hosts(of_kind, request)
    report = PreflightReport(present=present, free=unused, others=dict(others), hosts=hosts)
    print(_MARK + codec.to_json(report).decode(), flush=True)


def parse_report(log: str) -> PreflightReport:
    lines = [line for line in log.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise ClusterUnusable("the preflight job printed no report: see its log on the cluster")
    return codec.from_json(lines[-1].removeprefix(_MARK), PreflightReport)


def _hosts(nodes: list[dict[str, Any]], request: PreflightRequest) -> tuple[PreflightHost, ...]:
    """Every host of those slices, asked all at once, and this one, where the driver will run."""
    ask, me = ray.remote(num_cpus=0, max_retries=0)(_here), ray.get_runtime_context().get_node_id()
    pending = {}
    for node in nodes:
        if node["NodeID"] == me:
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ask.options(scheduling_strategy=there).remote(request)
        pending[task] = str(node["NodeManagerAddress"])
    done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_ANSWER_LIMIT_S)
    hosts = [_here(request)]
    for task, name in pending.items():
        try:
            hosts.append(ray.get(task) if task in done else PreflightHost(name=name))
        except ray.exceptions.RayError as error:  # the host is gone, or cannot start a process
            *_, fault = str(error).strip().splitlines() or [type(error).__name__]
            hosts.append(PreflightHost(name=name, fault=fault[:_MOST_OF_FAULT]))
    return tuple(hosts)


def _here(request: PreflightRequest) -> PreflightHost:
    return this_host.describe(socket.gethostname(), request.file, request.secrets)


if __name__ == "__main__":
    main(sys.argv[1:])
