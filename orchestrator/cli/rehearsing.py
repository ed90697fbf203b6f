"""Command line room: a rehearsal from its journal to its end, followed on the terminal."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from orchestrator import journal, launch, tracking
from orchestrator.cli.origin import Origin
from orchestrator.cli.showing import Showing
from orchestrator.cli.terminal import progress
from orchestrator.errors import Superseded
from orchestrator.launch.ray.slices import devices_per_host
from orchestrator.plan.rehearsal import Rehearsal
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import ReasonCode, Run, StateReason

POLL_S = 0.2


def carry_out(
    rehearsal: Rehearsal,
    full: Plan,
    proof: Proof | None,
    origin: Origin,
    key: str | None,
) -> Run:
    """Run a rehearsal on a private cluster, which is gone when this returns; how it ended.

    Its key is the one given, or made from the plan.
    """
    opened = journal.RunRequest(
        spec=rehearsal.spec,
        plan=rehearsal.plan,
        steps=rehearsal.steps,
        rehearsal=True,
        rehearses=full,
        **origin.fields,
    )
    storage = Path(rehearsal.spec.run.storage)
    where = tracking.destination(rehearsal.spec.tracking, storage, os.environ)
    with interrupts() as asked:
        writer = journal.create_run(storage, opened, key)
        tracking.begin(writer.journal, where)
        if proof:
            writer.save_proof(proof)
        error = drive(writer.journal, rehearsal.plan, asked)
    run = writer.run()
    if run.ended_at_s is None and run.driver is None:
        with suppress(Superseded):  # a driver came at the last moment: it is lost, as all can see
            code: ReasonCode = "cancel_requested" if asked else "error"
            reason = StateReason(code=code, detail=error or "")
            writer.end_run("cancelled" if asked else "failed", reason)
    return writer.run()


def drive(recorded: journal.Journal, plan: Plan, asked: list[int], *how: str) -> str | None:
    """Drive a run on a private cluster with the slices of a plan, and follow it to its end; why it
    was given up before, if it was. `asked` are the interrupts that came.
    """
    path, hosts = str(recorded.path.absolute()), launch.emulated_hosts(plan)
    command = shlex.join([sys.executable, "-m", "orchestrator.drive", path, *how])
    with launch.private_cluster(hosts, devices_per_host(plan), command) as cluster:
        return Following(recorded, cluster, asked, len(hosts)).to_the_end()


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """The interrupts that came: Ctrl-C and SIGTERM ask, and do not end this process."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def interrupt_name(number: int) -> str:
    """How this process was asked to end, as people say it."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"interrupted ({name})"


@dataclass
class Following:
    """A rehearsal as it is followed, and what was asked of it."""

    recorded: journal.Journal
    cluster: launch.LocalCluster
    asked: list[int]
    nodes: int
    requests: int = 0

    def __post_init__(self) -> None:
        self.driver_before = self.recorded.state().writer

    def to_the_end(self) -> str | None:
        """Show what happens until the run has ended, or nothing can end it; then why."""
        with progress("rehearsal") as waits:
            return self._shown(Showing(self.recorded, waits))

    def _shown(self, showing: Showing) -> str | None:
        while True:
            told = self.cluster.next_event(POLL_S)
            if told and told.nodes and not told.job:
                showing.say(f"node {told.nodes} of {self.nodes} is up")
            run, taken = self.recorded.run(), self._is_taken()
            if taken:
                showing.show(run)
            if taken and run.ended_at_s is not None:
                return None
            if told and told.error:
                showing.say(told.error)
                return told.error.splitlines()[0]
            if self.wants_out(showing.say, taken=taken):
                return f"{interrupt_name(self.asked[0])}, before it began"

    def _is_taken(self) -> bool:
        """Whether the driver that was started for this has come."""
        return self.recorded.state().writer != self.driver_before

    def wants_out(self, say: Callable[[str], None], *, taken: bool) -> bool:
        """Pass interrupts on: the first asks for a last checkpoint, the second for an end. While
        there is no driver, or no step of the attempt is done, there is nothing to save.
        """
        if self.asked and not taken:
            say("stopping: nothing was begun")
            return True
        while self.requests < len(self.asked):
            unsaved = self.recorded.run().state in ("running", "stopping")
            at_once = self.requests > 0 or not unsaved
            how = interrupt_name(self.asked[self.requests])
            journal.request_cancel(self.recorded, at_once=at_once, source=how)
            self.requests += 1
            if at_once:
                say("stopping at once" if unsaved else "stopping: there is nothing to save")
                return True
            say("stopping after a last checkpoint; Ctrl-C again stops at once")
        return False
