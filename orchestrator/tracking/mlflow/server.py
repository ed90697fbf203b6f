"""Runs the MLflow UI on this machine for as long as somebody needs it. `serving` starts this
process, which leads a session with all that the MLflow server starts. When its input ends, because
`orch` closed it or died, it ends the session; if it is killed, its stand-in does so: a copy that
only waits.
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
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.processes import LOOPBACK, MODULE, free_port
from orchestrator.tracking.mlflow.store import SETTINGS, USUAL_PORT

# What `mlflow server` hands to its app. Importing MLflow here, to ask for the names, takes seconds.
_BACKEND_STORE = "_MLFLOW_SERVER_FILE_STORE"
_SERVER_SETTINGS = {
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
# MLflow is a long import, longer on a busy machine.
_START_LIMIT_S, _POLL_S, END_LIMIT_S = 600.0, 0.25, 8.0
_APP = "orchestrator.tracking.mlflow.server:app"
_API = "/api/2.0/mlflow/experiments/search?max_results=1"


class NoServer(OrchError):
    """The MLflow UI does not start."""


@dataclass(frozen=True)
class _Served:
    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        """Wait for as long as it serves; `NoServer` when it has ended by itself."""
        while not _has_ended(self.process):
            time.sleep(1.0)
        raise NoServer(f"the MLflow UI has ended: {_last_line(self.log)}\nits log: {self.log}")


@contextmanager
def serving(
    uri: str, port: int | None, log: Path, waiting: Callable[[], None]
) -> Iterator[_Served]:
    """Yield a server that shows a database, for as long as a `with` lasts."""
    chosen = port or free_port(USUAL_PORT)
    program = [*MODULE, "orchestrator.tracking.mlflow.server", uri, str(chosen)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
        )
    try:
        address, start_limit_s = f"http://{LOOPBACK}:{chosen}", time.monotonic() + _START_LIMIT_S
        while not _answers(address):
            has_ended = _has_ended(process)
            if has_ended or time.monotonic() > start_limit_s:
                why = _last_line(log) if has_ended else f"no answer in {_START_LIMIT_S:,.0f} s"
                raise NoServer(f"the MLflow UI did not start: {why}\nits log: {log}")
            waiting()
            time.sleep(_POLL_S)
        yield _Served(address, process, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the server's process end, and then kill what is left of its session."""
    # That process and its stand-in may be stopped, or gone before the rest.
    assert process.stdin
    process.stdin.close()
    deadline = time.monotonic() + 2 * END_LIMIT_S
    while not _has_ended(process) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether it has ended. Unreaped it keeps its number, that of its session."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


def _answers(address: str) -> bool:
    """Return whether the server answers as its pages ask. Its health page answers long before."""
    try:
        with urllib.request.urlopen(address + _API, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main(uri: str, port: str) -> int:
    """Serve until the input ends; return the exit code of a server that ended by itself."""
    # Fork a stand-in: a process that waits for the end of this one, and ends what is left of them.
    ended, alive = os.pipe()
    if os.fork() == 0:
        os.close(alive)
        os.read(ended, 1)
        os.killpg(0, signal.SIGKILL)
    os.close(ended)  # `alive` stays open for as long as this process lives
    settings = SETTINGS | _SERVER_SETTINGS | {_BACKEND_STORE: uri}
    # Without --app-dir uvicorn looks for modules in the working directory first.
    uvicorn = [*MODULE, "uvicorn", "--factory", _APP, "--app-dir", os.devnull]
    command = [*uvicorn, "--host", LOOPBACK, "--port", port]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | settings)

    def end_with_owner() -> None:
        """Wait until the owner closes our input or dies, then end the session with this process."""
        while os.read(sys.stdin.fileno(), 4096):
            pass
        server.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(END_LIMIT_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_owner, daemon=True).start()
    return server.wait()


def app() -> Any:
    """Return MLflow's own server app, for uvicorn."""
    # The panel of MLflow's assistant stays shut behind its button: it covers the charts.
    from mlflow.server import app as pages  # noqa: PLC0415  it takes seconds, and only uvicorn needs it
    from mlflow.server.fastapi_app import app as served  # noqa: PLC0415

    # A key of MLflow's page: whether the panel has opened by itself before.
    seen = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', true)"

    def index() -> str:
        text = Path(str(pages.static_folder), "index.html").read_text(encoding="utf-8")
        return text.replace("<head>", f"<head><script>{seen}</script>", 1)

    pages.view_functions["serve"] = index
    return served


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
