"""Chip profiles of this machine, measured with their progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.calibrate import for_plan, of_machine
from orchestrator.calibrate.shelf import Kept
from orchestrator.lifecycle.events import Count, Progress, silent, task
from orchestrator.plan.calibrated import on_profile
from orchestrator.plan.rehearsal import Rehearsal
from orchestrator.types.chip_profile import ChipProfile

TASK = "measuring this machine"


def measure_machine(progress: Progress | None = None) -> Kept:
    """A new profile of the devices of this machine."""
    with _counting(progress or silent) as count:
        return of_machine(count)


def calibrated_rehearsal(rehearsal: Rehearsal, progress: Progress) -> tuple[Rehearsal, ChipProfile]:
    """A rehearsal with its forecast on this machine's profile, and the profile.

    What the profile lacks for this plan is measured and kept for the next one.
    """
    with _counting(progress) as count:
        profile = for_plan(rehearsal.plan, count).profile
    return replace(rehearsal, plan=on_profile(rehearsal.plan, profile)), profile


@contextmanager
def _counting(progress: Progress) -> Iterator[Callable[[int, int], None]]:
    def count(done: int, total: int) -> None:
        progress(Count(task=TASK, done=done, total=total, unit="timings"))

    with task(progress, TASK):
        yield count
