"""A private Ray cluster that emulates slices on this machine, for as long as a `with` lasts."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.launch.backend import ClusterEvent
from orchestrator.launch.ray import attempt_process
from orchestrator.launch.ray.attempt_process import ClusterRequest, JsonProcess
from orchestrator.launch.ray.slices import EmulatedHost
from orchestrator.processes import emulated_devices

END_LIMIT_S = 30.0
_NOBODY = "http://127.0.0.1:9"
_LONGEST_FOLDER = 40  # letters; a socket's path may have 107, and Ray needs the others
# A busy machine starts processes slowly: wait longer than that.
_LIMITS = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
}


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
    request = ClusterRequest(mark=mark, folder=str(folder), hosts=tuple(hosts), command=command)
    with (folder / "supervisor.log").open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.launch.ray.local_supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(folder, mark, devices_per_host),
            start_new_session=True,
            umask=0o077,
        )
    assert supervisor.stdin
    error = "the supervisor of the cluster has ended"
    cluster = PrivateCluster(supervisor, ClusterEvent(error=error))
    cluster.mark, cluster.folder = mark, folder
    try:
        cluster.send(request)
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
    return emulated_devices(os.environ, devices) | {
        attempt_process.MARK: mark,
        "SPT_NOENV": "1",  # keeps Ray's processes from writing their title over the mark
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps 127.0.0.1 from becoming the outer address
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": _NOBODY,  # Ray also reports that its reports are off
        "RAY_DEDUP_LOGS": "0",
        **_LIMITS,
        "RAY_worker_niceness": "0",  # otherwise any other work on the machine comes first
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    }
