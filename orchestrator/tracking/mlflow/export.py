"""Sends a run from its journal to MLflow. Recording a live run and repairing an old one are this.

The journal alone decides what to send, and MLflow itself says how much it has: a tag that is
written after the points it counts. So a sync may be repeated by anybody, and interrupted anywhere.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
    description,
    short_copy,
    version_of,
)
from orchestrator.tracking.mlflow.metrics import MetricPoint, first_done, of_ending, of_step
from orchestrator.tracking.mlflow.parent_run import parent_of
from orchestrator.tracking.mlflow.store import MOST_PARAMS, MOST_POINTS, Status, Store, StoredRun
from orchestrator.tracking.mlflow.tracking_uri import TRACKER
from orchestrator.tracking.protocol import RunNotRecorded
from orchestrator.types.plan import Plan
from orchestrator.types.run import LIVE, Attempt, Run, TimedStep, TrackedRun

STATUS: dict[str, Status] = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "lost": "FAILED",
}


class RunExport:
    """One run in MLflow. It remembers what it sent, and forgets everything after an error."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal, self._store = journal, store
        self._forget()

    def _forget(self) -> None:
        """Ask MLflow again what it has."""
        self._stored: StoredRun | None = None
        self._readers: dict[int, StepReader] = {}
        self._steps, self._status = 0, ""
        self._tags: dict[str, str] = {}

    def catch_up(self, run: Run, on_steps: Callable[[int], None]) -> None:
        """Send what MLflow lacks of a run."""
        try:
            self._catch_up(run, on_steps)
        except BaseException:
            self._forget()
            raise

    def _catch_up(self, run: Run, on_steps: Callable[[int], None]) -> None:
        if self._stored is None:
            self._stored = self._find_or_create(run)
            self._tags, self._status = dict(self._stored.tags), self._stored.status
            self._steps = int(self._tags.get(STEPS_RECORDED, 0))
        self._send_description(self._stored, run)
        self._send_steps(self._stored, run, on_steps)
        if run.state not in LIVE and run.steps_done:
            ending = of_ending(make_report(self._journal), last_seen_at_s(run))
            self._send(self._stored, ending, {})
        self._set_status(self._stored, run)
        self._send_files(self._stored, run)

    # --- the MLflow run

    def _find_or_create(self, run: Run) -> StoredRun:
        """The one MLflow run of this run: the noted one, or the tagged one, or a new one.

        MLflow may have created a run although its answer was lost. A run that carries the same tag
        and is not the noted one is such a ghost, and is deleted.
        """
        noted = self._noted(run)
        tagged = [one for one in self._store.tagged(RUN_ID, run.id) if not one.deleted]
        stored = noted or (tagged[0] if tagged else self._create(run))
        tracking = TrackedRun(tracker=TRACKER, uri=self._store.where.uri, run_id=stored.id)
        winner = journals.track(self._journal, tracking, instead=noted is None)
        for ghost in tagged:
            if ghost.id != winner.run_id:
                self._store.delete(ghost.id)
        return stored

    def _noted(self, run: Run) -> StoredRun | None:
        """The MLflow run that the journal names, if this MLflow has it."""
        if run.tracking is None or run.tracking.uri != self._store.where.uri:
            return None
        stored = self._store.run(run.tracking.run_id)
        if stored and stored.deleted:
            raise RunNotRecorded(
                f"{self._store.where.label}: the MLflow run {stored.id} was deleted there; restore"
                f" it, or remove {self._journal.paths.tracking} to record the run anew"
            )
        return stored

    def _create(self, run: Run) -> StoredRun:
        return self._store.create(run.run, run.submitted_at_s, {RUN_ID: run.id})

    # --- params and tags

    def _send_description(self, stored: StoredRun, run: Run) -> None:
        tracked = TrackedRun(tracker=TRACKER, uri=self._store.where.uri, run_id=stored.id)
        run = replace(run, tracking=tracked)
        new = description(self._journal, run, parent_of(self._journal, run, self._store))
        if self._tags.get(DESCRIBED) == new.digest:
            return
        missing = [item for item in new.params.items() if item[0] not in stored.params]
        for at in range(0, len(missing), MOST_PARAMS):
            self._store.log(stored.id, params=dict(missing[at : at + MOST_PARAMS]))
        self._send(stored, new.points, {**new.tags, DESCRIBED: new.digest})

    def _send(self, stored: StoredRun, points: Sequence[MetricPoint], tags: dict[str, str]) -> None:
        """Send points, and after them the tags that count them."""
        size = MOST_POINTS - len(tags)
        last = max(0, (len(points) - 1) // size) * size if points else 0
        for at in range(0, last, size):
            self._store.log(stored.id, points[at : at + size])
        self._store.log(stored.id, points[last:], tags=tags)
        self._tags |= tags

    # --- steps

    def _send_steps(self, stored: StoredRun, run: Run, on_steps: Callable[[int], None]) -> None:
        for points, steps in self._batches(run):
            self._send(stored, points, {STEPS_RECORDED: str(steps)})
            self._steps = steps
            on_steps(steps)

    def _batches(self, run: Run) -> Iterator[tuple[list[MetricPoint], int]]:
        """The points of new steps in batches that MLflow takes, and the steps done by then."""
        batch: list[MetricPoint] = []
        steps = self._steps
        for attempt, timed in first_done(self._new_steps(run), self._steps):
            points = of_step(timed, self._plan(attempt).stage_of(timed.step.index))
            if batch and len(batch) + len(points) >= MOST_POINTS:
                yield batch, steps
                batch = []
            batch += points
            steps = timed.step.index + 1
        if batch:
            yield batch, steps

    def _new_steps(self, run: Run) -> Iterator[tuple[Attempt, list[TimedStep]]]:
        for attempt in run.attempts:
            reader = self._readers.setdefault(
                attempt.number, StepReader(self._journal.path, attempt.number)
            )
            for steps in reader.in_parts():
                yield attempt, steps

    def _plan(self, attempt: Attempt) -> Plan:
        return self._journal.plan(attempt.plan_digest)

    # --- status and files

    def _set_status(self, stored: StoredRun, run: Run) -> None:
        status = STATUS.get(run.state, "RUNNING")
        if self._status != status:
            ended_at_s = None if status == "RUNNING" else last_seen_at_s(run)
            self._store.set_status(stored.id, status, ended_at_s)
            self._status = status

    def _send_files(self, stored: StoredRun, run: Run) -> None:
        files = artifacts(self._journal, run)
        version = version_of(files)
        if self._tags.get(ARTIFACTS) == version:
            return
        with tempfile.TemporaryDirectory() as folder:
            for name, path in files.items():
                inside, _, _ = name.rpartition("/")
                copy = short_copy(path, Path(folder) / name)
                self._store.log_file(stored.id, copy, inside or None)
        self._send(stored, [], {ARTIFACTS: version})


def last_seen_at_s(run: Run) -> float:
    """When a run ended, or when a lost run last made progress."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    times = [run.submitted_at_s, *(one.started_at_s for one in run.attempts)]
    times += [one.ended_at_s for one in run.attempts if one.ended_at_s is not None]
    return max([*times, *([run.last_step.at_s] if run.last_step else [])])
