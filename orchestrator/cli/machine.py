"""Command line room: the commands about this machine and this shell."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.running import STORAGE
from orchestrator.cli.terminal import JSON, say, say_json
from orchestrator.lifecycle.events import interruptible

if TYPE_CHECKING:
    from orchestrator.types.health import Finding

SHELLS = ("bash", "zsh", "fish")


@click.command()
@STORAGE
@click.option("--address", metavar="ADDRESS", help="A cluster to look for, besides RAY_ADDRESS.")
@JSON
@interruptible("looking at this machine")
def doctor(storage: Path, address: str | None, as_json: bool) -> None:
    """Tell what this machine can do. What it cannot comes with what to do.

    It looks and changes nothing. The exit status is 1 when something that most commands need is
    broken, or a cluster or MLflow server that is named does not answer.

    \b
    Example:
      orch doctor
      orch doctor --address http://10.0.0.2:8265
    """
    from orchestrator.doctor import checks
    from orchestrator.render import doctor_screen as render
    from orchestrator.types.health import HealthReport

    named = address or os.environ.get("RAY_ADDRESS")
    clusters = (cluster(named),) if named else ()
    found = HealthReport(findings=(*checks.of_machine(storage), recorded(storage), *clusters))
    if as_json:
        say_json(found)
    else:
        say(render.doctor_screen(found))
    raise SystemExit(1 if found.broken else 0)


def recorded(storage: Path) -> "Finding":
    """Where runs are recorded, and whether a server answers there."""
    from orchestrator.doctor import checks
    from orchestrator.tracking import destination
    from orchestrator.types.spec import TrackingOptions

    return checks.store(destination(TrackingOptions(), storage, os.environ))


def cluster(address: str) -> "Finding":
    """Whether a named cluster lets us in."""
    from orchestrator.doctor import checks
    from orchestrator.launch.ray.job_client import ClusterUnusable, RayJobs

    try:
        RayJobs(address)
    except ClusterUnusable as error:
        return checks.broken("cluster", str(error), "docs/launch.md tells how to reach one")
    return checks.good("cluster", f"{address} answers; orch submit SPEC --dry-run asks for slices")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete words of orch.

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
