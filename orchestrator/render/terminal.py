"""Print texts, screens and JSON, on a terminal or into a pipe."""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TextIO

from orchestrator.render.screen_parts import Screen, visible, visible_json

UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO)
WIDEST = 120  # columns of a screen on a wide terminal


def is_live(stream: TextIO) -> bool:
    """Whether it is a terminal that knows escape codes: lines can be rewritten there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def say(*texts: str) -> None:
    """Print; a screen fills a terminal's width and has styles there, unless NO_COLOR."""
    styled = is_live(sys.stdout) and not os.environ.get("NO_COLOR")
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for text in texts:
        if styled and isinstance(text, Screen):
            print(text.on_terminal(width), end="", flush=True)
        else:
            echo(text, nl=False)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text without what commands a terminal. Everything that a command says comes here."""
    stream = sys.stderr if err else sys.stdout
    print(visible(text), end="\n" if nl else "", file=stream, flush=True)


def echo_json(text: str | bytes) -> None:
    """Print JSON, and keep its value: what commands a terminal is escaped."""
    print(visible_json(text), end="", flush=True)


def show(value: object, screens: Callable[[], str | list[str]] = list, *, as_json: bool) -> None:
    """Print a value as indented JSON, or its screens."""
    if as_json:
        from orchestrator.types import codec  # noqa: PLC0415  screens need no JSON

        echo_json(codec.to_pretty_json(value))
    else:
        texts = screens()
        say(*([texts] if isinstance(texts, str) else texts))


def aside(as_json: bool) -> AbstractContextManager[object]:
    """Print everything on the error stream where the standard output is to hold JSON alone."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def report_output(error: OSError) -> int:
    """Report an output that takes no more; the exit code. Any other error is a bug."""
    if error.filename or error.errno not in (errno.EPIPE, *UNWRITABLE):
        raise error
    # The interpreter must not complain at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # whoever read our output has read enough
        return 0
    report_unwritable(error.strerror)
    return 1


def report_unwritable(why: str | None) -> None:
    echo(f"standard output: nothing more can be written there: {why}", err=True)
