"""The text of events: screens before and after a run, and a line for each thing that it does."""

import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.formatting import count, counted, seconds
from orchestrator.journal.run_state import first_line
from orchestrator.run import progress as progress_events
from orchestrator.run.next_commands import run_command, storage_command, storage_of
from orchestrator.show import rehearsal_screen as launch
from orchestrator.show import rehearsal_screen as rehearsal
from orchestrator.show import study_screens as study
from orchestrator.show.machine_screens import mlflow_links
from orchestrator.show.plan_screen import plan_screen
from orchestrator.show.proof_screen import proof_screen
from orchestrator.show.status_screen import next_run_command
from orchestrator.show.study_screens import forecast_screen
from orchestrator.show.terminal import StatusLine, echo, is_live, say
from orchestrator.values.run import Attempt, Run, State, Step

if TYPE_CHECKING:
    from orchestrator.run.progress import UnitsDone

# Lines of a run that is followed: what it waits for, its steps, and its attempts.


WAITING_FOR_DRIVER = "the driver starts"
WAITING: dict[State, str] = {
    "submitted": WAITING_FOR_DRIVER,
    "pending": "waiting for slices",
    "starting": "processes start and compile the step",
    "running": "all steps are done; the run ends",
    "stopping": "writing a last checkpoint",
}


def step_line(one: Step, steps: int) -> str:
    width = len(str(steps))
    held_out = one.own_evaluation
    more = f"  held-out loss {held_out.loss:.4f}" if held_out else ""
    took = seconds(one.step_s)
    return f"step {one.index + 1:{width}} of {steps}  loss {one.loss:.4f}  {took}{more}"


def startup_line(one: Step) -> str | None:
    """Return what came before the first step of an attempt."""
    if one.startup is None:
        return None
    compiled, state = seconds(one.startup.compile_s), seconds(one.startup.state_s)
    done = one.startup.steps_done
    restored = f", {count(done)} steps restored" if done else ""
    return f"compiled in {compiled}, state ready in {state}{restored}"


def waiting_for(run: Run) -> str:
    """Return what a run waits for while it shows nothing new."""
    if run.state == "running" and run.steps_done < run.steps:
        return f"step {count(run.steps_done + 1)} of {count(run.steps)}"
    return WAITING.get(run.state, "")


def new_attempt_line(ended: Attempt, started: Attempt) -> str:
    """Return why another attempt starts, and on how many pods if that changed."""
    other = f" on {counted(started.pods, 'pod')}" if started.pods != ended.pods else ""
    error = first_line(ended.error)
    why = f"attempt {ended.number} ended: {ended.reason}" + (f": {error}" if error else "")
    return f"new attempt{other}; {why}"


SHOW_EVERY_S = 2.0
SHOWN_STATES = ("starting", "stopping", "pending")
STOPPING = {
    "before it began": "stopping: nothing has started",
    "with a checkpoint": "stopping after a last checkpoint; Ctrl-C again stops at once",
    "at once": "stopping at once",
    "nothing to save": "stopping: there is nothing to save",
}
TROUBLE = {
    "cluster silent": "the cluster does not answer; the run continues: ",
    "journal unreadable": "the journal cannot be read: ",
    "cleared": "the connection is back",
}

MLFLOW = "mlflow"  # the one tracker whose records `orch ui` shows


