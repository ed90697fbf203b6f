"""The MLflow run of a study. The runs of its trials are its children."""

import tempfile
from pathlib import Path

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import Journal, StudyJournal, boundary
from orchestrator.study import report_of_study
from orchestrator.tracking.mlflow.metadata import (
    ARTIFACTS,
    NOTE,
    REHEARSAL,
    REPORT,
    RUN_ID,
    short_copy,
    version_of,
    yes_or_no,
)
from orchestrator.tracking.mlflow.store import Status, Store, StoredRun
from orchestrator.tracking.mlflow.study_points import study_points
from orchestrator.tracking.mlflow.tracking_uri import TRACKER
from orchestrator.types import codec
from orchestrator.types.run import LIVE, Run, TrackedRun
from orchestrator.types.study import StudyState, StudySubmission, kind_text
from orchestrator.types.sweep import SweepReport

CURVES = "orch.curves"
STATUS: dict[StudyState, Status] = {
    "running": "RUNNING",
    "stopped": "FAILED",
    "succeeded": "FINISHED",
}


def parent_of(journal: Journal, run: Run, store: Store) -> str | None:
    """The id of the MLflow run of a run's study, created when there is none.

    None for a run without a study, or when the study's directory was removed or is not this user's.
    """
    if run.study is None:
        return None
    study = StudyJournal(journal.path.absolute().parent / Path(run.study).name)
    try:
        boundary.check_own(study.path)
        opened = study.submission()
    except (JournalUnreadable, OSError):
        return None
    parent = _find_or_create(study, opened, store)
    status = STATUS[study.status().state]
    if parent.status != status:
        store.set_status(parent.id, status, None)
    _send_page(study, parent, store)
    if run.state not in LIVE:
        _send_points(study, parent, store)
    return parent.id


def _send_points(study: StudyJournal, parent: StoredRun, store: Store) -> None:
    """Send the curves of the study where they have changed."""
    report = report_of_study(study)
    ended = [one.ended_at_s for one in study.status().runs if one.ended_at_s]
    points = study_points(report, max(ended, default=study.submission().at_s))
    digest = codec.digest(points)
    if parent.tags.get(CURVES) == digest:
        return
    best = report.best if isinstance(report, SweepReport) else None
    settings = next(
        (one.settings for one in study.submission().study.trials if one.number == best), {}
    )
    named = {"orch.best": ", ".join(f"{key} {text}" for key, text in settings.items())}
    store.log(parent.id, points, tags={CURVES: digest} | {k: v for k, v in named.items() if v})


def _send_page(study: StudyJournal, parent: StoredRun, store: Store) -> None:
    """Send the page of the study when it is new or has changed."""
    page = study.path / REPORT
    if not page.exists() or parent.tags.get(ARTIFACTS) == (version := version_of({REPORT: page})):
        return
    with tempfile.TemporaryDirectory() as folder:
        store.log_file(parent.id, short_copy(page, Path(folder) / REPORT), None)
    store.log(parent.id, tags={ARTIFACTS: version})


def _find_or_create(study: StudyJournal, opened: StudySubmission, store: Store) -> StoredRun:
    """The noted run, or one that is tagged with the study's id, or a new one."""
    noted, stored = study.tracking(), None
    if noted and noted.uri == store.where.uri:
        stored = store.run(noted.run_id)
    if stored and not stored.deleted:
        return stored
    tagged = [one for one in store.tagged(RUN_ID, opened.id) if not one.deleted]
    stored = tagged[0] if tagged else _create(study, opened, store)
    study.track(TrackedRun(tracker=TRACKER, uri=store.where.uri, run_id=stored.id))
    return stored


def _create(study: StudyJournal, opened: StudySubmission, store: Store) -> StoredRun:
    config = opened.study
    trials = f"{len(config.trials)} trials over {', '.join(config.vary)}, {config.repeats} of each"
    tags = {
        RUN_ID: opened.id,
        "orch.kind": "study",
        "orch.study": study.key,
        REHEARSAL: yes_or_no(opened.rehearsal),
        "orch.study_kind": config.kind,
        "orch.scaling": config.scaling or "",
        NOTE: f"**{study.key}**: {kind_text(config.scaling)}, {trials}.\n\nJournal: `{study.path}`",
    }
    tags = {name: text for name, text in tags.items() if text}
    return store.create(study.key, opened.at_s, tags)
