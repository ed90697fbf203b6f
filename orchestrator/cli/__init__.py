"""The command line: commands parse arguments, call the API and print what it returns."""

import errno
import os
import sys

import click

from orchestrator.cli import (
    look_commands,
    machine_commands,
    plan_commands,
    run_commands,
    spec_commands,
)
from orchestrator.cli.arguments import as_typed
from orchestrator.errors import Interrupted, OrchError, SpecError
from orchestrator.lifecycle.interrupts import OperationInterrupted
from orchestrator.render.screen_parts import fit
from orchestrator.render.terminal import echo, is_live, show

UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO)
GROUPS = {
    "Plan": ("init", "schema", "plan", "explain", "prove", "score", "import", "export", "data"),
    "Run": ("submit", "runs", "status", "logs", "cancel", "resume", "rm"),
    "Look": ("report", "compare", "sync", "ui"),
    "Machine": ("doctor", "calibrate", "completion"),
}


class Usage(SpecError):
    """The words of a command make no sense."""


class Grouped(click.Group):
    """Commands below what they are about, in the order in which they are used."""

    def list_commands(self, _: click.Context) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Columns of one width in all groups."""
        name_width = max(map(len, self.commands))
        text_width = formatter.width - name_width - 6
        for title, names in GROUPS.items():
            short = {name: self.commands[name].get_short_help_str(text_width) for name in names}
            with formatter.section(title):
                formatter.write_dl([(f"{name:{name_width}}", short[name]) for name in names])


@click.group(cls=Grouped, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="orch")
def orch() -> None:
    """Plan, prove, run and measure JAX training on TPU pods, from one YAML spec.

    Example: orch init my-run.yaml && orch plan my-run.yaml
    """


for module in (spec_commands, plan_commands, run_commands, look_commands, machine_commands):
    for command in module.COMMANDS:
        orch.add_command(command)


def main() -> None:
    """Run a command. Errors made on purpose end in their text and their exit code."""
    if sys.stdout is None:
        report_unwritable("it is closed")
        raise SystemExit(1)
    try:
        orch.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort as error:
        interrupted = isinstance(error.__cause__, KeyboardInterrupt)
        raise SystemExit(report_abort(interrupted=interrupted)) from None
    except click.ClickException as error:
        error.show()
        report_json(Usage(error.format_message()))
        raise SystemExit(error.exit_code) from None
    except OrchError as error:
        report(error)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        raise SystemExit(report_output(error)) from None


def report_abort(*, interrupted: bool) -> int:
    """Report Ctrl-C, or an answer of no, which click has shown; the exit code."""
    if interrupted:
        echo("interrupted", err=True)
    report_json(Interrupted("interrupted" if interrupted else "not confirmed"))
    return Interrupted.exit_code


def report(error: OrchError) -> None:
    """Print the message; with --json also the error as a value, on stdout."""
    if isinstance(error, OperationInterrupted):
        over_mark = "\r\033[K" if is_live(sys.stderr) else ""  # a terminal shows ^C there
        print(over_mark, end="", file=sys.stderr, flush=True)
        error.next_command = error.next_command or as_typed()
    report_json(error)
    text = fit(str(error), whole=error.quoted) if error.is_prose else str(error)
    echo(text, err=True)


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


def report_json(error: OrchError) -> None:
    if "--json" in sys.argv:
        from orchestrator.lifecycle.error_reports import error_report

        show(error_report(error), as_json=True)


def report_unwritable(why: str | None) -> None:
    echo(f"standard output: nothing more can be written there: {why}", err=True)
