"""Limits on what a server may cost: time and bytes of one call, and of all calls of a sync.

A time limit of the HTTP library begins anew with every byte, so a server that drips holds a caller
for ever. Here every read and write on a connection counts against the call that it belongs to:
headers and bodies, answers and uploads.
"""

import io
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

CALL_LIMIT_S, CALL_LIMIT_BYTES = 60.0, 64 << 20
# Files go in one call each.
FILE_LIMIT_S = 300.0
SYNC_LIMIT_S, SYNC_LIMIT_BYTES = 1_200.0, 512 << 20


class LimitReached(OSError):
    """A server has taken more time than it may, or sent more."""


@dataclass
class TransferBudget:
    """The time and the bytes that are left. Only what a server sends counts as bytes."""

    limit_s: float
    limit_bytes: int
    what: str

    def __post_init__(self) -> None:
        self.deadline_s = time.monotonic() + self.limit_s
        self.bytes_left = self.limit_bytes
        self.reached: LimitReached | None = None

    def left_s(self) -> float:
        """The time that is left; an error when it is over."""
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise self._reach(f"{self.what} took more than {self.limit_s:,.0f} s")
        return left_s

    def take(self, received: int) -> None:
        """Count bytes of the server; an error when they are too many."""
        self.bytes_left -= received
        if self.bytes_left < 0:
            raise self._reach(f"the server sent more than {self.limit_bytes:,} bytes")

    def _reach(self, why: str) -> LimitReached:
        self.reached = LimitReached(why)
        return self.reached


# Those that count now, in any thread: MLflow sends the parts of a large file from threads.
active: list[TransferBudget] = []


@contextmanager
def limited(limit_s: float, limit_bytes: int, what: str) -> Iterator[None]:
    """Limit what happens on connections during a `with` block. Blocks may lie in each other.

    HTTP libraries wrap errors: one that follows from a limit comes out as `LimitReached`.
    """
    _install()
    for outer in active:
        outer.left_s()
    budget = TransferBudget(limit_s, limit_bytes, what)
    active.append(budget)
    try:
        yield
    except Exception as error:
        if why := next((one.reached for one in active if one.reached), None):
            raise why from error
        raise
    finally:
        active.remove(budget)


def sync_limits() -> AbstractContextManager[None]:
    """The limits of all calls of one sync. What is left over is for the next sync."""
    return limited(SYNC_LIMIT_S, SYNC_LIMIT_BYTES, "the sync")


class LimitedSocket:
    """A connected socket whose reads and writes count against the budgets that are active."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected, self._usual_s = connected, connected.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connected, name)

    def settimeout(self, timeout_s: float | None) -> None:
        self._usual_s = timeout_s
        self._connected.settimeout(timeout_s)

    def recv_into(self, buffer: Any, *rest: Any) -> int:
        with self._in_time():
            received = self._connected.recv_into(buffer, *rest)
        for budget in active:
            budget.take(received)
        return received

    def sendall(self, content: Any, *rest: Any) -> None:
        with self._in_time():
            self._connected.sendall(content, *rest)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """What an answer is read from."""
        self._connected._io_refs += 1  # type: ignore[attr-defined]  # as `socket.makefile` does
        return io.BufferedReader(socket.SocketIO(self, "rb"))  # type: ignore[arg-type]

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Wait for as long as usual, and no longer than what is left."""
        left = [budget.left_s() for budget in active]
        usual = [] if self._usual_s is None else [self._usual_s]
        self._connected.settimeout(min([*usual, *left], default=None))
        try:
            yield
        except TimeoutError:
            for budget in active:
                budget.left_s()
            raise


def _install() -> None:
    """Let the connections that MLflow opens from now on be limited."""
    from urllib3 import connectionpool  # noqa: PLC0415  it comes with MLflow

    for pool in (connectionpool.HTTPConnectionPool, connectionpool.HTTPSConnectionPool):
        if not hasattr(pool.ConnectionCls, "is_limited"):
            pool.ConnectionCls = _limited_kind(pool.ConnectionCls)


def _limited_kind(usual: Any) -> Any:
    class Limited(usual):  # type: ignore[misc]
        is_limited = True
        sock: Any

        def connect(self) -> None:
            super().connect()
            self.sock = LimitedSocket(self.sock)

        def putheader(self, header: str, *values: Any) -> None:
            """Ask for answers that are as large as they come."""
            asks = header.lower() == "accept-encoding"
            super().putheader(header, *(["identity"] if asks else values))

        def getresponse(self, *arguments: Any) -> Any:
            answer = super().getresponse(*arguments)
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                self.close()
                raise LimitReached("the server compresses its answers although nobody asked for it")
            return answer

    return Limited
