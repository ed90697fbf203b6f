"""Journal room: how a run begins, who takes it up, and what others may leave for its driver."""

import re
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import JournalUnwritable, RunExists, RunHasEnded, RunIsLive, SpecError
from orchestrator.journal import event_log, files, liveness
from orchestrator.journal.events import CancelRequest, Claimed, Submitted, text_of
from orchestrator.journal.reading import Clock, Journal
from orchestrator.journal.run_paths import RunPaths
from orchestrator.journal.run_state import begun, told
from orchestrator.journal.run_status import BEAT_S, named
from orchestrator.journal.writing import Writer, keep
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.run import LIVE, Run, Submission, TrackedRun
from orchestrator.types.spec import Spec

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run starts from. `plan` is the one that is run; a rehearsal's is a small copy of the
    plan `rehearses`. `documents` are kept as they are, by name. `folder` is the spec's, and
    `profile` the range of steps to trace; `study` is the key of the one it is a trial of.
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


def create(
    storage: Path, opened: RunRequest, key: str | None = None, clock: Clock = time.time
) -> Writer:
    """Make the journal of a new run, whole or not at all; `RunExists` when the key is taken.

    Without a key it is called after the spec and the plan, with the next number that is free.
    """
    if key is not None and not KEY.fullmatch(key):
        legal = f"letters, digits, . _ and -, for example {opened.spec.name}-1"
        raise SpecError(f"run key {key!r}: must be 1 to 100 of {legal}")
    prepared = files.prepare_folder(storage / "run")
    try:
        submitted = _filled(RunPaths(prepared), opened, clock)
        path = _published(prepared, storage, opened, key)
    except BaseException:
        with suppress(JournalUnwritable):  # swept later; the first error is the one told
            files.delete(prepared)
        raise
    files.sweep(storage)
    return Writer(Journal(path), begun(submitted), clock=clock)


def _filled(places: RunPaths, opened: RunRequest, clock: Clock) -> Submitted:
    """Write all that a run starts from."""
    for folder in places.folders:
        files.make_folder(folder)
    plans = [opened.plan, *([opened.rehearses] if opened.rehearses else [])]
    contents = {places.plan(plan.digest): codec.to_pretty_json(plan).encode() for plan in plans}
    contents[places.spec] = codec.to_pretty_json(opened.spec).encode()
    contents |= {places.documents / name: text for name, text in opened.documents.items()}
    for path, content in contents.items():
        keep(path, content)
    submission = Submission(
        id=uuid.uuid4().hex,
        name=opened.spec.name,
        rehearsal=opened.rehearsal,
        rehearses=opened.rehearses.digest if opened.rehearses else None,
        spec_digest=opened.plan.spec_digest,
        plan_digest=opened.plan.digest,
        pods=opened.plan.pods,
        steps=opened.steps,
        environment=dict(opened.environment),
        submitter=liveness.this_process(),
        folder=opened.folder,
        profile=opened.profile,
        study=opened.study,
    )
    submitted = Submitted(at_s=clock(), submission=submission)
    event_log.append(places.events, 1, text_of(submitted))
    return submitted


def _published(prepared: Path, storage: Path, opened: RunRequest, key: str | None) -> Path:
    """Give the journal its key: the one asked, or the next that is free."""
    number = 0
    while True:
        number += 1
        name = key or f"{opened.spec.name}-{codec.short(opened.plan.digest)}-{number}"
        try:
            files.publish(prepared, storage / name)
        except FileExistsError:
            if key:
                raise RunExists(key, storage / name) from None
        else:
            return storage / name


def claim(journal: Journal, *, resumes: bool = False, clock: Clock = time.time) -> Writer:
    """Take a run up as its driver. `resumes` says that a person wants it to go on: its budgets are
    fresh, and what was asked of the driver before no longer counts.

    `RunIsLive` while another driver lives, `RunHasEnded` when it ended and nobody resumes it.
    """
    while True:
        story = journal.story()  # read before the run: what comes in between takes our number
        _check_free(journal.run(clock), resumes=resumes)
        requests = event_log.read(journal.places.requests).last
        claimed = Claimed(
            at_s=clock(),
            driver=liveness.this_process(),
            beat_s=BEAT_S,
            resumes=resumes,
            settled_requests=requests if resumes else story.settled_requests,
        )
        number = story.last + 1
        with suppress(FileExistsError):  # somebody wrote first: see who
            event_log.append(journal.places.events, number, text_of(claimed))
            break
    for folder in (journal.places.events, journal.places.requests):
        files.sweep(folder)
    return Writer(journal, told(story, number, claimed), clock=clock)


def _check_free(run: Run, *, resumes: bool) -> None:
    """Whether a driver may take the run up."""
    if run.state in LIVE and (run.driver or resumes):
        who = f"{named(run.driver)} drives it" if run.driver else "its driver has not come yet"
        raise RunIsLive(f"run {run.run} is {run.state}: {who}")
    if run.state == "succeeded" or (run.ended_at_s is not None and not resumes):
        raise RunHasEnded(f"run {run.run} has ended: {run.state}")


def ask_to_cancel(
    journal: Journal, *, at_once: bool = False, why: str = "somebody asked"
) -> CancelRequest:
    """Leave a request for the driver to stop, after a last checkpoint or at once."""
    by = liveness.this_process()
    request = CancelRequest(at_s=time.time(), by=by, at_once=at_once, why=why)
    while True:
        number = event_log.read(journal.places.requests).last + 1
        with suppress(FileExistsError):
            event_log.append(journal.places.requests, number, text_of(request))
            return request


def track(journal: Journal, tracking: TrackedRun, *, instead: bool = False) -> TrackedRun:
    """Note where a tracker keeps its record of the run; an earlier note stays and comes back.

    `instead` replaces the earlier note, for a record that the tracker no longer has.
    """
    if instead:
        files.replace(journal.places.tracking, codec.to_json(tracking))
    keep(journal.places.tracking, codec.to_json(tracking))
    return codec.from_json(journal.places.tracking.read_bytes(), TrackedRun)
