"""The commands that write specs, or make another text of one: init, schema, import, export."""

import sys
from pathlib import Path
from typing import cast

import click

import orchestrator as orch
from orchestrator.cli import FILE, JSON, RUN, SET, SPEC, STORAGE
from orchestrator.interop.kubernetes import ManifestKind
from orchestrator.interop.maxtext.exported_run import script_of
from orchestrator.reading.examples import yaml_text
from orchestrator.run.progress import interruptible, spec_command
from orchestrator.show import parts as ui
from orchestrator.show.machine_screens import key_help_screen, weights_screen
from orchestrator.show.progress import Display
from orchestrator.show.terminal import echo, say, show
from orchestrator.values.run import WeightType


@click.command("init")
@click.argument("path", required=False, type=FILE)
@click.option("--list", "as_list", is_flag=True, help="List the examples that can be copied.")
@click.option("--from", "example", metavar="NAME", help="Copy this example, or the spec of a file.")
@SET
def init_command(
    path: Path | None, as_list: bool, example: str | None, overrides: tuple[str, ...]
) -> None:
    """Write a small commented spec to start from. An existing file is never overwritten.

    The JSON Schema is written next to it, into .orch/, for editors.

    \b
    Example:
      orch init my-run.yaml
      orch init --list
      orch init --from llama3_70b_4pod my-pods.yaml
      orch init --from my-pods.yaml --set resources.pods=2 my-two-pods.yaml
    """
    if as_list:
        rows = ui.Table(list(orch.examples().items()), "<w")
        leading = "orch init --from llama3_8b_v6e_2slice my-run.yaml"  # the README's example
        say(ui.screen([rows], ui.next_step(leading)))
        return
    written = orch.create_spec(path, example, overrides)
    echo(f"wrote {written}\nNext: {spec_command('plan', written, ())}")


@click.command("schema")
@click.argument("output", required=False, metavar="[OUTPUT]")
@click.option("--study", "of_study", is_flag=True, help="Print the schema of a study.")
@click.option("--key", metavar="KEY", help="Show what a key of a spec means and takes.")
def schema_command(output: str | None, of_study: bool, key: str | None) -> None:
    """Print the JSON Schema of a spec. Editors complete and check specs with it.

    OUTPUT is serving, the schema of a serving spec, or what a command prints with --json, with all
    its keys: error, plan, plan-diff, scaling, sweep, offers, serving-plan, serving-offers,
    serving-frontier, serving-load, serving-explanation, serving-score, explanation, proof,
    proof-diff, score, own-score, gpu-score, program-search, run, status, study-status, log-line,
    report, step-profile, scaling-report, sweep-report, sync, weights, health, host-check,
    run-health or profile.

    \b
    Example:
      orch schema --study > study.schema.json
      orch schema plan > plan.schema.json
      orch schema --key experiment.batch
    """
    if key:
        say(key_help_screen(orch.key_help(key), "orch init --list"))
        return
    if of_study and output:
        raise click.UsageError("--study goes without OUTPUT")
    echo(orch.schema("study" if of_study else output or "spec"), nl=False)


@click.group("export")
def export_command() -> None:
    """Print manifests or scripts, or write weights.

    cluster.kubernetes of a SPEC has the image, the queue and more of its manifests.

    \b
    Example:
      orch export ray specs/llama3_70b_4pod.yaml > cluster.yaml
      orch export rayjob my-run.yaml --set cluster.kubernetes.queue=tpus | kubectl apply -f -
      orch export slurm my-h100.yaml > run.sh
      orch export maxtext specs/llama3_8b_1slice.yaml > run.sh
      orch export huggingface my-run weights/
    """


def _add_export(kind: str, about: str) -> None:
    @export_command.command(kind, help=about)
    @SPEC
    @SET
    @interruptible("planning")
    def command(spec: Path, overrides: tuple[str, ...]) -> None:
        if kind == "slurm":
            text = orch.export_slurm(spec, overrides)
        elif kind == "maxtext":
            text = script_of(orch.export_maxtext(spec, overrides))
        else:
            text = yaml_text(orch.export(cast(ManifestKind, kind), spec, overrides))
        echo(text, nl=False)


_add_export("ray", "Print a RayCluster for orch submit --address.")
_add_export("rayjob", "Print a RayJob: a cluster that runs SPEC and ends.")
_add_export("jobset", "Print a JobSet that runs SPEC without Ray.")
_add_export("slurm", "Print an sbatch script that runs SPEC on nodes of GPUs.")
_add_export(
    "maxtext",
    "Print the script that runs the plan of SPEC with MaxText.\n\nIt has MaxText's keys, the flags"
    " of the compiler and xpk's command. What MaxText has no words for is refused by its key.",
)


@export_command.command()
@RUN
@click.argument("out", type=click.Path(path_type=Path))
@STORAGE
@click.option("--type", "dtype", type=click.Choice(["fp32", "bf16"]), help="Default: as trained.")
@click.option("--step", type=int, metavar="N", help="The checkpoint of this step, not the newest.")
@JSON
@interruptible("writing the weights", "nothing is left of them")
def huggingface(
    run: str, out: Path, storage: Path, dtype: WeightType | None, step: int | None, as_json: bool
) -> None:
    """Write the weights of RUN for transformers.

    OUT is a new folder: config.json, safetensors, and the tokenizer if the run had one.

    Example: orch export huggingface my-run weights/ --type bf16
    """
    written = orch.export_weights(run, out, storage, dtype=dtype, step=step, progress=Display())
    show(written, lambda: weights_screen(written), as_json=as_json)


@click.group("import")
def import_command() -> None:
    """Print the spec of a run of another tool."""


@import_command.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--device-type", metavar="TYPE", help="The chips, as xpk calls them: v6e-256.")
@click.option("--slices", type=click.IntRange(1), metavar="N", help="How many slices of them.")
@click.option(
    "--command", type=click.IntRange(1), metavar="N", help="Which command, if several train."
)
def maxtext(
    sources: tuple[str, ...], device_type: str | None, slices: int | None, command: int | None
) -> None:
    """Print the spec of a run that was written for MaxText.

    A SOURCE is a file (YAML of its keys, a shell script with its command and xpk's) or words
    key=value; a later one overrides an earlier one. Every key is used, known not to matter, or
    refused by name. What the spec says otherwise goes to the error stream.

    \b
    Example:
      orch import maxtext run_recipe.sh > spec.yaml
      orch import maxtext "model_name=llama3-70b per_device_batch_size=4" --device-type v6e-256
    """
    found = orch.import_maxtext(sources, device=device_type, slices=slices, command=command)
    for note in found.notes:
        echo(f"note: {note}", err=True)
    if found.irrelevant:
        echo(f"not needed for a plan: {', '.join(found.irrelevant)}", err=True)
    echo(yaml_text([found.values]), nl=False)


@click.group("data")
def data_command() -> None:
    """Make token sets to train on."""


@data_command.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def pack(arguments: tuple[str, ...]) -> None:
    """Pack text, JSON lines or Parquet into a token set."""
    sys.exit(orch.pack(arguments))
