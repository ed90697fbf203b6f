"""The supervisor of a private cluster: it starts the cluster, and ends it with its own owner.

    python -m orchestrator.launch.ray.local_supervisor    # started by local_cluster, not by hand

It reads one line, a `ClusterRequest`, starts the nodes, runs one Ray job and reports events, one
line of JSON each. When its input ends, because `orch` closed it or died, it kills all that the
cluster started. If it is itself killed or stopped, its stand-in does so: a copy that only waits.
"""

import os
import secrets
import select
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

from orchestrator.launch.backend import ClusterEvent
from orchestrator.launch.ray import attempt_process, private_api
from orchestrator.launch.ray.attempt_process import ClusterRequest
from orchestrator.launch.ray.backend import Patience, states
from orchestrator.processes import LOOPBACK, claimed
from orchestrator.values import codec

_OBJECT_STORE_BYTES = 80 * 2**20  # a run moves no data through Ray
POLL_S = 0.2
_AGENT_LIMIT_S = 300.0  # on a busy machine
# A supervisor whose owner is gone ends the cluster in less.
_STOPPED_LIMIT_S = 30.0
# Ray would otherwise wait 15 s for its agents to write their ports into a file, which is too short
# on a busy machine.
_AGENT_PORTS = (
    "dashboard_agent_listen_port", "metrics_agent_port",
    "metrics_export_port", "runtime_env_agent_port",
)  # fmt: skip


def main() -> None:
    """Supervise a cluster for as long as the input stays open."""
    request = codec.from_json(sys.stdin.buffer.readline(), ClusterRequest)
    ended, alive = os.pipe()
    if os.fork() == 0:
        # The stand-in waits for the end of this process, and then leaves nothing behind.
        for inherited in (alive, sys.stdout.fileno()):
            os.close(inherited)
        _wait_for_end(ended, sys.stdin.fileno())
        _clean_up(request)
    os.close(ended)  # `alive` stays open for as long as this process lives
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints goes to the log

    def end_with_owner() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        _clean_up(request)

    threading.Thread(target=end_with_owner, daemon=True).start()
    try:
        _serve(request, out)
    except Exception as error:  # noqa: BLE001  the owner must hear of any error
        _send(out, ClusterEvent(error=f"{type(error).__name__}: {error}"))
    threading.Event().wait()


def _wait_for_end(ended: int, owned: int) -> None:
    """Wait until the supervisor has ended, or does nothing though its owner is gone: then it is
    stopped. `ended` is a pipe that ends with the supervisor, `owned` one that ends with the owner.
    """
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(owned, 0)  # of what comes there only the end
    if ended not in dict(waiting.poll()):
        select.select([ended], [], [], _STOPPED_LIMIT_S)


def _clean_up(request: ClusterRequest) -> None:
    attempt_process.end_all(request.mark, os.getpid())
    shutil.rmtree(request.folder, ignore_errors=True)
    os._exit(0)


def _serve(request: ClusterRequest, out: TextIO) -> None:
    private_api.allow_slow_start()
    with claimed() as ports:
        cluster = private_api.head_cluster(
            **_node(ports),
            num_cpus=1,
            include_dashboard=True,
            include_log_monitor=False,  # ranks write logs of their own
            no_monitor=True,  # nothing grows
            dashboard_host=LOOPBACK,
            dashboard_port=next(ports),
            temp_dir=f"{request.folder}/ray",
        )
        for count, host in enumerate(request.hosts, start=1):
            cluster.add_node(
                **_node(ports),
                num_cpus=1,
                resources=host.resources,
                labels=host.labels,
                env_vars=host.environment,
                # A host unpacks a job's code anew, and would take it from under another host's
                # workers.
                runtime_env_dir_name=f"runtime_resources_{count}",
            )
            _send(out, ClusterEvent(nodes=count))
    head = cluster.head_node
    _send(out, ClusterEvent(address=f"http://{head.webui_url}"))
    client, job = _submit(head, request.command)
    patience = Patience(needless=lambda: attempt_process.runs(request.mark, request.command))

    def ask() -> str:
        return str(client.get_job_status(job).value)

    def why() -> str:
        lines = client.get_job_logs(job).splitlines()[-10:]
        return "\n".join([str(client.get_job_info(job).message), *lines])

    for state, error in states(ask, why, patience):
        _send(out, ClusterEvent(nodes=len(request.hosts), job=state, error=error))


def _node(ports: Iterator[int]) -> dict[str, Any]:
    """The options of every node, with ports of its own."""
    options = {
        "node_ip_address": LOOPBACK,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "wait": False,  # `add_node` returns when the node is up
    }
    return options | {agent: next(ports) for agent in _AGENT_PORTS}


def _submit(head: Any, command: str) -> tuple[Any, str]:
    """Submit the job as soon as the head's agent can take it; its answer may come too late."""
    job = f"orch-{secrets.token_hex(4)}"
    patience = Patience(limit_s=_AGENT_LIMIT_S)
    while True:
        try:
            client = private_api.job_client(f"http://{head.webui_url}")
            if job not in [known.submission_id for known in client.list_jobs()]:
                client.submit_job(entrypoint=command, submission_id=job)
            return client, job
        except (RuntimeError, OSError) as error:  # its HTTP client's errors are OSErrors
            patience.failed(error)
            time.sleep(POLL_S)


def _send(out: TextIO, event: ClusterEvent) -> None:
    with suppress(BrokenPipeError):  # the owner is gone: the end of our input ends us
        print(codec.to_json(event).decode(), file=out, flush=True)


if __name__ == "__main__":
    main()
