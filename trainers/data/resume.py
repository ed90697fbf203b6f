"""Data room: the sequences of a run in their one order, when its batch has changed on the way.

A run that goes on with fewer pods may have to take another batch. Its sequences are numbered as its
own batches number them, one after another; whatever the batch is now, the next one is taken.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trainers.data.batch_source import BatchSource


@dataclass(frozen=True, kw_only=True)
class SequenceProgress:
    """How far a run has come in its data: `sequences` are of its own batch, the one that it began
    with, and `taken(steps)` says how many the first so many steps took.
    """

    sequences: int
    taken: Callable[[int], int]


@dataclass(frozen=True, kw_only=True)
class ResumedData:
    """Batches of `sequences` from step `begin` on, the first of them with sequence number `first`
    of `source`, whose own batches are of `own` sequences.
    """

    source: BatchSource
    own: int
    sequences: int
    begin: int
    first: int

    @property
    def digest(self) -> str:
        """Identity of the text."""
        return self.source.digest

    def batch(self, step: int, rows: range) -> np.ndarray:
        """Token ids int32 [rows, length + 1] of some rows of the batch of this step."""
        start = self.first + (step - self.begin) * self.sequences + rows.start
        pieces = [self.source.batch(*piece) for piece in self._pieces(start, start + len(rows))]
        return np.concatenate(pieces)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, range]]:
        """Sequences from `start` to `stop`, as steps and rows of the source."""
        while start < stop:
            step, row = divmod(start, self.own)
            count = min(stop - start, self.own - row)
            yield step, range(row, row + count)
            start += count
