"""Prints events: screens and lines on stdout, what is going on now on stderr.

A terminal shows the latter as one line that rich redraws. On a pipe every stage is a plain line,
and a count has one now and then.
"""

import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.render.status_line import StatusLine
from orchestrator.render.terminal import echo, is_live, say

if TYPE_CHECKING:
    from orchestrator.render.progress_text import ProgressText
    from orchestrator.types.progress_events import UnitsDone

COUNT_EVERY_S = 2.0


class Display:
    """Called with each event. `left` says whether a run goes on that is no longer followed."""

    def __init__(self, other_plans: str = "", *, detach: bool = False) -> None:
        self.other_plans, self.detach = other_plans, detach
        self.status = StatusLine(live=is_live(sys.stderr))
        self.left, self.stage, self.counted_at_s = False, "", time.monotonic()

    @cached_property
    def text(self) -> "ProgressText":
        """The words for events, which not every command has."""
        from orchestrator.render.progress_text import ProgressText  # noqa: PLC0415  slow

        return ProgressText(self.other_plans, detach=self.detach)

    def __call__(self, event: object) -> None:
        from orchestrator.types import progress_events as events  # noqa: PLC0415  slow

        match event:
            case events.Stage():
                self.status.update(self.text.stage(event))
                self.say_stage(f"{event.task}: {event.stage}")
            case events.UnitsDone():
                self.status.update(self.text.count(event), share_of(event.done, event.total))
                self.say_count(event)
            case events.TaskEnded():
                self.status.clear()
                self.text.status = self.stage = ""
            case events.NonFatalProblem(message=message):
                echo(f"warning: {message}", err=True)
            case _:
                self.left |= isinstance(event, events.LeftRunning)
                say(*self.text.screens(event))
                for line in self.text.lines(event):
                    with self.status.hidden():
                        echo(line)
                self.status.update(self.text.status, self.text.share)

    def say_stage(self, text: str) -> None:
        if not self.status.live and text != self.stage:
            echo(text, err=True)
        self.stage = text

    def say_count(self, event: "UnitsDone") -> None:
        if not self.status.live and time.monotonic() - self.counted_at_s >= COUNT_EVERY_S:
            echo(self.text.count(event), err=True)
            self.counted_at_s = time.monotonic()


def share_of(done: int, total: int | None) -> float | None:
    return done / total if total else None


def say_end(event: object) -> None:
    """The end of a run whose logs are followed, beside its lines."""
    from orchestrator.types.progress_events import RunUpdate  # noqa: PLC0415  slow

    if isinstance(event, RunUpdate):
        echo(f"{event.run.run}: {event.run.state}", err=True)
