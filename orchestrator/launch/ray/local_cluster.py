"""A private Ray cluster that emulates slices on this machine, for as long as a `with` lasts. The
supervisor, a process of its own, reads a `_ClusterRequest`, starts the nodes, runs one Ray job and
reports events, a line of JSON each. When its input ends, because `orch` closed it or died, it kills
all that the cluster started; if it is killed itself, its stand-in does, a copy that only waits.
"""

import os
import secrets
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from orchestrator.launch.backend import JOB_ENDED, ClusterEvent
from orchestrator.launch.ray import attempt_process, private_api
from orchestrator.launch.ray.attempt_process import POLL_S, JsonProcess
from orchestrator.launch.ray.slices import EmulatedHost
from orchestrator.processes import LOOPBACK, MODULE, claimed, emulated_devices
from orchestrator.values import codec
from orchestrator.values.codec import Value

END_LIMIT_S = 30.0
_NOBODY = "http://127.0.0.1:9"
_LONGEST_FOLDER = 40  # letters; a socket's path may have 107, and Ray needs the others


class _ClusterRequest(Value):
    mark: str
    folder: str
    hosts: tuple[EmulatedHost, ...]
    command: str


class PrivateCluster(JsonProcess[ClusterEvent]):
    """The owner's end of a private cluster: its supervisor, its `folder`, its processes' `mark`."""

    mark: str
    folder: Path


@contextmanager
def private_cluster(
    hosts: Sequence[EmulatedHost], devices_per_host: int, command: str
) -> Iterator[PrivateCluster]:
    """Start a cluster of these nodes and a Ray job on it; afterwards nothing of it is left."""
    folder, mark = _short_folder(), secrets.token_hex(16)
    (folder / "ray").mkdir()  # Ray writes its address here, and not where everybody looks
    with (folder / "supervisor.log").open("wb") as log:
        supervisor = subprocess.Popen(
            [*MODULE, "orchestrator.launch.ray.local_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(folder, mark, devices_per_host),
            start_new_session=True,
            umask=0o077,
        )
    assert supervisor.stdin
    ended = ClusterEvent(error="the supervisor of the cluster has ended")
    cluster = PrivateCluster(supervisor, ended)
    cluster.mark, cluster.folder = mark, folder
    try:
        cluster.send(
            _ClusterRequest(mark=mark, folder=str(folder), hosts=tuple(hosts), command=command)
        )
        yield cluster
    finally:
        # The supervisor ends the cluster when its input ends; do it here if it cannot.
        with suppress(BrokenPipeError):
            supervisor.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            supervisor.wait(END_LIMIT_S)
        attempt_process.end_all(mark, os.getpid())
        supervisor.wait()
        shutil.rmtree(folder, ignore_errors=True)
        cluster.listener.join()


def _short_folder() -> Path:
    """A new folder for a cluster, with a path that is short enough for its sockets."""
    usual = tempfile.gettempdir()
    where = usual if len(usual) <= _LONGEST_FOLDER else "/tmp"
    return Path(tempfile.mkdtemp(prefix="orch-", dir=where))


def _environment(folder: Path, mark: str, devices: int) -> dict[str, str]:
    """The environment of every process of the cluster. Nothing in it names another cluster."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    environment = emulated_devices(os.environ, devices)
    if modules := environment.get("PYTHONPATH"):  # the nodes have another working directory
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, modules.split(os.pathsep)))
    return environment | {
        attempt_process.MARK: mark,
        "PYTHONSAFEPATH": "1",  # also for the processes that Ray's dashboard starts
        "SPT_NOENV": "1",  # keeps Ray's processes from writing their title over the mark
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps 127.0.0.1 from becoming the outer address
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": _NOBODY,  # Ray also reports that its reports are off
        "RAY_DEDUP_LOGS": "0",
        # A busy machine starts processes slowly: wait longer than that.
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
        "RAY_gcs_server_port_wait_time_s": "300",
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_worker_niceness": "0",  # otherwise any other work on the machine comes first
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    }


# --- the state of a job, of a private cluster or a named one

# The dashboard of a busy head is silent for tens of seconds.
_SILENCE_LIMIT_S = 60.0


@dataclass
class Patience:
    """How long questions may fail: `limit_s` since an answer, for ever while `needless` says so."""

    limit_s: float = _SILENCE_LIMIT_S
    clock: Callable[[], float] = time.monotonic
    needless: Callable[[], bool] = lambda: False
    failing_since_s: float | None = None

    def failed(self, error: Exception) -> None:
        """Note that a question failed; the error again when it is time to give up."""
        now_s = self.clock()
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        late = now_s - self.failing_since_s > self.limit_s
        # Where the cluster refuses this token, asking again would give the same error.
        refusal: BaseException | None = error
        while refusal and type(refusal).__name__ != "AuthenticationError":
            refusal = refusal.__cause__
        if refusal or (late and not self.needless()):
            raise error


def states(
    ask: Callable[[], str],
    why: Callable[[], str],
    patience: Patience,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, str | None]]:
    """Each new state of a job until it has ended, and why it failed where it did."""
    last = ""
    while last not in JOB_ENDED:
        try:
            state = ask()
            error = why() if state == "FAILED" else None
        except Exception as failure:  # noqa: BLE001  Ray and its HTTP client raise many kinds
            patience.failed(failure)
        else:
            patience.failing_since_s = None
            if state != last:
                yield state, error
            last = state
        if last not in JOB_ENDED:
            sleep(POLL_S)


# --- the supervisor

_OBJECT_STORE_BYTES = 80 * 2**20  # a run moves no data through Ray
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
    request = codec.from_json(sys.stdin.buffer.readline(), _ClusterRequest)
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
    """Wait until the supervisor has ended, or is stopped with its owner gone. Both are pipes."""
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(owned, 0)  # of what comes there only the end
    if ended not in dict(waiting.poll()):
        select.select([ended], [], [], _STOPPED_LIMIT_S)


def _clean_up(request: _ClusterRequest) -> None:
    attempt_process.end_all(request.mark, os.getpid())
    shutil.rmtree(request.folder, ignore_errors=True)
    os._exit(0)


def _serve(request: _ClusterRequest, out: TextIO) -> None:
    private_api.allow_slow_start()
    # Ray puts the working directory of the node first in the module path of what starts the job.
    command = f"cd {shlex.quote(str(Path.cwd()))} && exec {request.command}"
    os.chdir("/")
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
                num_gpus=int(host.resources.get("GPU", 0)),  # Ray wants them apart
                resources={name: n for name, n in host.resources.items() if name != "GPU"},
                labels=host.labels,
                env_vars=host.environment,
                # A host unpacks a job's code anew, and would take it from under another host's
                # workers.
                runtime_env_dir_name=f"runtime_resources_{count}",
            )
            _send(out, ClusterEvent(nodes=count))
    head = cluster.head_node
    _send(out, ClusterEvent(address=f"http://{head.webui_url}"))
    client, job = _submit(head, command)
    patience = Patience(needless=lambda: attempt_process.runs(request.mark, request.command))

    def ask() -> str:
        return str(client.get_job_status(job).value)

    def why() -> str:
        lines = client.get_job_logs(job).splitlines()[-10:]
        return "\n".join([str(client.get_job_info(job).message), *lines])

    for state, error in states(ask, why, patience):
        _send(out, ClusterEvent(nodes=len(request.hosts), job=state, error=error))


def _node(ports: Iterator[int]) -> dict[str, Any]:
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
