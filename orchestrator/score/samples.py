"""Score room: rows made ready to be learned from and judged: measured, and laid out as run."""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.errors import OrchError
from orchestrator.plan import flops
from orchestrator.plan.expected import StepWork, expected_s, interval, work
from orchestrator.plan.time import peak, step_time
from orchestrator.score.conventions import (
    OURS,
    check_count,
    counted_flops_per_token,
    measured_step_s,
)
from orchestrator.score.replay import Replay, replay
from orchestrator.score.runs import LeftOut, PublishedRun, run_of
from orchestrator.types.score import HeldOutRow


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A run that can be scored: its seconds, and what it had to do in them."""

    run: PublishedRun
    measured_s: float
    replayed: Replay
    todo: StepWork

    @property
    def lower_s(self) -> float:
        return self.replayed.lower_s

    @property
    def mfu(self) -> float:
        """Measured, by the project's one definition."""
        layout = self.replayed.layout
        per_device = peak(layout.chip, layout.precision.compute).value / layout.chip.devices
        return flops.mfu(self.flops_per_step, self.measured_s, int(layout.devices), per_device)

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs by the project's definition; windows count as what they leave."""
        run = self.run
        per_token = counted_flops_per_token(run, OURS)
        return per_token * run.sequences * run.length

    def expected_s(self, known: catalog.Efficiency) -> float:
        layout, lines = self.replayed.layout, self.replayed.lines
        return float(expected_s(layout, lines, step_time(layout, lines), known))

    def interval(self, known: catalog.Efficiency) -> tuple[float, float]:
        layout, lines = self.replayed.layout, self.replayed.lines
        return interval(layout, lines, step_time(layout, lines), known)


def sample_of(row: dict[str, str]) -> Sample:
    """One row; `LeftOut` says why it cannot be scored."""
    run = run_of(row)
    try:
        chip = catalog.chip(run.chip)
        at_peak = peak(chip, run.compute).value
    except OrchError as error:
        raise LeftOut(str(error)) from None
    check_count(run)
    replayed = replay(run)
    return Sample(
        run=run,
        measured_s=measured_step_s(run, at_peak),
        replayed=replayed,
        todo=work(replayed.layout, replayed.lines),
    )


def samples(rows: Iterable[dict[str, str]]) -> tuple[list[Sample], list[HeldOutRow]]:
    """All rows of a file: those that can be scored, and the others with their reasons."""
    good, left_out = [], []
    for row in rows:
        try:
            good.append(sample_of(row))
        except LeftOut as reason:
            left_out.append(HeldOutRow(id=row["id"], reason=str(reason)))
    return good, left_out
