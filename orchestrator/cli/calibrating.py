"""Command line room: the command that measures this machine, and what rehearsals ask of it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli.terminal import JSON, is_live, progress, say, say_json
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

    Matmuls by type and size, memory, the trainer's attention and what stands between its matmuls,
    and collectives in one process and between two, each with its spread. It is kept as a chip
    profile, which its digest names. Rehearsals are forecast on the newest one of this machine; what
    it lacks for them they measure themselves.

    \b
    Exit status:
      0  the profile is kept
      1  the devices cannot be measured, or the profile cannot be kept

    \b
    Example:
      orch calibrate
      orch calibrate --json
    """
    import orchestrator as orch
    from orchestrator.cli.display import Display
    from orchestrator.render import calibration_screen as render

    kept = orch.calibrate(progress=Display())
    if as_json:
        say_json(kept.profile)
    else:
        say(render.calibration_screen(kept.profile, str(kept.path), NEXT))


def on_this_machine(small: "Rehearsal") -> "tuple[Rehearsal, ChipProfile]":
    """A rehearsal with its forecast on what this machine was measured to reach, and all of that.

    What is not known yet for its shape is measured, and kept for the next one.
    """
    from orchestrator.calibrate import for_plan
    from orchestrator.plan.calibrated import on_profile

    with measuring() as told:
        kept = for_plan(small.plan, told)
    return replace(small, plan=on_profile(small.plan, kept.profile)), kept.profile


@contextmanager
def measuring() -> Iterator[Callable[[int, int], None]]:
    """Show how many timings are done; where nobody watches, only the first and the last."""
    with progress("measuring this machine") as shown:

        def told(done: int, total: int) -> None:
            if is_live(sys.stderr) or done in (0, total):
                shown.reached(f"{done} of {total} timings")

        yield told


COMMANDS = (calibrate,)
