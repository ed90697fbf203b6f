"""A server that wastes time ends a sync, and nothing else."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.tracking.destinations import NotRecorded, begin
from orchestrator.tracking.mlflow import store
from orchestrator.tracking.mlflow.store import deadline
from orchestrator.values.run import Destination
from tests.records import finished_run, record_once

LIMIT_S = 1.5
PLACE = Destination(
    tracker="mlflow", uri="http://nowhere.invalid", experiment="orch", artifacts=None
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def drips_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    drip(connection)


def drips_body(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
    drip(connection)


def drip(connection: socket.socket) -> None:
    for _ in range(600):
        connection.sendall(b" ")
        time.sleep(0.1)


@contextmanager
def answering(
    answer: Callable[[socket.socket], None], heard: list[bytes] | None = None
) -> Iterator[tuple[str, list[int]]]:
    """A server that answers each request like this, what it heard, and how many there were."""
    server, asked = socket.create_server(("127.0.0.1", 0)), [0]

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                request = connection.recv(65536)
                if heard is not None:
                    heard.append(request)
                asked[0] += 1
                answer(connection)
            except OSError:  # the client has gone: that is the point
                return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
    finally:
        server.close()


@pytest.mark.parametrize("answer", [drips_headers, drips_body])
def test_a_call_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None]
) -> None:
    """However the server spends the time; the sync says so and is not repeated."""
    call = vars(store.in_plain_words)["__wrapped__"]
    monkeypatch.setattr(call, "__defaults__", (LIMIT_S,))
    importlib.import_module("mlflow.tracking")  # which takes seconds
    run = finished_run(tmp_path)
    with answering(answer) as (address, asked):
        begin(run, Destination(tracker="mlflow", uri=address, experiment="orch", artifacts=None))
        began_s = time.monotonic()
        [result] = record_once(run)
        took_s = time.monotonic() - began_s
    assert result.problem
    assert address in result.problem
    assert took_s < 10 * LIMIT_S
    assert asked[0] <= 2
    assert run.run().problems == ()


@pytest.mark.parametrize("code", [301, 302, 307, 308])
@pytest.mark.parametrize("by", ["password", "token"])
def test_another_server_gets_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, by: str
) -> None:
    """The server that the user named sends the sync to one of somebody else's."""
    user = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "hunter22"}
    token = {"MLFLOW_TRACKING_TOKEN": "hunter22"}
    for name, value in (user if by == "password" else token).items():
        monkeypatch.setenv(name, value)
    named, foreign = list[bytes](), list[bytes]()

    def answers(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")

    with answering(answers, foreign) as (elsewhere, _):
        place = f"Location: {elsewhere.replace('127.0.0.1', 'localhost')}/x\r\n"
        redirect = f"HTTP/1.1 {code} Moved\r\n{place}Content-Length: 0\r\n\r\n".encode()
        with answering(lambda connection: connection.sendall(redirect), named) as (address, _):
            run = finished_run(tmp_path)
            begin(
                run, Destination(tracker="mlflow", uri=address, experiment="orch", artifacts=None)
            )
            [result] = record_once(run)
    assert result.problem
    assert b"authorization:" in named[0].lower()
    assert foreign
    assert not any(
        b"authorization:" in request.lower() or b"hunter22" in request for request in foreign
    )


def test_a_sync_has_an_end_too() -> None:
    """Its calls may each be in time, and a library may catch what ends one."""

    def sync() -> None:
        with deadline(PLACE, 0.2, "the sync"):
            for _ in range(100):
                with suppress(NotRecorded), deadline(PLACE, 10.0, "a call"):
                    time.sleep(0.05)
            raise OSError

    began_s = time.monotonic()
    with pytest.raises(NotRecorded, match=r"nowhere\.invalid: the sync took more than 0 s"):
        sync()
    assert time.monotonic() - began_s < 10


def test_an_outer_deadline_goes_on_after_an_inner_one() -> None:
    """The inner one says what took too long, and takes nothing from the outer one."""
    said = []

    def sync() -> None:
        with deadline(PLACE, 0.5, "the sync"):
            try:
                with deadline(PLACE, 0.1, "a call"):
                    time.sleep(5)
            except NotRecorded as error:
                said.append(str(error))
            time.sleep(5)

    with pytest.raises(NotRecorded, match="the sync"):
        sync()
    assert said == ["http://nowhere.invalid: a call took more than 0 s"]


def test_deadlines_end_with_their_block() -> None:
    """What other code waits for has none."""
    with deadline(PLACE, 10.0, "a call"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_another_thread_has_no_alarm() -> None:
    """Signals belong to the main thread; there the limits of the HTTP library count."""
    ended = threading.Event()

    def call() -> None:
        with deadline(PLACE, 0.01, "a call"):
            time.sleep(0.1)
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    assert ended.is_set()


@pytest.mark.parametrize("answer", [drips_body, lambda _: time.sleep(60)], ids=["drips", "hangs"])
def test_orch_sync_says_what_a_slow_server_does(
    tmp_path: Path, answer: Callable[[socket.socket], None]
) -> None:
    """One line, and an exit code that a script sees."""
    run = finished_run(tmp_path)
    with answering(answer) as (address, _):
        begin(run, Destination(tracker="mlflow", uri=address, experiment="orch", artifacts=None))
        program = (
            "from orchestrator.tracking.mlflow import store;"
            "vars(store.in_plain_words)['__wrapped__'].__defaults__ = (6.0,);"
            "import mlflow.tracking; from orchestrator.cli import main; main()"
        )
        command = [sys.executable, "-c", program, "sync", "it", "--storage", str(tmp_path)]
        environment = os.environ | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 1
    assert address in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
