"""`orch calibrate`, and what a rehearsal has measured before it is submitted."""

from typing import TYPE_CHECKING

import click

from orchestrator.cli.terminal import JSON, say, say_json
from orchestrator.lifecycle.events import interruptible

if TYPE_CHECKING:
    from orchestrator.plan.rehearsal import Rehearsal
    from orchestrator.types.chip_profile import ChipProfile

NEXT = "orch submit specs/tiny_2pod.yaml"


@click.command()
@JSON
@interruptible("measuring this machine")
def calibrate(as_json: bool) -> None:
    """Measure what this machine's devices reach. It takes a minute or two.

    It times matmuls, the trainer's attention, elementwise operations, copies, and collectives in
    one process and between two. The result is a chip profile; its digest is its name. A rehearsal
    is forecast with the newest profile of this machine, and measures what that profile lacks.

    \b
    Exit status:
      0  the profile is stored
      1  the devices cannot be measured, or the profile cannot be stored

    \b
    Example:
      orch calibrate
      orch calibrate --json
    """
    import orchestrator as orch
    from orchestrator.cli.display import Display
    from orchestrator.render import calibration_screen as render

    stored = orch.calibrate(progress=Display())
    if as_json:
        say_json(stored.profile)
    else:
        say(render.calibration_screen(stored.profile, str(stored.path), NEXT))


def on_this_machine(small: "Rehearsal") -> "tuple[Rehearsal, ChipProfile]":
    """A rehearsal with a forecast from this machine's profile, and that profile."""
    from orchestrator.cli.display import Display
    from orchestrator.lifecycle.calibrating import calibrated_rehearsal

    return calibrated_rehearsal(small, Display())


COMMANDS = (calibrate,)
