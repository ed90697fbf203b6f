"""The process that runs the MLflow server: whoever dies, nothing of the server stays."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.tracking.mlflow import server
from tests.clusters import descendants, eventually
from tests.conftest import ROOT

# In place of MLflow: a server with a worker of its own, which both ignore hints to end.
KEEPER = """
import subprocess, sys
from orchestrator.tracking.mlflow import server
forever = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
worker = forever + "time.sleep(600)"
with_worker = f"{forever}import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
start = subprocess.Popen
def stand_in(command, **options):
    assert server._APP in command
    return start([sys.executable, "-c", with_worker], **options)
server.subprocess.Popen = stand_in
server.END_LIMIT_S = 0.5
sys.exit(server.main("sqlite://", "1"))
"""


@pytest.fixture
def keeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPER], cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        for pid in {*descendants(process.pid), process.pid} if process.poll() is None else ():
            psutil.Process(pid).kill()
        process.wait()
        assert process.stdin
        process.stdin.close()


@pytest.mark.parametrize("dies", ["keeper", "owner", "stand-in"])
def test_the_server_ends_with_its_keeper(keeper: subprocess.Popen[bytes], dies: str) -> None:
    """The keeper is killed, or its owner closes its input. A stand-in that dies ends nothing."""
    eventually(lambda: len(descendants(keeper.pid)) == 3, 60)
    left = [psutil.Process(pid) for pid in descendants(keeper.pid)]
    [stand_in] = [
        process for process in left if process.cmdline() == psutil.Process(keeper.pid).cmdline()
    ]
    if dies == "stand-in":
        stand_in.kill()
        keeper.stdin.close()  # type: ignore[union-attr]
    elif dies == "owner":
        keeper.stdin.close()  # type: ignore[union-attr]
    else:
        keeper.kill()
    keeper.wait(30)
    eventually(lambda: not any(is_running(process) for process in left), 30)


@pytest.mark.parametrize("first", ["keeper stopped", "stand-in killed, then the keeper"])
def test_its_owner_ends_what_the_keeper_does_not(
    keeper: subprocess.Popen[bytes], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped keeper does not hear that its input ends, and two dead ones end nothing."""
    monkeypatch.setattr(server, "END_LIMIT_S", 0.5)
    eventually(lambda: len(descendants(keeper.pid)) == 3, 60)
    left = [psutil.Process(pid) for pid in descendants(keeper.pid)]
    if first == "keeper stopped":
        keeper.send_signal(signal.SIGSTOP)
    else:
        [stand_in] = [
            process for process in left if process.cmdline() == psutil.Process(keeper.pid).cmdline()
        ]
        stand_in.kill()
        eventually(lambda: not is_running(stand_in), 30)
        keeper.kill()
    assert any(is_running(process) for process in left)
    server._end(keeper)
    assert keeper.returncode == -signal.SIGKILL
    eventually(lambda: not any(is_running(process) for process in left), 30)


@pytest.mark.parametrize("when", ["starts", "serves"])
def test_a_server_that_ends_by_itself_is_an_error(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it, and its log says why."""
    script = "import sys; print('out of luck', flush=True); sys.stdin.read()"
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def stand_in(_: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(start([sys.executable, "-c", script], **options))  # type: ignore[call-overload]
        if when == "starts":
            started[0].kill()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", stand_in)
    monkeypatch.setattr(server, "_answers", lambda _: when == "serves")
    log = tmp_path / "log"

    def serve() -> None:
        with server.serving("sqlite://", 1, log, lambda: None) as served:
            eventually(lambda: log.read_text() != "", 30)
            served.process.kill()
            served.wait()

    with pytest.raises(server.NoServer, match="did not" if when == "starts" else "out of luck"):
        serve()
    assert started[0].returncode == -signal.SIGKILL


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
