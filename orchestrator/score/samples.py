"""Turns rows of published runs into samples: the measured step, and the ledger of the run."""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.errors import OrchError
from orchestrator.plan import flops
from orchestrator.plan.expected import StepWork, expected_s, interval, step_work
from orchestrator.plan.time import device_peak, peak, step_time
from orchestrator.score.cells import Unscorable
from orchestrator.score.flop_counts import (
    OURS,
    check_count,
    counted_flops_per_token,
    measured_step_s,
)
from orchestrator.score.published_runs import PublishedRun, run_of
from orchestrator.score.run_layout import LaidOutRun, lay_out
from orchestrator.types.score import SkippedRow


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A run that can be scored: its measured seconds, and the work in them."""

    run: PublishedRun
    measured_s: float
    laid_out: LaidOutRun
    todo: StepWork

    @property
    def lower_s(self) -> float:
        return self.laid_out.lower_s

    @property
    def mfu(self) -> float:
        """The measured MFU, by the project's one definition."""
        layout = self.laid_out.layout
        devices, per_device = int(layout.devices), device_peak(layout)
        return flops.mfu(self.flops_per_step, self.measured_s, devices, per_device)

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs by the project's definition; a window counts only what it sees."""
        run = self.run
        per_token = counted_flops_per_token(run, OURS)
        return per_token * run.sequences * run.length

    def expected_s(self, efficiency: catalog.Efficiency) -> float:
        layout, lines = self.laid_out.layout, self.laid_out.lines
        return float(expected_s(layout, lines, step_time(layout, lines), efficiency))

    def interval(self, efficiency: catalog.Efficiency) -> tuple[float, float]:
        layout, lines = self.laid_out.layout, self.laid_out.lines
        return interval(layout, lines, step_time(layout, lines), efficiency)


def sample_of(row: dict[str, str]) -> Sample:
    """One row; `Unscorable` says why it cannot be scored."""
    run = run_of(row)
    try:
        chip = catalog.chip(run.chip)
        at_peak = peak(chip, run.compute).value
    except OrchError as error:
        raise Unscorable(str(error)) from None
    check_count(run)
    laid_out = lay_out(run)
    return Sample(
        run=run,
        measured_s=measured_step_s(run, at_peak),
        laid_out=laid_out,
        todo=step_work(laid_out.layout, laid_out.lines),
    )


def samples(rows: Iterable[dict[str, str]]) -> tuple[list[Sample], list[SkippedRow]]:
    """The rows that can be scored, and the others with their reasons."""
    usable, skipped = [], []
    for row in rows:
        try:
            usable.append(sample_of(row))
        except Unscorable as reason:
            skipped.append(SkippedRow(id=row["id"], reason=str(reason)))
    return usable, skipped
