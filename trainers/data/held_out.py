"""Held-out sequences: the first of a token set of its own, the same at each evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.storage import address
from orchestrator.storage.inputs import input_path
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.run_options import EvaluationOptions
from trainers.data.synthetic import Synthetic
from trainers.data.tokens import TokenSet, open_for

SEED = 2**31  # of synthetic sequences: no spec has it


class Sequences(Protocol):
    """Sequences by their numbers."""

    @property
    def digest(self) -> str:
        """Identity of the text."""
        ...

    def read(self, indices: Sequence[int]) -> np.ndarray:
        """Token ids int32 [indices, length + 1] of sequences."""
        ...


@dataclass(frozen=True)
class FirstWindows:
    """The windows of a token set in order."""

    source: TokenSet
    length: int

    @property
    def digest(self) -> str:
        return codec.digest(self.source.manifest)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        return self.source.windows([index * self.length for index in indices], self.length + 1)


@dataclass(frozen=True)
class SyntheticSequences:
    """Rows of one synthetic batch."""

    source: Synthetic

    @property
    def digest(self) -> str:
        return self.source.digest

    def read(self, indices: Sequence[int]) -> np.ndarray:
        return np.concatenate([self.source.batch(0, range(one, one + 1)) for one in indices])


@dataclass(frozen=True)
class HeldOut:
    """Batches of `rows` sequences that hold `count` of them, whatever `rows` is.

    The rows after the last sequence are others once more. Their tokens are below zero: ~token is
    read, and not predicted.
    """

    sequences: Sequences
    count: int
    rows: int

    @property
    def digest(self) -> str:
        """Identity of the text."""
        return self.sequences.digest

    @property
    def batches(self) -> int:
        return -(-self.count // self.rows)

    def batch(self, number: int, rows: range) -> np.ndarray:
        """Token ids int32 [rows, length + 1] of some rows of a batch."""
        indices = [number * self.rows + row for row in rows]
        tokens = self.sequences.read([index % self.count for index in indices])
        left_over = np.array(indices) >= self.count
        tokens[left_over] = ~tokens[left_over]
        return tokens


def held_out(
    plan: Plan, options: EvaluationOptions, folder: Path = Path(), *, verify: bool = False
) -> HeldOut:
    """The batches of an evaluation; `verify` first reads a token set through."""
    length, rows = plan.batch.length, plan.batch.sequences
    if options.path is None:
        synthetic = SyntheticSequences(Synthetic(plan.model.vocab, length, SEED))
        return HeldOut(synthetic, options.sequences, rows)
    source = open_for(plan.model.vocab, input_path(folder, options.path), verify=verify)
    windows = (source.manifest.tokens - 1) // length
    if windows < options.sequences:
        raise DataUnusable(
            f"{address(source.path)}: {source.manifest.tokens} tokens are {windows} sequences of"
            f" {length} with their next words, against run.evaluation.sequences {options.sequences}"
        )
    return HeldOut(FirstWindows(source, length), options.sequences, rows)
