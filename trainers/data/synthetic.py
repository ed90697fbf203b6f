"""Endless synthetic text with something to learn in it.

A row counts upwards, token after token. Every eighth token on average it jumps to a new start;
small tokens are more frequent starts than large ones. A model first learns which tokens are
frequent, then to count. The bits come raw from a counter-based generator, so that no library's
sampling of a distribution is part of the data.
"""

from dataclasses import dataclass

import numpy as np

from orchestrator.types import codec

JUMP_BITS = 3
CEILING_BITS = 6


@dataclass(frozen=True)
class Synthetic:
    """Batches of counting text over `vocab` tokens. Each stage of a run has a text of its own."""

    vocab: int
    length: int
    seed: int
    stage: int = 0

    @property
    def digest(self) -> str:
        """Identity of the text."""
        return codec.digest({"vocab": self.vocab, "length": self.length, "seed": self.seed})

    def batch(self, step: int, rows: range) -> np.ndarray:
        """Token ids int32 [rows, length + 1] of some rows of the batch of this step."""
        bits = [self._bits(step, row) for row in rows]
        return _counting(np.array(bits, np.uint64).reshape(len(rows), -1), self.vocab)

    def _bits(self, step: int, row: int) -> np.ndarray:
        key = np.array([self.seed, self.stage], np.uint64)
        counter = np.array([0, row, step, 0], np.uint64)
        return np.random.Philox(key=key, counter=counter).random_raw(self.length + 1)


def _counting(bits: np.ndarray, vocab: int) -> np.ndarray:
    """Counting text from 64 random bits per token: whether it jumps, and where."""
    positions = np.arange(bits.shape[1])
    jumps = (bits & np.uint64((1 << JUMP_BITS) - 1)) == 0
    jumps[:, 0] = True
    last_jump = np.maximum.accumulate(np.where(jumps, positions, 0), axis=1)
    starts = np.take_along_axis(_starts(bits >> np.uint64(JUMP_BITS), vocab), last_jump, axis=1)
    return ((starts + positions - last_jump) % vocab).astype(np.int32)


def _starts(bits: np.ndarray, vocab: int) -> np.ndarray:
    """Tokens below a power of two that is itself drawn at random, so that small ones are common."""
    powers = np.uint64(vocab.bit_length() + 1)
    exponents = (bits & np.uint64((1 << CEILING_BITS) - 1)) % powers
    ceilings = np.minimum(np.uint64(1) << exponents, np.uint64(vocab))
    starts: np.ndarray = (bits >> np.uint64(32)) % ceilings
    return starts.astype(np.int64)
