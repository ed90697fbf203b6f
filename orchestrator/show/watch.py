"""Runs while they go on: a page on loopback that brings itself up to date, and what it shows."""

import hmac
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from markupsafe import Markup

from orchestrator import formatting as fmt
from orchestrator.errors import OrchError
from orchestrator.evidence.report import RunReader, RunReading
from orchestrator.journal.listing import StudyJournal, find_run_or_study
from orchestrator.journal.run_journal import Journal
from orchestrator.processes import LOOPBACK
from orchestrator.run.progress import RUNS, handled_by
from orchestrator.show import charts, report_screen, status_screen
from orchestrator.show import drawings as draw
from orchestrator.show.pages import page_of, proof_of
from orchestrator.show.terminal import echo, echo_json
from orchestrator.storage.addresses import folder
from orchestrator.tracking.mlflow.store import run_link
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import LIVE

LOOK_EVERY_S = 2.0
# Looking takes at most this share of a processor, however many steps there are.
_MOST_BUSY = 0.1
_PARTS = ("head", "figures", "hosts", "steps", "time", "memory")


@dataclass(frozen=True)
class WatchedRun:
    """A run as it stands; or only what keeps it from being read."""

    key: str
    problem: str = ""
    reading: RunReading | None = None
    plan: Plan | None = None
    rehearsed: Plan | None = None
    proof: Proof | None = None


class Watch:
    """Looks at runs, and at those of studies, again and again; each time only at what is new."""

    def __init__(self, runs: Sequence[str], storage: str | Path = RUNS) -> None:
        self.storage = folder(storage)
        found = [find_run_or_study(self.storage, run) for run in runs]
        self._sources = list({record.path: record for record in found}.values())
        self._readers: dict[Path, RunReader] = {}

    def journals(self) -> list[Journal]:
        """Return the runs, each once; a study's are those that it has started by now."""
        found: dict[Path, Journal] = {}
        for source in self._sources:
            if isinstance(source, StudyJournal):
                named = [source.trial_journal(start) for start in source.trial_starts()]
            else:
                named = [source]
            found |= {record.path: record for record in named}
        return list(found.values())

    def look(self) -> list[WatchedRun]:
        return [self._look_at(journal) for journal in self.journals()]

    def _look_at(self, journal: Journal) -> WatchedRun:
        reader = self._readers.setdefault(journal.path, RunReader(journal))
        try:
            reading = reader.read()
            run = reading.run
            return WatchedRun(
                key=journal.key,
                reading=reading,
                plan=journal.current_plan(run),
                rehearsed=journal.full_plan(run) if run.rehearses else None,
                proof=proof_of(journal)[0],
            )
        except OrchError as error:  # removed, damaged, or a mount that comes back
            return WatchedRun(key=journal.key, problem=str(error))


