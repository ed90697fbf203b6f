"""Record room: the arrow of this room, journal to MLflow. Recording and replaying are this.

What is to be sent follows from the journal alone, and how much of it is there is asked of MLflow
itself: a tag that is written behind the points it counts. So it does not matter how often, by whom,
or from where it was interrupted.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orchestrator import journal as journals
from orchestrator.journal import Journal, StepReader
from orchestrator.report import make_report
from orchestrator.tracking.mlflow.metadata import (
    ARTIFACTS,
    DESCRIBED,
    RUN_ID,
    STEPS_RECORDED,
    artifacts,
    changed,
    description,
)
from orchestrator.tracking.mlflow.metrics import MetricPoint, first_done, of_ending, of_step
from orchestrator.tracking.mlflow.parent_run import parent_of
from orchestrator.tracking.mlflow.store import (
    MOST_PARAMS,
    MOST_POINTS,
    RefusedAlone,
    Status,
    Store,
    StoredRun,
)
from orchestrator.tracking.mlflow.sync_state import of_run
from orchestrator.types.plan import Plan
from orchestrator.types.run import LIVE, Attempt, Run, TimedStep, TrackedRun
from orchestrator.types.tracking import SyncProgress

# Of a longer log the end is kept; its beginning says so.
LONGEST_LOG_BYTES = 1 << 20
STATUS: dict[str, Status] = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "lost": "FAILED",
}
Shown = Callable[[int], None]


def unseen(_: float) -> None:
    """Nobody wants to see how many steps are recorded so far, or for how long it waits."""


class RunExport:
    """A run in MLflow, brought up to its journal as often as one likes."""

    def __init__(self, journal: Journal, store: Store, shown: Shown = unseen) -> None:
        self._journal, self._store, self._shown = journal, store, shown
        self._forget()

    def _forget(self) -> None:
        """What was known of MLflow may be wrong: ask again."""
        self._found: StoredRun | None = None
        self._readers: dict[int, StepReader] = {}
        self._done, self._status = 0, ""
        self._said: dict[str, str] = {}

    def catch_up(self) -> SyncProgress:
        """Send what MLflow lacks; what it has then. `NotRecorded` when it could not be asked."""
        try:
            return self._catch_up()
        except BaseException:
            self._forget()
            raise

    def _catch_up(self) -> SyncProgress:
        run = self._journal.run()
        if self._found is None:
            self._found = self._its_run(run)
            self._said, self._status = dict(self._found.tags), self._found.status
            self._done = int(self._said.get(STEPS_RECORDED, 0))
        self._describe(run)
        self._send_steps(run)
        if run.state not in LIVE:
            self._send_ending(run)
        self._set_status(run)
        self._keep_files(run)
        return of_run(run)

    # --- whose run it is

    def _its_run(self, run: Run) -> StoredRun:
        """The one MLflow run of this run: the one noted, or that carries its id, or a new one.

        A request to create one may have been carried out though its answer was lost: what carries
        the id beside the run that is noted is such a ghost.
        """
        noted = self._noted(run)
        carrying = [one for one in self._store.tagged(RUN_ID, run.id) if not one.deleted]
        mine = noted or (carrying[0] if carrying else self._created(run))
        tracking = TrackedRun(mlflow_tracking_uri=self._store.where.uri, mlflow_run_id=mine.id)
        kept = journals.track(self._journal, tracking, instead=noted is None)
        for ghost in carrying:
            if ghost.id != kept.mlflow_run_id:
                self._store.delete(ghost.id)
        return mine

    def _noted(self, run: Run) -> StoredRun | None:
        """The MLflow run that is noted, if it is of this MLflow and still there."""
        if run.mlflow_run_id is None or run.mlflow_tracking_uri != self._store.where.uri:
            return None
        found = self._store.run(run.mlflow_run_id)
        if found and found.deleted:
            raise RefusedAlone(
                f"{self._store.where.words}: the MLflow run {found.id} was deleted there; restore"
                f" it, or remove {self._journal.paths.tracking} to record the run anew"
            )
        return found

    def _created(self, run: Run) -> StoredRun:
        return self._store.create(run.run, run.submitted_at_s, {RUN_ID: run.id})

    # --- what is said of it

    def _describe(self, run: Run) -> None:
        assert self._found
        said = description(self._journal, run, parent_of(self._journal, run, self._store))
        if self._said.get(DESCRIBED) == said.digest:
            return
        missing = [
            (name, value) for name, value in said.params.items() if name not in self._found.params
        ]
        for at in range(0, len(missing), MOST_PARAMS):
            self._store.log(self._found.id, params=dict(missing[at : at + MOST_PARAMS]))
        self._send(said.points, {**said.tags, DESCRIBED: said.digest})

    def _send(self, points: Sequence[MetricPoint], tags: dict[str, str]) -> None:
        """Points, and then the tags that say that they are there."""
        assert self._found
        room = MOST_POINTS - len(tags)
        last = max(0, (len(points) - 1) // room) * room if points else 0
        for at in range(0, last, room):
            self._store.log(self._found.id, points[at : at + room])
        self._store.log(self._found.id, points[last:], tags=tags)
        self._said |= tags

    # --- steps

    def _send_steps(self, run: Run) -> None:
        batch: list[MetricPoint] = []
        done = self._done
        for attempt, timed in first_done(self._new_steps(run), self._done):
            points = of_step(timed, self._plan(attempt))
            if batch and len(batch) + len(points) >= MOST_POINTS:
                self._send_batch(batch, done)
                batch = []
            batch += points
            done = timed.step.index + 1
        if batch:
            self._send_batch(batch, done)

    def _send_batch(self, batch: list[MetricPoint], done: int) -> None:
        self._send(batch, {STEPS_RECORDED: str(done)})
        self._done = done
        self._shown(done)

    def _new_steps(self, run: Run) -> Iterator[tuple[Attempt, list[TimedStep]]]:
        for attempt in run.attempts:
            reader = self._readers.setdefault(
                attempt.number, StepReader(self._journal.path, attempt.number)
            )
            yield attempt, reader.read()

    def _plan(self, attempt: Attempt) -> Plan:
        return self._journal.plan(attempt.plan_digest)

    # --- the end

    def _send_ending(self, run: Run) -> None:
        """What the run comes to. Of a run that was resumed and ended again, the newest counts."""
        if run.steps_done:
            self._send(of_ending(make_report(self._journal), last_seen_at_s(run)), {})

    def _set_status(self, run: Run) -> None:
        assert self._found
        wanted = STATUS.get(run.state, "RUNNING")
        if self._status != wanted:
            ended_at_s = None if wanted == "RUNNING" else last_seen_at_s(run)
            self._store.set_status(self._found.id, wanted, ended_at_s)
            self._status = wanted

    def _keep_files(self, run: Run) -> None:
        assert self._found
        files = artifacts(self._journal, run)
        version = changed(files)
        if self._said.get(ARTIFACTS) == version:
            return
        with tempfile.TemporaryDirectory() as folder:
            for name, path in files.items():
                inside, _, _ = name.rpartition("/")
                sent = _sendable(path, Path(folder) / name)
                self._store.keep(self._found.id, sent, inside or None)
        self._send([], {ARTIFACTS: version})


def last_seen_at_s(run: Run) -> float:
    """When a run ended; one that was lost, when it was last seen to get on."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    seen = [run.submitted_at_s, *(one.started_at_s for one in run.attempts)]
    seen += [one.ended_at_s for one in run.attempts if one.ended_at_s is not None]
    return max([*seen, *([run.last_step.at_s] if run.last_step else [])])


def _sendable(path: Path, copy: Path) -> Path:
    """The file under the name that it gets; of a log that is too long, the end."""
    size = path.stat().st_size
    copy.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".log" and size > LONGEST_LOG_BYTES:
        with path.open("rb") as file:
            file.seek(size - LONGEST_LOG_BYTES)
            said = f"(the last {LONGEST_LOG_BYTES:,} of {size:,} bytes; all of it: {path})\n"
            copy.write_bytes(said.encode() + file.read())
    else:
        copy.symlink_to(path.absolute())
    return copy
