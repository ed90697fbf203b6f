"""The bottom line of a terminal: a bar, what happens now, and for how long."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.render.screen_parts import visible

if TYPE_CHECKING:
    from rich.progress import Progress

BAR_COLUMNS = 20


class StatusLine:
    """The line is on stderr; `live` says whether that is a terminal that can redraw it."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self.drawn: Progress | None = None

    def update(self, text: str, share: float | None = None) -> None:
        """Show what happens, and the share of it that is done; without one the bar moves on."""
        if self.live and text:
            self.drawn = self.drawn or start_line()
            task = self.drawn.tasks[0]
            task.total, task.completed = (None, 0.0) if share is None else (1.0, share)
            self.drawn.update(task.id, description=visible(text))

    def clear(self) -> None:
        if self.drawn:
            self.drawn.stop()
            self.drawn = None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Clear the line before one that stays: stdout may be the same terminal."""
        if self.drawn:
            self.drawn.stop()
        yield
        if self.drawn:
            self.drawn.start()


def start_line() -> "Progress":
    # Imported here: most commands draw no such line, and rich takes a while to import.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    text = TextColumn("{task.description}", markup=False)
    drawn = Progress(
        BarColumn(BAR_COLUMNS), text, TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    drawn.add_task("", total=None)
    drawn.start()
    return drawn
