"""Runs while they go on: a page on loopback that brings itself up to date, and a screen."""

import hmac
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np
from markupsafe import Markup

from orchestrator import formatting as fmt
from orchestrator.errors import OrchError
from orchestrator.evidence.report import RunReader, RunReading
from orchestrator.journal.listing import StudyJournal, find_run_or_study
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.run_state import first_line
from orchestrator.journal.steps import Floats
from orchestrator.processes import LOOPBACK
from orchestrator.run.progress import RUNS, handled_by, run_command
from orchestrator.show import charts
from orchestrator.show import drawings as draw
from orchestrator.show import parts as ui
from orchestrator.show.pages import page_of, proof_of, run_values
from orchestrator.show.report_screen import SLOW_TIMES, hosts_text, main_figures, slowdown_texts
from orchestrator.show.terminal import echo, echo_json, keep_showing
from orchestrator.storage.addresses import folder
from orchestrator.values.run import LIVE

_LOOK_EVERY_S = 2.0
# Looking takes at most this share of a processor, however many steps there are.
_MOST_BUSY = 0.1
_PARTS = ("head", "figures", "hosts", "steps", "time", "memory")


@dataclass(frozen=True)
class _WatchedRun:
    """A run as it stands; or only what keeps it from being read."""

    key: str
    problem: str = ""
    reading: RunReading | None = None
    values: dict[str, object] = field(default_factory=dict)


class _Watch:
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

    def look(self) -> list[_WatchedRun]:
        return [self._look_at(journal) for journal in self.journals()]

    def _look_at(self, journal: Journal) -> _WatchedRun:
        reader = self._readers.setdefault(journal.path, RunReader(journal))
        try:
            reading = reader.read()
            run, proof = reading.run, proof_of(journal)[0]
            rehearsed = journal.full_plan(run) if run.rehearses else None
            values = run_values(reading, journal.current_plan(run), rehearsed, proof)
            values["is_live"] = run.state in LIVE
            return _WatchedRun(journal.key, reading=reading, values=values)
        except OrchError as error:  # removed, damaged, or a mount that comes back
            return _WatchedRun(key=journal.key, problem=str(error))


class _WatchedPage:
    """The page of watched runs in parts, each with the number of the look that changed it."""

    def __init__(self, watch: _Watch) -> None:
        self._watch, self._lock = watch, threading.Lock()
        self._parts: dict[str, tuple[int, str]] = {}
        self._looks, self._again_at_s, self._wait_s = 0, 0.0, _LOOK_EVERY_S
        self._runs: list[_WatchedRun] = []

    def whole(self) -> str:
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
            values = run.values | {"problem": run.problem, "number": number}
            for name in _PARTS:
                html = draw.filled("watch_part.html", part=name, **values)
                part = f"r{number}-{name}"
                if self._parts.get(part, (0, None))[1] != html:
                    self._parts[part] = (self._looks, html)
        now_s = time.monotonic()
        self._wait_s = max(_LOOK_EVERY_S, (now_s - began_s) / _MOST_BUSY)
        self._again_at_s = now_s + 0.9 * self._wait_s


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


class _WatchServer(ThreadingHTTPServer):
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
    watch = _Watch(runs, storage)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _WatchServer(_WatchedPage(watch)) as server, handled_by(interrupt):
        keys = [journal.key for journal in watch.journals()]
        if as_json:
            echo_json(msgspec.json.encode({"address": server.address, "runs": keys}) + b"\n")
        else:
            what = keys[0] if len(keys) == 1 else fmt.counted(len(keys), "run")
            echo(f"{what} at {server.address}\nCtrl-C ends this page; runs go on.")
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)


class _Handler(BaseHTTPRequestHandler):
    server: _WatchServer
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


# The same runs on a terminal: figures with their curves, and where time went.

_CURVE_COLUMNS, _STRIP_COLUMNS = 16, 48
_MOST_ATTEMPTS, _MOST_HOSTS = 3, 6
_SHORT = ("step", "MFU", "over expected", "goodput", "left", "loss")  # of each of several runs
# A letter for each thing that time goes into; steps are drawn as a bar.
_LETTERS = {
    "starting processes": "s",
    "compiling": "c",
    "first state or restore": "r",
    "steps": "█",
    "repeated steps": "x",
    "waiting for data": "d",
    "saving": "w",
    "evaluating": "e",
    "not training": "-",
}


