"""Launch room: the one admitter of a cluster, an actor that all its runs ask for their turn.

It has no chip and no secret, and lives on the head as long as the cluster does. Where it dies all
the same, a new one learns from the next questions who waits; who has slices is seen by their being
taken. Only a run that is between two attempts then loses its place.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.launch.ray.slice_queue import QueueAnswer, SliceQueue

# With another protocol comes another name: runs of two versions must not misunderstand each other.
NAME, NAMESPACE = "orch-admitter-1", "orch"
LEAVE_LIMIT_S = 30.0
ANSWER_LIMIT_S = 300.0  # a busy head may take long to start the actor


class SliceQueueServer:
    """The queue, within reach of every job of the cluster."""

    def __init__(self) -> None:
        self._queue = SliceQueue(living_jobs, time.monotonic)

    def ask(self, run: str, kind: str, job: str) -> QueueAnswer:
        return self._queue.ask(run, kind, job)

    def serve(self, run: str, job: str, slices: tuple[str, ...]) -> None:
        self._queue.serve(run, job, slices)

    def leave(self, run: str, job: str) -> None:
        self._queue.leave(run, job)


def living_jobs() -> set[str]:
    """The jobs of the cluster that have not ended."""
    from ray._private.state import jobs  # noqa: PLC0415

    return {job["JobID"] for job in jobs() if not job["IsDead"]}


@dataclass
class Lease:
    """A run's place in the queue of the cluster that this process has joined."""

    run: str
    kind: str

    def __post_init__(self) -> None:
        import ray  # noqa: PLC0415

        self._job = ray.get_runtime_context().get_job_id()
        self._admitter = self._found()

    def ask(self) -> QueueAnswer:
        """Who comes before this run, and which slices are not its own to take."""
        import ray  # noqa: PLC0415

        try:
            return self._asked()
        except ray.exceptions.ActorDiedError:  # its host went: ask a new one
            self._admitter = self._found()
            return self._asked()

    def _asked(self) -> QueueAnswer:
        import ray  # noqa: PLC0415

        asked = self._admitter.ask.remote(self.run, self.kind, self._job)
        answer: QueueAnswer = ray.get(asked, timeout=ANSWER_LIMIT_S)
        return answer

    def served(self, slices: tuple[str, ...]) -> None:
        """Say that the run has its slices."""
        self._admitter.serve.remote(self.run, self._job, slices)

    def leave(self) -> None:
        """Say that the run wants no more; where that is not heard, its place goes a while later."""
        import ray  # noqa: PLC0415

        with suppress(ray.exceptions.RayError):
            ray.get(self._admitter.leave.remote(self.run, self._job), timeout=LEAVE_LIMIT_S)

    def _found(self) -> Any:
        import ray  # noqa: PLC0415
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
        actor = ray.remote(num_cpus=0)(SliceQueueServer)
        return actor.options(name=NAME, scheduling_strategy=here, **options).remote()
