"""Sends a run from its journal to MLflow, live or to repair an older record. A tag in MLflow,
written after the points it counts, says how much it has: syncs may be repeated and interrupted.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator import journal as journals
from orchestrator.errors import JournalUnreadable
from orchestrator.evidence.report import make_report
from orchestrator.evidence.studies import report_of_study
from orchestrator.journal import boundary
from orchestrator.journal.run_journal import Journal, noted_tracking
from orchestrator.journal.steps import StepReader
from orchestrator.journal.study_journal import StudyJournal, trial_of
from orchestrator.tracking.destinations import RunNotRecorded
from orchestrator.tracking.mlflow import metadata, metrics
from orchestrator.tracking.mlflow.metrics import MetricPoint
from orchestrator.tracking.mlflow.store import MOST_PARAMS, MOST_POINTS, Status, Store, StoredRun
from orchestrator.values import codec
from orchestrator.values import study as studies
from orchestrator.values.run import LIVE, Run

_CURVES = "orch.curves"
_STATUS: dict[str, Status] = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "lost": "FAILED",
}
_PARENT_STATUS: dict[studies.StudyState, Status] = {
    "running": "RUNNING",
    "stopped": "FAILED",
    "succeeded": "FINISHED",
}


# --- the points of a study's MLflow run: MFU and speed over pods, or the losses of a sweep


def _study_points(
    report: studies.ScalingReport | studies.SweepReport, at_s: float
) -> list[MetricPoint]:
    # Those of a trial come once no run of it will change them: a server takes no point back.
    points: list[MetricPoint] = []
    if isinstance(report, studies.SweepReport):
        for trial in report.trials:
            points += metrics.finite({metrics.SWEEP_LOSS: trial.loss}, at_s, trial.number)
        return points
    several = len({tuple(trial.series.items()) for trial in report.trials}) > 1
    for measured_trial in report.trials:
        plan, measured = measured_trial.predicted, measured_trial.measured
        failed = sum(state not in LIVE for state in measured_trial.unfinished.values())
        is_ended = measured_trial.done + failed >= report.repeats
        if plan is None or measured is None or not is_ended:
            continue
        # Measured, expected and roofline, at its number of pods. A rehearsal without a forecast of
        # its own has only the measured line.
        mfu = {"measured": measured.mfu.median if measured.mfu else None}
        speed: dict[str, float | None] = {"measured": measured.tokens_per_s_per_chip.median}
        if measured_trial.not_compared is None:
            rate = plan.tokens_per_s_per_chip
            mfu |= {"expected": plan.mfu.expected, "roofline": plan.mfu.lower}
            speed |= {"expected": rate.expected, "roofline": rate.lower}
        series = ", ".join(f"{key} {text}" for key, text in measured_trial.series.items())
        suffix = metrics.NOT_IN_A_NAME.sub("_", f" {series}") if several else ""
        values = {metrics.OF_PODS[what] + suffix: value for what, value in mfu.items()}
        for what, value in speed.items():
            values[metrics.SPEED_OF_PODS[what] + suffix] = value and value * measured_trial.chips
        points += metrics.finite(values, at_s, plan.pods)
    return points


def _parent_of(journal: Journal, run: Run, store: Store) -> str | None:
    """Return the id of the MLflow run of a run's study; create it when it is missing."""
    if run.study is None:
        return None
    study = StudyJournal(journal.path.absolute().parent / Path(run.study).name)
    try:
        boundary.check_own(study.path)
        opened = study.submission()
    except (JournalUnreadable, OSError):
        return None  # it was removed, or is not this user's
    parent = _find_or_create(study, store)
    status = _PARENT_STATUS[study.status().state]
    if parent.status != status:
        store.set_status(parent.id, status, None)
    page = study.path / metadata.REPORT
    version = metadata.version_of({metadata.REPORT: page}) if page.exists() else None
    if version and parent.tags.get(metadata.ARTIFACTS) != version:
        with tempfile.TemporaryDirectory() as folder:
            copy = metadata.short_copy(page, Path(folder) / metadata.REPORT)
            store.log_file(parent.id, copy, None)
        store.log(parent.id, tags={metadata.ARTIFACTS: version})
    if run.state in LIVE:
        return parent.id
    # The curves of the study, where they have changed.
    report = report_of_study(study)
    ended = [member.ended_at_s for member in study.status().runs if member.ended_at_s]
    points = _study_points(report, max(ended, default=opened.at_s))
    tags = {_CURVES: codec.digest(points)}
    if parent.tags.get(_CURVES) != tags[_CURVES]:
        best = report.best if isinstance(report, studies.SweepReport) else None
        for trial in opened.study.trials:
            if trial.number == best and trial.settings:
                settings = trial.settings.items()
                tags["orch.best"] = ", ".join(f"{key} {text}" for key, text in settings)
        store.log(parent.id, points, tags=tags)
    return parent.id


