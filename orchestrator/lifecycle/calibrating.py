"""Chip profiles of this machine, measured with progress events."""

from dataclasses import replace

from orchestrator.calibrate import StoredProfile, measure_devices, measure_plan, stored_profile
from orchestrator.extras import require
from orchestrator.lifecycle.progress import Progress, silent, task
from orchestrator.lifecycle.requests import Provenance
from orchestrator.plan.calibrated import with_profile
from orchestrator.plan.rehearsal import Rehearsal
from orchestrator.types.codec import to_pretty_json
from orchestrator.types.progress_events import Stage

PROFILE_DOCUMENT = "chip_profile.json"
TASK = "measuring this machine"


def measure_machine(progress: Progress | None = None) -> StoredProfile:
    """A new profile of this machine's devices."""
    require("prove")
    progress = progress or silent
    with task(progress, TASK):
        progress(Stage(task=TASK, stage="it takes a minute or two"))
        return measure_devices()


def calibrated_rehearsal(
    rehearsal: Rehearsal, provenance: Provenance, progress: Progress
) -> tuple[Rehearsal, Provenance]:
    """A rehearsal with a forecast from this machine's profile, and its provenance with the profile.

    What the profile lacks for this plan is measured first, and stored for the next one.
    """
    stored = stored_profile(rehearsal.plan)
    if stored is None:
        with task(progress, TASK):
            progress(Stage(task=TASK, stage="a step with few layers, about a minute"))
            stored = measure_plan(rehearsal.plan)
    document = to_pretty_json(stored.profile).encode()
    plan = with_profile(rehearsal.plan, stored.profile)
    return replace(rehearsal, plan=plan), provenance.with_document(PROFILE_DOCUMENT, document)
