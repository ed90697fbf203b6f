"""A job watched through a dashboard that fails: the job goes on, and so does whoever watches it."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orchestrator.launch.backend import ClusterUnusable
from orchestrator.launch.ray import private_api
from orchestrator.launch.ray.local_cluster import _SILENCE_LIMIT_S, Patience, states
from orchestrator.processes import LOOPBACK
from tests.journals import Clock

REFUSED = ConnectionError("connection refused")


class AuthenticationError(Exception):
    """Named as Ray names it."""


@dataclass
class Dashboard:
    """Answers one question after another; an error is raised instead."""

    answers: Sequence[str | Exception]
    clock: Clock = field(default_factory=Clock)
    questions: int = 0

    def state(self) -> str:
        answer = self.answers[min(self.questions, len(self.answers) - 1)]
        self.questions += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def why(self) -> str:
        return "out of luck"

    def sleep(self, _: float) -> None:
        self.clock.now_s += 1.0

    def seen(self, *, needless: bool = False) -> list[tuple[str, str | None]]:
        """What a watch of the job reports, by a clock that goes one second each look."""
        patience = Patience(clock=self.clock, needless=lambda: needless)
        return list(states(self.state, self.why, patience, self.sleep))


def test_one_failed_poll_ends_nothing() -> None:
    """Neither do many in a row, until the limit; each state is reported once."""
    failures = [REFUSED] * int(_SILENCE_LIMIT_S)
    dashboard = Dashboard(["PENDING", REFUSED, "RUNNING", *failures, "RUNNING", "SUCCEEDED"])
    assert dashboard.seen() == [("PENDING", None), ("RUNNING", None), ("SUCCEEDED", None)]


def test_a_failed_job_says_why_even_if_the_first_question_fails() -> None:
    """The state that was read is not reported before its reason was."""
    dashboard = Dashboard(["RUNNING", "FAILED"])
    assert dashboard.seen() == [("RUNNING", None), ("FAILED", "out of luck")]


def test_a_dashboard_that_stays_silent_ends_the_watch() -> None:
    """Not before the limit, and with its own error."""
    dashboard = Dashboard(["RUNNING", REFUSED])
    with pytest.raises(ConnectionError, match="connection refused"):
        dashboard.seen()
    assert dashboard.questions == _SILENCE_LIMIT_S + 3


def test_a_job_whose_process_lives_needs_no_dashboard() -> None:
    """It goes on for hours without an answer."""
    dashboard = Dashboard(["RUNNING", *[REFUSED] * 5_000, "SUCCEEDED"])
    assert dashboard.seen(needless=True)[-1] == ("SUCCEEDED", None)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_refused_token_is_not_tried_again(wrapped: bool) -> None:
    """Every answer would be the same, also where the error was put into plain words."""
    error: Exception = AuthenticationError("401")
    if wrapped:
        error = ClusterUnusable("it asks for a token")
        error.__cause__ = AuthenticationError("401")
    dashboard = Dashboard([error])
    with pytest.raises(type(error)):
        dashboard.seen(needless=True)
    assert dashboard.questions == 1


class HangingDashboard(BaseHTTPRequestHandler):
    """Tells its version, and answers nothing else."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/version"):
            body = json.dumps({"version": "4", "ray_version": "2.60.0", "ray_commit": "x"}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)
        else:
            self.server.stopped.wait(60)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_dashboard_that_hangs_is_a_failed_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would wait for its answer for ever."""
    monkeypatch.setattr(private_api, "_REQUEST_LIMIT_S", 0.2)
    with ThreadingHTTPServer((LOOPBACK, 0), HangingDashboard) as server:
        server.stopped = threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = private_api.job_client(f"http://{LOOPBACK}:{server.server_address[1]}")
        with pytest.raises(OSError, match="timed out"):
            client.get_job_status("it")
        server.stopped.set()  # type: ignore[attr-defined]
        server.shutdown()
