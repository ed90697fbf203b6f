"""Show one run: its state, its attempts, its log lines, a request to cancel it."""

from orchestrator.journal.run_logs import Log, LogLine
from orchestrator.journal.run_status import first_line, last_attempt_text
from orchestrator.render.formatting import count, elapsed, percent, seconds
from orchestrator.render.layout import columns, hanging, indent, page, title
from orchestrator.render.runs_screen import mfu
from orchestrator.types.codec import short
from orchestrator.types.run import LIVE, Attempt, ProcessIdentity, Run, Status

ERROR_WIDTH = 100


def status_screen(status: Status, next_command: str) -> str:
    """One run: how it stands, every attempt and why it ended, and what to do next."""
    what = f"{status.run}: {status.state}" + (", a rehearsal" if status.rehearsal else "")
    blocks = [
        [title(what, f"plan {short(status.plan_digest)}")],
        facts(status),
        ["  attempts", *indent(attempts(status), "    ")] if status.attempts else [],
        [f"warning: {problem}" for problem in status.problems],
        [*hanging("Run: ", verdict(status)), f"Next: {next_command}"],
    ]
    return page(blocks)


def facts(status: Status) -> list[str]:
    """What is known of the run, a line each."""
    rows = [
        ("why", first_line(status.detail)),
        ("steps", steps(status)),
        ("pods", pods(status)),
        ("step time", step_time(status)),
        ("MFU", mfu_beside_forecast(status)),
        ("forecast", forecast_source(status)),
        ("driver", driver(status)),
        ("asked", cancel_asked(status)),
        ("cluster", status.environment.get("cluster")),
        ("code", code(status)),
        ("journal", status.journal),
        ("mlflow", tracking(status)),
    ]
    width = max(len(name) for name, _ in rows)
    return [line for name, text in rows if text for line in hanging(f"  {name:{width}}  ", text)]


def steps(status: Status) -> str:
    text = f"{count(status.steps_done)} of {count(status.steps)}"
    if status.since_last_step_s is not None:
        text += f", the last {elapsed(status.since_last_step_s)} ago"
    return text


def pods(status: Status) -> str:
    fewer = f" of {status.requested_pods} asked" if status.pods != status.requested_pods else ""
    slices = status.attempts[-1].slices if status.attempts else ()
    return f"{status.pods}{fewer}" + (f": {', '.join(slices)}" if slices else "")


def step_time(status: Status) -> str | None:
    """The measured median beside the forecast's two figures."""
    parts: list[str] = []
    if status.recent:
        parts.append(f"{seconds(status.recent.step_s)} over the last {status.recent.steps}")
    if status.forecast and not is_of_chips(status):
        low, high = status.forecast.step_s.lower, status.forecast.step_s.unoverlapped
        forecast = f"forecast {seconds(low)} (bound), {seconds(high)} (nothing overlapped)"
        if status.forecast.step_s.expected is not None:
            forecast = f"expected {seconds(status.forecast.step_s.expected)}, bound {seconds(low)}"
        parts.append(forecast)
    return "; ".join(parts) or None


def is_of_chips(status: Status) -> bool:
    """Whether the forecast is of chips, and the run a rehearsal that has none."""
    return status.rehearsal and status.forecast is not None and status.forecast.chip_profile is None


def forecast_source(status: Status) -> str | None:
    """On whose word a rehearsal is forecast."""
    if not status.rehearsal or not status.forecast:
        return None
    if status.forecast.chip_profile is None:
        return "none: this machine was not measured, and its plan's forecast is of chips"
    return f"of this rehearsal, on its machine's profile {short(status.forecast.chip_profile)}"


def mfu_beside_forecast(status: Status) -> str | None:
    """The measured median beside the forecast's two figures, and their definition."""
    if not status.forecast or is_of_chips(status):
        return mfu(status) if status.recent and status.recent.mfu is not None else None
    roof, low = status.forecast.mfu.lower, status.forecast.mfu.unoverlapped
    source = status.forecast.chip_profile
    known = status.recent is not None and status.recent.mfu is not None
    measured = f"{mfu(status)}; " if known else "not measured; "
    share = ""
    if status.recent and status.recent.mfu is not None and roof and not source:
        share = f"; {percent(status.recent.mfu / roof)} of the roofline"
    forecast = f"forecast {percent(roof)} (roofline), {percent(low)} (nothing overlapped)"
    if status.forecast.mfu.expected is not None:
        forecast = f"expected {percent(status.forecast.mfu.expected)}, roofline {percent(roof)}"
    if source:
        forecast = f"expected {percent(low)}, bound {percent(roof)}, of the measured peak"
    return f"{measured}{forecast}{share}"


