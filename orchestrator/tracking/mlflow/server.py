"""Runs the MLflow UI on this machine for as long as somebody needs it.

    python -m orchestrator.tracking.mlflow.server URI PORT    # started by `serving`, not by hand

This process leads a session of its own, with all that the MLflow server starts. When its input
ends, because `orch` closed it or died, it ends the whole session. If this process itself is killed,
its stand-in does so: a copy of it that only waits.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.processes import LOOPBACK, free_port
from orchestrator.tracking.mlflow.store import SETTINGS, USUAL_PORT

# What `mlflow server` hands to its app. Importing MLflow here, to ask for the names, takes seconds.
BACKEND_STORE = "_MLFLOW_SERVER_FILE_STORE"
SERVER_SETTINGS = {
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
# MLflow is a long import, longer on a busy machine.
START_LIMIT_S, POLL_S, END_LIMIT_S = 600.0, 0.25, 8.0
APP = "orchestrator.tracking.mlflow.ui_app:app"
API = "/api/2.0/mlflow/experiments/search?max_results=1"


class NoServer(OrchError):
    """The MLflow UI does not start."""


@dataclass(frozen=True)
class Served:
    """A server that answers at an address."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        """Wait for as long as it serves; `NoServer` when it has ended by itself."""
        while not _has_ended(self.process):
            time.sleep(1.0)
        raise NoServer(f"the MLflow UI has ended: {_last_line(self.log)}\nits log: {self.log}")


@contextmanager
def serving(uri: str, port: int | None, log: Path, waiting: Callable[[], None]) -> Iterator[Served]:
    """A server that shows a database, for as long as a `with` lasts."""
    chosen = port or free_port(USUAL_PORT)
    program = [sys.executable, "-m", "orchestrator.tracking.mlflow.server", uri, str(chosen)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
        )
    try:
        address = f"http://{LOOPBACK}:{chosen}"
        _wait_for(address, process, log, waiting)
        yield Served(address, process, log)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Let the server's process end, and then kill what is left of its session: that process may be
    stopped, and so may its stand-in, or be gone before the rest.
    """
    assert process.stdin
    process.stdin.close()
    deadline = time.monotonic() + 2 * END_LIMIT_S
    while not _has_ended(process) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended. Unreaped it keeps its number, which is that of its session."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait_for(
    address: str, process: subprocess.Popen[bytes], log: Path, waiting: Callable[[], None]
) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not answers(address):
        if _has_ended(process):
            raise NoServer(f"the MLflow UI did not start: {_last_line(log)}\nits log: {log}")
        if time.monotonic() > deadline:
            why = f"no answer in {START_LIMIT_S:,.0f} s"
            raise NoServer(f"the MLflow UI did not start: {why}\nits log: {log}")
        waiting()
        time.sleep(POLL_S)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


def answers(address: str) -> bool:
    """Whether the server answers the requests of its pages. Its health page answers long before."""
    try:
        with urllib.request.urlopen(address + API, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main(uri: str, port: str) -> int:
    """Serve until the input ends; the exit code of a server that ended by itself."""
    _fork_stand_in()
    settings = SETTINGS | SERVER_SETTINGS | {BACKEND_STORE: uri}
    command = [sys.executable, "-m", "uvicorn", APP, "--host", LOOPBACK, "--port", port]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | settings)
    threading.Thread(target=_end_with_owner, args=(server,), daemon=True).start()
    return server.wait()


def _fork_stand_in() -> None:
    """Fork a process that waits for the end of this one, and then ends what is left of them."""
    ended, alive = os.pipe()
    if os.fork():
        os.close(ended)  # `alive` stays open for as long as this process lives
        return
    os.close(alive)
    os.read(ended, 1)
    os.killpg(0, signal.SIGKILL)


def _end_with_owner(server: subprocess.Popen[bytes]) -> None:
    """Wait until the owner closes our input or dies, then end the session with this process."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(END_LIMIT_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
