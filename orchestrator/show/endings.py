"""Say what a request to stop a run does, and what is removed."""

from orchestrator import formatting as fmt
from orchestrator.show import parts as ui
from orchestrator.values.run import LIVE, Run
from orchestrator.values.run_options import Proposal
from orchestrator.values.study import StudyStatus


def cancelled_text(run: str, changes: list[tuple[Run, Run]], *, at_once: bool) -> str:
    """Return what a request to cancel does, for each run before and after it."""
    texts = [ui.fit(_cancel_text(before, after, at_once=at_once)) for before, after in changes]
    return "\n".join(texts or [f"{run}: no run is active. Nothing to cancel."]) + "\n"


def _cancel_text(before: Run, after: Run, *, at_once: bool) -> str:
    if before.ended_at_s is not None:
        return f"{before.run}: already {before.state}. Nothing was requested."
    text = f"{before.run}: stop requested" + (", at once." if at_once else ".")
    if before.cancel_requested_at_s is not None:
        ago = fmt.elapsed(before.read_at_s - before.cancel_requested_at_s)
        text += f" A stop was requested {ago} ago already."
    if after.state not in LIVE:
        return f"{text}\nNo driver runs it any more: {after.detail}. It counts as cancelled."
    if after.driver is None:
        return f"{text}\nIts driver has not started yet; it will stop before it takes a chip."
    effect = "finishes the current step, saves a checkpoint and stops."
    if at_once:
        effect = "stops it; steps since the last checkpoint are lost."
    return f"{text}\nIts driver (process {after.driver.pid} on {after.driver.host}) {effect}"


def submission_question(proposal: Proposal) -> str:
    what = proposal.name if proposal.runs == 1 else "all of it"
    return f"Run {what} on {proposal.address}?"


def removal_question(doomed: Run | StudyStatus) -> str:
    if isinstance(doomed, StudyStatus):
        what = f"{doomed.study} ({doomed.state}, {doomed.done} of {doomed.total} done)"
        runs, folder = fmt.counted(len(doomed.runs), "run"), doomed.journal.rpartition("/")[0]
        return f"Remove {what}, with the journals, logs and checkpoints of its {runs} in {folder}?"
    what = f"{doomed.run} ({doomed.state}, {fmt.count(doomed.steps_done)} steps)"
    return f"Remove {what}, its journal, logs and checkpoints in {doomed.journal}?"


def removed_text(removed: Run | StudyStatus) -> str:
    if isinstance(removed, StudyStatus):
        return f"removed {removed.study} and its {fmt.counted(len(removed.runs), 'run')}\n"
    return f"removed {removed.run}\n"


def removed_fields(removed: Run | StudyStatus) -> dict[str, object]:
    if isinstance(removed, StudyStatus):
        runs = [run.run for run in removed.runs]
        return {"study": removed.study, "runs": runs, "removed": True}
    return {"run": removed.run, "journal": removed.journal, "removed": True}
