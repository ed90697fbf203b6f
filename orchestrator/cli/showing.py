"""Command line room: a run as it goes, a line at a time, behind the seconds since it was begun."""

import time
from dataclasses import dataclass, field

from orchestrator import journal
from orchestrator.cli.terminal import Progress
from orchestrator.render import rehearsal_screen as render
from orchestrator.types.run import Run

SHOW_EVERY_S = 2.0
TOLD = ("starting", "stopping", "pending")


@dataclass
class Showing:
    """What was shown of a run so far; of what happened before, nothing is shown. `waits` is the
    line below, which says on a terminal what comes next.
    """

    recorded: journal.Journal
    waits: Progress
    state: tuple[str, str | None] = ("", None)
    began_s: float = field(default_factory=time.monotonic)
    shown_at_s: float = 0.0
    steps: journal.StepReader | None = None

    def __post_init__(self) -> None:
        story = self.recorded.state()
        self.attempt = len(story.attempts)
        if story.open_attempt:
            self.steps = journal.StepReader(self.recorded.path, self.attempt)
            self.steps.read()
        self.waits.stage = render.WAITING_FOR_DRIVER

    def show(self, run: Run) -> None:
        """Say what is new."""
        self.waits.stage = render.waiting_for(run)
        now = (run.state, run.detail if run.state == "pending" else None)
        if now != self.state and run.state in TOLD:
            self.say(": ".join(part for part in now if part))
        self.state = now
        if run.attempts and run.attempts[-1].number != self.attempt:
            if self.attempt and run.attempts[self.attempt - 1].number >= run.resumed_at:
                self.say(render.new_attempt_line(run.attempts[self.attempt - 1], run.attempts[-1]))
            self.attempt = run.attempts[-1].number
            self.steps = journal.StepReader(self.recorded.path, self.attempt)
        for timed in self.steps.read() if self.steps else []:
            if line := render.startup_line(timed.step):
                self.say(line)
            last = timed.step.index + 1 == run.steps
            if last or time.monotonic() - self.shown_at_s >= SHOW_EVERY_S:
                self.say(render.step_line(timed.step, run.steps))
                self.shown_at_s = time.monotonic()

    def say(self, line: str) -> None:
        """A line of progress."""
        self.waits.above(f"{time.monotonic() - self.began_s:5.0f} s  {line}")
