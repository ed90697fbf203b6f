"""Command line room: the commands about this machine and this shell."""

from pathlib import Path

import click

from orchestrator.cli.running import STORAGE
from orchestrator.cli.terminal import JSON, say, say_json

SHELLS = ("bash", "zsh", "fish")


@click.command()
@STORAGE
@JSON
def doctor(storage: Path, as_json: bool) -> None:
    """Tell what this machine can do, and what to do about what it cannot.

    It looks and changes nothing. Ends in 1 when something that most commands need is broken.

    \b
    Example:
      orch doctor
    """
    from orchestrator.doctor import checkup
    from orchestrator.render import checkup as render

    found = checkup(storage)
    if as_json:
        say_json(found)
    else:
        say(render.text(found))
    raise SystemExit(1 if found.broken else 0)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and files.

    \b
    Example:
      eval "$(orch completion bash)"
      orch completion fish > ~/.config/fish/completions/orch.fish
    """
    from click.shell_completion import get_completion_class

    from orchestrator.cli import orch

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(orch, {}, "orch", "_ORCH_COMPLETE").source())


COMMANDS = (doctor, completion)