def code(status: Status) -> str | None:
    """The commit that ran, and whether all of it was committed."""
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
        text += f", last sign {elapsed(status.since_last_heartbeat_s)} ago"
    return text


def cancel_asked(status: Status) -> str | None:
    if status.cancel_requested_at_s is None:
        return None
    return f"to cancel, {elapsed(status.read_at_s - status.cancel_requested_at_s)} ago"


def tracking(status: Status) -> str | None:
    if status.tracking is None:
        return None
    return f"run {status.tracking.run_id} in {status.tracking.uri}"


def attempts(status: Status) -> list[str]:
    """Every attempt: how far it came, how long it took, and why it ended."""
    rows = [
        (
            str(attempt.number),
            attempt.reason or status.state,
            f"{count(attempt.steps_done)} steps" if attempt.steps_done else "no step",
            elapsed((attempt.ended_at_s or status.read_at_s) - attempt.started_at_s)
            if attempt.reason != "lost"
            else "",
            cause(attempt),
        )
        for attempt in status.attempts
    ]
    return columns(rows, "><>><")


def cause(attempt: Attempt) -> str:
    """The first line of the error, and the rank that died first."""
    rank = attempt.first_dead_rank
    dead = f"rank {rank} died first" if rank is not None else ""
    text = ": ".join(part for part in (dead, first_line(attempt.error)) if part)
    return text if len(text) <= ERROR_WIDTH else text[: ERROR_WIDTH - 3] + "..."


def verdict(status: Status) -> str:
    """The run in one line."""
    parts: list[str] = [status.state]
    if status.state in LIVE and status.steps_done:
        parts.append(f"step {count(status.steps_done)} of {count(status.steps)}")
    if status.recent and status.recent.mfu is not None:
        parts.append(f"MFU {mfu(status)}")
    tried = len(status.attempts)
    parts.append(f"{tried} {'attempt' if tried == 1 else 'attempts'}")
    if status.state not in LIVE and (said := status.detail or last_attempt_text(status.attempts)):
        parts.append(first_line(said).rstrip("."))
    return f"{', '.join(parts)}."


def cancel_text(before: Run, after: Run, *, at_once: bool) -> str:
    """What a request to cancel comes to."""
    if before.ended_at_s is not None:
        return f"{before.run}: has ended already: {before.state}. Nothing was asked."
    asked = f"{before.run}: asked to stop" + (" at once." if at_once else ".")
    if before.cancel_requested_at_s is not None:
        ago = elapsed(before.read_at_s - before.cancel_requested_at_s)
        asked += f" It was asked to {ago} ago too."
    return f"{asked}\n{what_follows(after, at_once=at_once)}"


def what_follows(run: Run, *, at_once: bool) -> str:
    """What becomes of a request to cancel."""
    if run.state not in LIVE:
        return f"Nothing drives it any more: {run.detail}. It counts as cancelled."
    if run.driver is None:
        return "Its driver has not come yet; when it comes, it stops before it takes a chip."
    if at_once:
        return f"{driver_name(run.driver)} stops it; steps since the last checkpoint are lost."
    return f"{driver_name(run.driver)} saves a last checkpoint after the step it is in, and stops."


def driver_name(process: ProcessIdentity) -> str:
    return f"Its driver (process {process.pid} on {process.host})"


def log_title(log: Log) -> str:
    """The line above a log."""
    if log.rank is None:
        return "== driver =="
    first = ", died first" if log.first_dead else ""
    return f"== attempt {log.attempt}, rank {log.rank}{first} =="


def log_line(line: LogLine, *, alone: bool) -> str:
    """A line of a log; with its rank in front when several are read together."""
    if alone:
        return line.line
    return f"{'driver' if line.rank is None else f'rank {line.rank}'} | {line.line}"
