"""The stand-in of a cluster's supervisor: when it ends the cluster in its place."""

import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from orchestrator.launch.ray import local_cluster, private_api


class Waiting:
    """A stand-in that waits: the ends of its pipes that the supervisor and the owner hold."""

    def __init__(self) -> None:
        self.ended, self.supervisor = os.pipe()
        self.owned, self.owner = os.pipe()
        self.over = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        local_cluster._wait_for_end(self.ended, self.owned)
        self.over.set()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    one = Waiting()
    yield one
    assert one.over.wait(30)
    os.close(one.ended)
    os.close(one.owned)


def test_it_waits_for_the_end_of_the_supervisor(waiting: Waiting) -> None:
    """And not for what the owner says."""
    os.write(waiting.owner, b"a request\n")
    assert not waiting.over.wait(0.3)
    os.close(waiting.supervisor)
    assert waiting.over.wait(30)
    os.close(waiting.owner)


def test_a_supervisor_that_does_nothing_when_its_owner_is_gone_is_stopped(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is at work gets its time."""
    monkeypatch.setattr(local_cluster, "_STOPPED_LIMIT_S", 0.5)
    began_s = time.monotonic()
    os.close(waiting.owner)
    assert waiting.over.wait(30)
    assert time.monotonic() - began_s > 0.4
    os.close(waiting.supervisor)


def test_a_supervisor_that_ends_after_its_owner_is_not_waited_for(waiting: Waiting) -> None:
    os.close(waiting.owner)
    assert not waiting.over.wait(0.2)
    os.close(waiting.supervisor)
    assert waiting.over.wait(5)


def test_a_job_that_was_taken_without_an_answer_is_not_submitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head of a busy machine may answer after its client has given up."""
    taken: list[SimpleNamespace] = []

    class Client:
        def list_jobs(self) -> list[SimpleNamespace]:
            return taken

        def submit_job(self, *, entrypoint: str, submission_id: str) -> None:
            taken.append(SimpleNamespace(entrypoint=entrypoint, submission_id=submission_id))
            raise TimeoutError

    monkeypatch.setattr(private_api, "job_client", lambda _: Client())
    _, job = local_cluster._submit(SimpleNamespace(webui_url="127.0.0.1:1"), "command")
    assert [(request.entrypoint, request.submission_id) for request in taken] == [("command", job)]
