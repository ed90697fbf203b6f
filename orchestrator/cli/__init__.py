"""The command line: commands parse arguments, call the API and print what it returns."""

import sys
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import orchestrator as orch_api
from orchestrator import storage
from orchestrator.errors import Interrupted, OrchError, UnknownRun, Usage
from orchestrator.run.progress import RUNS
from orchestrator.show.terminal import echo, report_output, report_unwritable
from orchestrator.storage.addresses import address, reserved_name
from orchestrator.values.spec import Spec

# The commands by what they are about, in the order in which they are used.
_GROUPS = {
    "Plan": "init schema plan explain prove score import export data",
    "Run": "submit runs status logs cancel resume preflight rm",
    "Look": "report top profile compare sync ui",
    "Machine": "doctor calibrate completion",
}
# A module is imported when one of its commands is named.
_MODULES = {
    "spec_commands": "init schema import export data",
    "plan_commands": "plan",
    "proof_commands": "explain prove score",
    "run_commands": "submit cancel resume preflight rm",
    "look_commands": "runs status logs report top profile compare sync ui doctor calibrate"
    " completion",
}
_ELSEWHERE = {"diff": "plan", "watch": "top"}  # what other programs call a command
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
@click.pass_context
def orch(context: click.Context) -> None:
    """Plan, prove, run and measure JAX training on TPU pods, from one YAML spec.

    Example: orch init my-run.yaml && orch plan my-run.yaml
    """
    if context.obj:
        context.obj()


_take_json(orch)


def main(begun: Callable[[], object] = lambda: None) -> None:
    """Run a command, and call `begun` when it is imported and begins.

    Errors made on purpose end in their text and their exit code.
    """
    if sys.stdout is None:
        report_unwritable("it is closed")
        raise SystemExit(1)
    try:
        orch.main(standalone_mode=False, obj=begun)
        sys.stdout.flush()
    except (click.exceptions.Abort, click.ClickException, OrchError) as error:
        raise SystemExit(_report(error)) from None
    except OSError as error:
        raise SystemExit(report_output(error)) from None


def _report(error: click.exceptions.Abort | click.ClickException | OrchError) -> int:
    """Print how a command failed; return its exit code."""
    # Most commands fail in no way, and what knows all errors is heavy to import.
    from orchestrator.cli.endings import report, report_json  # noqa: PLC0415

    if isinstance(error, click.exceptions.Abort):
        what = "not confirmed"  # an answer of no, which click has shown
        if isinstance(error.__cause__, KeyboardInterrupt):
            what = "interrupted"
            echo(what, err=True)
        report_json(Interrupted(what))
        return Interrupted.exit_code
    if isinstance(error, OrchError):
        report(error)
    elif isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group with no command
        error.show()
    else:
        text, names = error.format_message(), typed_command()
        if len(names) == 1 and (meant := _ELSEWHERE.get(next(iter(sys.argv[1:]), ""))):
            text, names = f"{text} `orch {meant}` does that.", [*names, meant]
        report(Usage(text, next_command=" ".join([*names, "--help"])))
    return error.exit_code


def typed_command() -> list[str]:
    """Return the words of the command that was typed: `orch`, a command, and one of its own."""
    names, context = ["orch"], click.Context(click.Command(None))
    command: click.Group = orch
    for word in sys.argv[1:]:
        inner = command.get_command(context, word)
        names += [word] if inner else []
        if not isinstance(inner, click.Group):
            break
        command = inner
    return names


# The arguments and options that commands share.

ONE_STAGE = "one stage: name it with --stage N"


def complete_key(_: object, __: object, typed: str) -> list[str]:
    """Return the runs and studies of the folder at hand that begin so, for the shell."""
    # Nothing but a shell that completes a word needs journals here, and they are heavy to import.
    from orchestrator.journal.listing import list_journals, list_studies  # noqa: PLC0415

    studies, runs = list_studies(RUNS), list_journals(RUNS)
    keys = [*(study.key for study in studies), *(run.key for run in runs)]
    return [key for key in keys if key.startswith(typed)]


class _StorageFolder(click.Path):
    """A folder, or the address of a bucket: the folder of its copy here."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, parameter: Any, context: Any) -> Any:
        if isinstance(value, str) and "://" in value:
            if name := reserved_name(value):
                self.fail(f"{value}: no runs can be in a folder called {name}", parameter, context)
            return storage.folder(value)
        return super().convert(value, parameter, context)


FILE = click.Path(path_type=Path, dir_okay=False)
SPEC = click.argument("spec", type=FILE)
RUN_HELP = """RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's
directory."""
RUN = click.argument("run", shell_complete=complete_key)
NEWEST_HELP = f"{RUN_HELP} Without it, the newest run is meant, and named on the error stream."
OPTIONAL_RUN = click.argument("run", required=False, shell_complete=complete_key)
RUNS_OF = click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_key)
SET = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE",
    help="Override a value of the spec, e.g. experiment.batch.sequences=2048. Repeatable.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
BRIEF = click.option("--brief", "detail", flag_value="brief", help="Show only the verdict.")
FULL = click.option("--full", "detail", flag_value="full", help="Show every line of the ledgers.")
STAGE = click.option(
    "--stage", type=click.IntRange(1), metavar="N",
    help="Look at one stage only, in its place in the run.",
)  # fmt: skip
STORAGE = click.option(
    "--storage", type=_StorageFolder(), default=str(RUNS), show_default=True, metavar="DIR",
    help="Where the runs are: run.storage of their specs, a folder or gs://BUCKET/RUNS.",
)  # fmt: skip


def or_newest(run: str | None, storage: Path, states: Collection[str] = ()) -> str:
    """Return the run that was named, else the newest, and name it: in one of the states, if any."""
    if run is not None:
        return run
    found = orch_api.runs(storage)
    if not found:
        raise UnknownRun("run", "", [], address(storage))
    chosen = next((entry for entry in found if entry.state in states), found[0])
    which = "newest run that goes on" if chosen.state in states else "newest run"
    echo(f"{which}: {chosen.run}", err=True)
    return chosen.run


def has_many_plans(spec: Spec, stage: int | None) -> bool:
    return bool(spec.experiment.stages) and stage is None
