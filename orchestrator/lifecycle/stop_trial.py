"""Stops the run of a trial by the rule of its sweep, while it is followed."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.journal import Journal, StudyJournal, request_cancel
from orchestrator.lifecycle.progress import Progress
from orchestrator.render.sweep_text import stop_text
from orchestrator.storage import folder
from orchestrator.study.early_stop import checks
from orchestrator.study.trial_losses import settle
from orchestrator.types.progress_events import ProgressEvent, RunUpdate, TrialStopped
from orchestrator.types.run import LIVE, Run
from orchestrator.types.stop_rule import StopRule


def stopping(study: StudyJournal, trial: int, repeat: int, progress: Progress) -> Progress:
    """The progress of a trial's run, which also stops it where the rule says so."""
    rule = study.submission().study.stop
    if rule is None or repeat > 1:
        return progress
    return StopWatch(study=study, trial=trial, rule=rule, progress=progress)


@dataclass(kw_only=True)
class StopWatch:
    """Judges a run whenever it has reached a check of the rule."""

    study: StudyJournal
    trial: int
    rule: StopRule
    progress: Progress
    stopped: bool = False
    left: Iterator[int] | None = None
    check: int | None = None

    def __call__(self, event: ProgressEvent) -> None:
        self.progress(event)
        if isinstance(event, RunUpdate) and not self.stopped and event.run.state in LIVE:
            self._look(event.run)

    def _look(self, run: Run) -> None:
        if not self._has_reached(run):
            return
        if stop := settle(self.study, self.trial, run):
            self.stopped = True
            request_cancel(Journal(folder(run.journal)), source=stop_text(stop))
            self.progress(TrialStopped(stop=stop))

    def _has_reached(self, run: Run) -> bool:
        """Whether the run has done the steps of its next check, and which is next then."""
        if self.left is None:
            self.left = checks(self.rule, run.steps)
            self.check = next(self.left, None)
        reached = False
        while self.check is not None and run.steps_done >= self.check:
            reached, self.check = True, next(self.left, None)
        return reached
