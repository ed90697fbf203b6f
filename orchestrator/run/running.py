"""What changes runs: submit, resume, cancel, remove."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.run.next_commands import RUNS
from orchestrator.storage.addresses import folder
from orchestrator.values.run_options import SubmitOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.run.progress import Progress
    from orchestrator.run.requests import Confirm
    from orchestrator.run.resume import CancelResult
    from orchestrator.run.studies import StudyResult
    from orchestrator.values.run import ExportedWeights, Run, WeightType
    from orchestrator.values.study import StudyStatus


def submit(
    path: str | Path,
    overrides: Sequence[str] = (),
    options: SubmitOptions | None = None,
    *,
    confirm: "Confirm | None" = None,
    progress: "Progress | None" = None,
) -> "Run":
    """Plan and prove a spec, and run it to its end; the run as it stands then.

    `confirm` is called with a `Proposal` before anything starts, and says whether to go on: without
    it nothing is run that takes chips.
    """
    from orchestrator.plugins import require

    require("run")
    from orchestrator.run.progress import silent
    from orchestrator.run.requests import Caller
    from orchestrator.run.submit import submit as submit_spec

    caller = Caller(confirm=confirm, progress=progress or silent)
    return submit_spec(Path(path), overrides, options or SubmitOptions(), caller)


def submit_study(
    path: str | Path,
    overrides: Sequence[str] = (),
    options: SubmitOptions | None = None,
    *,
    confirm: "Confirm | None" = None,
    progress: "Progress | None" = None,
) -> "StudyResult":
    """Carry out every trial of a study that is not done, one after another, as `submit` does."""
    from orchestrator.plugins import require

    require("run")
    from orchestrator.run.progress import silent
    from orchestrator.run.requests import Caller
    from orchestrator.run.studies import submit_study as submit_trials

    caller = Caller(confirm=confirm, progress=progress or silent)
    return submit_trials(Path(path), overrides, options or SubmitOptions(), caller)


def resume(
    run: str,
    storage: str | Path = RUNS,
    *,
    pods: int | None = None,
    address: str | None = None,
    detach: bool = False,
    confirm: "Confirm | None" = None,
    progress: "Progress | None" = None,
) -> "Run":
    """Resume a run that nothing drives any more, from its last checkpoint, on `pods` pods."""
    from orchestrator.plugins import require

    require("run")
    from orchestrator import journal
    from orchestrator.run.progress import silent
    from orchestrator.run.requests import Caller
    from orchestrator.run.resume import resume as resume_run

    options = SubmitOptions(address=address, detach=detach)
    caller = Caller(confirm=confirm, progress=progress or silent)
    return resume_run(
        journal.find_run(folder(storage), run), folder(storage), pods, options, caller
    )


def cancel(run: str, storage: str | Path = RUNS, *, at_once: bool = False) -> "list[CancelResult]":
    """Ask a run, or the run of a study that goes on, to stop after a last checkpoint.

    There is one result for each run, and none for a study that has no live run.
    """
    from orchestrator import journal
    from orchestrator.run.resume import cancel_run, cancel_study

    record = journal.find_run_or_study(folder(storage), run)
    if isinstance(record, journal.StudyJournal):
        return cancel_study(record, at_once=at_once)
    return [cancel_run(record, at_once=at_once)]


def remove(
    run: str,
    storage: str | Path = RUNS,
    *,
    confirm: "Callable[[Run | StudyStatus], bool] | None" = None,
) -> "Run | StudyStatus":
    """Remove a run, or a study with all its runs: journals, logs and checkpoints.

    `confirm` is called with it first, and says whether to go on.
    """
    from orchestrator import journal
    from orchestrator.run.requests import NotConfirmed
    from orchestrator.run.resume import removable_run, removable_study

    record = journal.find_run_or_study(folder(storage), run)
    target: Run | StudyStatus
    if isinstance(record, journal.StudyJournal):
        target = removable_study(record, folder(storage))
    else:
        target = removable_run(record, folder(storage))
    if confirm and not confirm(target):
        raise NotConfirmed(f"{record.key}: not confirmed, nothing was removed")
    if isinstance(record, journal.StudyJournal):
        journal.remove_study(record)
    else:
        journal.remove_run(record)
    return target


def export_weights(
    run: str,
    out: str | Path,
    storage: str | Path = RUNS,
    *,
    dtype: "WeightType | None" = None,
    step: int | None = None,
    progress: "Progress | None" = None,
) -> "ExportedWeights":
    """Write the weights of a run's newest checkpoint as a new folder that `transformers` loads.

    `run` may also be a directory of `python -m trainers`. `dtype` is that of the parameters where
    it is None, `step` that of another checkpoint.
    """
    from orchestrator.plugins import require

    require("prove")
    from orchestrator.run.exports import export_weights as export
    from orchestrator.run.progress import silent

    return export(run, folder(storage), Path(out), dtype, step, progress or silent)


def pack(arguments: Sequence[str]) -> int:
    """Make a token set as `orch data pack` does, and return its exit code. It prints."""
    from orchestrator.plugins import require

    require("prove")
    from orchestrator.run.exports import pack as pack_tokens

    return pack_tokens(arguments)
