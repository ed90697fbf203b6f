"""Show one run: its state, and each attempt at it."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.formatting import (
    age,
    count,
    counted,
    dollars,
    elapsed,
    lasting,
    percent,
    scaled,
    seconds,
    span,
    to_digits,
)
from orchestrator.journal.run_journal import Log, LogTail, list_logs
from orchestrator.journal.run_state import first_line, last_attempt_text
from orchestrator.run.next_commands import run_command
from orchestrator.show.parts import (
    Command,
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
from orchestrator.storage.addresses import folder
from orchestrator.values import codec
from orchestrator.values.codec import short
from orchestrator.values.goodput import Outlook
from orchestrator.values.plan import StageSpan
from orchestrator.values.run import LIVE, Attempt, Evaluation, LogLine, Run, Status
from orchestrator.values.study import StudyStatus, kind_text

# Show runs and studies as a table.


HEAD = ("RUN", "STATE", "STEPS", "MFU", "PODS", "AGE", "")
COLUMNS = "<<>>>><"
SPARE = tuple(map(HEAD.index, ("PODS", "AGE", "MFU")))  # a narrow terminal may lack them
FEW = 10_000  # smaller numbers are written out

Row = tuple[str, ...]


def runs_screen(
    runs: list[Run], storage: str, studies: Sequence[StudyStatus] = (), following: str | None = None
) -> Screen:
    """Return all runs, newest first; a study comes above its runs. `following` is the command for
    one of them.
    """
    if not runs and not studies:
        return screen([Command(text=f"No runs in {storage}"), *next_step("orch submit SPEC")])
    heads = {one.study: study_row(one) for one in studies}
    groups: dict[str, list[Row]] = {}
    for run in runs:
        group = run.study if run.study in heads else run.run
        groups.setdefault(group, [heads[group]] if group in heads else []).append(run_row(run))
    for key, head in heads.items():
        groups.setdefault(key, [head])
    rows = [HEAD, *(row for group in groups.values() for row in group)]
    table = Table(rows=rows, columns=COLUMNS, row_styles={0: "bold"}, spare=SPARE)
    return screen([table], next_step(following))


def study_row(status: StudyStatus) -> Row:
    done = f"{status.done} / {status.total} runs"
    submitted = age(status.read_at_s - status.submitted_at_s)
    return status.study, status.state, done, "", "", submitted, kind_text(status.scaling)


def study_runs_screen(status: StudyStatus) -> Screen:
    """Return a study and its runs, in their order."""
    done = f"{status.done} of {status.total} runs done"
    title = Title(left=f"{status.study}: {status.state}, {done}", right=kind_text(status.scaling))
    rows = [row[:-1] for row in (HEAD, *map(run_row, status.runs))] if status.runs else []
    return screen([title], indent([Table(rows=rows, columns=COLUMNS[:-1])]) if rows else [])


def short_count(number: int) -> str:
    """Return a number in a few columns: 9,999, 1M."""
    return count(number) if number < FEW else scaled(number)


def run_row(run: Run) -> Row:
    return (
        run.run,
        run.state,
        f"{short_count(run.steps_done)} / {short_count(run.steps)}",
        mfu(run),
        str(run.pods),
        age(run.read_at_s - run.submitted_at_s),
        "rehearsal" if run.rehearsal else "",
    )


def mfu(run: Run) -> str:
    return percent(run.recent.mfu) if run.recent and run.recent.mfu is not None else "-"


# What is left of a run, as text: days, dollars, and whether the deadline still holds.


def outlook_rows(outlook: Outlook) -> list[tuple[str, str]]:
    """Return a name and a text for each thing that is known."""
    rows = [("left", left_text(outlook))]
    if cost := cost_text(outlook):
        rows.append(("cost", cost))
    if deadline := deadline_text(outlook):
        rows.append(("deadline", deadline))
    return rows


def left_text(outlook: Outlook) -> str:
    days = outlook.days_left
    interval = span(lasting(days.low), lasting(days.high))
    ends = span(moment(outlook.ends_at_s.low), moment(outlook.ends_at_s.high))
    return (
        f"{lasting(days.value)} (80 % interval {interval}), until {ends};"
        f" goodput {percent(outlook.goodput.value)}"
    )


def cost_text(outlook: Outlook) -> str:
    if outlook.dollars_so_far is None or outlook.dollars_left is None:
        return ""
    left = span(dollars(outlook.dollars_left.low), dollars(outlook.dollars_left.high))
    return f"{dollars(outlook.dollars_so_far)} so far, {left} to come"


def deadline_text(outlook: Outlook) -> str:
    if outlook.deadline_at_s is None or outlook.odds is None:
        return ""
    return f"{moment(outlook.deadline_at_s)}, {percent(outlook.odds)} likely"


def moment(at_s: float) -> str:
    """Return a time of day in UTC, to the minute."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}"


def outlook_text(outlook: Outlook) -> str:
    """Return all of it in one sentence."""
    return "; ".join(f"{name}: {text}" for name, text in outlook_rows(outlook)) + "."


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


# Show the lines of a run's logs, as text or as JSON.


def log_lines(tails: list[LogTail], *, as_json: bool, titled: bool) -> Iterator[str]:
    """Return the lines of logs, one log after the other, each below its title."""
    for tail in tails:
        if titled and not as_json:
            yield log_title(tail.log)
        for line in tail.lines:
            yield log_line(line, as_json=as_json, alone=True)


def log_title(log: Log) -> str:
    """Return the line above a log."""
    if log.rank is None:
        return "== driver =="
    first = ", died first" if log.first_dead else ""
    return f"== attempt {log.attempt}, rank {log.rank}{first} =="


def log_line(line: LogLine, *, as_json: bool, alone: bool) -> str:
    """Return a line of a log, with its rank in front when several logs are mixed."""
    if as_json:
        return codec.to_json(line).decode() + "\n"
    if alone:
        return line.line
    return f"{'driver' if line.rank is None else f'rank {line.rank}'} | {line.line}"


def notes(run: str, more: int, *, empty: bool) -> Iterator[str]:
    """Return what the shown logs leave out."""
    if empty:
        yield f"{run}: no process has written a log yet"
    if more:
        yield f"{more} more ranks are shown by --rank N"
