"""A source of batches: its contract, the source of a plan, and the data of a run that resumes."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.storage.addresses import address, input_path
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.spec import EvaluationOptions
from trainers.data.tokens import ShuffledWindows, open_for

# Endless synthetic text with something to learn in it

_JUMP_BITS = 3
_CEILING_BITS = 6


@dataclass(frozen=True)
class Synthetic:
    """Batches of counting text over `vocab` tokens. Each stage of a run has a text of its own."""

    vocab: int
    length: int
    seed: int
    stage: int = 0

    @property
    def digest(self) -> str:
        return codec.digest({"vocab": self.vocab, "length": self.length, "seed": self.seed})

    def batch(self, step: int, rows: range) -> np.ndarray:
        key = np.array([self.seed, self.stage], np.uint64)
        counters = (np.array([0, row, step, 0], np.uint64) for row in rows)
        streams = [np.random.Philox(key=key, counter=counter) for counter in counters]
        # 64 random bits per token say whether the text jumps there, and where to.
        drawn = [stream.random_raw(self.length + 1) for stream in streams]
        bits = np.array(drawn, np.uint64).reshape(len(rows), -1)
        positions = np.arange(bits.shape[1])
        jumps = (bits & np.uint64((1 << _JUMP_BITS) - 1)) == 0
        jumps[:, 0] = True
        last_jump = np.maximum.accumulate(np.where(jumps, positions, 0), axis=1)
        # It jumps below a power of two that is itself random, so that small tokens are common.
        bits >>= np.uint64(_JUMP_BITS)
        powers = np.uint64(self.vocab.bit_length() + 1)
        exponents = (bits & np.uint64((1 << _CEILING_BITS) - 1)) % powers
        ceilings = np.minimum(np.uint64(1) << exponents, np.uint64(self.vocab))
        starts = ((bits >> np.uint64(32)) % ceilings).astype(np.int64)
        tokens = np.take_along_axis(starts, last_jump, axis=1) + positions - last_jump
        return (tokens % self.vocab).astype(np.int32)


class BatchSource(Protocol):
    """A source of batches. The same step and row always give the same tokens, on any host."""

    @property
    def digest(self) -> str:
        """Identity of the text: sources of equal digest hold the same tokens."""

    def batch(self, step: int, rows: range) -> np.ndarray:
        """Return token ids int32 [rows, length + 1] of some rows of the batch of this step."""


def batch_source(plan: Plan, folder: Path = Path(), *, verify: bool = False) -> BatchSource:
    """Return the batches of a plan's data; `verify` first reads a token set through."""
    # A relative path begins at the spec's folder, so a plan is the same in every checkout.
    stage = plan.stage
    if plan.data.kind == "synthetic":
        number = stage.number - 1 if stage else 0
        return Synthetic(plan.model.vocab, plan.batch.length, plan.seed, number)
    if plan.data.path is None:
        raise DataUnusable("data.kind is tokens, but data.path names no manifest")
    source = open_for(plan.model.vocab, input_path(folder, plan.data.path), verify=verify)
    return ShuffledWindows(
        source,
        plan.batch.sequences,
        plan.batch.length,
        plan.seed,
        first_token=stage.first_token if stage else 0,
        most_windows=stage.steps * plan.batch.sequences if stage else None,
    )


@dataclass(frozen=True, kw_only=True)
class DataProgress:
    original: Plan  # that the run began with
    sequences_between: Callable[[int, int], int]  # those of steps of a stage, from and to


@dataclass(frozen=True)
class ResumedData:
    """Batches of `sequences` from `first_step` on; they begin with sequence `first_sequence`.
    Whatever the batch, a run has one order: that of `source`, by batches of `source_sequences`.
    """

    source: BatchSource
    source_sequences: int
    sequences: int
    first_step: int
    first_sequence: int

    @property
    def digest(self) -> str:
        return self.source.digest

    def batch(self, step: int, rows: range) -> np.ndarray:
        start = self.first_sequence + (step - self.first_step) * self.sequences + rows.start
        stop, pieces = start + len(rows), []
        while start < stop:
            step, row = divmod(start, self.source_sequences)
            count = min(stop - start, self.source_sequences - row)
            pieces.append(self.source.batch(step, range(row, row + count)))
            start += count
        return np.concatenate(pieces)


T = TypeVar("T")
POLL_S = 0.1


class Prefetched(Generic[T]):
    """Calls `make(step)` step by step in a thread, `ahead` of `take`, which raises its errors."""

    def __init__(self, make: Callable[[int], T], steps: range, *, ahead: int = 2) -> None:
        self._make, self._steps = make, steps
        self._ready: Queue[T | BaseException] = Queue(maxsize=ahead)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def take(self) -> T:
        """Wait for the result of the next step, and return it."""
        while True:
            try:
                result = self._ready.get(timeout=POLL_S)
            except Empty:
                if not self._thread.is_alive() and self._ready.empty():
                    raise IndexError(f"no step is left of {self._steps}") from None
                continue
            if isinstance(result, BaseException):
                raise result
            return result

    def _run(self) -> None:
        for step in self._steps:
            try:
                result: T | BaseException = self._make(step)
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                result = error
            while not self._closing.is_set():  # the reader is there: wait until the queue has space
                with suppress(Full):
                    self._ready.put(result, timeout=POLL_S)
                    break
            if self._closing.is_set() or isinstance(result, BaseException):
                return


# Held-out sequences: the first of a token set of its own, the same at each evaluation

_SEED = 2**31  # of synthetic sequences: no spec has it


@dataclass(frozen=True)
class HeldOut:
    """Batches of `rows` sequences that hold `count` of them, whatever `rows` is."""

    digest: str  # identity of the text
    read: Callable[[Sequence[int]], np.ndarray]  # token ids int32 [indices, length + 1]
    count: int
    rows: int

    @property
    def batches(self) -> int:
        return -(-self.count // self.rows)

    def batch(self, number: int, rows: range) -> np.ndarray:
        """Return token ids int32 [rows, length + 1] of some rows of a batch."""
        indices = [number * self.rows + row for row in rows]
        # Rows after the last sequence repeat others. ~token below zero is read, not predicted.
        tokens = self.read([index % self.count for index in indices])
        left_over = np.array(indices) >= self.count
        tokens[left_over] = ~tokens[left_over]
        return tokens


def held_out(
    plan: Plan, options: EvaluationOptions, folder: Path = Path(), *, verify: bool = False
) -> HeldOut:
    """Return the batches of an evaluation; `verify` first reads a token set through."""
    length, rows = plan.batch.length, plan.batch.sequences
    if options.path is None:
        text = Synthetic(plan.model.vocab, length, _SEED)

        def rows_of_text(indices: Sequence[int]) -> np.ndarray:
            return np.concatenate([text.batch(0, range(row, row + 1)) for row in indices])

        return HeldOut(text.digest, rows_of_text, options.sequences, rows)
    source = open_for(plan.model.vocab, input_path(folder, options.path), verify=verify)
    windows = (source.manifest.tokens - 1) // length
    if windows < options.sequences:
        raise DataUnusable(
            f"{address(source.path)}: {source.manifest.tokens} tokens are {windows} sequences of"
            f" {length} with their next words, against run.evaluation.sequences {options.sequences}"
        )

    def windows_in_order(indices: Sequence[int]) -> np.ndarray:
        return source.windows([index * length for index in indices], length + 1)

    digest = codec.digest(source.manifest)
    return HeldOut(digest, windows_in_order, options.sequences, rows)
