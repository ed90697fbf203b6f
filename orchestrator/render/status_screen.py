"""Show one run: its state, and each attempt at it."""

from pathlib import Path

from orchestrator.formatting import count, counted, elapsed, percent, seconds, to_digits
from orchestrator.journal.run_logs import list_logs
from orchestrator.journal.run_status import first_line, last_attempt_text
from orchestrator.render.next_commands import run_command
from orchestrator.render.outlook_text import outlook_rows
from orchestrator.render.runs_screen import mfu
from orchestrator.render.screen_parts import (
    Part,
    Screen,
    Table,
    Title,
    indent,
    labelled,
    next_step,
    screen,
    section,
    warning,
)
from orchestrator.storage import folder
from orchestrator.types.codec import short
from orchestrator.types.plan import StageSpan
from orchestrator.types.run import LIVE, Attempt, Evaluation, Run, Status

ERROR_WIDTH = 100


def status_screen(status: Status, next_command: str) -> Screen:
    """Return the state of a run, every attempt and why it ended, and what to do next."""
    kind = ", a rehearsal" if status.rehearsal else ""
    title = Title(
        left=f"{status.run}: {status.state}{kind}", right=f"plan {short(status.plan_digest)}"
    )
    return screen(
        [title],
        indent(facts(status)),
        section("attempts", attempts(status)) if status.attempts else [],
        [warning(problem) for problem in status.problems],
        [labelled("Run:", verdict(status), "bold"), *next_step(next_command)],
    )


def facts(status: Status) -> list[Part]:
    rows = [
        ("why", first_line(status.detail)),
        ("steps", steps(status)),
        ("stage", stage(status.stage)),
        ("held-out", held_out(status.evaluation)),
        ("pods", pods(status)),
        ("step time", step_time(status)),
        ("MFU", mfu_and_forecast(status)),
        *(outlook_rows(status.outlook) if status.outlook else []),
        ("forecast", forecast_source(status)),
        ("driver", driver(status)),
        ("cancel", cancel_request(status)),
        ("cluster", status.environment.get("cluster")),
        ("code", code(status)),
        ("journal", status.journal),
    ]
    if status.tracking:
        record = f"run {status.tracking.run_id} in {status.tracking.uri}"
        rows.append((status.tracking.tracker, record))
    width = max(len(name) for name, _ in rows)
    return [Table(rows=[(f"{name:{width}}", text) for name, text in rows if text], columns="<w")]


def steps(status: Status) -> str:
    text = f"{count(status.steps_done)} of {count(status.steps)}"
    if status.since_last_step_s is not None:
        text += f", the last {elapsed(status.since_last_step_s)} ago"
    return text


def stage(newest: StageSpan | None) -> str | None:
    """Return which stage of a run it is, and its steps, counted from 1."""
    if newest is None:
        return None
    first, last = newest.first_step + 1, newest.end_step
    return f"{newest.number} of {newest.of}, steps {count(first)} to {count(last)}"


def held_out(newest: Evaluation | None) -> str | None:
    """Return the newest loss and perplexity of held-out text."""
    if newest is None:
        return None
    perplexity = to_digits(newest.perplexity, 4)
    after = f"after step {count(newest.steps_done)}, took {seconds(newest.evaluation_s)}"
    return f"loss {newest.loss:.4f}, perplexity {perplexity}, {after}"


def pods(status: Status) -> str:
    fewer = f" of {status.requested_pods} requested" if status.pods != status.requested_pods else ""
    slices = status.attempts[-1].slices if status.attempts else ()
    return f"{status.pods}{fewer}" + (f": {', '.join(slices)}" if slices else "")


def step_time(status: Status) -> str | None:
    """Return the measured median and the forecast."""
    parts: list[str] = []
    if status.recent:
        parts.append(f"{seconds(status.recent.step_s)} over the last {status.recent.steps}")
    if status.forecast and not is_for_chips(status):
        step_s = status.forecast.step_s
        text = f"lower bound {seconds(step_s.lower)}"
        if step_s.expected is not None:
            text = f"expected {seconds(step_s.expected)}, {text}"
        parts.append(text)
    return "; ".join(parts) or None


def is_for_chips(status: Status) -> bool:
    """Return whether the run is a rehearsal whose forecast is for real chips."""
    return status.rehearsal and status.forecast is not None and status.forecast.chip_profile is None


