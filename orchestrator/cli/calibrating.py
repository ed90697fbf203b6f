"""`orch calibrate`, and what a rehearsal has measured before it is submitted."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli.terminal import JSON, interruptible, progress, say, say_json

if TYPE_CHECKING:
    from orchestrator.plan.rehearsal import Rehearsal
    from orchestrator.types.chip_profile import ChipProfile

MEASURING = "measuring this machine"
NEXT = "orch submit specs/tiny_2pod.yaml"


@click.command()
@JSON
@interruptible(MEASURING)
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
    from orchestrator.calibrate import of_machine
    from orchestrator.render import calibration as render

    with progress(MEASURING) as shown:
        shown.reached("up to a minute or two")
        stored = of_machine()
    if as_json:
        say_json(stored.profile)
    else:
        say(render.screen(stored.profile, str(stored.path), NEXT))


def on_this_machine(small: "Rehearsal") -> "tuple[Rehearsal, ChipProfile]":
    """A rehearsal with a forecast from this machine's profile, and that profile.

    What the profile lacks for its shape is measured first, and stored for the next rehearsal.
    """
    from orchestrator.calibrate import for_plan
    from orchestrator.plan.calibrated import on_profile

    with progress(MEASURING) as shown:
        shown.reached("up to half a minute for a new shape")
        profile = for_plan(small.plan).profile
    return replace(small, plan=on_profile(small.plan, profile)), profile


COMMANDS = (calibrate,)
