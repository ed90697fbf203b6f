"""Turns rows of published runs into samples: the measured step, and the ledger of the run."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot

from orchestrator import catalog
from orchestrator.errors import OrchError
from orchestrator.plan import flops
from orchestrator.plan.expected import expected_s
from orchestrator.plan.extrapolation import (
    STANDARD_DEVIATIONS,
    axis_values,
    deviation,
    interval,
    unseen,
)
from orchestrator.plan.step_work import StepWork, step_work
from orchestrator.plan.time import device_peak, peak, step_time
from orchestrator.score.cells import Unscorable
from orchestrator.score.flop_counts import (
    OURS,
    check_count,
    counted_flops_per_token,
    measured_step_s,
)
from orchestrator.score.published_runs import PublishedRun, run_of
from orchestrator.score.run_efficiency import added_share, as_run
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

    @property
    def averages_run(self) -> bool:
        """Whether its figure includes what a run does beside its steps."""
        return self.run.software.averages == "run"

    def axis_values(self) -> dict[str, float]:
        """Where the run lies on each axis of extrapolation."""
        return axis_values(self.laid_out.layout, self.todo, self.measured_s)

    def expected_s(self, efficiency: catalog.Efficiency) -> float:
        """The steady step, what its software adds, and what a whole run adds to its average."""
        layout, lines, own = self.laid_out.layout, self.laid_out.lines, as_run(efficiency, self.run)
        steady_s = float(expected_s(layout, lines, step_time(layout, lines), own))
        return (steady_s + self.overhead_s(efficiency)) / (1 - added_share(efficiency, self.run))

    def overhead_s(self, efficiency: catalog.Efficiency) -> float:
        return efficiency.run_overhead_s.value if self.averages_run else 0.0

    def interval(self, efficiency: catalog.Efficiency) -> tuple[float, float]:
        """The interval of the steady step, wider by how unsure the overhead of a whole run is."""
        layout, lines, own = self.laid_out.layout, self.laid_out.lines, as_run(efficiency, self.run)
        time, unsure_s = step_time(layout, lines), self.unsure_overhead_s(efficiency)
        low, high = interval(layout, lines, time, own)
        steady_s = float(expected_s(layout, lines, time, own))
        below, above = (hypot(end - steady_s, unsure_s) for end in (low, high))
        expected, share = self.expected_s(efficiency), 1 - added_share(efficiency, self.run)
        return max(expected - below / share, self.lower_s), expected + above / share

    def unsure_overhead_s(self, efficiency: catalog.Efficiency) -> float:
        """How far the overhead of a whole run may be off, in four of five cases."""
        unsure = STANDARD_DEVIATIONS * efficiency.run_overhead_s.unsure
        return unsure * self.overhead_s(efficiency)

    def uncertainty(self, efficiency: catalog.Efficiency) -> tuple[float, float]:
        """How far its figure may be off, as shares of it: for its constants, and for what no other
        run shows.
        """
        own, todo = as_run(efficiency, self.run), self.todo
        overhead = self.unsure_overhead_s(efficiency) / self.measured_s
        return hypot(deviation(todo, own), overhead), unseen(todo, self.axis_values(), own)


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
