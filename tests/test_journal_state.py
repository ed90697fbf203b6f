"""The state and the status of a run, from its events and heartbeats."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CancelRequest,
    Claimed,
    Ended,
    Pending,
    Stopping,
    decode_event,
    encode,
)
from orchestrator.journal.run_state import (
    Observation,
    RunState,
    StepSummary,
    _current_state,
    apply,
    build_run,
    initial,
    violation,
)
from orchestrator.values.run import LIVE, Run, State, TimedStep
from tests.journals import CLAIM, ME, SUBMITTED, reason, state_after, states_after, step

START = AttemptStarted(at_s=2.0, attempt=1, plan_digest="p", pods=4)
FAILED = AttemptEnded(at_s=3.0, attempt=1, reason="failure", error="ValueError: no\nmore")
SECOND = AttemptStarted(at_s=4.0, attempt=2, plan_digest="p", pods=4)
DONE = Ended(at_s=5.0, state="succeeded")
STEPPED = {1: StepSummary(last_steps=(TimedStep(at_s=2.5, step=step(0, restored=0)),))}
WAITING = Pending(at_s=1.0, reason=reason("2 slices", "waiting_for_slices"))
STOPPING = Stopping(at_s=3.0, reason=reason("requested", "cancel_requested"))
CANCEL = CancelRequest(at_s=3.0, by=ME)


def at(now_s: float = 4.0, **seen: object) -> Observation:
    """An observation at that time."""
    return replace(Observation(now_s=now_s), **seen)  # type: ignore[arg-type]


def run_of(story: RunState, sight: Observation) -> Run:
    return build_run("it", "/runs/it", story, sight)


@pytest.mark.parametrize(
    ("events", "sight", "state"),
    [
        ([], at(), "submitted"),
        ([], at(601.0), "lost"),
        ([WAITING], at(), "pending"),
        ([CLAIM], at(), "starting"),
        ([CLAIM, WAITING], at(), "pending"),
        ([CLAIM, START], at(), "starting"),
        ([CLAIM, START], at(steps=STEPPED), "running"),
        ([CLAIM, START], at(13.0, steps=STEPPED), "lost"),
        ([CLAIM, START], at(13.0, heartbeat_at_s=11.0, steps=STEPPED), "running"),
        ([CLAIM, START], at(writer_is_gone=True, steps=STEPPED), "lost"),
        ([CLAIM, START], at(writer_is_gone=True, cancel=CANCEL), "cancelled"),
        ([CLAIM, START], at(cancel=CANCEL, steps=STEPPED), "running"),
        ([CLAIM, START, STOPPING], at(steps=STEPPED), "stopping"),
        ([CLAIM, START, FAILED], at(steps=STEPPED), "starting"),
        ([CLAIM, START, FAILED, Ended(at_s=3.5, state="failed")], at(9e9), "failed"),
        ([Ended(at_s=1.0, state="failed")], at(), "failed"),
        ([Ended(at_s=1.0, state="failed")], at(writer_is_gone=True, cancel=CANCEL), "failed"),
    ],
)  # fmt: skip
def test_the_state_follows_from_events_and_heartbeats(
    events: list[AnyEvent], sight: Observation, state: State
) -> None:
    run = run_of(state_after(*events), sight)
    assert run.state == state
    assert run.problems == ()


def test_the_reason_explains_the_state() -> None:
    """What the run waits for, what it follows on, why it ended, why it is lost."""

    def code(*events: AnyEvent, **seen: Any) -> str | None:
        _, why = _current_state(state_after(*events), at(**seen))
        return why.code if why else None

    ended = Ended(at_s=4.0, state="failed", reason=reason("no budget", "retries_exhausted"))
    assert code(CLAIM, WAITING) == "waiting_for_slices"
    assert code(CLAIM, START, FAILED) == "after_attempt"
    assert code(CLAIM, START, FAILED, ended) == "retries_exhausted"
    assert code(CLAIM, START, writer_is_gone=True) == "driver_gone"
    assert code(CLAIM, START, now_s=3_602.0) == "driver_silent"
    assert code() == "unclaimed"
    assert code(writer_is_alive=True) == "driver_starting"
    assert code(CLAIM, START, STOPPING) == "cancel_requested"


@pytest.mark.parametrize(
    ("seen", "detail"),
    [({}, "Ctrl-C, before its first step"), ({"steps": STEPPED}, "Ctrl-C, at once, after step 1")],
)
def test_a_cancelled_run_says_how_far_it_got(seen: dict[str, Any], detail: str) -> None:
    """When its driver vanished after it was asked to stop at once."""
    at_once = CancelRequest(at_s=3.0, by=ME, at_once=True, source="Ctrl-C")
    observed = at(writer_is_gone=True, cancel=at_once, **seen)
    stopped = _current_state(state_after(CLAIM, START), observed)
    assert stopped == ("cancelled", reason(detail, "cancel_requested"))


def test_a_run_between_its_last_attempt_and_its_end_is_running() -> None:
    finished = AttemptEnded(at_s=3.0, attempt=1, reason="finished")
    assert _current_state(state_after(CLAIM, START, finished), at()) == ("running", None)


def test_steps_are_no_heartbeat_of_the_driver() -> None:
    """Processes may go on for a while without a driver."""
    stepping = {1: StepSummary(last_steps=(TimedStep(at_s=99.0, step=step(9)),))}
    run = run_of(state_after(CLAIM, START), at(100.0, steps=stepping))
    assert run.state == "lost"
    assert run.since_last_step_s == 1.0


def test_a_clock_that_lags_gives_no_negative_time() -> None:
    run = run_of(state_after(CLAIM, START), at(0.0, heartbeat_at_s=5.0, steps=STEPPED))
    assert (run.since_last_heartbeat_s, run.since_last_step_s) == (0.0, 0.0)
    assert run.state == "running"


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        ([], SUBMITTED, "submitted before"),
        ([], START, "no driver"),
        ([CLAIM], AttemptStarted(at_s=2, attempt=2, plan_digest="p", pods=4),
         "next attempt is 1"),
        ([CLAIM, START], START, "attempt 1 is running"),
        ([CLAIM, START], WAITING, "attempt 1 is running"),
        ([CLAIM, START], Ended(at_s=3, state="failed"), "attempt 1 is running"),
        ([CLAIM], FAILED, "attempt 1 is not running"),
        ([CLAIM, START, FAILED], FAILED, "attempt 1 is not running"),
        ([CLAIM, Ended(at_s=3, state="failed")], START, "has ended: failed"),
        ([CLAIM, Ended(at_s=3, state="failed")], STOPPING, "has ended: failed"),
    ],
)  # fmt: skip
def test_an_event_out_of_order_is_refused_or_noted(
    before: list[AnyEvent], event: AnyEvent, why: str
) -> None:
    """A writer may not write it; a reader notes it as a problem."""
    story = state_after(*before)
    assert why in (violation(story, event) or "")
    [problem] = apply(story, story.last + 1, event).problems
    assert problem.endswith(f"is out of order: {violation(story, event)}")


@pytest.mark.parametrize(
    ("left", "reasons", "state"),
    [
        ([CLAIM, FAILED, SECOND], [None], "starting"),
        ([CLAIM, START, SECOND], ["lost", None], "starting"),
        ([CLAIM, START, DONE], ["lost"], "succeeded"),
        ([CLAIM, START, FAILED, DONE, SECOND], ["failure", None], "starting"),
        ([START, FAILED, DONE], ["failure"], "succeeded"),
        ([CLAIM, START, FAILED, FAILED], ["failure"], "starting"),
    ],
)
def test_a_damaged_journal_is_read_as_far_as_possible(
    left: list[AnyEvent], reasons: list[str | None], state: State
) -> None:
    run = run_of(state_after(*left), at(2.0))
    assert [attempt.reason for attempt in run.attempts] == reasons
    assert run.state == state
    assert run.problems


def test_a_new_claim_closes_the_open_attempt() -> None:
    again = Claimed(at_s=50.0, driver=ME, heartbeat_s=2.0)
    story = state_after(
        CLAIM,
        START,
        STOPPING,
        again,
    )
    assert [attempt.reason for attempt in story.attempts] == ["lost"]
    assert (story.stopping, story.open_attempt, story.writer) == (None, None, 5)
    assert story.resumed_at == 1
    resumed = state_after(CLAIM, START, structs.replace(again, resumes=True))
    assert resumed.resumed_at == 2


REASONS = st.builds(reason, st.text())
EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(Claimed, at_s=st.just(1.0), driver=st.just(ME), heartbeat_s=st.just(2.0),
              resumes=st.booleans(), settled_requests=st.integers(0, 3)),
    st.builds(Pending, at_s=st.just(1.0), reason=REASONS),
    st.builds(AttemptStarted, at_s=st.just(1.0), attempt=st.integers(1, 4),
              plan_digest=st.just("p"), pods=st.integers(1, 4)),
    st.builds(AttemptEnded, at_s=st.just(1.0), attempt=st.integers(1, 4),
              reason=st.sampled_from(["finished", "failure", "preemption", "hang", "cancelled"]),
              error=st.none() | st.text()),
    st.builds(Stopping, at_s=st.just(1.0), reason=REASONS),
    st.builds(Ended, at_s=st.just(1.0), state=st.sampled_from(["succeeded", "failed"])),
    st.just(SUBMITTED),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=30))
def test_any_events_give_a_legal_state(events: list[AnyEvent]) -> None:
    """Attempts are in order, only the newest may be open, and none after the end."""
    for story in states_after(events):
        numbers = [attempt.number for attempt in story.attempts]
        assert numbers == sorted(set(numbers))
        assert all(attempt.reason is not None for attempt in story.attempts[:-1])
        assert not (story.ended and story.open_attempt)
        assert 1 <= story.resumed_at <= story.next_attempt


@given(st.lists(EVENTS, max_size=30), st.booleans(), st.floats(0, 1e6))
def test_any_run_has_a_legal_status(events: list[AnyEvent], gone: bool, now_s: float) -> None:
    """A live run has a live driver, or waits for its first."""
    story = state_after(*events)
    run = run_of(story, at(now_s, writer_is_gone=gone))
    if story.ended:
        assert run.state == story.ended.state
    elif story.claim and (gone or now_s > 11.0):
        assert run.state == "lost"
        assert all(attempt.reason for attempt in run.attempts)
    else:
        assert run.state in LIVE or (story.claim is None and now_s > 601.0)


@given(st.lists(EVENTS, max_size=30))
def test_events_that_a_writer_may_write_are_no_problem(events: list[AnyEvent]) -> None:
    story = initial(SUBMITTED)
    for event in events:
        if violation(story, event) is None:
            story = apply(story, story.last + 1, event)
    assert story.problems == ()
    assert [attempt.number for attempt in story.attempts] == list(range(1, story.next_attempt))


@given(st.lists(EVENTS, max_size=30))
def test_an_ended_attempt_never_changes(events: list[AnyEvent]) -> None:
    told_so_far: dict[int, object] = {}
    for story in states_after(events):
        for attempt in story.attempts:
            if attempt.reason is not None:
                assert told_so_far.setdefault(attempt.number, attempt) == attempt


@given(EVENTS)
def test_an_event_is_one_line_of_json(event: AnyEvent) -> None:
    text = encode(event)
    assert text.endswith(b"}\n")
    assert text.count(b"\n") == 1
    assert decode_event(text) == event
