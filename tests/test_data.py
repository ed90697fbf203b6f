"""Data: synthetic text, the shuffle of an epoch, and batches made ahead."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DataUnusable
from trainers.data.batches import Prefetched, ResumedData, Synthetic
from trainers.data.tokens import _permuted

# Synthetic text


def test_synthetic_text_is_the_same_everywhere() -> None:
    """These very tokens come out on any machine: they depend on no library's distributions."""
    batch = Synthetic(vocab=100, length=11, seed=7).batch(3, range(2))
    assert batch.dtype == np.int32
    assert batch.tolist() == SYNTHETIC


SYNTHETIC = [
    [7, 8, 9, 10, 11, 12, 13, 14, 7, 8, 9, 10],
    [74, 29, 0, 1, 2, 61, 62, 63, 64, 12, 13, 14],
]


@given(seed=st.integers(0, 2**63), step=st.integers(0, 2**40), start=st.integers(0, 5))
def test_a_row_does_not_depend_on_the_rows_beside_it(seed: int, step: int, start: int) -> None:
    """Whatever part of a batch a process makes, it makes the same rows."""
    source = Synthetic(vocab=64, length=16, seed=seed)
    whole, part = source.batch(step, range(8)), source.batch(step, range(start, start + 3))
    assert np.array_equal(part, whole[start : start + 3])


def test_seeds_steps_and_rows_have_text_of_their_own() -> None:
    """No two of them repeat one another."""
    rows = [
        Synthetic(vocab=50_000, length=64, seed=seed).batch(step, range(4))[row].tobytes()
        for seed in (0, 1)
        for step in (0, 1)
        for row in range(4)
    ]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("vocab", [1, 2, 3, 257, 128_256])
def test_synthetic_text_can_be_learned(vocab: int) -> None:
    """Tokens lie below the vocabulary, and seven of eight follow from the one before."""
    text = Synthetic(vocab=vocab, length=2000, seed=1).batch(0, range(8))
    assert text.min() >= 0
    assert text.max() < vocab
    follows = (text[:, 1:] == (text[:, :-1] + 1) % vocab).mean()
    assert follows > 0.86


# The permutation


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**40))
def test_a_permutation_reaches_everything_once(size: int, seed: int, epoch: int) -> None:
    """It is a bijection of 0 .. size - 1, whatever the size."""
    images = _permuted(np.arange(size), size, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(images), np.arange(size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """Two orders of a thousand agree in a few places only, as random ones do."""
    orders = [
        _permuted(np.arange(1000), 1000, seed=seed, epoch=epoch)
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    for place in range(4):
        for other in range(place):
            assert (orders[place] == orders[other]).sum() < 10


def test_neighbours_are_torn_apart() -> None:
    """What lies side by side in the set does not in the epoch: the mean jump is a third of it."""
    order = _permuted(np.arange(10_000), 10_000, seed=3, epoch=0)
    assert np.abs(np.diff(order)).mean() == pytest.approx(10_000 / 3, rel=0.05)


def test_a_permutation_needs_no_list() -> None:
    """A trillion windows are shuffled as easily as ten: images stay inside and differ."""
    images = _permuted(np.arange(10_000) * 99_999_999, 10**12, seed=0, epoch=0)
    assert len(np.unique(images)) == 10_000
    assert images.min() >= 0
    assert images.max() < 10**12


# Prefetching


def test_batches_come_in_order() -> None:
    """Each step's batch is taken once, in the order of the steps."""
    with Prefetched(lambda step: step * step, range(3, 40)) as feed:
        assert [feed.take() for _ in range(37)] == [step * step for step in range(3, 40)]
        with pytest.raises(IndexError, match="no step is left"):
            feed.take()


def test_no_more_is_made_than_asked_ahead() -> None:
    """A slow reader holds the thread back: at most `ahead` wait and one is in hand."""
    made = threading.Semaphore(0)
    with Prefetched(lambda _: made.release(), range(100), ahead=2) as feed:
        for _ in range(3):
            assert made.acquire(timeout=5)
        assert not made.acquire(timeout=0.3)
        feed.take()
        assert made.acquire(timeout=5)


def test_an_error_in_the_thread_is_raised_by_the_reader() -> None:
    """The batches before it are still taken; then the error itself comes, not a stand-in."""

    def make(step: int) -> int:
        if step == 2:
            raise DataUnusable("step 2 has no text")
        return step

    with Prefetched(make, range(10)) as feed:
        assert [feed.take(), feed.take()] == [0, 1]
        with pytest.raises(DataUnusable, match="step 2 has no text"):
            feed.take()


def test_leaving_early_ends_the_thread() -> None:
    """A thread that waits for a free place ends with its reader."""
    before = threading.active_count()
    with Prefetched(lambda step: step, range(10**9)) as feed:
        feed.take()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


# A batch that changes on the way


@given(
    own=st.integers(1, 9),
    now=st.integers(1, 9),
    done=st.integers(0, 5),
    row=st.integers(0, 8),
)
def test_a_changed_batch_takes_the_next_sequences(own: int, now: int, done: int, row: int) -> None:
    """Every sequence once and in its order, whatever the batch was; rows still stand alone."""
    source = Synthetic(vocab=64, length=4, seed=3)
    whole = np.concatenate([source.batch(step, range(own)) for step in range(80)])
    later = ResumedData(
        source=source,
        source_sequences=own,
        sequences=now,
        first_step=done,
        first_sequence=done * own,
    )
    steps = [later.batch(step, range(now)) for step in range(done, done + 4)]
    assert np.array_equal(np.concatenate(steps), whole[done * own :][: 4 * now])
    part = range(min(row, now - 1), now)
    assert np.array_equal(later.batch(done + 2, part), steps[2][part.start :])
    assert later.digest == source.digest


def test_an_unchanged_batch_is_what_it_was() -> None:
    """A run whose batch stays sees what it would have seen."""
    source = Synthetic(vocab=64, length=4, seed=3)
    same = ResumedData(
        source=source, source_sequences=6, sequences=6, first_step=7, first_sequence=42
    )
    assert np.array_equal(same.batch(9, range(2, 5)), source.batch(9, range(2, 5)))