def forecast_source(status: Status) -> str | None:
    """Return what the forecast of a rehearsal is based on."""
    if not status.rehearsal or not status.forecast:
        return None
    if status.forecast.chip_profile is None:
        return "none: this machine is not calibrated, and the plan's forecast is for chips"
    return f"for this machine, from its chip profile {short(status.forecast.chip_profile)}"


def mfu_and_forecast(status: Status) -> str | None:
    """Return the measured median MFU and the forecast."""
    measured = status.recent.mfu if status.recent else None
    if not status.forecast or is_for_chips(status):
        return percent(measured) if measured is not None else None
    forecast = status.forecast.mfu
    bound = f"at most {percent(forecast.lower)}"
    parts = [percent(measured) if measured is not None else "not measured"]
    if status.forecast.chip_profile:
        expected = percent(forecast.unoverlapped)
        parts.append(f"expected {expected}, {bound}, of the measured peak")
        return "; ".join(parts)
    if forecast.expected is not None:
        parts.append(f"expected {percent(forecast.expected)}, {bound}")
    else:
        parts.append(bound)
    if measured is not None and forecast.lower:
        parts.append(f"measured is {percent(measured / forecast.lower)} of that bound")
    return "; ".join(parts)


def code(status: Status) -> str | None:
    """Return the commit of the run, and whether it had uncommitted changes."""
    commit = status.environment.get("git_commit")
    if commit is None:
        return None
    changed = status.environment.get("git_uncommitted")
    return f"commit {commit[:12]}" + (f" with {changed}" if changed else "")


def driver(status: Status) -> str | None:
    if not status.driver:
        return None
    text = f"process {status.driver.pid} on {status.driver.host}"
    if status.ended_at_s is None:
        text += f", last heartbeat {elapsed(status.since_last_heartbeat_s)} ago"
    return text


def cancel_request(status: Status) -> str | None:
    if status.cancel_requested_at_s is None:
        return None
    return f"requested {elapsed(status.read_at_s - status.cancel_requested_at_s)} ago"


def attempts(status: Status) -> list[Part]:
    """Return every attempt: its steps, its time, and why it ended."""
    rows = [
        (
            str(attempt.number),
            attempt.reason or status.state,
            f"{count(attempt.steps_done)} steps" if attempt.steps_done else "no step",
            attempt_time(attempt, status.read_at_s),
            cause(attempt),
        )
        for attempt in status.attempts
    ]
    return [Table(rows=rows, columns="><>>w")]


def attempt_time(attempt: Attempt, now_s: float) -> str:
    """Return how long an attempt took, unless nobody saw its end."""
    if attempt.reason == "lost":
        return ""
    return elapsed((attempt.ended_at_s or now_s) - attempt.started_at_s)


def cause(attempt: Attempt) -> str:
    """Return the rank that died first and the first line of its error."""
    rank = attempt.first_dead_rank
    dead = f"rank {rank} died first" if rank is not None else ""
    text = ": ".join(part for part in (dead, first_line(attempt.error)) if part)
    return text if len(text) <= ERROR_WIDTH else text[: ERROR_WIDTH - 3] + "..."


def verdict(status: Status) -> str:
    """Return the run in one line."""
    parts: list[str] = [status.state]
    if status.state in LIVE and status.steps_done:
        parts.append(f"step {count(status.steps_done)} of {count(status.steps)}")
    if status.recent and status.recent.mfu is not None:
        parts.append(f"MFU {mfu(status)}")
    parts.append(counted(len(status.attempts), "attempt"))
    if status.state not in LIVE and (why := status.detail or last_attempt_text(status.attempts)):
        parts.append(first_line(why).rstrip("."))
    return f"{', '.join(parts)}."


def next_run_command(run: Run, named: str, storage: Path) -> str:
    """Return the next command for a run: follow it, compare it with its plan, or resume it.

    The logs come first for a run that failed before its first step and left some.
    """
    if run.state in LIVE:
        return run_command("logs", named, storage, "-f")
    if run.state == "succeeded":
        return run_command("report", named, storage)
    logs = list_logs(folder(run.journal), run, attempt=None)
    unclear = run.state == "failed" and not run.steps_done and any(not log.empty for log in logs)
    return run_command("logs" if unclear else "resume", named, storage)
