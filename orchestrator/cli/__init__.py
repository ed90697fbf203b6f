"""The command line: commands parse arguments, call the API and print what it returns."""

import sys
from importlib import import_module

import click

from orchestrator.errors import OrchError, Usage
from orchestrator.show.terminal import report_output, report_unwritable

# The commands by what they are about, in the order in which they are used.
_GROUPS = {
    "Plan": "init schema plan explain prove score import export data",
    "Run": "submit runs status logs cancel resume rm",
    "Look": "report compare sync ui",
    "Machine": "doctor calibrate completion",
}
# A module is imported when one of its commands is named.
_MODULES = {
    "spec_commands": "init schema import export data",
    "plan_commands": "plan",
    "proof_commands": "explain prove score",
    "run_commands": "submit cancel resume rm",
    "look_commands": "runs status logs report compare sync ui doctor calibrate completion",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


class _LazyGroup(click.Group):
    """Imports a command when it is named, and lists commands below what they are about."""

    def list_commands(self, _: click.Context | None = None) -> list[str]:
        return " ".join(_GROUPS.values()).split()

    def get_command(self, _: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULE_OF:
            for name in _MODULE_OF:  # click says which one may be meant
                self.get_command(None, name)
            return None
        if cmd_name not in self.commands:
            module = import_module(f"orchestrator.cli.{_MODULE_OF[cmd_name]}")
            command: click.Command = getattr(module, f"{cmd_name}_command")
            _take_json(command)
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write columns of one width in all groups."""
        name_width = max(map(len, _MODULE_OF))
        text_width = formatter.width - name_width - 6
        for title, names in _GROUPS.items():
            commands = {name: self.get_command(None, name) for name in names.split()}
            short = {
                name: command.get_short_help_str(text_width)
                for name, command in commands.items()
                if command
            }
            with formatter.section(title):
                formatter.write_dl([(f"{name:{name_width}}", text) for name, text in short.items()])


def _take_json(command: click.Command) -> None:
    """Give --json to every command: one that prints no value prints its errors so."""
    for inner in getattr(command, "commands", {}).values():
        _take_json(inner)
    if not any("--json" in option.opts for option in command.params) and command.name != "pack":
        about = "Print an error as JSON."
        option = click.Option(["--json"], is_flag=True, expose_value=False, help=about)
        command.params.append(option)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="orch")
def orch() -> None:
    """Plan, prove, run and measure JAX training on TPU pods, from one YAML spec.

    Example: orch init my-run.yaml && orch plan my-run.yaml
    """


_take_json(orch)


def _help_command() -> str:
    """Return what shows the help of the command that was typed."""
    names: list[str] = ["orch"]
    command: click.Command | None = orch
    for word in sys.argv[1:]:
        context = click.Context(click.Command(None))
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
        if command is None:
            break
        names.append(word)
    return " ".join([*names, "--help"])


def main() -> None:
    """Run a command. Errors made on purpose end in their text and their exit code."""
    if sys.stdout is None:
        report_unwritable("it is closed")
        raise SystemExit(1)
    try:
        orch.main(standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, click.ClickException, OrchError) as error:
        raise SystemExit(_report(error)) from None
    except OSError as error:
        raise SystemExit(report_output(error)) from None


def _report(error: click.exceptions.Abort | click.ClickException | OrchError) -> int:
    """Print how a command failed; return its exit code."""
    # Most commands fail in no way, and what knows all errors is heavy to import.
    from orchestrator.cli.endings import report, report_abort  # noqa: PLC0415

    if isinstance(error, click.exceptions.Abort):
        return report_abort(interrupted=isinstance(error.__cause__, KeyboardInterrupt))
    if isinstance(error, OrchError):
        report(error)
    elif isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group with no command
        error.show()
    else:
        report(Usage(error.format_message(), next_command=_help_command()))
    return error.exit_code
