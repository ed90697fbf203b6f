"""Launch room: the process that owns a private cluster, and ends it when its own owner is gone.

    python -m orchestrator.launch.ray.local_supervisor    # started by private.py, never by hand

It reads one line, the `Wish`, starts the nodes, runs one Ray Job and tells what happens, a line of
JSON at a time. It lives in a session of its own, so that a terminal's Ctrl-C reaches `orch` alone;
when its input ends, because `orch` closed it or died, whatever the cluster started is killed. If
the keeper is killed itself, its stand-in does so, which is nothing but a copy of it that waits.
"""

import inspect
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from orchestrator.launch.ray import process_tree
from orchestrator.launch.ray.protocol import ClusterEvent, ClusterRequest
from orchestrator.ports import LOOPBACK, claimed
from orchestrator.types import codec

OBJECT_STORE_BYTES = 80 * 2**20  # a run moves no data through Ray
POLL_S = 0.2
AGENT_LIMIT_S = 60.0
START_LIMIT_S = 300.0  # of each node, on a machine that does other work too
# Of its agents a node is told where they will listen: else it waits 15 s for them to write it down,
# in which Python does not start on a machine that does other work too, and dies.
AGENT_PORTS = (
    "dashboard_agent_listen_port",
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
)


def main() -> None:
    """Keep a cluster for as long as the input stays open."""
    wish = codec.from_json(sys.stdin.buffer.readline(), ClusterRequest)
    _stand_in(wish)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Ray's own words go to the log
    threading.Thread(target=_end_with_owner, args=(wish,), daemon=True).start()
    try:
        _serve(wish, out)
    except Exception as error:  # noqa: BLE001  whatever it was, the owner must hear of it
        _tell(out, ClusterEvent(error=f"{type(error).__name__}: {error}"))
    threading.Event().wait()


def _stand_in(wish: ClusterRequest) -> None:
    """Leave a process that waits for the end of this one, and then leaves nothing behind."""
    ended, alive = os.pipe()
    if os.fork():
        os.close(ended)  # and hold `alive` open for as long as we live
        return
    for inherited in (alive, sys.stdin.fileno(), sys.stdout.fileno()):
        os.close(inherited)
    os.read(ended, 1)
    process_tree.end_all(wish.mark, os.getpid())
    process_tree.remove(Path(wish.folder))
    os._exit(0)


def _end_with_owner(wish: ClusterRequest) -> None:
    """Wait until the owner closes our input or is gone; then leave nothing behind."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    process_tree.end_all(wish.mark, os.getpid())
    process_tree.remove(Path(wish.folder))
    os._exit(0)


def _serve(wish: ClusterRequest, out: TextIO) -> None:
    _be_patient()
    with claimed() as ports:
        head = _started(wish, ports, out)
    _tell(out, ClusterEvent(address=f"http://{head.webui_url}"))
    client, job = _submitted(head, wish.command)
    state = ""
    while True:
        told = str(client.get_job_status(job).value)
        if told != state:
            _tell(out, ClusterEvent(nodes=len(wish.hosts), job=told, error=_why(client, job, told)))
            state = told
        if told in ("SUCCEEDED", "FAILED", "STOPPED"):
            return
        time.sleep(POLL_S)


def _why(client: Any, job: str, state: str) -> str | None:
    """The last words of a job that did not end well."""
    if state != "FAILED":
        return None
    lines = client.get_job_logs(job).splitlines()[-10:]
    return "\n".join([str(client.get_job_info(job).message), *lines])


def _be_patient() -> None:
    """Let a node take its time to start: Ray gives it 30 s, and its agents 15, whatever else the
    machine does.
    """
    from ray import _raylet  # noqa: PLC0415
    from ray._private import services  # noqa: PLC0415

    raylet: Any = _raylet
    ask: Any = services.get_node
    start: Any = services.start_raylet
    asked = inspect.signature(start)

    def ask_until_it_stands(address: str, node: str) -> Any:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                return ask(address, node)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def start_with_all_ports(*values: Any, **named: Any) -> Any:
        # The one port that Ray does not hand on, it looks for in a file.
        given = asked.bind(*values, **named).arguments
        folder, node = given["session_dir"], given["node_id"]
        port = given["dashboard_agent_listen_port"]
        raylet.persist_port(folder, node, raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME, port)
        return start(*values, **named)

    services.get_node = ask_until_it_stands
    services.start_raylet = start_with_all_ports


def _started(wish: ClusterRequest, ports: Iterator[int], out: TextIO) -> Any:
    """The head node of a cluster whose nodes all stand."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415  it takes seconds

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **_node(ports),
            "num_cpus": 1,
            "include_dashboard": True,
            "dashboard_host": LOOPBACK,
            "dashboard_port": next(ports),
            "temp_dir": f"{wish.folder}/ray",
        },
    )
    for count, host in enumerate(wish.hosts, start=1):
        cluster.add_node(
            **_node(ports),
            num_cpus=1,
            resources=host.resources,
            labels=host.labels,
            env_vars=host.environment,
        )
        _tell(out, ClusterEvent(nodes=count))
    return cluster.head_node


def _node(ports: Iterator[int]) -> dict[str, Any]:
    """What all nodes have alike, and ports of their own."""
    alike = {
        "node_ip_address": LOOPBACK,
        "object_store_memory": OBJECT_STORE_BYTES,
        "wait": False,  # it stands already
    }
    return alike | {agent: next(ports) for agent in AGENT_PORTS}


def _submitted(head: Any, command: str) -> tuple[Any, str]:
    """Submit the job once the head's agent can take it."""
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415

    deadline = time.monotonic() + AGENT_LIMIT_S
    while True:
        try:
            client = JobSubmissionClient(f"http://{head.webui_url}")
            return client, client.submit_job(entrypoint=command)
        except (RuntimeError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _tell(out: TextIO, told: ClusterEvent) -> None:
    with suppress(BrokenPipeError):  # the owner is gone: the watch ends us
        print(codec.to_json(told).decode(), file=out, flush=True)


if __name__ == "__main__":
    main()
