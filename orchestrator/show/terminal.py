"""Print texts, screens and JSON, on a terminal or into a pipe."""

import errno
import os
import re
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, TextIO

from orchestrator.run.progress import handled_by
from orchestrator.show import parts as ui
from orchestrator.values import codec

if TYPE_CHECKING:
    from rich.progress import Progress

_UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO)
_NOT_ASCII_CONTROL = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # JSON escapes the others
ERROR = "error:"  # how refusals begin
_KEY_S = 0.2  # that a key is waited for
_WIDEST = 120  # columns of a screen on a wide terminal


def is_live(stream: TextIO) -> bool:
    """Return whether it is a terminal that knows escape codes: lines can be rewritten there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _is_styled(stream: TextIO) -> bool:
    return is_live(stream) and not os.environ.get("NO_COLOR")


def columns(stream: TextIO) -> int:
    """Return the width of texts there: a terminal's, or what COLUMNS says; else WIDTH."""
    if not stream.isatty() and "COLUMNS" not in os.environ:
        return ui.WIDTH
    return min(shutil.get_terminal_size().columns, _WIDEST)


def say(*texts: str) -> None:
    """Print; a screen fills a terminal's width, and has styles where the terminal shows them."""
    width, styled = columns(sys.stdout), _is_styled(sys.stdout)
    for text in texts:
        if isinstance(text, ui.Screen) and (styled or width != ui.WIDTH):
            _write(text.on_terminal(width, styled=styled), sys.stdout)
        else:
            echo(text, nl=False)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text without what commands a terminal. Everything that a command says comes here."""
    _write(ui.visible(text) + ("\n" if nl else ""), sys.stderr if err else sys.stdout)


def say_error(text: str) -> None:
    """Print a refusal on the error stream; in a terminal ERROR is red, the next command bold."""
    begin, shown = ERROR, ui.visible(text.removeprefix(ERROR))
    if _is_styled(sys.stderr):
        begin = ui.with_style(ERROR, "red")
        above, newline, last = shown.rpartition("\n")
        if last.startswith(ui.NEXT):
            shown = f"{above}{newline}{ui.with_style(last, 'bold')}"
    _write(f"{begin}{shown}\n", sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    print(ui.in_encoding(text, stream.encoding or "utf-8"), end="", file=stream, flush=True)


def echo_json(text: str | bytes) -> None:
    """Print JSON, and keep its value: what commands a terminal is escaped."""
    readable = text.decode() if isinstance(text, bytes) else text
    escaped = _NOT_ASCII_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", readable)
    print(escaped, end="", flush=True)


def show(value: object, screens: Callable[[], str | list[str]] = list, *, as_json: bool) -> None:
    show_result(CommandResult(value, screens), as_json=as_json)


@dataclass(frozen=True)
class CommandResult:
    """What a command shows: a value for --json, screens, a file that was written, the exit code."""

    value: object
    screens: Callable[[], str | list[str]] = list
    exit_code: int = 0
    written: Path | None = None


def show_result(result: CommandResult, *, as_json: bool) -> None:
    """Print a value as indented JSON with every key, or its screens; end with its exit code."""
    if as_json:
        echo_json(codec.to_pretty_json(result.value))
        if result.written:
            echo(f"wrote {result.written}", err=True)
    else:
        shown = result.screens()
        texts = [shown] if isinstance(shown, str) else shown
        if result.written and texts and isinstance(last := texts[-1], ui.Screen):
            texts = [*texts[:-1], last.with_written(result.written)]
        say(*texts)
    if result.exit_code:
        raise SystemExit(result.exit_code)


def aside(as_json: bool) -> AbstractContextManager[object]:
    """Print everything on the error stream where the standard output is to hold only JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def report_output(error: OSError) -> int:
    """Report an output that takes no more; the exit code. Any other error is a bug."""
    if error.filename or error.errno not in (errno.EPIPE, *_UNWRITABLE):
        raise error
    # The interpreter must not complain at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # whoever read our output has read enough
        return 0
    report_unwritable(error.strerror)
    return 1


def report_unwritable(why: str | None) -> None:
    say_error(f"{ERROR} standard output: nothing more can be written there: {why}")


def keep_showing(make: Callable[[], ui.Screen], every_s: float) -> None:
    """Show a screen on the whole terminal and make it anew, until q or Ctrl-C; once on a pipe."""
    if not is_live(sys.stdout):
        say(make())
        return
    from rich.console import Console  # noqa: PLC0415  as below
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console, ends_s, made, drawn = Console(file=sys.stdout), 0.0, ui.screen(), (0, 0)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while pressed() not in ("q", "Q", "\x03"):
            if is_due := time.monotonic() >= ends_s:
                made, ends_s = make(), time.monotonic() + every_s
            size = console.size
            if is_due or size != drawn:
                drawn = size
                width = min(size.width, _WIDEST)
                lines = made.on_terminal(width, styled=_is_styled(sys.stdout)).splitlines()
                if len(lines) >= size.height:
                    hidden = len(lines) - size.height + 2
                    lines = [*lines[: size.height - 2], f"{hidden} more lines: a taller window"]
                text = ui.in_encoding("\n".join([*lines, "q ends it"]), console.encoding)
                live.update(Text.from_ansi(text), refresh=True)


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Yield a function that waits a moment for a key; an interrupt is the key of Ctrl-C."""
    interrupts = list[int]()
    with handled_by(lambda number, _: interrupts.append(number)):
        if not sys.stdin.isatty():

            def waited() -> str:
                time.sleep(_KEY_S)
                return "\x03" if interrupts else ""

            yield waited
            return
        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)

        def pressed() -> str:
            ready, _, _ = select.select([sys.stdin], [], [], _KEY_S)
            if interrupts:
                return "\x03"
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

        try:
            yield pressed
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# The bottom line of a terminal: a bar, what happens now, and for how long.

_BAR_COLUMNS = 20


class StatusLine:
    """The line is on stderr; `live` says whether that is a terminal that can redraw it."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self.drawn: Progress | None = None

    def update(self, text: str, share: float | None = None) -> None:
        """Show what happens, and the share of it that is done; without one the bar moves on."""
        if self.live and text:
            self.drawn = self.drawn or _start_line()
            task = self.drawn.tasks[0]
            task.total, task.completed = (None, 0.0) if share is None else (1.0, share)
            self.drawn.update(task.id, description=ui.visible(text))

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


@contextmanager
def telling_of(text: str, after_s: float = 2.0) -> Iterator[None]:
    """Say on stderr what takes so long, unless it ends before."""
    status = StatusLine(live=is_live(sys.stderr))

    def tell() -> None:
        status.update(text) if status.live else echo(text, err=True)

    timer = Timer(after_s, tell)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # what it draws is cleared
        status.clear()


def _start_line() -> "Progress":
    # Imported here: most commands draw no such line, and rich takes a while to import.
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    text = progress.TextColumn("{task.description}", markup=False)
    drawn = progress.Progress(
        progress.BarColumn(_BAR_COLUMNS), text, progress.TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    drawn.add_task("", total=None)
    drawn.start()
    return drawn
