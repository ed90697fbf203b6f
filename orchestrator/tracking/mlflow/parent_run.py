"""Record room: the MLflow run of a study, of which the runs of its trials are children."""

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import Journal, StudyJournal
from orchestrator.tracking.mlflow.metadata import ARTIFACTS, NOTE, REPORT, RUN_ID, changed
from orchestrator.tracking.mlflow.store import Status, Store, StoredRun
from orchestrator.types.run import Run, TrackedRun
from orchestrator.types.study import StudyState, StudySubmission

STATUS: dict[StudyState, Status] = {
    "running": "RUNNING",
    "stopped": "FAILED",
    "succeeded": "FINISHED",
}


def parent_of(journal: Journal, run: Run, store: Store) -> str | None:
    """The id of the MLflow run of a run's study, made when it is not there; None without a study,
    or where its directory was removed.
    """
    if run.study is None:
        return None
    study = StudyJournal(journal.path.absolute().parent / run.study)
    try:
        opened = study.submission()
    except JournalUnreadable:
        return None
    parent = _its_run(study, opened, store)
    status = STATUS[study.status().state]
    if parent.status != status:
        store.set_status(parent.id, status, None)
    _keep_page(study, parent, store)
    return parent.id


def _keep_page(study: StudyJournal, parent: StoredRun, store: Store) -> None:
    """The page of the study, when it was written, or written anew."""
    files = {REPORT: study.path / REPORT} if (study.path / REPORT).is_file() else {}
    if files and parent.tags.get(ARTIFACTS) != (version := changed(files)):
        store.keep(parent.id, files[REPORT], None)
        store.log(parent.id, tags={ARTIFACTS: version})


def _its_run(study: StudyJournal, opened: StudySubmission, store: Store) -> StoredRun:
    """The one that is noted, or carries the study's id, or a new one."""
    noted, found = study.tracking(), None
    if noted and noted.mlflow_tracking_uri == store.where.uri:
        found = store.run(noted.mlflow_run_id)
    if found and not found.deleted:
        return found
    carrying = [one for one in store.tagged(RUN_ID, opened.id) if not one.deleted]
    found = carrying[0] if carrying else _created(study, opened, store)
    study.track(TrackedRun(mlflow_tracking_uri=store.where.uri, mlflow_run_id=found.id))
    return found


def _created(study: StudyJournal, opened: StudySubmission, store: Store) -> StoredRun:
    asked = opened.study
    trials = f"{len(asked.trials)} trials over {', '.join(asked.vary)}, {asked.repeats} of each"
    tags = {
        RUN_ID: opened.id,
        "orch.kind": "study",
        "orch.study": study.key,
        "orch.scaling": asked.scaling,
        NOTE: f"**{study.key}**: {asked.scaling} scaling, {trials}.\n\nJournal: `{study.path}`",
    }
    return store.create(study.key, opened.at_s, tags)
