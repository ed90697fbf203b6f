"""Records runs as JSON lines, in one file for all runs of a storage directory."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from orchestrator import journal as journals
from orchestrator.errors import SpecError
from orchestrator.evidence.report import make_report
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepReader
from orchestrator.tracking.destinations import NotRecorded
from orchestrator.values.run import LIVE, Destination, Run, TrackedRun
from orchestrator.values.spec import TrackingOptions

TRACKER, _FILE = "lines", "runs.jsonl"
_BATCH = 1_000


class LinesTracker:
    """Appends a line for each run that begins, each of its steps, and its end."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Recorded] = {}  # by file and run

    def destination(
        self, options: TrackingOptions, storage: Path, _: Mapping[str, str]
    ) -> Destination:
        """Return the file that `tracking.uri` names, or the one with the runs."""
        chosen = options.uri
        if "://" in chosen:
            raise SpecError(f"tracking.uri: {chosen}: lines go to a file; write its path, or auto")
        path = storage.absolute() / _FILE if chosen == "auto" else Path(chosen).absolute()
        return Destination(
            tracker=TRACKER, uri=str(path), experiment=options.experiment, artifacts=None
        )

    def sync(
        self, journal: Journal, run: Run, destination: Destination, on_steps: Callable[[int], None]
    ) -> None:
        """Append what the file lacks of a run; the file itself says how much it has."""
        known = self._known.setdefault((destination.uri, run.id), _Recorded())
        try:
            with Path(destination.uri).open("ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # other runs are recorded there too
                # Read what was added. A line that a full disk or a kill has cut is removed.
                file.seek(known.size)
                for text in file:
                    if not text.endswith(b"\n"):
                        file.truncate(known.size)
                        break
                    known.size += len(text)
                    with suppress(msgspec.DecodeError):  # somebody else's
                        line = msgspec.json.decode(text, type=_KnownLine)
                        if line.id == run.id:
                            known.has_begun |= line.kind == "run"
                            known.steps = max(known.steps, line.step + 1)
                            known.has_ended |= line.kind == "end"
                lines = _lines(journal, run, destination, known)
                while batch := list(islice(lines, _BATCH)):
                    file.write(b"".join(batch))
                    file.flush()
                    on_steps(known.steps)
                os.fsync(file.fileno())
        except OSError as error:
            del self._known[destination.uri, run.id]
            raise NotRecorded(f"{destination.uri}: {error.strerror}") from error
        journals.track(journal, TrackedRun(tracker=TRACKER, uri=destination.uri, run_id=run.id))


@dataclass
class _Recorded:
    """How much of a run is in a file's first `size` bytes, and how far its steps were read."""

    size: int = 0
    has_begun: bool = False
    steps: int = 0
    has_ended: bool = False
    readers: dict[int, StepReader] = field(default_factory=dict)


class _KnownLine(msgspec.Struct):
    kind: str
    id: str
    step: int = -1


def _lines(journal: Journal, run: Run, where: Destination, known: _Recorded) -> Iterator[bytes]:

    def line(kind: str, **values: object) -> bytes:
        return msgspec.json.encode({"kind": kind, "id": run.id, "run": run.run, **values}) + b"\n"

    if not known.has_begun:
        spec = msgspec.to_builtins(journal.spec())
        yield line(
            "run", at_s=run.submitted_at_s, experiment=where.experiment, rehearsal=run.rehearsal,
            plan=run.plan_digest, spec=spec,
        )  # fmt: skip
    for attempt in run.attempts:
        reader = StepReader(journal.path, attempt.number)
        for part in known.readers.setdefault(attempt.number, reader).in_parts():
            for timed in part:
                step = timed.step
                if step.index < known.steps:  # of a step that was repeated, the first counts
                    continue
                known.steps = step.index + 1
                values = {k: v for k, v in msgspec.to_builtins(step).items() if v is not None}
                at = {"at_s": timed.at_s, "attempt": attempt.number, "step": values.pop("index")}
                yield line("step", **at, **values)
    if run.state not in LIVE and not known.has_ended:
        report = msgspec.to_builtins(make_report(journal))
        told = {name: report[name] for name in ("forecast", "measured", "goodput", "last_loss")}
        yield line("end", at_s=run.ended_at_s, state=run.state, **told)
