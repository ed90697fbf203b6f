"""The arguments and options that commands share."""

from pathlib import Path
from typing import Any

import click

from orchestrator import storage
from orchestrator.run.progress import RUNS
from orchestrator.storage.addresses import reserved_name
from orchestrator.values.spec import Spec

ONE_STAGE = "one stage: name it with --stage N"


def complete_key(_: object, __: object, typed: str) -> list[str]:
    """Return the runs and studies of the folder at hand that begin so, for the shell."""
    # Nothing but a shell that completes a word needs journals here, and they are heavy to import.
    from orchestrator.journal.study_journal import keys_in  # noqa: PLC0415

    return [key for key in keys_in(RUNS) if key.startswith(typed)]


class _StorageFolder(click.Path):
    """A folder, or the address of a bucket: the folder of its copy here."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, parameter: Any, context: Any) -> Any:
        if isinstance(value, str) and storage.is_address(value):
            if name := reserved_name(value):
                self.fail(f"{value}: no runs can be in a folder called {name}", parameter, context)
            return storage.folder(value)
        return super().convert(value, parameter, context)


FILE = click.Path(path_type=Path, dir_okay=False)
SPEC = click.argument("spec", type=FILE)
RUN_HELP = """RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's
directory."""
RUN = click.argument("run", shell_complete=complete_key)
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


def has_many_plans(spec: Spec, stage: int | None) -> bool:
    """Return whether a spec has stages, of which none is chosen."""
    return bool(spec.experiment.stages) and stage is None
