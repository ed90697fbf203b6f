"""The losses of a sweep's trials, read from their journals."""

from dataclasses import dataclass

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import StudyJournal
from orchestrator.journal.counted_steps import counted_steps
from orchestrator.journal.step_table import Floats, Integers, read_table

FIRST = 1  # the repeat whose losses are shown: the others have the same


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a trial by the index of their steps, in order."""

    index: Integers
    loss: Floats

    @property
    def steps_done(self) -> int:
        return int(self.index[-1]) + 1 if len(self.index) else 0

    def mean(self, begin: int, end: int) -> float | None:
        """The mean loss of the steps from `begin` up to but not including `end`."""
        chosen = (self.index >= begin) & (self.index < end)
        return float(self.loss[chosen].mean()) if chosen.any() else None


def trial_losses(study: StudyJournal) -> dict[int, Losses]:
    """The losses of the newest first repeat of each trial, of each step its last attempt."""
    newest = {one.trial: one for one in study.trial_starts() if one.repeat == FIRST}
    losses = {}
    for number, start in newest.items():
        journal = study.trial_journal(start)
        try:
            attempts = journal.run().attempts
        except JournalUnreadable:  # it was removed, or never began
            continue
        steps = counted_steps({one.number: read_table(journal.path, one)[0] for one in attempts})
        losses[number] = Losses(steps.index, steps.loss)
    return losses
