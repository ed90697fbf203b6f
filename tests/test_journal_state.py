"""The fold: what a run is, from its events and its signs of life alone."""

from tests.journals import reason
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    encode_event,
)
from orchestrator.journal.run_state import RunState, apply, initial, violation
from orchestrator.journal.run_status import Observation, StepSummary, build_run, current_state
from orchestrator.types.run import LIVE, Run, State, TimedStep
from tests.journals import CLAIM, ME, SUBMITTED, state_after, states_after, step

START = AttemptStarted(at_s=2.0, attempt=1, plan_digest="p", pods=4)
FAILED = AttemptEnded(at_s=3.0, attempt=1, reason="failure", error="ValueError: no\nmore")
SECOND = AttemptStarted(at_s=4.0, attempt=2, plan_digest="p", pods=4)
DONE = Ended(at_s=5.0, state="succeeded")
STEPPED = {1: StepSummary(last_steps=(TimedStep(at_s=2.5, step=step(0, restored=0)),))}
CANCEL = CancelRequest(at_s=3.0, by=ME)


def at(now_s: float = 4.0, **seen: object) -> Observation:
    """What is seen at that time."""
    return replace(Observation(now_s=now_s), **seen)  # type: ignore[arg-type]


def run_of(story: RunState, sight: Observation) -> Run:
    return build_run("it", "/runs/it", story, sight)


@pytest.mark.parametrize(
    ("events", "sight", "state"),
    [
        ([], at(), "submitted"),
        ([], at(601.0), "lost"),
        ([Pending(at_s=1.0, reason=reason("slices", "waiting_for_slices"))], at(), "pending"),
        ([CLAIM], at(), "starting"),
        ([CLAIM, Pending(at_s=2.0, reason=reason("slices", "waiting_for_slices"))], at(), "pending"),
        ([CLAIM, START], at(), "starting"),
        ([CLAIM, START], at(traces=STEPPED), "running"),
        ([CLAIM, START], at(13.0, traces=STEPPED), "lost"),
        ([CLAIM, START], at(13.0, heartbeat_at_s=11.0, traces=STEPPED), "running"),
        ([CLAIM, START], at(writer_is_gone=True, traces=STEPPED), "lost"),
        ([CLAIM, START], at(writer_is_gone=True, cancel=CANCEL), "cancelled"),
        ([CLAIM, START], at(cancel=CANCEL, traces=STEPPED), "running"),
        ([CLAIM, START, Stopping(at_s=3.0, reason=reason("asked", "cancel_requested"))], at(traces=STEPPED), "stopping"),
        ([CLAIM, START, FAILED], at(traces=STEPPED), "starting"),
        ([CLAIM, START, FAILED, Ended(at_s=3.5, state="failed")], at(9e9), "failed"),
        ([Ended(at_s=1.0, state="failed")], at(), "failed"),
        ([Ended(at_s=1.0, state="failed")], at(writer_is_gone=True, cancel=CANCEL), "failed"),
    ],
)  # fmt: skip
def test_the_state_follows_from_events_and_signs(
    events: list[AnyEvent], sight: Observation, state: State
) -> None:
    """What was written, and how long ago the last sign was: nothing else decides."""
    run = run_of(state_after(*events), sight)
    assert run.state == state
    assert run.problems == ()


