"""Journal room: a story and the signs of life, folded into a Run. Pure: no files, no clock."""

from dataclasses import dataclass, field, replace
from statistics import median

from orchestrator.journal.events import CancelRequest
from orchestrator.journal.run_state import RunState
from orchestrator.types.run import (
    Attempt,
    ProcessIdentity,
    Reason,
    RecentSteps,
    Run,
    Startup,
    State,
    TimedStep,
    TrackedRun,
)

BEAT_S = 2.0
# So many beats missed, and a driver counts as gone.
LOST_AFTER_BEATS = 5
# A cluster may need so long to start the driver of a run that was submitted to it.
UNCLAIMED_S = 600.0
AFTER: dict[Reason, str] = {
    "failure": "failed",
    "preemption": "was preempted",
    "hang": "hung",
    "finished": "finished",
    "cancelled": "was stopped",
}


@dataclass(frozen=True)
class Trace:
    """What an attempt's step file shows at its two ends."""

    opening: Startup | None = None
    last_steps: tuple[TimedStep, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What is seen beside the events when a journal is read.

    `signed_at_s` is when the newest writer last gave a sign; `writer_is_gone` when its process is
    known not to exist any more, and `writer_is_alive` when it is known to exist. `cancel` is the
    newest request that still counts.
    """

    now_s: float
    signed_at_s: float | None = None
    writer_is_gone: bool = False
    writer_is_alive: bool = False
    cancel: CancelRequest | None = None
    tracking: TrackedRun | None = None
    traces: dict[int, Trace] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def folded(key: str, journal: str, story: RunState, sight: Observation) -> Run:
    """The run as it stands."""
    submission = story.submitted.submission
    attempts = tuple(_traced(attempt, sight.traces) for attempt in story.attempts)
    state, why = judged(story, sight)
    if attempts and attempts[-1].reason is None and state in ("lost", "cancelled"):
        attempts = (*attempts[:-1], replace(attempts[-1], reason="lost"))
    shown = attempts[-1] if attempts else None
    recent_steps = _newest_steps(sight.traces)
    last = recent_steps[-1] if recent_steps else None
    return Run(
        run=key,
        id=submission.id,
        name=submission.name,
        state=state,
        why=why,
        rehearsal=submission.rehearsal,
        rehearses=submission.rehearses,
        spec_digest=submission.spec_digest,
        plan_digest=shown.plan_digest if shown else submission.plan_digest,
        journal=journal,
        tracking=sight.tracking,
        submitted_at_s=story.submitted.at_s,
        ended_at_s=story.ended.at_s if story.ended else None,
        read_at_s=sight.now_s,
        cancel_asked_at_s=sight.cancel.at_s if sight.cancel else None,
        pods=shown.pods if shown else submission.pods,
        pods_asked=submission.pods,
        steps=submission.steps,
        steps_done=last.step.index + 1 if last else 0,
        last_step=last,
        since_last_step_s=max(0.0, sight.now_s - last.at_s) if last else None,
        since_last_sign_s=silence_s(story, sight),
        recent=recent(recent_steps),
        driver=story.claim.driver if story.claim else None,
        resumed_at=story.resumed_at,
        attempts=attempts,
        environment=submission.environment,
        profile=submission.profile,
        study=submission.study,
        problems=(*story.problems, *sight.problems),
    )


def judged(story: RunState, sight: Observation) -> tuple[State, str | None]:
    """The state, and what it waits for or why it ended or is lost."""
    if story.ended:
        return story.ended.state, story.ended.why
    if gone := absence(story, sight):
        if not sight.cancel:
            return "lost", gone
        came = _newest_steps(sight.traces)
        steps_done = came[-1].step.index + 1 if came else 0
        return "cancelled", stopped(sight.cancel, steps_done) if sight.cancel.at_once else gone
    if story.stopping:
        return "stopping", story.stopping.why
    if open_attempt := story.open_attempt:
        stepped = sight.traces.get(open_attempt.number, Trace()).last_steps
        return ("running" if stepped else "starting"), None
    if story.pending:
        return "pending", story.pending.why
    if story.attempts and story.attempts[-1].reason == "finished":
        return "running", None  # to its last words
    if story.claim:
        return "starting", after(story.attempts)
    waited_s = max(0.0, sight.now_s - story.submitted.at_s)
    if sight.writer_is_alive:
        who = named(story.submitted.submission.submitter)
        return "submitted", f"orch submit ({who}) has been starting it for {waited_s:,.0f} s"
    return "submitted", f"no driver has taken it up in {waited_s:,.0f} s"


def absence(story: RunState, sight: Observation) -> str | None:
    """Why nothing drives the run any more; None while something does, or still may."""
    silent_s = silence_s(story, sight)
    if story.claim:
        who, limit_s = "driver", story.claim.beat_s * LOST_AFTER_BEATS
        process = story.claim.driver
    else:
        who, limit_s = "orch submit", UNCLAIMED_S
        process = story.submitted.submission.submitter
    # A real run may wait for its driver without whoever submitted it; a rehearsal cannot.
    needed = story.claim is not None or story.submitted.submission.rehearsal
    if sight.writer_is_gone and needed:
        return f"its {who} ({named(process)}) is gone"
    if silent_s > limit_s:
        if not story.claim:
            return f"no driver has taken it up in {silent_s:,.0f} s"
        return f"its {who} ({named(process)}) has given no sign for {silent_s:,.0f} s"
    return None


def named(process: ProcessIdentity) -> str:
    """A process as people find it."""
    return f"process {process.pid} on {process.host}"


def silence_s(story: RunState, sight: Observation) -> float:
    """Seconds since the last event, or the last sign of whoever writes the journal.

    Steps are no sign: processes whose driver is gone may go on for a while, and nobody drives them.
    """
    return max(0.0, sight.now_s - max(story.last_at_s, sight.signed_at_s or 0.0))


def after(attempts: tuple[Attempt, ...]) -> str | None:
    """What the next attempt follows on, in a line."""
    if not attempts:
        return None
    last = attempts[-1]
    if last.reason is None or last.reason == "lost":
        return f"attempt {last.number} was lost with its driver"
    error = first_line(last.error)
    return f"attempt {last.number} {AFTER[last.reason]}" + (f": {error}" if error else "")


def stopped(asked: CancelRequest, steps_done: int, *, saved: bool = False) -> str:
    """Why a run stopped that was asked to, how far it came, and whether that much is kept."""
    when = f"after step {steps_done:,}" if steps_done else "before its first step"
    at_once = ", at once" if asked.at_once and steps_done else ""
    return f"{asked.why}{at_once}, {when}" + ("; its checkpoint is kept" if saved else "")


def first_line(text: str | None) -> str:
    """The first line of an error, which says what it is."""
    return next(iter((text or "").strip().splitlines()), "")


def recent(steps: tuple[TimedStep, ...]) -> RecentSteps | None:
    """Medians over the steps that did not open an attempt; None when there are none."""
    warm = [timed.step for timed in steps if timed.step.opening is None]
    if not warm:
        return None
    return RecentSteps(
        steps=len(warm),
        step_s=median(step.step_s for step in warm),
        mfu=_median([step.mfu for step in warm]),
        tokens_per_s_per_chip=_median([step.tokens_per_s_per_chip for step in warm]),
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _traced(attempt: Attempt, traces: dict[int, Trace]) -> Attempt:
    trace = traces.get(attempt.number, Trace())
    return replace(
        attempt,
        restored_steps=trace.opening.steps_done if trace.opening else 0,
        steps_done=trace.last_steps[-1].step.index + 1 if trace.last_steps else 0,
    )


def _newest_steps(traces: dict[int, Trace]) -> tuple[TimedStep, ...]:
    """The last steps of the newest attempt that came to one."""
    stepped = [number for number, trace in traces.items() if trace.last_steps]
    return traces[max(stepped)].last_steps if stepped else ()
