"""Command line room: a run on a named cluster, followed on the terminal.

The journal alone is followed. The cluster is asked only whether the job still stands, and may stay
silent as long as it likes: the run goes on without this command, and this command without it.
"""

import time
from contextlib import suppress
from dataclasses import dataclass

from orchestrator import journal
from orchestrator.cli.rehearsing import interrupts
from orchestrator.cli.showing import Showing
from orchestrator.cli.terminal import progress
from orchestrator.errors import JournalUnreadable, Superseded
from orchestrator.launch.ray.job_client import ENDED, ClusterUnusable, RayJobs
from orchestrator.types.run import LIVE, Run, StateReason

POLL_S = 0.5
ASK_EVERY_S = 5.0


def follow(recorded: journal.Journal, jobs: RayJobs, job: str, driver_before: int) -> Run | None:
    """Show a run until nothing more comes of it; None when somebody wants to see no more."""
    with interrupts() as asked, progress("run") as waits:
        following = Following(Showing(recorded, waits), recorded, jobs, job, driver_before)
        while not asked:
            if run := following.look():
                return run
            time.sleep(POLL_S)
    return None


@dataclass
class Following:
    """A run as it is followed. `driver_before` is the number of the driver that it had before the
    job was started.
    """

    showing: Showing
    recorded: journal.Journal
    jobs: RayJobs
    job: str
    driver_before: int
    asked_at_s: float = 0.0
    trouble: str = ""

    def look(self) -> Run | None:
        """Show what is new; the run once nothing more will come."""
        try:
            run, came = self.recorded.run(), self.recorded.state().writer != self.driver_before
        except JournalUnreadable as error:  # a mount that comes back is read on
            self._note("the journal cannot be read", str(error))
            return None
        if came:
            self.showing.show(run)
            if run.state not in LIVE:
                return run
        if time.monotonic() - self.asked_at_s > ASK_EVERY_S:
            self.asked_at_s = time.monotonic()
            return self._asked(came=came)
        return None

    def _asked(self, *, came: bool) -> Run | None:
        """Ask the cluster how the job is; the run when it ended before its driver came."""
        try:
            state = self.jobs.state(self.job)
            why = self.jobs.why(self.job) if state in ENDED and not came else None
        except ClusterUnusable as error:
            self._note("the cluster does not answer; the run goes on", str(error))
            return None
        self._note("", "")
        if why is None or self.recorded.state().writer != self.driver_before:
            return None
        self.showing.say(why)
        return self._stillborn(why)

    def _stillborn(self, why: str) -> Run:
        """Write down why no driver came, unless it was to resume: the end before stands then."""
        if self.driver_before == 0:
            with suppress(Superseded):  # a driver came at the last moment
                writer = journal.Writer(self.recorded, self.recorded.state())
                writer.end_run("failed", StateReason(code="error", detail=why))
        return self.recorded.run()

    def _note(self, trouble: str, why: str) -> None:
        """Say once what is amiss, and once that it is over."""
        if trouble != self.trouble:
            self.showing.say(f"{trouble}: {why}" if trouble else "the connection is back")
        self.trouble = trouble
