"""Command line room: what every command shares, its arguments and how it speaks."""

import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TextIO

import click

from orchestrator.lifecycle.events import interruptible
from orchestrator.render.layout import Screen
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec

WIDEST = 120  # columns of a screen on a wide terminal
SPEC = click.argument("spec", type=click.Path(path_type=Path, dir_okay=False))
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value of the spec, e.g. experiment.batch.sequences=2048. Repeatable.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the whole of it as JSON.")


def is_live(stream: TextIO) -> bool:
    """Whether it is a terminal that knows escape codes: lines can be rewritten there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def say(*texts: str) -> None:
    """Print; a screen fills a terminal's width and has styles there, unless NO_COLOR."""
    styled = is_live(sys.stdout) and not os.environ.get("NO_COLOR")
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for text in texts:
        shown = text.on_terminal(width) if styled and isinstance(text, Screen) else text
        click.echo(shown, nl=False)


def say_json(station: object) -> None:
    """Print a station's canonical text, indented."""
    from orchestrator.types import codec

    click.echo(codec.to_pretty_json(station), nl=False)


@contextmanager
def aside(as_json: bool) -> Iterator[None]:
    """Where the standard output is to hold JSON alone, say everything else on the error stream."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def next_command(name: str, spec: Path, overrides: tuple[str, ...], *more: str) -> str:
    """The exact command to type next, with the same overrides."""
    words = ["orch", name, str(spec)]
    for override in overrides:
        words += ["--set", override]
    return shlex.join([*words, *more])


def as_typed(*without: str) -> str:
    """The command that was typed, without some of its words."""
    return shlex.join(["orch", *(word for word in sys.argv[1:] if word not in without)])


def say_dry() -> int:
    """What to type to do it: the same, without --dry-run."""
    say(f"\nNothing was submitted: --dry-run.\nNext: {as_typed('--dry-run')}\n")
    return 0


def clear_line() -> None:
    """Remove the ^C that a terminal shows where it was pressed."""
    if is_live(sys.stderr):
        click.echo("\r\033[K", err=True, nl=False)


@interruptible("planning")
def make_plans(path: Path, overrides: tuple[str, ...], most: int) -> tuple[Spec, list[Plan]]:
    """From a file to its spec and its plans, best first."""
    from orchestrator import spec
    from orchestrator.plan.planner import make_plans as planned

    loaded = spec.load(path, overrides)
    return loaded, planned(loaded, most)


class Progress:
    """One line of how far something is; on a terminal it counts the seconds."""

    def __init__(self, what: str) -> None:
        self.what, self.began = what, time.monotonic()
        self.stage, self.done, self.lock = "", threading.Event(), threading.Lock()

    def reached(self, stage: str) -> None:
        self.stage = stage
        if not is_live(sys.stderr):
            click.echo(f"{self.what}: {stage}", err=True)

    def above(self, line: str) -> None:
        """Print a line that stays."""
        with self.lock:
            if is_live(sys.stderr):
                self.rewrite("")
            click.echo(line)

    def count(self) -> None:
        """Until it is done, rewrite the line each second."""
        while not self.done.wait(1):
            with self.lock:
                passed = time.monotonic() - self.began
                self.rewrite(f"{self.what}: {self.stage} ({passed:.0f} s)" if self.stage else "")
        self.rewrite("")

    def rewrite(self, text: str) -> None:
        click.echo(f"\r\033[K{text}", err=True, nl=False)


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show on the standard error stream how far something is, for as long as this lasts."""
    shown = Progress(what)
    counting = threading.Thread(target=shown.count)
    try:
        if is_live(sys.stderr):
            counting.start()
        with interruptible(what):
            yield shown
    finally:
        shown.done.set()
        if counting.ident:
            counting.join()