def test_why_is_said_where_there_is_something_to_say() -> None:
    """What it waits for, what it follows on, why it ended, why it is lost."""
    pending = Pending(
        at_s=2.0, reason=reason("4 slices asked, 3 free", "waiting_for_slices")
    )
    ended = Ended(
        at_s=4.0, state="failed", reason=reason("no budget is left", "error")
    )
    assert current_state(state_after(CLAIM, pending), at())[1] == "4 slices asked, 3 free"
    assert (
        current_state(state_after(CLAIM, START, FAILED), at())[1]
        == "attempt 1 failed: ValueError: no"
    )
    assert current_state(state_after(CLAIM, START, FAILED, ended), at())[1] == "no budget is left"
    gone = current_state(state_after(CLAIM, START), at(writer_is_gone=True))[1]
    silent = current_state(state_after(CLAIM, START), at(3_602.0))[1]
    at_once = CancelRequest(at_s=3.0, by=ME, at_once=True)
    stopped = current_state(state_after(CLAIM, START), at(writer_is_gone=True, cancel=at_once))
    assert stopped == ("cancelled", "somebody asked, before its first step")
    pressed = CancelRequest(
        at_s=3.0,
        by=ME,
        at_once=True,
        reason=reason("interrupted (Ctrl-C)"),
    )
    seen = at(writer_is_gone=True, cancel=pressed, traces=STEPPED)
    stopped = current_state(state_after(CLAIM, START), seen)
    assert stopped == ("cancelled", "interrupted (Ctrl-C), at once, after step 1")
    assert gone == "its driver (process 7 on here) is gone"
    assert silent == "its driver (process 7 on here) has given no sign for 3,600 s"


def test_a_run_whose_steps_are_done_does_not_start_again() -> None:
    """Between the end of its last attempt and its own."""
    finished = AttemptEnded(at_s=3.0, attempt=1, reason="finished")
    assert current_state(state_after(CLAIM, START, finished), at()) == ("running", None)


def test_steps_are_no_sign_of_the_driver() -> None:
    """Processes may step on for a while when nobody drives them any more."""
    stepping = {1: StepSummary(last_steps=(TimedStep(at_s=99.0, step=step(9)),))}
    run = run_of(state_after(CLAIM, START), at(100.0, traces=stepping))
    assert run.state == "lost"
    assert run.since_last_step_s == 1.0


def test_a_clock_that_lags_makes_no_negative_time() -> None:
    """Signs from the future are as fresh as can be."""
    run = run_of(state_after(CLAIM, START), at(0.0, heartbeat_at_s=5.0, traces=STEPPED))
    assert (run.since_last_heartbeat_s, run.since_last_step_s) == (0.0, 0.0)
    assert run.state == "running"


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        ([], SUBMITTED, "submitted before"),
        ([], START, "no driver"),
        ([CLAIM], AttemptStarted(at_s=2, attempt=2, plan_digest="p", pods=4),
         "next attempt is 1"),
        ([CLAIM, START], START, "attempt 1 goes on"),
        ([CLAIM, START], Pending(at_s=3, reason=reason("x", "waiting_for_slices")), "attempt 1 goes on"),
        ([CLAIM, START], Ended(at_s=3, state="failed"), "attempt 1 goes on"),
        ([CLAIM], FAILED, "attempt 1 does not go on"),
        ([CLAIM, START, FAILED], FAILED, "attempt 1 does not go on"),
        ([CLAIM, Ended(at_s=3, state="failed")], START, "has ended: failed"),
        ([CLAIM, Ended(at_s=3, state="failed")], Stopping(at_s=4, reason=reason("x", "cancel_requested")), "has ended: failed"),
    ],
)  # fmt: skip
def test_what_cannot_come_next_is_refused_and_noted(
    before: list[AnyEvent], event: AnyEvent, why: str
) -> None:
    """A writer may not write it; a reader of a damaged journal says what is wrong."""
    story = state_after(*before)
    assert why in (violation(story, event) or "")
    [problem] = apply(story, story.last + 1, event).problems
    assert problem.endswith(f"does not follow: {violation(story, event)}")


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
def test_what_is_left_of_a_damaged_journal_is_told(
    left: list[AnyEvent], reasons: list[str | None], state: State
) -> None:
    """One file that cannot be read does not hide what came after it."""
    run = run_of(state_after(*left), at(2.0))
    assert [one.reason for one in run.attempts] == reasons
    assert run.state == state
    assert run.problems


