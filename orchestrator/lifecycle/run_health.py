"""What is wrong with the files of a run, what of it can be repaired, and repairing that."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from orchestrator.errors import JournalUnreadable, OrchError
from orchestrator.journal import Journal, event_chain, files, repair
from orchestrator.journal.run_journal import Clock
from orchestrator.journal.run_state import RunState
from orchestrator.journal.step_table import read_table
from orchestrator.plan.elastic import plan_on
from orchestrator.plan.planner import make_plan
from orchestrator.plan.rehearsal import rehearse
from orchestrator.types import codec
from orchestrator.types.health import FileFinding, RunHealth
from orchestrator.types.plan import Plan
from orchestrator.types.run import Attempt

PUT_BACK = "put back a copy of it: it cannot be made again"


def run_health(journal: Journal, *, repairs: bool = False, clock: Clock = time.time) -> RunHealth:
    """The state of a run's files; with `repairs`, after what can be repaired was."""
    found = list(_findings(journal))
    repaired: list[FileFinding] = []
    if repairs:
        repaired = [one for one in found if one.repairable]
        for one in repaired:
            _repair(journal, one, clock)
        found = list(_findings(journal))
    return RunHealth(run=journal.key, findings=tuple(found), repaired=tuple(repaired))


def _findings(journal: Journal) -> Iterator[FileFinding]:
    state = journal.state()
    yield from _events(state)
    yield from _written_once(journal, state)
    for attempt in state.attempts:
        yield from _steps(journal, attempt)
    yield from _checkpoints(journal, state)
    yield from _proofs(journal)


def _repair(journal: Journal, found: FileFinding, clock: Clock) -> None:
    if found.kind == "event":
        if journal.state().damage:  # one repair is for all events
            repair.repair_events(journal, clock)
    elif (content := _remade(journal, journal.state(), found.file)) is not None:
        repair.replace_file(journal, found.file, content, clock)


# --- events


def _events(state: RunState) -> Iterator[FileFinding]:
    for fault in state.damage:
        yield FileFinding(
            kind="event",
            file=fault.file,
            what=fault.what,
            stops=True,
            repairable=True,
            advice="the run goes on from the events that are left; what this one said is lost",
        )


# --- files that an event has the sum of


def _written_once(journal: Journal, state: RunState) -> Iterator[FileFinding]:
    """The spec, the plans and the documents."""
    for name, sha256 in journal.sums(state).items():
        if (what := _difference(journal.paths.root / name, sha256)) is None:
            continue
        document = name.startswith("documents/")
        repairable = not document and _remade(journal, state, name) is not None
        yield FileFinding(
            kind="document" if document else "plan" if name.startswith("plans/") else "spec",
            file=name,
            what=what,
            stops=not document,
            repairable=repairable,
            advice="it is made again from the spec" if repairable else PUT_BACK,
        )


def _difference(path: Path, sha256: str) -> str | None:
    """How a file differs from what was written, if it does."""
    try:
        content = files.read(path)
    except FileNotFoundError:
        return "is missing"
    except JournalUnreadable as error:
        return error.why
    return None if event_chain.digest(content) == sha256 else "was changed after it was written"


def _remade(journal: Journal, state: RunState, name: str) -> bytes | None:
    """A plan as this version of orch makes it from the spec, if it is the same to the byte."""
    sha256 = journal.sums(state)[name]
    with suppress(OrchError):
        for plan in _plans(journal, state):
            content = codec.to_pretty_json(plan).encode()
            if event_chain.digest(content) == sha256:
                return content
    return None


def _plans(journal: Journal, state: RunState) -> Iterator[Plan]:
    """The plans that a run may have: of its spec, its rehearsal, and on other numbers of pods."""
    spec, submission = journal.spec(), state.submitted.submission
    plan = make_plan(spec)
    yield plan
    if submission.rehearsal:
        yield rehearse(spec, plan, steps=submission.steps).plan
    first = journal.plan(submission.plan_digest)
    for pods in {one.pods for one in state.attempts}:
        yield plan_on(spec, first, pods)


# --- steps, checkpoints, proofs


def _steps(journal: Journal, attempt: Attempt) -> Iterator[FileFinding]:
    table, problems = read_table(journal.path, attempt)
    name = journal.paths.name_of(journal.paths.steps(attempt.number))
    lost = attempt.written.lines - len(table) if attempt.written else 0
    first = int(table.index[0]) if len(table) else 0
    if len(table) and not attempt.written:
        lost = int(table.index[-1]) + 1 - first - len(np.unique(table.index))
    saved = attempt.saved_steps or 0
    done = int(table.index[-1]) + 1 if len(table) else 0
    if not problems and lost <= 0 and (not saved or done >= saved):
        return
    yield FileFinding(
        kind="steps",
        file=name,
        what=problems[0].what if problems else f"ends after step {done:,}",
        stops=False,
        repairable=False,
        advice=f"reports leave out {max(lost, saved - done):,} steps of attempt {attempt.number}",
    )


def _checkpoints(journal: Journal, state: RunState) -> Iterator[FileFinding]:
    """The newest checkpoint: without it the run goes on from an earlier one, if one is left."""
    if not state.saves:
        return
    saved = state.saves[-1]
    folder = journal.paths.checkpoint(saved)
    if what := _difference(journal.paths.checkpoint_sums(saved), saved.sha256):
        yield FileFinding(
            kind="checkpoint",
            file=journal.paths.name_of(folder),
            what=f"its sums: {what}",
            stops=not any(journal.has_checkpoint(one) for one in state.saves),
            repairable=False,
            advice="put it back: else a resume goes on from an earlier one that is left, or not at"
            " all, and the spec is to be submitted anew",
        )


def _proofs(journal: Journal) -> Iterator[FileFinding]:
    for name in files.names(journal.paths.proofs):
        path = journal.paths.proofs / name
        try:
            journal.read_proof(path)
        except JournalUnreadable as error:
            yield FileFinding(
                kind="proof",
                file=journal.paths.name_of(path),
                what=error.why,
                stops=False,
                repairable=False,
                advice="remove it, and prove the spec again: orch prove SPEC",
            )
