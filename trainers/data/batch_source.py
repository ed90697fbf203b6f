"""A source of batches: its contract, the source of a plan, and the data of a run that resumes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.storage.inputs import input_path
from orchestrator.types.plan import Plan
from trainers.data.synthetic import Synthetic
from trainers.data.tokens import ShuffledWindows, open_for


class BatchSource(Protocol):
    """A source of batches. The same step and row always give the same tokens, on any host."""

    @property
    def digest(self) -> str:
        """Identity of the text: sources of equal digest hold the same tokens."""
        ...

    def batch(self, step: int, rows: range) -> np.ndarray:
        """Token ids int32 [rows, length + 1] of some rows of the batch of this step."""
        ...


def batch_source(plan: Plan, folder: Path = Path(), *, verify: bool = False) -> BatchSource:
    """The batches of a plan's data; `verify` first reads a token set through.

    A relative path begins at `folder`, the spec's, so a plan is the same in every checkout.
    """
    stage = plan.stage
    if plan.data.kind == "synthetic":
        number = stage.number - 1 if stage else 0
        return Synthetic(plan.model.vocab, plan.batch.length, plan.seed, number)
    source = open_for(plan.model.vocab, input_path(folder, _manifest(plan)), verify=verify)
    return ShuffledWindows(
        source,
        plan.batch.sequences,
        plan.batch.length,
        plan.seed,
        first_token=stage.first_token if stage else 0,
        most_windows=stage.steps * plan.batch.sequences if stage else None,
    )


def _manifest(plan: Plan) -> str:
    if plan.data.path is None:
        raise DataUnusable("data.kind is tokens, but data.path names no manifest")
    return plan.data.path


@dataclass(frozen=True, kw_only=True)
class DataProgress:
    """How far a run is in its data.

    `original` is the plan that the run began with. `sequences_between(start, stop)`: how many
    sequences these steps take together, all of one stage.
    """

    original: Plan
    sequences_between: Callable[[int, int], int]


@dataclass(frozen=True, kw_only=True)
class ResumedData:
    """Batches of `sequences` from `first_step` on; they begin with sequence `first_sequence`.

    A run that continues on fewer pods may need another batch. Its sequences keep the one order that
    the batches of `source` give them, `source_sequences` in each, and every batch takes the next.
    """

    source: BatchSource
    source_sequences: int
    sequences: int
    first_step: int
    first_sequence: int

    @property
    def digest(self) -> str:
        """Identity of the text."""
        return self.source.digest

    def batch(self, step: int, rows: range) -> np.ndarray:
        """Token ids int32 [rows, length + 1] of some rows of the batch of this step."""
        start = self.first_sequence + (step - self.first_step) * self.sequences + rows.start
        pieces = [self.source.batch(*piece) for piece in self._pieces(start, start + len(rows))]
        return np.concatenate(pieces)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, range]]:
        """Sequences from `start` to `stop`, as steps and rows of the source."""
        while start < stop:
            step, row = divmod(start, self.source_sequences)
            count = min(stop - start, self.source_sequences - row)
            yield step, range(row, row + count)
            start += count
