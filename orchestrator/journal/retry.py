"""Whether to start another attempt. Pure: a decision from the attempts and two budgets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.journal.run_state import ATTEMPT_ENDS, first_line, last_attempt_text
from orchestrator.values.run import Attempt, ReasonCode, Run, StateReason
from orchestrator.values.run_options import RetryLimits

# Addresses, digests and numbers differ between two occurrences of the same error.
VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|\d+")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether to start another attempt, and why."""

    retry: bool
    reason: StateReason


def decide_retry(run: Run, retries: RetryLimits, *, repeats: bool = False) -> Decision:
    """What to do after the newest attempt, which has ended; its error `repeats` if every attempt
    would end with it, and ends the run.

    Failures and hangs count against one budget and preemptions against another, each since the
    last attempt that got further than all before it. The same error at the same step would come
    back forever, so it ends the run whatever the budgets are; not so before the first step of an
    attempt whose plan has done steps before: on many chips two failures in a row strike there. An
    attempt that was lost with its driver costs nothing: its cause is unknown. Nor does one that
    gave way to another with more pods.
    """
    attempts = run.attempts
    if not attempts or attempts[-1].reason is None:
        raise ValueError(f"{run.run}: no attempt has ended")
    last = attempts[-1]
    ending = last_attempt_text(attempts) or ""
    if last.reason in ("finished", "cancelled"):
        return _decision(False, "not_retried", ending)
    if run.cancel_requested_at_s is not None:
        return _decision(False, "cancel_requested", f"{ending}; cancel was requested")
    if repeats:
        return _decision(False, "repeated_error", f"{ending}; every attempt would end so")
    if previous := _previous_occurrence(attempts):
        return _decision(False, "repeated_error", _repetition(previous, last))
    if last.reason in ("lost", "resized"):
        return _decision(True, "retried", ending)
    return _within_budget(run, retries, ending)


def _decision(retry: bool, code: ReasonCode, detail: str) -> Decision:
    return Decision(retry=retry, reason=StateReason(code=code, detail=detail))


def _within_budget(run: Run, retries: RetryLimits, ending: str) -> Decision:
    """Whether the budget for the kind of the last attempt's end allows another."""
    preempted = run.attempts[-1].reason == "preemption"
    used = _since_progress(run.attempts, run.resumed_at, preempted=preempted)
    budget = retries.preemptions if preempted else retries.failures
    kind = "preemption" if preempted else "failure"
    detail = f"{ending} ({kind} {used} without progress; the limit is {budget})"
    retry = used <= budget
    return _decision(retry, "retried" if retry else "retries_exhausted", detail)


def _repetition(previous: Attempt, last: Attempt) -> str:
    ended = ATTEMPT_ENDS["hang" if last.reason == "hang" else "failure"]
    done = last.steps_done
    when = f"after step {done:,}" if done else "before the first step"
    both = f"attempts {previous.number} and {last.number} both {ended} {when}"
    return f"{both}, so the run is not retried: {first_line(last.error)}"


def _previous_occurrence(attempts: Sequence[Attempt]) -> Attempt | None:
    """The previous failure, if the last attempt failed with the same error at the same step."""
    failures = [attempt for attempt in attempts if attempt.reason in ("failure", "hang")]
    if len(failures) < 2 or failures[-1] is not attempts[-1]:
        return None
    previous, last = failures[-2:]
    if not last.error:
        return None  # two unexplained deaths may have two causes
    if not last.steps_done and _has_started(attempts[: attempts.index(previous)], last):
        return None
    return previous if _fingerprint(previous) == _fingerprint(last) else None


def _has_started(earlier: Sequence[Attempt], last: Attempt) -> bool:
    """Whether the plan of an attempt has done steps before: nothing in it stops every start."""
    return any(one.steps_done for one in earlier if one.plan_digest == last.plan_digest)


def _fingerprint(attempt: Attempt) -> tuple[object, ...]:
    """What two occurrences of one error have in common."""
    return attempt.reason, attempt.steps_done, VARYING.sub("#", attempt.error or "")


def _since_progress(attempts: Sequence[Attempt], resumed_at: int, *, preempted: bool) -> int:
    """The attempts that count against a budget since one got further than all before it."""
    counted = ("preemption",) if preempted else ("failure", "hang")
    furthest = used = 0
    for attempt in attempts:
        if attempt.steps_done > furthest:
            furthest, used = attempt.steps_done, 0
        used += attempt.reason in counted and attempt.number >= resumed_at
    return used
