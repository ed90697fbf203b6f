"""Shows events on the terminal: lines that stay on stdout, a status line on stderr.

On a terminal rich redraws the status line. On a pipe every stage is one plain line, and of a count
the first and the last.
"""

import sys
from functools import singledispatchmethod
from typing import TYPE_CHECKING

import click

from orchestrator.cli.terminal import is_live
from orchestrator.lifecycle.events import Count, Stage, TaskEnded

if TYPE_CHECKING:
    from rich.progress import Progress


class StatusLine:
    """One line below all others that says what is going on, with its time; terminals only."""

    def __init__(self) -> None:
        self.live = is_live(sys.stderr)
        self.drawn: Progress | None = None

    def update(self, text: str) -> None:
        if self.live and text:
            self.drawn = self.drawn or started_line()
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


def started_line() -> "Progress":
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


class Display:
    """Called with each event of an act."""

    def __init__(self) -> None:
        self.status = StatusLine()

    def __call__(self, event: object) -> None:
        self.show(event)

    @singledispatchmethod
    def show(self, event: object) -> None:
        raise TypeError(f"no way to show {type(event).__name__}")

    @show.register
    def _(self, event: Stage) -> None:
        self.status.update(f"{event.task}: {event.stage}")
        if not self.status.live:
            click.echo(f"{event.task}: {event.stage}", err=True)

    @show.register
    def _(self, event: Count) -> None:
        of = "" if event.total is None else f" of {event.total:,}"
        text = f"{event.task}: {event.done:,}{of} {event.unit}"
        self.status.update(text)
        if not self.status.live and event.done in (0, event.total):
            click.echo(text, err=True)

    @show.register
    def _(self, _: TaskEnded) -> None:
        self.status.clear()
