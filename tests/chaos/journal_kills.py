"""Kill a writer of journals at each change that it makes to the disk, one after another.

    python -m tests.chaos.journal_kills FOLDER [--in-place]

After every death the journal must read as if the last change had happened or had not, contain all
that was acknowledged, and accept a second writer. Prints the number of deaths and the faults.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import journal
from orchestrator.errors import OrchError
from orchestrator.journal import files
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog
from orchestrator.values.run import LIVE, Run, TrackedRun
from tests.journals import reason, run_request, step, tiny_plan, write_steps

CHANGES = ("open", "write", "fsync", "link", "unlink", "mkdir", "rename", "utime", "rmdir")
real_write = os.write
TRACKING = TrackedRun(tracker="mlflow", uri="sqlite:////there", run_id="m1")


@dataclass
class Death:
    """Kills this process at its `at`-th change of the disk: before it, or halfway through a write.

    To die after a change is to die before the next.
    """

    at: int
    halfway: bool
    count: int = 0

    def wrap(self, name: str) -> None:
        """Count every call of a function of `os`."""
        real: Callable[..., Any] = getattr(os, name)

        def counted(*args: Any, **named: Any) -> Any:
            self.count += name == "write" or not self.halfway
            if self.count == self.at:
                if self.halfway:
                    real_write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        setattr(os, name, counted)


def one_run(storage: Path, ack: Callable[[str], None]) -> None:
    """A run from its submission to its end; each thing that was written is acknowledged."""
    run_journal = journal.create_run(storage, run_request(), "it").journal
    ack("created")
    writer = journal.claim_run(run_journal)
    ack("claimed")
    journal.track(run_journal, TRACKING)
    ack("tracked")
    writer.record_pending(reason("no slice is free", "waiting_for_slices"))
    ack("pending")
    attempt(writer, range(3), ack)
    writer.end_attempt("preemption", error="slice 0 is gone", first_dead_rank=0)
    ack("ended 1")
    attempt(writer, range(2, 5), ack)
    journal.request_cancel(run_journal)
    ack("asked")
    writer.record_stopping(reason("somebody asked", "cancel_requested"))
    ack("stopping")
    writer.end_attempt("cancelled")
    ack("ended 2")
    writer.end_run("cancelled", reason("somebody asked", "cancel_requested"))
    ack("concluded")


def attempt(writer: Writer, indices: range, ack: Callable[[str], None]) -> None:
    """The steps of one attempt."""
    number = writer.start_attempt(tiny_plan())
    ack(f"began {number}")
    with StepLog(writer.journal.path, number) as log:
        for index in indices:
            log.append(step(index, restored=index if index == indices.start else None))
            ack(f"step {number} {index}")


@dataclass
class Campaign:
    """Every death of one program, below a folder."""

    folder: Path
    halfway: tuple[bool, ...] = (False, True)
    deaths: int = 0
    faults: list[str] = field(default_factory=list)

    def die_everywhere(
        self,
        name: str,
        prepare: Callable[[Path], object],
        program: Callable[[Path, Callable[[str], None]], None],
        judge: Callable[[Path, set[str]], Iterator[str]],
    ) -> None:
        """Kill the program before each change, and halfway through each write, until it lives."""
        for halfway in self.halfway:
            lived, at = False, 0
            while not lived:
                at += 1
                storage = self.folder / f"{name}-{'write' if halfway else 'change'}-{at}"
                prepare(storage)
                acknowledged, lived = run_until_death(
                    program, storage, Death(at=at, halfway=halfway)
                )
                self.faults += [
                    f"{storage.name}: {fault}" for fault in judge(storage, acknowledged)
                ]
                self.deaths += not lived


def run_until_death(
    program: Callable[[Path, Callable[[str], None]], None], storage: Path, death: Death
) -> tuple[set[str], bool]:
    """What a process acknowledged before its death, and whether it came to its end instead."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for name in CHANGES:
            death.wrap(name)

        def ack(what: str) -> None:
            real_write(writing, f"{what}\n".encode())

        program(storage, ack)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        acknowledged = set(pipe.read().splitlines())
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"{storage}: the program failed by itself")
    return acknowledged, os.WIFEXITED(status)


