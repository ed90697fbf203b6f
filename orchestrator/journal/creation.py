"""Creating the journal of a run."""

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.errors import RunExists, RunIsLive, SpecError
from orchestrator.journal import events, files, liveness
from orchestrator.journal.events import Repaired, Submitted
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.journal.run_paths import FIRST_EVENT, UNCOMMITTED, RunPaths
from orchestrator.journal.run_state import RunState, initial
from orchestrator.storage.addresses import address
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import LIVE, Submission
from orchestrator.values.spec import Spec

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is created from.

    `plan` is the plan that runs; in a rehearsal it is a small copy of the plan `rehearses`.
    `documents` are stored unchanged, by name. `folder` is that of the spec, `profile` the range of
    steps to trace, and `study` the key of the study that the run is a trial of.
    """

    spec: Spec
    plan: Plan
    steps: int
    rehearsal: bool = False
    rehearses: Plan | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, bytes] = field(default_factory=dict)
    folder: str = ""
    profile: tuple[int, int] | None = None
    study: str | None = None


def check_key(key: str) -> None:
    """Refuse a key that cannot name a run."""
    if not KEY.fullmatch(key):
        raise SpecError(f"run key {key!r}: must be 1 to 100 of letters, digits, . _ and -")


def create_run(
    storage: Path, request: RunRequest, key: str | None = None, clock: Clock = time.time
) -> Writer:
    """Create the journal of a run, whole or not at all; `RunExists` when the key is taken.

    By default the key is built from the spec's name, the plan and the next free number.
    """
    if key is not None:
        check_key(key)
    with files.building(storage) as prepared:
        state = _fill(RunPaths(prepared), request, clock)
        path = _publish(prepared, storage, request, key)
    files.sweep(storage)
    return Writer(Journal(path), state, clock=clock)


def _fill(paths: RunPaths, request: RunRequest, clock: Clock) -> RunState:
    """Write everything that a run starts from; the state of the new run."""
    for folder in paths.folders:
        files.make_folder(folder)
    plans = [request.plan, *([request.rehearses] if request.rehearses else [])]
    contents = {paths.plan(plan.digest): codec.to_pretty_json(plan).encode() for plan in plans}
    contents[paths.spec] = codec.to_pretty_json(request.spec).encode()
    contents |= {paths.documents / name: text for name, text in request.documents.items()}
    for path, content in contents.items():
        private = path == paths.documents / UNCOMMITTED
        files.write_once(path, content, mode=0o600 if private else 0o666)
    sums = {paths.name_of(path): events.digest(content) for path, content in contents.items()}
    submitted = Submitted(at_s=clock(), submission=_submission(request, sums))
    content = events.linked(submitted, "")
    events.begin(paths, content)
    return replace(initial(submitted), digest=events.digest(content))


def _submission(request: RunRequest, sums: dict[str, str]) -> Submission:
    return Submission(
        id=uuid.uuid4().hex,
        name=request.spec.name,
        rehearsal=request.rehearsal,
        rehearses=request.rehearses.digest if request.rehearses else None,
        spec_digest=request.plan.spec_digest,
        plan_digest=request.plan.digest,
        pods=request.plan.pods,
        steps=request.steps,
        environment=dict(request.environment),
        submitter=liveness.this_process(),
        folder=request.folder,
        profile=request.profile,
        study=request.study,
        sums=sums,
    )


def _publish(prepared: Path, storage: Path, request: RunRequest, key: str | None) -> Path:
    """Give the journal its key: the requested one, or the next that is free."""
    number = 0
    while True:
        number += 1
        name = key or f"{request.spec.name}-{codec.short(request.plan.digest)}-{number}"
        try:
            files.publish(prepared, storage / name, FIRST_EVENT)
        except FileExistsError:
            if key:
                raise RunExists(key, address(storage / name)) from None
        else:
            return storage / name


# Repairing a journal that nothing drives: its events, and files that can be made again.


def repair_events(journal: Journal, clock: Clock = time.time) -> None:
    """Write an event with which a person goes on without what the others lack.

    What the damaged events said stays lost, and stays a problem of the run.
    """
    check_idle(journal, clock)
    state, newest = journal.state(), events.read_newest(journal.paths)
    last, previous = state.last, state.digest
    if isinstance(newest, events.Newest) and newest.number > last:
        last, previous = newest.number, newest.sha256
    event = Repaired(at_s=clock(), by=liveness.this_process(), faults=tuple(map(str, state.damage)))
    events.append_event(journal.paths, last + 1, events.linked(event, previous))


def replace_file(journal: Journal, name: str, content: bytes, clock: Clock = time.time) -> None:
    """Write a file of a run as it was; what is there now stays beside it, and is never read."""
    check_idle(journal, clock)
    path = journal.paths.root / name
    files.set_aside(path, f".damaged-{clock():.0f}")
    files.write_new(path, content)


def check_idle(journal: Journal, clock: Clock) -> None:
    """Refuse to repair a run that something drives, or may start to."""
    run = journal.run(clock)
    if run.state in LIVE:
        raise RunIsLive(f"run {run.run} is {run.state}: it is repaired when nothing drives it")