def test_a_new_driver_closes_what_the_old_one_left() -> None:
    """The attempt is lost, and nothing that was being waited for or stopped is."""
    again = Claimed(at_s=50.0, driver=ME, beat_s=2.0)
    story = state_after(
        CLAIM,
        START,
        Stopping(at_s=3.0, reason=reason("asked", "cancel_requested")),
        again,
    )
    assert [one.reason for one in story.attempts] == ["lost"]
    assert (story.stopping, story.open_attempt, story.writer) == (None, None, 5)
    assert story.resumed_at == 1
    resumed = state_after(CLAIM, START, Claimed(at_s=50.0, driver=ME, beat_s=2.0, resumes=True))
    assert resumed.resumed_at == 2


EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(Claimed, at_s=st.just(1.0), driver=st.just(ME), beat_s=st.just(2.0),
              resumes=st.booleans(), settled_requests=st.integers(0, 3)),
    st.builds(Pending, at_s=st.just(1.0), why=st.text()),
    st.builds(AttemptStarted, at_s=st.just(1.0), attempt=st.integers(1, 4),
              plan_digest=st.just("p"), pods=st.integers(1, 4)),
    st.builds(AttemptEnded, at_s=st.just(1.0), attempt=st.integers(1, 4),
              reason=st.sampled_from(["finished", "failure", "preemption", "hang", "cancelled"]),
              error=st.none() | st.text()),
    st.builds(Stopping, at_s=st.just(1.0), why=st.text()),
    st.builds(Ended, at_s=st.just(1.0), state=st.sampled_from(["succeeded", "failed"])),
    st.just(SUBMITTED),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=30))
def test_any_events_tell_a_legal_story(events: list[AnyEvent]) -> None:
    """Attempts come in order, only the newest may go on, and none after the end."""
    for story in states_after(events):
        numbers = [one.number for one in story.attempts]
        assert numbers == sorted(set(numbers))
        assert all(one.reason is not None for one in story.attempts[:-1])
        assert not (story.ended and story.open_attempt)
        assert 1 <= story.resumed_at <= story.next_attempt


@given(st.lists(EVENTS, max_size=30), st.booleans(), st.floats(0, 1e6))
def test_any_run_is_in_a_legal_state(events: list[AnyEvent], gone: bool, now_s: float) -> None:
    """A run that is live has a live driver, or waits for its first; one that ended stays so."""
    story = state_after(*events)
    run = run_of(story, at(now_s, writer_is_gone=gone))
    if story.ended:
        assert run.state == story.ended.state
    elif story.claim and (gone or now_s > 11.0):
        assert run.state == "lost"
        assert all(one.reason for one in run.attempts)
    else:
        assert run.state in LIVE or (story.claim is None and now_s > 601.0)


@given(st.lists(EVENTS, max_size=30))
def test_what_a_writer_may_write_leaves_no_problem(events: list[AnyEvent]) -> None:
    """The rules for writers are those that readers expect."""
    story = initial(SUBMITTED)
    for event in events:
        if violation(story, event) is None:
            story = apply(story, story.last + 1, event)
    assert story.problems == ()
    assert [one.number for one in story.attempts] == list(range(1, story.next_attempt))


@given(st.lists(EVENTS, max_size=30))
def test_what_has_happened_is_never_told_otherwise_later(events: list[AnyEvent]) -> None:
    """Why an attempt ended stays, whatever comes after."""
    told_so_far: dict[int, object] = {}
    for story in states_after(events):
        for one in story.attempts:
            if one.reason is not None:
                assert told_so_far.setdefault(one.number, one) == one


@given(EVENTS)
def test_an_event_is_one_line_of_json_both_ways(event: AnyEvent) -> None:
    """What is written down is what is read."""
    text = encode_event(event)
    assert text.endswith(b"}\n")
    assert text.count(b"\n") == 1
    assert decode_event(text) == event
