"""Command line room: a study, from its file to its plans."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from orchestrator.cli.terminal import next_command, say, say_json
from orchestrator.errors import Unservable
from orchestrator.stations.plan import Plan
from orchestrator.stations.study import Study

UNSERVED = 2
SHOW_AFTER_S = 2.0


def is_study(path: Path) -> bool:
    """Whether a file is about a study and not a spec."""
    from orchestrator import spec

    return spec.is_study(path)


def plan_study(path: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """The predicted scaling of a study; exit 2 where a trial cannot be served."""
    from orchestrator import spec
    from orchestrator import study as room
    from orchestrator.render import study as render

    asked = spec.load_study(path, overrides)
    made = planned(asked)
    found = room.forecast(asked, made)
    refused = any(one.refused for one in found.trials)
    if as_json:
        say_json(found)
    else:
        say(render.screen(found, "" if refused else next_command("submit", path, overrides)))
    if refused:
        raise SystemExit(UNSERVED)


def planned(study: Study) -> dict[int, Plan | str]:
    """The plan of each trial, or why there is none."""
    from orchestrator.plan.make import make_plan

    made: dict[int, Plan | str] = {}
    with counted("planned", len(study.trials)) as count:
        for trial in study.trials:
            try:
                made[trial.number] = make_plan(trial.spec)
            except Unservable as error:
                made[trial.number] = str(error)
            count(trial.number)
    return made


@contextmanager
def counted(what: str, of: int) -> Iterator[Callable[[int], None]]:
    """On a terminal, a line that counts, from the time on that a person begins to wonder."""
    began, shown = time.monotonic(), sys.stderr.isatty()

    def count(number: int) -> None:
        if shown and time.monotonic() - began > SHOW_AFTER_S:
            click.echo(f"\r\033[K{what} {number} of {of}", err=True, nl=False)

    yield count
    if shown:
        click.echo("\r\033[K", err=True, nl=False)
