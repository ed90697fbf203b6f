"""Journal room: whether to try a run again. Pure: a decision from what happened and two budgets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.journal.run_status import AFTER, after, first_line
from orchestrator.types.run import Attempt, Run
from orchestrator.types.spec import RetryLimits

# What differs from one time to the next in the text of one and the same error.
VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|\d+")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether to begin another attempt, and why, as a person reads it."""

    retry: bool
    why: str


def decide_retry(run: Run, retries: RetryLimits) -> Decision:
    """What to do after the newest attempt, which has ended.

    Failures and hangs are charged to one budget and preemptions to another, each since the last
    attempt that came farther than all before it. An error that comes back at the same step would
    come back for ever, so it ends the run whatever the budgets say. An attempt that was lost with
    its driver costs nothing: nobody knows what it died of.
    """
    attempts = run.attempts
    if not attempts or attempts[-1].reason is None:
        raise ValueError(f"{run.run}: no attempt has ended")
    last = attempts[-1]
    told = after(attempts) or ""
    if last.reason in ("finished", "cancelled"):
        return Decision(retry=False, why=told)
    if run.cancel_asked_at_s is not None:
        return Decision(retry=False, why=f"{told}; and somebody asked to cancel the run")
    if same := _same_before(attempts):
        ended = AFTER["hang" if last.reason == "hang" else "failure"]
        both = f"attempts {same.number} and {last.number} both {ended} {_came(last)}"
        return Decision(retry=False, why=f"{both}, so no other is tried: {first_line(last.error)}")
    if last.reason == "lost":
        return Decision(retry=True, why=told)
    preempted = last.reason == "preemption"
    spent = _since_progress(attempts, run.resumed_at, preempted=preempted)
    budget = retries.preemptions if preempted else retries.failures
    kind = "preemption" if preempted else "failure"
    count = f"{kind} {spent} without progress, of {budget} that are tried again"
    return Decision(retry=spent <= budget, why=f"{told} ({count})")


def _came(attempt: Attempt) -> str:
    """How far an attempt came."""
    done = attempt.steps_done
    return f"after step {done:,}" if done else "before the first step was done"


def _same_before(attempts: Sequence[Attempt]) -> Attempt | None:
    """The failure before the last one, when both are the same error at the same step."""
    charged = [attempt for attempt in attempts if attempt.reason in ("failure", "hang")]
    if len(charged) < 2 or charged[-1] is not attempts[-1]:
        return None
    before, last = charged[-2:]
    if not last.error:
        return None  # two deaths that nobody explains may have two causes
    return before if _fingerprint(before) == _fingerprint(last) else None


def _fingerprint(attempt: Attempt) -> tuple[object, ...]:
    """What two occurrences of one error share."""
    return attempt.reason, attempt.steps_done, VARYING.sub("#", attempt.error or "")


def _since_progress(attempts: Sequence[Attempt], resumed_at: int, *, preempted: bool) -> int:
    """Attempts of the last one's kind since one came farther than all before, that one counted."""
    charged = ("preemption",) if preempted else ("failure", "hang")
    farthest = spent = 0
    for attempt in attempts:
        if attempt.steps_done > farthest:
            farthest, spent = attempt.steps_done, 0
        spent += attempt.reason in charged and attempt.number >= resumed_at
    return spent
