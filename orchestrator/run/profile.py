"""Profiles of runs: have the next steps traced, read the traces, and keep what they say."""

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from orchestrator.errors import (
    JournalUnreadable,
    JournalUnwritable,
    NoTrace,
    RunHasEnded,
    TraceUnreadable,
)
from orchestrator.evidence.profile import kept_seconds, make_profile, trace_folders, traced_plan
from orchestrator.evidence.report import RunReader
from orchestrator.journal import files
from orchestrator.journal.listing import find_run
from orchestrator.journal.ownership import request_trace
from orchestrator.journal.run_journal import Journal
from orchestrator.plugins import require
from orchestrator.run.progress import (
    RUNS,
    Progress,
    Stage,
    TaskEnded,
    interruptible,
    run_command,
    silent,
)
from orchestrator.storage.addresses import folder
from orchestrator.values import codec
from orchestrator.values import profile as profiles
from orchestrator.values.run import LIVE, Run

_MOST_BYTES = 4 << 30  # of a trace
_POLL_S = 0.5
_TASK = "tracing"
_NEW_STEPS = 3


def profile(
    run: str,
    storage: str | Path = RUNS,
    *,
    steps: int | None = None,
    progress: Progress | None = None,
) -> profiles.Profile:
    """Return what the newest traces of a run say of a step, line by line. With `steps`, a run that
    goes on first traces so many of its next steps.
    """
    require("prove")
    where = folder(storage)
    journal = find_run(where, run)
    found = journal.run()
    if steps is not None:
        _take(journal, found, steps, where, progress or silent)
    problems = list[str]()
    for at in reversed(trace_folders(journal)):
        ranks, more = _measured(journal, at)
        problems += more
        if ranks:
            reading = RunReader(journal).read()
            return make_profile(journal, reading.run, ranks, at, reading.steps, problems)
    # Say why the run lacks a profile, and what leads to one.
    if problems:
        why = f"no trace of run {found.run} can be read: {'; '.join(problems)}"
    elif found.profile and found.steps_done <= found.profile[0]:
        first = found.profile[0]
        why = (
            f"run {found.run} has done {found.steps_done} steps; its trace begins with step {first}"
        )
    else:
        why = f"run {found.run} has no trace"
    if found.state in LIVE:
        following = run_command("profile", found.run, where, "--steps", str(_NEW_STEPS))
        raise NoTrace(why, next_command=following)
    raise NoTrace(f"{why}; submit with --profile A:B to keep one of steps A to B - 1")


def measure_traces(journal: Journal) -> None:
    """Read every trace that nobody has read yet, and keep what it says next to it."""
    for at in trace_folders(journal):
        _measured(journal, at)


def _measured(journal: Journal, at: Path) -> tuple[list[profiles.TraceSeconds], list[str]]:
    """Return what the traces in a folder say by rank, and what is wrong with others."""
    problems, known = [], {each.note.rank: each for each in kept_seconds(at)}
    for name in files.names(at):
        rank = name.removeprefix("rank-")
        if not rank.isdecimal() or int(rank) in known:
            continue
        try:
            known[int(rank)] = _measure(journal, at / name)
        except FileNotFoundError:
            problems.append(f"{at.name}/{name} is not whole: its process ended before its steps")
        except (TraceUnreadable, JournalUnreadable, msgspec.DecodeError) as error:
            problems.append(str(error))
    return [known[rank] for rank in sorted(known)], problems


def _measure(journal: Journal, at: Path) -> profiles.TraceSeconds:
    from orchestrator.proving.measured import measure  # noqa: PLC0415  it reads programs

    note = codec.from_json(files.read(at / profiles.TRACE), profiles.TraceNote)
    plan = traced_plan(journal, journal.run(), note.plan_digest)
    if plan is None:
        raise TraceUnreadable(f"{at} is of plan {note.plan_digest[:8]}, which is not of this run")
    root = at / "plugins" / "profile"
    traces = (
        root / taken / name
        for taken in sorted(files.names(root), reverse=True)
        for name in files.names(root / taken)
        if name.endswith(".xplane.pb")
    )
    if (path := next(traces, None)) is None:
        raise FileNotFoundError(root)
    program = None
    with suppress(FileNotFoundError):
        program = files.read(at / profiles.PROGRAM)
    found = measure(files.read(path, _MOST_BYTES), path.name, note, plan, program)
    with suppress(JournalUnwritable):  # of another user, or on a full disk: read again next time
        files.replace(at / profiles.SECONDS, codec.to_json(found))
    return found


def _take(journal: Journal, run: Run, steps: int, storage: Path, progress: Progress) -> None:
    """Ask the run to trace its next steps, and wait until every rank that traces has done so."""
    if run.state not in LIVE:
        why = f"run {run.run} is {run.state}: it has no next step"
        raise RunHasEnded(why, next_command=run_command("profile", run.run, storage))
    number = request_trace(journal, steps)
    again = run_command("profile", run.run, storage)

    def is_taken() -> bool:
        """Return whether all ranks have traced what was asked for, and say how far they are."""
        run, asked = journal.run(), journal.state().trace
        if asked is None or asked.request < number:
            text = f"the run is {run.state}; {run.steps_done} of {run.steps} steps are done"
            progress(Stage(task=_TASK, stage=text))
            return False
        text = f"steps {asked.first_step} to {asked.end_step - 1}; {run.steps_done} are done"
        progress(Stage(task=_TASK, stage=text))
        at = journal.paths.root / profiles.TRACES / f"steps-{asked.first_step}-{asked.end_step}"
        ranks = len(profiles.traced_ranks(journal.plan(run.plan_digest)))
        return sum(profiles.TRACE in files.names(at / name) for name in files.names(at)) >= ranks

    with interruptible("waiting for the trace", "the run takes it all the same", again):
        while not is_taken() and journal.run().state in LIVE:
            time.sleep(_POLL_S)
    progress(TaskEnded(task=_TASK))
