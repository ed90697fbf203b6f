"""The losses of a sweep's trials, read from their journals, and the stops that follow from them."""

import time

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import Journal, StudyJournal
from orchestrator.journal.counted_steps import counted_steps
from orchestrator.journal.step_table import read_table
from orchestrator.study.early_stop import EarlyStop, Losses, diverged, judged
from orchestrator.types.run import Run
from orchestrator.types.sweep import TrialStop

FIRST = 1  # the repeat that is judged: the others have the same losses


def trial_losses(study: StudyJournal) -> dict[int, Losses]:
    """The losses of each trial's newest first repeat, up to where it was stopped."""
    stops = {one.trial: one.step for one in study.stops()}
    newest = {one.trial: one for one in study.trial_starts() if one.repeat == FIRST}
    losses = {}
    for number, start in newest.items():
        try:
            losses[number] = losses_of(study.trial_journal(start)).until(stops.get(number))
        except JournalUnreadable:  # it was removed, or never began
            continue
    return losses


def losses_of(journal: Journal) -> Losses:
    """The losses of a run, of each step its last attempt."""
    attempts = journal.run().attempts
    steps = counted_steps({one.number: read_table(journal.path, one)[0] for one in attempts})
    return Losses(steps.index, steps.loss)


def stop_of(study: StudyJournal, trial: int) -> TrialStop | None:
    """Why a trial was stopped; None for one that was not."""
    return next((one for one in study.stops() if one.trial == trial), None)


def settle(study: StudyJournal, trial: int, run: Run) -> TrialStop | None:
    """Why a trial stops, recorded where it is decided now; None where it goes on."""
    if known := stop_of(study, trial):
        return known
    rule = study.submission().study.stop
    losses = trial_losses(study) if rule else {}
    verdict = diverged(run) or judged(rule, run.steps, trial, losses)
    return study.record_stop(_stop(trial, run, verdict)) if verdict else None


def _stop(trial: int, run: Run, verdict: EarlyStop) -> TrialStop:
    return TrialStop(
        trial=trial,
        run=run.run,
        at_s=time.time(),
        code=verdict.code,
        step=verdict.step,
        loss=verdict.loss,
        limit=verdict.limit,
        others=verdict.others,
    )