class ProgressText:
    """Turns events into text. `other_plans` is the command that shows other plans; `detach` is
    whether nobody will follow the run. `status` is what happens now.
    """

    def __init__(self, other_plans: str = "", *, detach: bool = False) -> None:
        self.other_plans, self.detach, self.status = other_plans, detach, ""
        self.share: float | None = None  # of the run that is followed
        self.task, self.started_s, self.shown_at_s = "", 0.0, 0.0
        self.attempt, self.state = 0, ("", "")

    def screens(self, event: object) -> tuple[str, ...]:
        """The screens of an event; empty where it has none."""
        return self._preparation(event) or self._result(event) or self._trial(event)

    def lines(self, event: object) -> list[str]:
        """The lines of an event of a run that is followed, each after the seconds so far."""
        return [
            f"{time.monotonic() - self.started_s:5.0f} s  {text}" for text in self._texts(event)
        ]

    def stage(self, event: progress_events.Stage) -> str:
        text = f"{event.task}: {event.stage}"
        return f"{text}: {event.state}" if event.state else text

    def count(self, event: progress_events.UnitsDone) -> str:
        of = "" if event.total is None else f" of {event.total:,}"
        return f"{event.task}: {event.done:,}{of} {event.unit}"

    def _preparation(self, event: object) -> tuple[str, ...]:
        match event:
            case progress_events.AlreadySubmitted(run=run):
                return (already_submitted(run),)
            case progress_events.SubmitStarted():
                return (intro(event),)
            case progress_events.Planned(plan=plan):
                return "\n", plan_screen(plan, None)
            case progress_events.Proved(plan=plan, proof=proof, age_s=age_s):
                following = None if proof.passes else self.other_plans
                return "\n", proof_screen(plan, proof, age_s, following)
            case progress_events.RehearsalReady(
                plan=plan, small=small, steps=steps, changes=changes
            ):
                return "\n", rehearsal.rehearsal_screen(plan, small, steps, changes), "\n"
            case progress_events.ClusterReady():
                return "\n", cluster_table(event)
            case progress_events.JobStarted(run=run, job=job):
                logs = f"\nNext: {run_command('logs', run.run, storage_of(run), '-f')}\n"
                return "\n", launch.submitted_screen(run, job), "\n", logs if self.detach else ""
            case progress_events.Resumed(run=run, plan=plan):
                return rehearsal.resume_intro(run, plan), "\n"
        return ()

    def _result(self, event: object) -> tuple[str, ...]:
        match event:
            case progress_events.LeftRunning(run=run):
                return "\n", left_running(run)
            case progress_events.RunEnded():
                return "\n", result_text(event)
            case progress_events.UiReady(address=address, place=place, experiments=experiments):
                links = [(one.experiment, one.views) for one in experiments]
                ends = "Ctrl-C ends it.\n" if event.served else ""
                return mlflow_links(address, place, links), ends
        return ()

    def _trial(self, event: object) -> tuple[str, ...]:
        match event:
            case progress_events.StudyPlanned(forecast=forecast):
                return "\n", forecast_screen(forecast), "\n"
            case progress_events.TrialStarted(study=of, trial=trial, repeat=repeat):
                return (study.trial_line(of, trial, repeat),)
            case progress_events.TrialDoneBefore(run=run):
                return (f"  done before: {run.run}\n",)
            case progress_events.TrialContinues(run=run):
                return (f"  {run.run} is still running; following it again\n",)
            case progress_events.TrialEnded(run=run, tracked=tracked):
                place = f"  {tracked.tracker} {tracked_text(run, tracked)}\n"
                return place, f"  {run.run}: {run.state}, {run.steps_done} of {run.steps} steps\n\n"
        return ()

    def _texts(self, event: object) -> list[str]:
        match event:
            case progress_events.FollowStarted(task=task, attempts=attempts):
                self.task, self.attempt, self.state = task, attempts, ("", "")
                self.started_s, self.shown_at_s = time.monotonic(), 0.0
                self.status, self.share = f"{task}: {WAITING_FOR_DRIVER}", None
            case progress_events.NodesUp(up=up, total=total):
                return [f"node {up} of {total} is up"]
            case progress_events.RunUpdate(run=run, steps=steps):
                self.status = f"{self.task}: {waiting_for(run)}"
                self.share = run.steps_done / run.steps if run.steps_done else None
                return [*self._new_state(run), *self._new_attempt(run), *self._new(steps, run)]
            case progress_events.StopSent(how=how):
                return [STOPPING[how]]
            case progress_events.Trouble(kind=kind, why=why):
                return [TROUBLE.get(kind, "") + why]
        return []

    def _new_state(self, run: Run) -> list[str]:
        state = run.state, (run.detail or "") if run.state == "pending" else ""
        is_new, self.state = state != self.state, state
        return [": ".join(filter(None, state))] if is_new and run.state in SHOWN_STATES else []

    def _new_attempt(self, run: Run) -> list[str]:
        before, self.attempt = self.attempt, run.attempts[-1].number if run.attempts else 0
        if not before or before == self.attempt:
            return []
        ended = run.attempts[before - 1]
        is_shown = ended.number >= run.resumed_at
        return [new_attempt_line(ended, run.attempts[-1])] if is_shown else []

    def _new(self, steps: tuple[Step, ...], run: Run) -> list[str]:
        """The lines of new steps: one in two seconds, and always the last."""
        lines = []
        for step in steps:
            if line := startup_line(step):
                lines.append(line)
            is_last = step.index + 1 == run.steps
            if is_last or time.monotonic() - self.shown_at_s >= SHOW_EVERY_S:
                lines.append(step_line(step, run.steps))
                self.shown_at_s = time.monotonic()
        return lines