def show_top(runs: Sequence[str], storage: Path) -> None:
    """Show runs on a terminal until q or Ctrl-C; elsewhere once."""
    watch = _Watch(runs, storage)
    following = run_command("report", runs[0], storage, *runs[1:], "--watch")
    keep_showing(lambda: _top_screen(watch.look(), following), _LOOK_EVERY_S)


def _top_screen(runs: Sequence[_WatchedRun], following: str) -> ui.Screen:
    """Return all runs, one below the other: one in full, of several the main figures."""
    blocks = list[Sequence[ui.Part]]()
    for run in runs:
        if run.reading:
            blocks += _run_blocks(run.reading, in_full=len(runs) == 1)
        else:
            blocks.append([ui.heading(run.key), ui.warning(first_line(run.problem))])
    return ui.screen(*blocks, ui.next_step(following))


def _run_blocks(reading: RunReading, *, in_full: bool) -> Iterator[Sequence[ui.Part]]:
    run, report, steps = reading.run, reading.report, reading.steps
    done = f"{fmt.count(run.steps_done)} of {fmt.count(run.steps)} steps"
    lasts = fmt.elapsed((run.ended_at_s or run.read_at_s) - run.submitted_at_s)
    state = f"{run.state}{', a rehearsal' if run.rehearsal else ''} for {lasts}"
    newest = f"attempt {max(len(run.attempts), 1)}"
    yield [ui.heading(run.run), *ui.indent([f"{state}: {done}, {newest}"])]
    warm = steps.rows(steps.warm)
    curves: dict[str, Floats] = {"step": warm.step_s, "MFU": warm.mfu, "loss": steps.loss}
    rows = [
        (name, value, _curve(curves.get(name), None if name == "loss" else 0.0), remark)
        for name, value, remark in main_figures(report)
        if in_full or name in _SHORT
    ]
    if in_full and len(steps):
        rates = steps.learning_rate
        rows.append(("learning rate", f"{rates[-1]:.3g}", _curve(rates), ""))
    memory = report.memory
    if in_full and memory.measured_bytes is not None:
        forecast = f"forecast {fmt.in_memory(memory.forecast_bytes)}"
        rows.append(("memory", fmt.in_memory(memory.measured_bytes), "", forecast))
    yield ui.indent([ui.Table(rows, "<><w")] if rows else ["no step was measured yet"])
    # The newest attempts as strips on one axis of time.
    strips, used = list[ui.Row](), set[str]()
    if attempts := charts.attempt_parts(reading)[-_MOST_ATTEMPTS:]:
        (_, first_s, _), (_, last_s, parts) = attempts[0], attempts[-1]
        total_s = last_s - first_s + sum(part.value for part in parts)
        middles_s = (np.arange(_STRIP_COLUMNS) + 0.5) / _STRIP_COLUMNS * (total_s or 1.0)
    for attempt, start_s, parts in attempts:
        # The part that each column's middle lies in.
        began_s = start_s - first_s
        at = np.searchsorted(began_s + np.cumsum([part.value for part in parts]), middles_s)
        letters = [*(_LETTERS[part.name] for part in parts), " "]
        strip = "".join(
            letters[number] if middle_s >= began_s else " "
            for number, middle_s in zip(at, middles_s, strict=True)
        )
        used |= {part.name for part in parts if _LETTERS[part.name] in strip}
        strips.append((f"attempt {attempt.number}, {attempt.reason or run.state}", strip))
    yield ui.indent([ui.Table(strips, "<<")] if strips else [])
    if in_full:
        key = ", ".join(f"{_LETTERS[name]} {name}" for name in _LETTERS if name in used)
        yield ui.indent([key] if key else [])
        yield ui.indent(slowdown_texts(report))
        if heat := reading.hosts:
            slowest = sorted(heat.rows, key=lambda row: -max(row.times))[:_MOST_HOSTS]
            lines = [
                (row.name, ui.curve(row.times, low=1.0, high=SLOW_TIMES[-1])) for row in slowest
            ]
            yield ui.indent([hosts_text(heat), ui.Table(lines, "<<")])
        yield list(map(ui.warning, report.problems))


def _curve(values: Floats | None, low: float | None = None) -> str:
    if values is None:
        return ""
    known = values[np.isfinite(values)]
    places = charts.thinned(np.arange(len(known), dtype=float), known, _CURVE_COLUMNS)
    return ui.curve([median for _, _, median, _ in places], low) if len(places) > 1 else ""