def _find_or_create(study: StudyJournal, store: Store) -> StoredRun:
    """Return the noted run, or one that is tagged with the study's id, or a new one."""
    noted, opened, stored = noted_tracking(study.path), study.submission(), None
    if noted and noted.uri == store.where.uri:
        stored = store.run(noted.run_id)
    if stored and not stored.deleted:
        return stored
    tagged = [found for found in store.tagged(metadata.RUN_ID, opened.id) if not found.deleted]
    if tagged:
        stored = tagged[0]
    else:
        config = opened.study
        varied, repeats = ", ".join(config.vary), f"{config.repeats} of each"
        trials = f"{len(config.trials)} trials over {varied}, {repeats}"
        about = f"**{study.key}**: {studies.kind_text(config.scaling)}, {trials}."
        tags = {
            metadata.RUN_ID: opened.id,
            "orch.kind": "study",
            "orch.study": study.key,
            metadata.REHEARSAL: metadata.yes_or_no(opened.rehearsal),
            "orch.study_kind": config.kind,
            "orch.scaling": config.scaling or "",
            metadata.NOTE: f"{about}\n\nJournal: `{study.path}`",
        }
        tags = {name: text for name, text in tags.items() if text}
        stored = store.create(study.key, opened.at_s, tags)
    journals.track(study, store.tracked(stored.id))
    return stored


