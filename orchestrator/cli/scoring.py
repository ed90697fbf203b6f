"""Command line room: the command that holds forecasts against runs that others published."""

from pathlib import Path

import click

from orchestrator.cli.terminal import JSON, interruptible, say, say_json


@click.command()
@click.argument(
    "runs", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[RUNS.csv]"
)
@click.option(
    "--without",
    type=click.Choice(["document", "group"]),
    help="Learn anew without each document, or each source and chip, and score what was left out.",
)
@JSON
@interruptible("scoring")
def score(runs: Path | None, without: str | None, as_json: bool) -> None:
    """Hold the forecasts of published runs against them. They are planned as they were run.

    RUNS.csv has the columns of the project's own file, which is scored where none is named. A row
    that cannot be planned or converted is listed with its reason and is in no figure.

    \b
    Example:
      orch score
      orch score --without document
      orch score my-runs.csv --json
    """
    from orchestrator import score as room
    from orchestrator.render import score_screen as render

    path = runs or room.PUBLISHED
    found = room.without(without, path) if without else room.as_shipped(path)
    if as_json:
        say_json(found)
        return
    say(
        render.score_screen(found, "orch score --without document" if not without else "orch score")
    )


COMMANDS = (score,)
