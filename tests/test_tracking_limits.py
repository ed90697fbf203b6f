"""A server that wastes time or memory ends a sync, and nothing else."""

import importlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.tracking import begin
from orchestrator.tracking.mlflow import limits, store
from orchestrator.types.tracking import Destination
from tests.records import finished_run, record_once

LIMIT_S, LIMIT_BYTES = 1.5, 1 << 20
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


def floods(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 5000000000\r\n\r\n")
    for _ in range(5000):
        connection.sendall(b" " * 1_000_000)


def compresses(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")


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


@pytest.mark.parametrize("answer", [drips_headers, drips_body, floods, compresses])
def test_a_call_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None]
) -> None:
    """However the server spends the time; the sync says so and is not repeated."""
    call = vars(store.in_plain_words)["__wrapped__"]
    monkeypatch.setattr(call, "__defaults__", (LIMIT_S, LIMIT_BYTES))
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
    assert not any(b"authorization:" in one.lower() or b"hunter22" in one for one in foreign)


def test_a_sync_has_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls may each be in time."""
    monkeypatch.setattr(limits, "SYNC_LIMIT_S", 0.2)

    def calls() -> None:
        for _ in range(100):
            with limits.limited(10.0, 1000, "a call"):
                time.sleep(0.05)

    began_s = time.monotonic()
    with limits.sync_limits(), pytest.raises(limits.LimitReached, match="the sync"):
        calls()
    assert time.monotonic() - began_s < 3


def test_limits_end_with_their_block() -> None:
    """What other code asks of other servers has no limits."""
    with limits.limited(10.0, 1000, "a call"):
        assert limits.active
    assert not limits.active
