"""Retry decisions: two budgets, reset by progress, and repeated errors."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.journal.run_state import Observation, build_run, decide_retry
from orchestrator.values.run import Attempt, AttemptReason, Run
from orchestrator.values.spec import RetryLimits
from tests.journals import CLAIM, claimed_run, state_after, tiny_plan, write_steps

TWO = RetryLimits(failures=2, preemptions=3)


@dataclass(frozen=True)
class End:
    """An attempt: why it ended, after how many steps, with which error."""

    reason: AttemptReason | str | None
    steps_done: int = 0
    error: str | None = None


def run_after(*ends: End, resumed_at: int = 1, cancel_at_s: float | None = None) -> Run:
    """A run with these attempts."""
    run = build_run("it", "/runs/it", state_after(CLAIM), Observation(now_s=1.0))
    attempts = tuple(
        Attempt(
            number=number, plan_digest="p", pods=4, slices=(), started_at_s=0.0, ended_at_s=1.0,
            reason=one.reason, error=one.error, steps_done=one.steps_done,  # type: ignore[arg-type]
        )
        for number, one in enumerate(ends, start=1)
    )  # fmt: skip
    return replace(run, attempts=attempts, resumed_at=resumed_at, cancel_requested_at_s=cancel_at_s)


def failures(*steps_done: int) -> list[End]:
    """Failures with a new error each time."""
    names = "abcdefghijkl"
    return [End("failure", done, f"error {names[i]}") for i, done in enumerate(steps_done)]


def preemptions(*steps_done: int) -> list[End]:
    return [End("preemption", done) for done in steps_done]


LOST, HANG = End("lost", 5), End("hang", 5, "rank 3 hung")


@pytest.mark.parametrize(
    ("ends", "retry"),
    [
        ([End("finished", 100)], False),
        ([End("cancelled", 10)], False),
        (failures(5), True),
        (failures(5, 5), True),
        (failures(5, 5, 5), False),
        (failures(0, 0, 0), False),
        (failures(5, 5, 6), True),
        (failures(5, 5, 6, 6), True),
        (failures(5, 5, 6, 6, 6), False),
        (failures(5, 4, 3), False),
        (failures(5, 6, 7, 8, 9), True),
        (preemptions(5, 5, 5), True),
        (preemptions(5, 5, 5, 5), False),
        (preemptions(5, 5, 5, 6), True),
        ([*failures(5, 5), *preemptions(5)], True),
        ([*preemptions(5, 5, 5), *failures(5)], True),
        ([*failures(5, 5), *preemptions(5, 5, 5, 5)], False),
        ([*failures(5), HANG], True),
        ([*failures(5, 5), HANG], False),
        ([LOST] * 9, True),
        ([*failures(5, 5), LOST], True),
        ([*failures(5, 5), LOST, End("failure", 5, "another")], False),
    ],
)
def test_progress_resets_both_budgets(ends: list[End], retry: bool) -> None:
    """One is for failures and hangs, one for preemptions."""
    assert decide_retry(run_after(*ends), TWO).retry is retry


def test_an_error_of_every_attempt_ends_the_run_at_once() -> None:
    """A second attempt would take chips to fail in the same way."""
    generous = RetryLimits(failures=100, preemptions=100)
    one = run_after(End("failure", 0, "ProgramFailed: program() of trainer mine raised"))
    decision = decide_retry(one, generous, repeats=True)
    assert (decision.retry, decision.reason.code) == (False, "repeated_error")
    assert decide_retry(one, generous).retry


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (End("failure", 7, "ValueError: bad"), End("failure", 7, "ValueError: bad")),
        (End("failure", 0, "no such file"), End("failure", 0, "no such file")),
        (End("hang", 7, "rank 3 hung for 600 s"), End("hang", 7, "rank 1 hung for 601 s")),
        (End("failure", 7, "at 0x7f3a in 10.0.0.3:4711"),
         End("failure", 7, "at 0x1b22 in 10.0.0.9:4712")),
    ],
)  # fmt: skip
def test_the_same_error_at_the_same_step_ends_the_run(first: End, second: End) -> None:
    """Whatever the budgets are; numbers and addresses may differ."""
    generous = RetryLimits(failures=100, preemptions=100)
    decision = decide_retry(run_after(first, second), generous)
    assert not decision.retry
    assert second.error is not None
    assert decision.reason.code == "repeated_error"
    assert second.error in decision.reason.detail
    between = [first, *preemptions(7), End("lost"), second]
    assert not decide_retry(run_after(*between), generous).retry


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (End("failure", 7, "bad"), End("failure", 8, "bad")),
        (End("failure", 7, "bad"), End("failure", 7, "worse")),
        (End("failure", 7, "bad"), End("hang", 7, "bad")),
        (End("failure", 7), End("failure", 7)),
        (End("preemption", 7, "gone"), End("preemption", 7, "gone")),
    ],
)
def test_another_error_or_step_is_retried(first: End, second: End) -> None:
    """Also two unexplained deaths, and two preemptions."""
    assert decide_retry(run_after(first, second), TWO).retry


def test_a_cancelled_run_is_not_retried() -> None:
    run = run_after(End("preemption", 5, "slice 0 is gone"), cancel_at_s=1.0)
    decision = decide_retry(run, TWO)
    assert not decision.retry
    assert decision.reason.code == "cancel_requested"


def test_resuming_restarts_the_budgets() -> None:
    """Earlier attempts do not count, but what they reached is no progress."""
    spent = failures(5, 5, 5)
    later = [End("failure", 5, "x"), End("failure", 4, "y")]
    assert decide_retry(run_after(*spent, *later, resumed_at=4), TWO).retry
    third = [*later, End("failure", 3, "z")]
    assert not decide_retry(run_after(*spent, *third, resumed_at=4), TWO).retry


def test_the_reason_names_the_budget() -> None:
    decision = decide_retry(run_after(*failures(5, 5)), TWO)
    assert decision.reason.code == "retried"
    assert decision.reason.detail == (
        "attempt 2 failed: error b (failure 2 without progress; the limit is 2)"
    )
    assert decide_retry(run_after(*failures(5, 5, 5)), TWO).reason.code == "retries_exhausted"


@pytest.mark.parametrize("ends", [[], [End("failure"), End(None)]])
def test_a_running_attempt_cannot_be_retried(ends: list[End]) -> None:
    with pytest.raises(ValueError, match="no attempt has ended"):
        decide_retry(run_after(*ends), TWO)


ENDED = st.builds(
    End,
    reason=st.sampled_from(["failure", "preemption", "hang"]),
    steps_done=st.integers(0, 5),
    error=st.none() | st.sampled_from(["a", "b"]),
)


@given(st.lists(ENDED, min_size=1, max_size=40), st.integers(0, 3), st.integers(0, 3))
def test_retries_without_progress_end(ends: list[End], failures: int, preemptions: int) -> None:
    retries = RetryLimits(failures=failures, preemptions=preemptions)
    farthest = stuck = 0
    for count in range(1, len(ends) + 1):
        newest = ends[count - 1]
        stuck = 0 if newest.steps_done > farthest else stuck + 1
        farthest = max(farthest, newest.steps_done)
        if not decide_retry(run_after(*ends[:count]), retries).retry:
            break
        assert stuck <= failures + preemptions


def test_two_failures_in_a_row_before_the_first_step_end_no_run_that_has_started_before() -> None:
    """On many chips machines fail during restarts too; a start that never worked is not retried."""
    started, twice = End("failure", 7, "gone"), [End("failure", 0, "lost a rank")] * 2
    generous = RetryLimits(failures=100)
    assert decide_retry(run_after(started, *twice), generous).retry
    assert not decide_retry(run_after(*twice), generous).retry
    again = [End("failure", 7, "bad batch"), End("failure", 7, "bad batch")]
    assert not decide_retry(run_after(started, *again), generous).retry


def test_retries_are_decided_from_the_journal(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)
    for attempt in range(1, 4):
        assert writer.start_attempt(tiny_plan()) == attempt
        write_steps(writer.journal.path, attempt, range(2 + attempt))
        writer.end_attempt("failure", error="ValueError: no")
        assert decide_retry(writer.run(), RetryLimits(failures=1)).retry
    writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, 4, range(5))
    writer.end_attempt("failure", error="ValueError: no")
    decision = decide_retry(writer.run(), TWO)
    assert decision.reason.code == "repeated_error"
    assert "attempts 3 and 4 both failed after step 5" in decision.reason.detail