class _WatchedPage:
    """The page of watched runs in parts, each with the number of the look that changed it."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._lock = watch, threading.Lock()
        self._parts: dict[str, tuple[int, str]] = {}
        self._looks, self._again_at_s, self._wait_s = 0, 0.0, LOOK_EVERY_S
        self._runs: list[WatchedRun] = []

    def whole(self) -> str:
        """Return the page with all parts as they stand."""
        with self._lock:
            self._look()
            parts = {name: Markup(html) for name, (_, html) in self._parts.items()}
            keys = [run.key for run in self._runs]
            title = keys[0] if len(keys) == 1 else fmt.counted(len(keys), "run")
            return draw.filled(
                "watch.html", title=title, verdict=title, keys=keys, names=_PARTS, parts=parts,
                look=self._looks,
                headline="The page follows what the runs write.",
            )  # fmt: skip

    def since(self, look: int) -> str:
        """Return what has changed since a look, as JSON."""
        with self._lock:
            self._look()
            changed = {name: html for name, (at, html) in self._parts.items() if at > look}
            answer = {"look": self._looks, "wait_s": self._wait_s, "parts": changed}
            return msgspec.json.encode(answer | {"runs": len(self._runs)}).decode()

    def report(self, number: int) -> str | None:
        """Return the whole report of a run; None where the run is unknown or removed."""
        journals = self._watch.journals()
        if not 0 <= number < len(journals):
            return None
        with suppress(OrchError):
            return page_of(journals[number], proof_of(journals[number])[0])[0]
        return None

    def _look(self) -> None:
        # Several windows share a look.
        began_s = time.monotonic()
        if began_s < self._again_at_s:
            return
        self._runs, self._looks = self._watch.look(), self._looks + 1
        for number, run in enumerate(self._runs):
            for name, html in _parts_of(run, number):
                part = f"r{number}-{name}"
                if self._parts.get(part, (0, None))[1] != html:
                    self._parts[part] = (self._looks, html)
        now_s = time.monotonic()
        self._wait_s = max(LOOK_EVERY_S, (now_s - began_s) / _MOST_BUSY)
        self._again_at_s = now_s + 0.9 * self._wait_s


def _parts_of(run: WatchedRun, number: int) -> Iterator[tuple[str, str]]:
    reading, values = run.reading, dict[str, object](problem=run.problem, number=number)
    if reading:
        values |= {
            "reading": reading,
            "run": reading.run,
            "report": reading.report,
            "steps": reading.steps,
            "plan": run.plan,
            "full": run.rehearsed or run.plan,
            "proof": run.proof,
            "mlflow": run_link(reading.run.tracking) if reading.run.tracking else None,
            "is_live": reading.run.state in LIVE,
            "verdict": report_screen.run_verdict(reading.report),
            "charts": charts,
            "screens": report_screen,
            "status": status_screen,
        }
    for name in _PARTS:
        yield name, draw.filled("watch_part.html", part=name, **values)


# The page may run its own script and ask this server, and nothing else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_IDLE_LIMIT_S = 60  # that a connection is waited for


class WatchServer(ThreadingHTTPServer):
    """Serves the page on loopback to whoever knows its address, which nobody can guess."""

    daemon_threads = True

    def __init__(self, page: _WatchedPage) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.page, self.token = page, secrets.token_urlsafe(24)
        self.host = f"{LOOPBACK}:{self.server_port}"
        self.address = f"http://{self.host}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # of a window that was closed
            super().handle_error(request, client_address)


def serve(runs: Sequence[str], storage: Path, *, as_json: bool) -> None:
    """Serve the page of runs, and say where, until an interrupt."""
    watch = Watch(runs, storage)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with WatchServer(_WatchedPage(watch)) as server, handled_by(interrupt):
        keys = [journal.key for journal in watch.journals()]
        if as_json:
            echo_json(msgspec.json.encode({"address": server.address, "runs": keys}) + b"\n")
        else:
            what = keys[0] if len(keys) == 1 else fmt.counted(len(keys), "run")
            echo(f"{what} at {server.address}\nCtrl-C ends this page; runs go on.")
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = _IDLE_LIMIT_S

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        _, given, *rest = [*asked.path.split("/"), ""]
        # A name of another site may lead here too: only the address that was printed counts.
        is_known = hmac.compare_digest(given.encode(), self.server.token.encode())
        if self.headers.get("Host") != self.server.host or not is_known:
            self._answer(403, "text/plain", "403: not the address that orch printed\n")
            return
        page, path = self.server.page, "/".join(rest).rstrip("/")
        name, _, number = path.partition("-")
        if path == "":
            self._answer(200, "text/html", page.whole())
        elif path == "parts":
            since = parse_qs(asked.query).get("since", ["0"])[0]
            changed = page.since(int(since) if since.isdecimal() else 0)
            self._answer(200, "application/json", changed)
        elif name == "report" and number.isdecimal() and (text := page.report(int(number))):
            self._answer(200, "text/html", text)
        else:
            self._answer(404, "text/plain", "404: no such page\n")

    def _answer(self, status: int, kind: str, text: str) -> None:
        nonce = secrets.token_urlsafe(16)
        # The values in a page are escaped: a script in it is the template's.
        body = text.replace("<script>", f'<script nonce="{nonce}">', 1).encode()
        headers = _HEADERS | {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": _POLICY.format(nonce=nonce),
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: the address holds the token."""

    def version_string(self) -> str:
        return "orch"
