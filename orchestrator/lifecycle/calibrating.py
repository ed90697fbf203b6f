"""Chip profiles of this machine, measured with progress events."""

from dataclasses import replace

from orchestrator.calibrate import StoredProfile, for_plan, of_machine
from orchestrator.extras import require
from orchestrator.lifecycle.progress import Progress, silent, task
from orchestrator.plan.calibrated import with_profile
from orchestrator.plan.rehearsal import Rehearsal
from orchestrator.types.chip_profile import ChipProfile
from orchestrator.types.events import Stage

TASK = "measuring this machine"


def measure_machine(progress: Progress | None = None) -> StoredProfile:
    """A new profile of this machine's devices."""
    require("prove")
    progress = progress or silent
    with task(progress, TASK):
        progress(Stage(task=TASK, stage="it takes a minute or two"))
        return of_machine()


def calibrated_rehearsal(rehearsal: Rehearsal, progress: Progress) -> tuple[Rehearsal, ChipProfile]:
    """A rehearsal with a forecast from this machine's profile, and that profile.

    What the profile lacks for this plan is measured first, and stored for the next one.
    """
    with task(progress, TASK):
        progress(Stage(task=TASK, stage="up to half a minute for a new shape"))
        profile = for_plan(rehearsal.plan).profile
    return replace(rehearsal, plan=with_profile(rehearsal.plan, profile)), profile
