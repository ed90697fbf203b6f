"""The queue for the slices of a cluster: all or nothing, first come, first served. Ray gives slices
one by one, so two runs could each hold half for ever. A run that fails keeps its place and its
slices for a while: its retry comes before those who wait.
"""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.errors import Superseded
from orchestrator.launch.ray import private_api
from orchestrator.values.codec import Value

# A run that had slices may be away this long before anybody may take them.
_RETURN_S = 60.0
# Another protocol gets another name, so that two versions of this project never talk to each other.
_NAME, _NAMESPACE = "orch-slice-queue-3", "orch"
_LEAVE_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 300.0  # a busy head may take long to start the actor


class _QueueAnswer(Value):
    """The runs `ahead` in the queue, none on this run's turn, and the slices `taken` by other runs,
    even if free now. `superseded`: a later claim of the run has asked; this one gets none.
    """

    ahead: tuple[str, ...]
    taken: tuple[str, ...]
    superseded: bool = False


@dataclass
class _QueuePosition:
    """A run in the queue; `submitted_at_s` tells it from a removed one of the same key. `job` asked
    last, for the newest `claim`; `slices` are its last. A `served` run wants none now. `gone_at_s`
    is when its job was first seen to have ended.
    """

    run: str
    submitted_at_s: float
    kind: str
    job: str
    claim: int
    slices: tuple[str, ...] = ()
    served: bool = False
    turn: bool = False
    gone_at_s: float | None = None


class _SliceQueue:
    """The runs that want or have slices of a cluster, in the order in which they came. A Ray actor
    on the head, without chip or secret, for every job of the cluster. If it dies, a new one learns
    from requests who waits; only runs between two attempts lose their position.
    """

    def __init__(
        self,
        live_jobs: Callable[[], Collection[str]] = private_api.live_jobs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live_jobs, self._clock = live_jobs, clock
        self._positions: dict[str, _QueuePosition] = {}

    def request(
        self, run: str, submitted_at_s: float, kind: str, job: str, claim: int
    ) -> _QueueAnswer:
        """Whether a run may take slices. Its turn lasts until it requests again or is served."""
        # Drop runs whose job has ended. Those that had slices may come back for a while.
        live, now_s = set(self._live_jobs()), self._clock()
        for key, position in list(self._positions.items()):
            if position.job in live:
                continue
            if position.gone_at_s is None:
                position.gone_at_s, position.served, position.turn = now_s, False, False
            if not position.slices or now_s - position.gone_at_s > _RETURN_S:
                del self._positions[key]
        known = self._positions.get(run)
        if known and known.submitted_at_s < submitted_at_s:
            del self._positions[run]  # of a run that was removed: its claims say nothing here
        new = _QueuePosition(run, submitted_at_s, kind, job, claim)
        mine = self._positions.setdefault(run, new)
        if (submitted_at_s, claim) < (mine.submitted_at_s, mine.claim):
            return _QueueAnswer(ahead=(), taken=(), superseded=True)
        mine.kind, mine.job, mine.claim = kind, job, claim
        mine.served, mine.turn, mine.gone_at_s = False, False, None
        same_kind = [other for other in self._positions.values() if other.kind == kind]
        older = same_kind[: same_kind.index(mine)]
        ahead = tuple(
            other.run for other in same_kind if other.turn or (other in older and not other.served)
        )
        mine.turn = not ahead
        taken = (name for other in same_kind if other is not mine for name in other.slices)
        return _QueueAnswer(ahead=ahead, taken=tuple(taken))

    def confirm(self, run: str, job: str, slices: tuple[str, ...]) -> None:
        """Note that a run has all its slices: the next may take theirs."""
        position = self._positions.get(run)
        if position and position.job == job:  # no later job of it has made a request since
            position.slices, position.served, position.turn = slices, True, False

    def leave(self, run: str, job: str) -> None:
        position = self._positions.get(run)
        if position and position.job == job:
            del self._positions[run]


@dataclass
class Lease:
    """A run's position in the queue of the cluster that this process has joined, for a claim."""

    run: str
    submitted_at_s: float
    kind: str
    claim: int

    def __post_init__(self) -> None:
        self._job = ray.get_runtime_context().get_job_id()
        self._server = self._find_server()

    def request(self) -> _QueueAnswer:
        """Runs ahead, and slices of others; `Superseded` when a later claim has asked."""
        asked = (self.run, self.submitted_at_s, self.kind, self._job, self.claim)
        answer: _QueueAnswer
        try:
            answer = ray.get(self._server.request.remote(*asked), timeout=_ANSWER_LIMIT_S)
        except ray.exceptions.ActorDiedError:  # its host is gone: a new server starts
            self._server = self._find_server()
            answer = ray.get(self._server.request.remote(*asked), timeout=_ANSWER_LIMIT_S)
        if answer.superseded:
            raise Superseded(f"claim {self.claim} is superseded by a later one in the queue")
        return answer

    def confirm(self, slices: tuple[str, ...]) -> None:
        self._server.confirm.remote(self.run, self._job, slices)

    def leave(self) -> None:
        """Leave the queue. If the server does not hear it, it drops the run a while later."""
        with suppress(ray.exceptions.RayError):
            ray.get(self._server.leave.remote(self.run, self._job), timeout=_LEAVE_LIMIT_S)

    def _find_server(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = {"namespace": _NAMESPACE, "lifetime": "detached", "get_if_exists": True}
        actor = ray.remote(num_cpus=0)(_SliceQueue)
        return actor.options(name=_NAME, scheduling_strategy=here, **options).remote()
