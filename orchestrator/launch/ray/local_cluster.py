"""Launch room: a private Ray cluster of emulated slices, for as long as a `with` lasts."""

import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.launch.ray import process_tree
from orchestrator.launch.ray.protocol import ClusterEvent, ClusterRequest
from orchestrator.launch.ray.slices import Host
from orchestrator.plan import rehearsal
from orchestrator.types import codec

END_LIMIT_S = 30.0
NOBODY = "http://127.0.0.1:9"
MOST_LETTERS = 40  # of 107 in a socket's path; the others are Ray's
# A machine that does other work too starts processes slowly, which is no reason to give up.
PATIENCE = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
}


@dataclass(frozen=True)
class LocalCluster:
    """The owner's end of a cluster: what its keeper tells, as it comes.

    Its processes carry the `mark`, and what it writes, but for the run's journal, is in `folder`.
    """

    mark: str
    folder: Path
    keeper: subprocess.Popen[bytes]
    said: queue.SimpleQueue[ClusterEvent]

    def told(self, wait_s: float) -> ClusterEvent | None:
        """The next thing that the keeper said, or None when it said nothing for so long."""
        try:
            return self.said.get(timeout=wait_s)
        except queue.Empty:
            return None


@contextmanager
def private_cluster(
    hosts: Sequence[Host], devices_per_host: int, command: str
) -> Iterator[LocalCluster]:
    """Start a cluster of those nodes and a Ray Job on it; at the end nothing of it is left."""
    folder, mark = short_folder(), secrets.token_hex(16)
    (folder / "ray").mkdir()  # Ray notes its address in there instead of where all would find it
    wish = ClusterRequest(mark=mark, folder=str(folder), hosts=tuple(hosts), command=command)
    keeper = _keeper(folder, _environment(folder, mark, devices_per_host))
    cluster = LocalCluster(mark, folder, keeper, queue.SimpleQueue())
    listener = threading.Thread(target=_listen, args=(cluster,), daemon=True)
    listener.start()
    try:
        assert keeper.stdin
        keeper.stdin.write(codec.to_json(wish) + b"\n")
        keeper.stdin.flush()
        yield cluster
    finally:
        _end(keeper, mark, folder)
        listener.join()


def short_folder() -> Path:
    """A new folder for a cluster. Its sockets lie in there, and their paths have a limit."""
    usual = tempfile.gettempdir()
    where = usual if len(usual) <= MOST_LETTERS else "/tmp"
    return Path(tempfile.mkdtemp(prefix="orch-", dir=where))


def _keeper(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "keeper.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.launch.ray.local_supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
            umask=0o077,
        )


def _environment(folder: Path, mark: str, devices: int) -> dict[str, str]:
    """What every process of the cluster starts with. Nothing in it names another cluster."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "TPU_", "MEGASCALE_"))
    }
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    return kept | {
        process_tree.MARK: mark,
        "SPT_NOENV": "1",  # or Ray's processes write their title over the mark
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or Ray turns 127.0.0.1 into the outer address
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": NOBODY,  # that they are off is reported too
        "RAY_DEDUP_LOGS": "0",
        **PATIENCE,
        "RAY_worker_niceness": "0",  # or any other work on the machine comes before the workers
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        **rehearsal.environment(devices),
    }


def _listen(cluster: LocalCluster) -> None:
    """Hand on what the keeper says, until it ends."""
    assert cluster.keeper.stdout
    with cluster.keeper.stdout as lines:
        for line in lines:
            with suppress(msgspec.DecodeError):
                cluster.said.put(codec.from_json(line, ClusterEvent))
    cluster.said.put(ClusterEvent(error="the process that keeps the cluster has ended"))


def _end(keeper: subprocess.Popen[bytes], mark: str, folder: Path) -> None:
    """Close the keeper's input, on which it ends the cluster; do it here if it cannot."""
    assert keeper.stdin
    with suppress(BrokenPipeError):
        keeper.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        keeper.wait(END_LIMIT_S)
    process_tree.end_all(mark, os.getpid())
    keeper.wait()
    process_tree.remove(folder)
