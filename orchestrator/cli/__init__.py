"""The command line: commands parse arguments, call the API and print what it returns."""

import sys

import click

from orchestrator.cli import (
    look_commands,
    machine_commands,
    plan_commands,
    run_commands,
    spec_commands,
)
from orchestrator.cli.endings import report, report_abort
from orchestrator.errors import OrchError, Usage
from orchestrator.show.terminal import report_output, report_unwritable

GROUPS = {
    "Plan": ("init", "schema", "plan", "explain", "prove", "score", "import", "export", "data"),
    "Run": ("submit", "runs", "status", "logs", "cancel", "resume", "rm"),
    "Look": ("report", "compare", "sync", "ui"),
    "Machine": ("doctor", "calibrate", "completion"),
}


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


def take_json(command: click.Command) -> None:
    """Give --json to every command: one that prints no value prints its errors so."""
    for inner in getattr(command, "commands", {}).values():
        take_json(inner)
    if not any("--json" in one.opts for one in command.params) and command.name != "pack":
        about = "Print an error as JSON."
        option = click.Option(["--json"], is_flag=True, expose_value=False, help=about)
        command.params.append(option)


take_json(orch)


def help_command() -> str:
    """What shows the help of the command that was typed."""
    names, commands = ["orch"], orch.commands
    for word in sys.argv[1:]:
        if word not in commands:
            break
        names, commands = [*names, word], getattr(commands[word], "commands", {})
    return " ".join([*names, "--help"])


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
        bare = isinstance(error, click.exceptions.NoArgsIsHelpError)  # a group with no command
        error.show() if bare else report(Usage(error.format_message(), next_command=help_command()))
        raise SystemExit(error.exit_code) from None
    except OrchError as error:
        report(error)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        raise SystemExit(report_output(error)) from None
