"""Command line room: what every command shares, its arguments and how it speaks."""

import os
import shlex
import sys
from pathlib import Path

import click

from orchestrator.stations.plan import Plan
from orchestrator.stations.spec import Spec

SPEC = click.argument("spec", type=click.Path(path_type=Path, dir_okay=False))
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value of the spec, e.g. experiment.batch.sequences=2048. Repeatable.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the whole of it as JSON.")


def say(text: str) -> None:
    """Print; on a terminal the first line is bold and warnings are yellow, unless NO_COLOR."""
    if not (sys.stdout.isatty() and not os.environ.get("NO_COLOR")):
        click.echo(text, nl=False)
        return
    for i, line in enumerate(text.splitlines()):
        warns = line.startswith("warning:")
        click.echo(click.style(line, bold=i == 0 or None, fg="yellow" if warns else None))


def say_json(station: object) -> None:
    """Print a station's canonical text, indented."""
    from orchestrator.stations import codec

    click.echo(codec.to_pretty_json(station), nl=False)


def next_command(name: str, spec: Path, overrides: tuple[str, ...], *more: str) -> str:
    """The exact command to type next, with the same overrides."""
    words = ["orch", name, str(spec)]
    for override in overrides:
        words += ["--set", override]
    return shlex.join([*words, *more])


def make_plans(path: Path, overrides: tuple[str, ...], most: int) -> tuple[Spec, list[Plan]]:
    """From a file to its spec and its plans, best first."""
    from orchestrator import spec
    from orchestrator.plan.make import make_plans as planned

    loaded = spec.load(path, overrides)
    return loaded, planned(loaded, most)
