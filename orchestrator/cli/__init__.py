"""Command line room: the only one that reads arguments, prints and exits."""

import errno
import os
import sys

import click

from orchestrator.cli import (
    calibrating,
    logs,
    machine,
    planning,
    proving,
    recording,
    reporting,
    resuming,
    running,
    scoring,
    submitting,
)
from orchestrator.errors import Interrupted, OrchError
from orchestrator.render.text import fit

UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO)


class InOrder(click.Group):
    """Commands in the order in which they are used, not of the alphabet."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="orch")
def orch() -> None:
    """Plan, prove, run and measure JAX training on TPU pods, from one YAML spec.

    \b
    Example:
      orch init my-run.yaml
      orch plan my-run.yaml
    """


for room in (
    planning, proving, calibrating, submitting, running, resuming, logs, reporting, recording,
    scoring, machine,
):  # fmt: skip
    for command in room.COMMANDS:
        orch.add_command(command)


def main() -> None:
    """Run a command. Errors made on purpose end in their text and their exit code."""
    if sys.stdout is None:
        say_unwritten("it is closed")
        raise SystemExit(1)
    try:
        orch.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            click.echo("interrupted", err=True)
        raise SystemExit(Interrupted.exit_code) from None
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except OrchError as error:
        click.echo(fit(str(error)) if error.is_prose else str(error), err=True)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        # Whoever read our output has read enough; the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say_unwritten(error.strerror)
        raise SystemExit(1) from None


def say_unwritten(why: str | None) -> None:
    click.echo(f"standard output: nothing more can be written there: {why}", err=True)
