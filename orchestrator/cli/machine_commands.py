"""The commands about this machine and this shell: doctor, calibrate, completion."""

from pathlib import Path

import click

import orchestrator as orch
from orchestrator.cli.arguments import JSON, STORAGE, complete_key
from orchestrator.run.next_commands import run_command
from orchestrator.run.progress import interruptible
from orchestrator.show.progress import Display
from orchestrator.show.terminal import CommandResult, echo, show, show_result


@click.command()
@click.argument("run", required=False, shell_complete=complete_key)
@STORAGE
@click.option("--address", metavar="ADDRESS", help="A cluster to look for, besides RAY_ADDRESS.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired of RUN.")
@JSON
@interruptible("looking at this machine")
def doctor(
    run: str | None, storage: Path, address: str | None, repair: bool, as_json: bool
) -> None:
    """Check what this machine can do, or the files of RUN. It gives advice for the rest.

    Without --repair it changes nothing. The exit status is 1 when something that most commands
    need is broken, a cluster or MLflow server that is named does not answer, or RUN cannot go on.

    Example: orch doctor --address http://10.0.0.2:8265
    """
    from orchestrator.show.machine_screens import doctor_screen, run_doctor_screen

    if repair and run is None:
        raise click.UsageError("--repair: name the run to repair")
    if run is not None:
        health = orch.doctor_run(run, storage, repairs=repair)
        more = run_command("doctor", health.run, storage, "--repair")
        result = CommandResult(health, lambda: run_doctor_screen(health, more), int(health.stops))
    else:
        found = orch.doctor(storage, address=address)
        result = CommandResult(found, lambda: doctor_screen(found), int(found.broken > 0))
    show_result(result, as_json=as_json)


@click.command()
@JSON
@interruptible("measuring this machine")
def calibrate(as_json: bool) -> None:
    """Measure the rates of this machine's devices. It takes a minute or two.

    It times matmuls, copies and the trainer's attention on one device. The result is a chip
    profile; its digest is its name, and `orch plan --profile DIGEST` forecasts with its rates. A
    rehearsal measures its own step, and adds it to the newest profile of this machine.

    \b
    Exit status:
      0  the profile is stored
      1  the devices cannot be measured, or the profile cannot be stored

    Example: orch calibrate --json
    """
    from orchestrator.show.machine_screens import calibration_screen

    stored = orch.calibrate(progress=Display())
    profile, path = stored.profile, str(stored.path)
    show(profile, lambda: calibration_screen(profile, path), as_json=as_json)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell completion script.

    Example: eval "$(orch completion bash)"
    """
    from click.shell_completion import get_completion_class

    from orchestrator.cli import orch as commands

    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(commands, {}, "orch", "_ORCH_COMPLETE").source())


COMMANDS = (doctor, calibrate, completion)
