"""What shows runs and this machine: status, logs, report, compare, sync, ui, doctor."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.run.next_commands import RUNS
from orchestrator.storage.addresses import folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.run.logs import RunLogs
    from orchestrator.run.progress import Progress
    from orchestrator.values.report import Report
    from orchestrator.values.run import HealthReport, LogLine, Run, RunHealth, Status, SyncResult
    from orchestrator.values.study import ScalingReport, StudyStatus, SweepReport


def runs(storage: str | Path = RUNS, *, progress: "Progress | None" = None) -> "list[Run]":
    """All runs in a storage directory, newest first."""
    from orchestrator import journal
    from orchestrator.run.follow import catch_up
    from orchestrator.run.progress import NonFatalProblem, silent

    listed, problems = journal.list_runs(folder(storage))
    for problem in problems:
        (progress or silent)(NonFatalProblem(message=problem))
    catch_up(folder(storage), listed)
    return listed


def studies(storage: str | Path = RUNS) -> "list[StudyStatus]":
    """All studies in a storage directory, by name, each with its runs."""
    from orchestrator import journal

    return [one.status() for one in journal.list_studies(folder(storage))]


def status(run: str, storage: str | Path = RUNS) -> "Status | StudyStatus":
    """How a run stands, beside its forecast; or how a study stands, with all its runs."""
    from orchestrator import journal
    from orchestrator.run.follow import catch_up

    record = journal.find_run_or_study(folder(storage), run)
    if isinstance(record, journal.StudyJournal):
        return record.status()
    status = record.status()
    catch_up(record.path.parent, [status])
    return status


def logs(
    run: str,
    storage: str | Path = RUNS,
    *,
    rank: int | None = None,
    attempt: int | None = None,
) -> "RunLogs":
    """The logs of a run's newest attempt: the last lines of the first ranks, or all of one rank."""
    from orchestrator import journal
    from orchestrator.run.logs import LogSelection, read_logs

    return read_logs(
        journal.find_run(folder(storage), run), LogSelection(rank=rank, attempt=attempt)
    )


def follow_logs(
    run: str,
    storage: str | Path = RUNS,
    *,
    rank: int | None = None,
    attempt: int | None = None,
    progress: "Progress | None" = None,
) -> "Iterator[LogLine]":
    """The lines of a run's logs as they are written, until the run has ended."""
    from orchestrator import journal
    from orchestrator.run.logs import LogSelection
    from orchestrator.run.logs import follow_logs as follow
    from orchestrator.run.progress import silent

    selection = LogSelection(rank=rank, attempt=attempt)
    return follow(journal.find_run(folder(storage), run), selection, progress or silent)


def report(run: str, storage: str | Path = RUNS) -> "Report | ScalingReport | SweepReport":
    """A run, or a study, measured against predicted."""
    from orchestrator import journal
    from orchestrator.evidence.report import make_report
    from orchestrator.evidence.studies import report_of_study

    record = journal.find_run_or_study(folder(storage), run)
    if isinstance(record, journal.StudyJournal):
        return report_of_study(record)
    return make_report(record)


def compare(runs: Sequence[str], storage: str | Path = RUNS) -> "list[Report]":
    """The reports of several runs, or of those of a study; one that is named twice has one."""
    from orchestrator import journal
    from orchestrator.evidence.report import make_report

    found = [one for run in runs for one in journal.find_runs(folder(storage), run)]
    return [make_report(one) for one in {one.key: one for one in found}.values()]


def sync(
    runs: Sequence[str] = (),
    storage: str | Path = RUNS,
    *,
    progress: "Progress | None" = None,
) -> "list[SyncResult]":
    """Bring MLflow up to the journals of runs, or of all runs of this user where none is named."""
    from orchestrator import journal
    from orchestrator.run.follow import own_runs
    from orchestrator.run.follow import sync as sync_runs
    from orchestrator.run.progress import silent

    records = [journal.find_run(folder(storage), run) for run in runs] or own_runs(folder(storage))
    return sync_runs(records, progress or silent)


def ui(
    storage: str | Path = RUNS, *, port: int | None = None, progress: "Progress | None" = None
) -> None:
    """Serve the MLflow UI of recorded runs until Ctrl-C; a `UiReady` event says where."""
    from orchestrator.run.mlflow_ui import show_ui
    from orchestrator.run.progress import silent

    show_ui(folder(storage), port, progress or silent)


def doctor(storage: str | Path = RUNS, *, address: str | None = None) -> "HealthReport":
    """What this machine can do, and what to do about what it cannot."""
    from orchestrator.run.doctor import health

    return health(folder(storage), address)


def doctor_run(run: str, storage: str | Path = RUNS, *, repairs: bool = False) -> "RunHealth":
    """What is wrong with the files of a run; with `repairs`, after what can be repaired was."""
    from orchestrator import journal
    from orchestrator.run.doctor import run_health

    return run_health(journal.find_run(folder(storage), run), repairs=repairs)
