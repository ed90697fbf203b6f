"""A tracking server with trouble in front of it: it refuses, hangs, answers 500, loses answers."""

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from orchestrator.processes import LOOPBACK, free_port
from orchestrator.tracking.mlflow.server import _answers
from tests.clusters import eventually
from tests.conftest import ROOT

# `lost`: the request is carried out and its answer never comes; `dropped`: it is not carried out.
Trouble = Literal["none", "hangs", "500", "lost", "dropped"]


class Server:
    """The server, which can be stopped and started, and the address that clients know. `before` are
    words in front of its command.
    """

    def __init__(self, storage: Path, *before: str) -> None:
        self.storage, self.before, self.port = storage, before, free_port()
        self.trouble: Trouble = "none"
        self.troubled_from = self.troubled_to = 0  # of the requests, by number; 0 for none
        self.requests = 0
        self.met: set[Trouble] = set()
        self._server: subprocess.Popen[bytes] | None = None
        self._front = ThreadingHTTPServer((LOOPBACK, 0), _front_of(self))
        self.address = f"http://{LOOPBACK}:{self._front.server_address[1]}"
        threading.Thread(target=self._front.serve_forever, daemon=True).start()

    def start(self) -> None:
        at = [str(self.storage / "mlflow.db"), str(self.storage / "served"), str(self.port)]
        with (self.storage / "server.log").open("ab") as log:
            command = [*self.before, sys.executable, "-m", "tests.mlflow_server", *at]
            self._server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        eventually(lambda: _answers(f"http://{LOOPBACK}:{self.port}"), 300)

    def stop(self) -> None:
        """Connections are refused from now on, by the server; the front says 502."""
        if self._server:
            self._server.kill()
            self._server.wait()

    def end(self) -> None:
        self.stop()
        self._front.shutdown()
        self._front.server_close()

    def now(self) -> Trouble:
        """What the next request meets."""
        self.requests += 1
        if self.troubled_from and not self.troubled_from <= self.requests <= self.troubled_to:
            return "none"
        self.met.add(self.trouble)
        return self.trouble


def _front_of(server: Server) -> type[BaseHTTPRequestHandler]:
    class Front(BaseHTTPRequestHandler):
        """Passes requests on, or does what the trouble is."""

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            trouble = server.now()
            if trouble == "hangs":
                threading.Event().wait(4)
            if trouble in ("hangs", "dropped"):
                return
            if trouble == "500":
                self.send_error(500)
                return
            status, text = _answer(server.port, self.command, self.path, body)
            if trouble != "lost":
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _pass_on  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

    return Front


def _answer(port: int, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{LOOPBACK}:{port}{path}", body or None, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 502, b"{}"


@contextmanager
def served(storage: Path, *before: str) -> Iterator[Server]:
    """A server over the database of a storage directory."""
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "2"
    server = Server(storage, *before)
    try:
        server.start()
        yield server
    finally:
        server.end()
        del os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