def judge_life(storage: Path, acknowledged: set[str]) -> Iterator[str]:
    """What is wrong with a journal whose writer was killed."""
    journals = journal.list_journals(storage)
    if not journals:
        if acknowledged:
            yield f"nothing is left, after {sorted(acknowledged)}"
        return
    run = journals[0].run()
    lost = acknowledged - facts_of(journals[0], run)
    if lost:
        yield f"forgot {sorted(lost)}"
    yield from map(str, run.problems)
    # A real run may still be taken up by a driver when whoever submitted it is gone.
    expected = {"submitted"} if run.driver is None else {"lost", "cancelled"}
    if run.state not in expected:
        yield f"is {run.state}, against {expected}"
    try:
        yield from finish_run(journals[0], run)
    except OrchError as error:
        yield f"cannot go on: {error}"


def facts_of(run_journal: Journal, run: Run) -> set[str]:
    """What a journal still knows, in the words in which it was acknowledged."""
    facts = {"created"}
    facts |= {"claimed"} if run.driver else set()
    facts |= {"tracked"} if run.tracking == TRACKING else set()
    facts |= {"pending"} if (run_journal.paths.events / "000003.json").exists() else set()
    facts |= {"asked"} if run.cancel_requested_at_s else set()
    facts |= {"stopping"} if (run_journal.paths.events / "000007.json").exists() else set()
    facts |= {"concluded"} if run.ended_at_s else set()
    for attempt in run.attempts:
        facts |= {f"began {attempt.number}"}
        facts |= {f"ended {attempt.number}"} if attempt.ended_at_s else set()
        steps = journal.StepReader(run_journal.path, attempt.number).read()
        facts |= {f"step {attempt.number} {timed.step.index}" for timed in steps}
    return facts


def finish_run(run_journal: Journal, before: Run) -> Iterator[str]:
    """What keeps a second writer from bringing the run to its end."""
    writer = journal.claim_run(run_journal, resumes=before.driver is not None)
    number = writer.start_attempt(tiny_plan())
    if number != len(before.attempts) + 1:
        yield f"the next attempt is {number}, after {len(before.attempts)}"
    write_steps(run_journal.path, number, range(before.steps_done, before.steps_done + 2))
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    run = run_journal.run()
    if run.state != "succeeded" or run.problems or run.attempts[:-1] != before.attempts:
        yield f"went on to {run.state} with {run.problems}"


def ended_run(storage: Path) -> None:
    """A run that can be removed."""
    journal.create_run(storage, run_request(), "it").end_run("failed", reason("it was never begun"))


def removal(storage: Path, ack: Callable[[str], None]) -> None:
    journal.remove_run(journal.find_run(storage, "it"))
    ack("removed")


def judge_removal(storage: Path, acknowledged: set[str]) -> Iterator[str]:
    """A run that is being removed is there, whole, or not there."""
    runs, problems = journal.list_runs(storage)
    yield from problems
    if acknowledged and runs:
        yield "was removed and is there"
    for run in runs:
        if run.state in LIVE or run.problems:
            yield f"is {run.state} with {run.problems}"


def write_in_place(path: Path, content: bytes, mode: int = 0o666) -> None:  # noqa: ARG001
    """What a journal must not do."""
    with path.open("xb", buffering=0) as file:
        os.write(file.fileno(), content)


def main(folder: Path, *, in_place: bool) -> None:
    tiny_plan()  # once, and not in each process that will die
    campaign = Campaign(folder=folder)
    if in_place:  # it fails halfway through writes
        files.write_new = write_in_place
        campaign.halfway = (True,)
    campaign.die_everywhere("life", lambda _: None, one_run, judge_life)
    campaign.die_everywhere("removal", ended_run, removal, judge_removal)
    print(json.dumps({"deaths": campaign.deaths, "faults": campaign.faults}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), in_place="--in-place" in sys.argv)
