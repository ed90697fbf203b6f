"""Say how a command failed: the message, and with --json the error as a value on stdout."""

import sys

from orchestrator.errors import Interrupted, OrchError
from orchestrator.lifecycle.interrupts import OperationInterrupted
from orchestrator.render.next_commands import as_typed
from orchestrator.render.screen_parts import fit
from orchestrator.render.terminal import ERROR, columns, echo, is_live, say_error, show


def report(error: OrchError) -> None:
    """Print the message and the next command; with --json also the error as a value, on stdout."""
    if isinstance(error, OperationInterrupted):
        over_mark = "\r\033[K" if is_live(sys.stderr) else ""  # a terminal shows ^C there
        print(over_mark, end="", file=sys.stderr, flush=True)
        error.next_command = error.next_command or as_typed()
    from orchestrator.lifecycle.next_steps import next_after  # noqa: PLC0415  most commands succeed

    error.next_command = error.next_command or next_after(error)
    report_json(error)
    refused = not isinstance(error, Interrupted)
    text = f"{ERROR} {error}" if refused else str(error)
    if error.is_prose or is_live(sys.stderr):  # a terminal itself would cut words
        text = fit(text, columns(sys.stderr), whole=error.quoted)
    say_error(text) if refused else echo(text, err=True)


def report_abort(*, interrupted: bool) -> int:
    """Report Ctrl-C, or an answer of no, which click has shown; the exit code."""
    if interrupted:
        echo("interrupted", err=True)
    report_json(Interrupted("interrupted" if interrupted else "not confirmed"))
    return Interrupted.exit_code


def report_json(error: OrchError) -> None:
    if "--json" in sys.argv:
        from orchestrator.lifecycle.error_reports import error_report  # noqa: PLC0415

        show(error_report(error), as_json=True)
