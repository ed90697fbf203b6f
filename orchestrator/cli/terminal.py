"""What commands share: their arguments, and how they print."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click

from orchestrator.render.next_commands import RUNS
from orchestrator.render.screen_parts import Screen, visible, visible_json

WIDEST = 120  # columns of a screen on a wide terminal


def complete_key(_: object, __: object, typed: str) -> list[str]:
    """The runs and studies of the folder at hand that begin so, for the shell to complete."""
    from orchestrator import journal

    studies, runs = journal.list_studies(RUNS), journal.list_runs(RUNS)[0]
    keys = [*(one.key for one in studies), *(one.run for one in runs)]
    return [key for key in keys if key.startswith(typed)]


SPEC = click.argument("spec", type=click.Path(path_type=Path, dir_okay=False))
RUN_HELP = """RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's
directory."""
RUN = click.argument("run", shell_complete=complete_key)
SET = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE",
    help="Override a value of the spec, e.g. experiment.batch.sequences=2048. Repeatable.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
STORAGE = click.option(
    "--storage", type=click.Path(path_type=Path, file_okay=False), default=RUNS, show_default=True,
    metavar="DIR", help="Where the runs are: run.storage of their specs.",
)  # fmt: skip


def is_live(stream: TextIO) -> bool:
    """Whether it is a terminal that knows escape codes: lines can be rewritten there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def say(*texts: str) -> None:
    """Print; a screen fills a terminal's width and has styles there, unless NO_COLOR."""
    styled = is_live(sys.stdout) and not os.environ.get("NO_COLOR")
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for text in texts:
        if styled and isinstance(text, Screen):
            click.echo(text.on_terminal(width), nl=False)
        else:
            echo(text, nl=False)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text without what commands a terminal. Everything that a command says comes here."""
    click.echo(visible(text), err=err, nl=nl)


def echo_json(text: str | bytes) -> None:
    """Print JSON, and keep its value: what commands a terminal is escaped."""
    click.echo(visible_json(text), nl=False)


def show(value: object, screens: Callable[[], str | list[str]] = list, *, as_json: bool) -> None:
    """Print a value as indented JSON, or its screens."""
    if as_json:
        from orchestrator.types import codec

        echo_json(codec.to_pretty_json(value))
    else:
        texts = screens()
        say(*([texts] if isinstance(texts, str) else texts))


def as_typed(*without: str) -> str:
    """The command that was typed, without some of its words."""
    return shlex.join(["orch", *(word for word in sys.argv[1:] if word not in without)])