def already_submitted(run: Run) -> str:
    progress = f"{run.state}, {run.steps_done:,} of {run.steps:,} steps done"
    status = run_command("status", run.run, storage_of(run))
    return f"run {run.run} already exists: {progress}. Nothing was submitted.\nNext: {status}\n"


def left_running(run: Run) -> str:
    status, cancel = (run_command(name, run.run, storage_of(run)) for name in ("status", "cancel"))
    return launch.detached_text(run.run, status, cancel)


def intro(event: progress_events.SubmitStarted) -> str:
    if event.study and event.address and event.named_by:
        runs = len(event.study.trials) * event.study.repeats
        return launch.study_launch_intro(event.name, runs, event.address, event.named_by)
    if event.study:
        return study.study_intro(event.study)
    if event.address and event.named_by:
        return launch.launch_intro(event.name, event.address, event.named_by)
    return rehearsal.rehearsal_intro(event.name)


def cluster_table(event: progress_events.ClusterReady) -> str:
    price = launch.cost_of_runs(event.runs)
    hosts = launch.hosts(event.hosts, event.versions)
    return launch.cluster_screen(event.address, event.slices, hosts, event.storage, price)


def result_text(event: progress_events.RunEnded) -> str:
    """Return how a run ended, and where its journal and its record are."""
    run, tracked = event.run, event.tracked
    record = f"{tracked.tracker:8} {tracked_text(run, tracked)}"
    following = next_run_command(run, run.run, storage_of(run))
    if run.rehearsal:
        return rehearsal.rehearsal_result(run, event.plan, record, following)
    return launch.launch_result(run, record, following)


def tracked_text(run: Run, tracked: progress_events.Tracked) -> str:
    """Where a run is recorded, and what shows it there."""
    shown = ""
    if tracked.tracker == MLFLOW:
        shown = f", shown by {storage_command('ui', storage_of(run))}"
    if tracked.problem:
        completed = run_command("sync", run.run, storage_of(run))
        return f"not recorded yet: {tracked.problem}; completed by {completed}{shown}"
    return f"{tracked.place}{shown}"


# Prints events: screens and lines on stdout, what is going on now on stderr.


COUNT_EVERY_S = 2.0


class Display:
    """Called with each event. `left` says whether a run goes on that is no longer followed."""

    def __init__(self, other_plans: str = "", *, detach: bool = False) -> None:
        self.other_plans, self.detach = other_plans, detach
        self.status = StatusLine(live=is_live(sys.stderr))
        self.left, self.stage, self.counted_at_s = False, "", time.monotonic()

    @cached_property
    def text(self) -> "ProgressText":
        """The words for events, which not every command has."""

        return ProgressText(self.other_plans, detach=self.detach)

    def __call__(self, event: object) -> None:
        from orchestrator.run import progress as events  # noqa: PLC0415  slow

        match event:
            case events.Stage():
                self.status.update(self.text.stage(event))
                self.say_stage(f"{event.task}: {event.stage}")
            case events.UnitsDone():
                self.status.update(self.text.count(event), share_of(event.done, event.total))
                self.say_count(event)
            case events.TaskEnded():
                self.status.clear()
                self.text.status = self.stage = ""
            case events.NonFatalProblem(message=message):
                echo(f"warning: {message}", err=True)
            case _:
                self.left |= isinstance(event, events.LeftRunning)
                say(*self.text.screens(event))
                for line in self.text.lines(event):
                    with self.status.hidden():
                        echo(line)
                self.status.update(self.text.status, self.text.share)

    def say_stage(self, text: str) -> None:
        if not self.status.live and text != self.stage:
            echo(text, err=True)
        self.stage = text

    def say_count(self, event: "UnitsDone") -> None:
        if not self.status.live and time.monotonic() - self.counted_at_s >= COUNT_EVERY_S:
            echo(self.text.count(event), err=True)
            self.counted_at_s = time.monotonic()


def share_of(done: int, total: int | None) -> float | None:
    return done / total if total else None


def say_end(event: object) -> None:
    """The end of a run whose logs are followed, beside its lines."""
    from orchestrator.run.progress import RunUpdate  # noqa: PLC0415  slow

    if isinstance(event, RunUpdate):
        echo(f"{event.run.run}: {event.run.state}", err=True)
