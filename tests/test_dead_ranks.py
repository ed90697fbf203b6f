"""The ranks whose processes Ray saw die, by the errors of Ray Train."""

import pytest
import ray
from ray.exceptions import ActorDiedError
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from orchestrator.launch.ray import private_api
from orchestrator.launch.ray.attempt import _find_dead_ranks

NODE = {"NodeID": "n7", "NodeManagerHostname": "host-7"}
PLACES = {"slice-b": ("n6",), "slice-a": ("n7",)}


class HealthCheckFailed(Exception):
    """What Ray Train raises when it asks a worker whose process has died."""

    def __init__(self, actor_id: str) -> None:
        self.health_check_failure = ActorDiedError()
        self.health_check_failure.actor_id = actor_id


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "known": ("n7", 70),
        "lost": ("n8", 8),
    }
    monkeypatch.setattr(private_api, "process_of_actor", known.get)
    monkeypatch.setattr(ray, "nodes", lambda: [NODE])


def test_a_rank_whose_process_died_is_named_with_its_host_and_slice() -> None:
    """One that raised an exception has told it itself; a host that is gone is known as such."""
    died = {rank: HealthCheckFailed(one) for rank, one in ((1, "known"), (2, "lost"), (3, "none"))}
    failures = {0: ValueError("out of luck"), **died}
    [dead] = _find_dead_ranks(WorkerGroupError("four ended", failures), PLACES)
    assert dead.error == (
        "rank 1 died; Ray does not tell by which signal (host host-7, process 70, slice slice-a)"
    )


@pytest.mark.parametrize(
    "error", [ControllerError(ValueError("no worker")), WorkerGroupError("", {}), OSError()]
)
def test_other_errors_name_no_rank(error: BaseException) -> None:
    assert _find_dead_ranks(error, PLACES) == ()