class RunExport:
    """One run in MLflow. It remembers what it sent, and forgets everything after an error."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal, self._store = journal, store
        self._forget()

    def _forget(self) -> None:
        self._stored: StoredRun | None = None
        self._readers: dict[int, StepReader] = {}
        self._steps, self._status = 0, ""
        self._tags: dict[str, str] = {}

    def catch_up(self, run: Run, on_steps: Callable[[int], None]) -> None:
        """Send what MLflow lacks of a run."""
        try:
            if self._stored is None:
                self._stored = self._find_or_create(run)
                self._tags, self._status = dict(self._stored.tags), self._stored.status
                self._steps = int(self._tags.get(metadata.STEPS_RECORDED, 0))
            self._send_description(self._stored, run)
            for points, steps in self._batches(run):
                self._send(self._stored, points, {metadata.STEPS_RECORDED: str(steps)})
                self._steps = steps
                on_steps(steps)
            if run.state not in LIVE and run.steps_done:
                ending = metrics.of_ending(make_report(self._journal), _last_seen_at_s(run))
                self._send(self._stored, ending, {})
            status = _STATUS.get(run.state, "RUNNING")
            if self._status != status:
                ended_at_s = None if status == "RUNNING" else _last_seen_at_s(run)
                self._store.set_status(self._stored.id, status, ended_at_s)
                self._status = status
            self._send_files(self._stored, run)
        except BaseException:
            self._forget()
            raise

    # --- the MLflow run

    def _find_or_create(self, run: Run) -> StoredRun:
        """Return the one MLflow run of this run: the noted, the tagged, or a new one. Another that
        carries the tag is a ghost, whose answer was lost: it is deleted.
        """
        noted, tag = None, metadata.RUN_ID
        if run.tracking and run.tracking.uri == self._store.where.uri:
            noted = self._store.run(run.tracking.run_id)
        if noted and noted.deleted:
            raise RunNotRecorded(
                f"{self._store.where.label}: the MLflow run {noted.id} was deleted there; restore"
                f" it, or remove {self._journal.paths.tracking} to record the run anew"
            )
        tagged = [found for found in self._store.tagged(tag, run.id) if not found.deleted]
        stored = noted or (tagged[0] if tagged else None)
        if stored is None:
            name = run.run
            if found := trial_of(self._journal, run.study):
                study, trial = found
                name = f"{studies.settings_text(trial.settings, study.vary)}: {name}"
            stored = self._store.create(name, run.submitted_at_s, {tag: run.id})
        tracking = self._store.tracked(stored.id)
        winner = journals.track(self._journal, tracking, instead=noted is None)
        for ghost in tagged:
            if ghost.id != winner.run_id:
                self._store.delete(ghost.id)
        return stored

    def _send_description(self, stored: StoredRun, run: Run) -> None:
        run = replace(run, tracking=self._store.tracked(stored.id))
        new = metadata.description(self._journal, run, _parent_of(self._journal, run, self._store))
        if self._tags.get(metadata.DESCRIBED) == new.digest:
            return
        missing = [item for item in new.params.items() if item[0] not in stored.params]
        for at in range(0, len(missing), MOST_PARAMS):
            self._store.log(stored.id, params=dict(missing[at : at + MOST_PARAMS]))
        self._send(stored, new.points, {**new.tags, metadata.DESCRIBED: new.digest})

    def _send(self, stored: StoredRun, points: Sequence[MetricPoint], tags: dict[str, str]) -> None:
        """Send points, and after them the tags that count them."""
        size = MOST_POINTS - len(tags)
        last = max(0, (len(points) - 1) // size) * size if points else 0
        for at in range(0, last, size):
            self._store.log(stored.id, points[at : at + size])
        self._store.log(stored.id, points[last:], tags=tags)
        self._tags |= tags

    def _batches(self, run: Run) -> Iterator[tuple[list[MetricPoint], int]]:
        """Yield batches of points of new steps that MLflow takes, and the steps done by then."""
        # MLflow cannot take a point back. When a step is repeated after a failure, its first point
        # stays, so every process that records the run sends the same points.
        batch, done = list[MetricPoint](), self._steps
        for attempt in run.attempts:
            reader = StepReader(self._journal.path, attempt.number)
            for steps in self._readers.setdefault(attempt.number, reader).in_parts():
                for timed in steps:
                    if timed.step.index < done:
                        continue
                    stage = self._journal.plan(attempt.plan_digest).stage_of(timed.step.index)
                    points = metrics.of_step(timed, stage)
                    if batch and len(batch) + len(points) >= MOST_POINTS:
                        yield batch, done
                        batch = []
                    batch += points
                    done = timed.step.index + 1
        if batch:
            yield batch, done

    def _send_files(self, stored: StoredRun, run: Run) -> None:
        files = metadata.artifacts(self._journal, run)
        version = metadata.version_of(files)
        if self._tags.get(metadata.ARTIFACTS) == version:
            return
        with tempfile.TemporaryDirectory() as folder:
            for name, path in files.items():
                inside, _, _ = name.rpartition("/")
                copy = metadata.short_copy(path, Path(folder) / name)
                self._store.log_file(stored.id, copy, inside or None)
        self._send(stored, [], {metadata.ARTIFACTS: version})


def _last_seen_at_s(run: Run) -> float:
    """Return when a run ended, or when a lost run last made progress."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    times = [run.submitted_at_s, *([run.last_step.at_s] if run.last_step else [])]
    for attempt in run.attempts:
        times += [attempt.started_at_s, attempt.ended_at_s or attempt.started_at_s]
    return max(times)
