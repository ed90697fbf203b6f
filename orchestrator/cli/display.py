"""Shows the events of tasks: a status line on a terminal, calm lines on a pipe."""

import sys
import time
from typing import TYPE_CHECKING

import click

from orchestrator.cli.terminal import is_live
from orchestrator.lifecycle.events import Count, Problem, Stage, TaskEnded

if TYPE_CHECKING:
    from rich.progress import Progress

COUNT_EVERY_S = 2.0


class StatusLine:
    """One line on stderr that says what is going on, with its time. Only a terminal shows it."""

    def __init__(self) -> None:
        self.live = is_live(sys.stderr)
        self.drawn: Progress | None = None

    def update(self, text: str) -> None:
        if self.live and text:
            self.drawn = self.drawn or start_line()
            self.drawn.update(self.drawn.task_ids[0], description=text)

    def clear(self) -> None:
        if self.drawn:
            self.drawn.stop()
            self.drawn = None

    def above(self, line: str) -> None:
        """Print a line that stays on stdout. The status line may share its terminal."""
        if self.drawn:
            self.drawn.stop()
        click.echo(line)
        if self.drawn:
            self.drawn.start()


def start_line() -> "Progress":
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    drawn = Progress(
        SpinnerColumn(), text, TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    drawn.add_task("")
    drawn.start()
    return drawn


class TaskDisplay:
    """Called with each event of a task. On a pipe every stage is a line. A count that begins at 0
    has a line for its first and its last, or one now and then where no last is known.
    """

    def __init__(self) -> None:
        self.status = StatusLine()
        self.stage = ""
        self.counted_at_s: float | None = None

    def __call__(self, event: object) -> None:
        match event:
            case Stage():
                self.show_stage(event)
            case Count():
                self.show_count(event)
            case TaskEnded():
                self.status.clear()
                self.stage, self.counted_at_s = "", None
            case Problem(message=message):
                click.echo(f"warning: {message}", err=True)
            case _:
                raise TypeError(f"no way to show {type(event).__name__}")

    def show_stage(self, event: Stage) -> None:
        text = f"{event.task}: {event.stage}"
        self.status.update(f"{text}: {event.state}" if event.state else text)
        if not self.status.live and text != self.stage:
            click.echo(text, err=True)
        self.stage = text

    def show_count(self, event: Count) -> None:
        of = "" if event.total is None else f" of {event.total:,}"
        text = f"{event.task}: {event.done:,}{of} {event.unit}"
        self.status.update(text)
        if self.status.live or not self.is_due(event):
            return
        click.echo(text, err=True)
        self.counted_at_s = time.monotonic()

    def is_due(self, event: Count) -> bool:
        if event.total is None:
            self.counted_at_s = self.counted_at_s or time.monotonic()
            return time.monotonic() - self.counted_at_s >= COUNT_EVERY_S
        return event.done == (0 if self.counted_at_s is None else event.total)
