"""The sequences of a run in their one order, even if its batch changes on the way.

A run that continues on fewer pods may have to take another batch. Its sequences are numbered as its
first batches number them, one after another; each batch takes the next ones, whatever its size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trainers.data.batch_source import BatchSource


@dataclass(frozen=True, kw_only=True)
class DataProgress:
    """How far a run is in its data.

    `sequences`: of the batch that the run began with. `sequences_after(steps)`: how many sequences
    the run's first steps take together.
    """

    sequences: int
    sequences_after: Callable[[int], int]


@dataclass(frozen=True, kw_only=True)
class ResumedData:
    """Batches of `sequences` from `first_step` on; they begin with sequence `first_sequence`.

    The batches of `source` have `source_sequences`.
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
