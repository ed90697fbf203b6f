"""Shows a run as it is submitted, resumed and followed, a line at a time."""

import time

from orchestrator.cli.display import TaskDisplay
from orchestrator.cli.terminal import say
from orchestrator.lifecycle import events
from orchestrator.lifecycle.commands import next_step, run_command, storage_command, storage_of
from orchestrator.render import launch_screen as launch
from orchestrator.render import rehearsal_screen as rehearsal
from orchestrator.render import study_screen as study
from orchestrator.render.plan_screen import plan_screen
from orchestrator.render.proof_screen import proof_screen
from orchestrator.types.run import Run, Step

SHOW_EVERY_S = 2.0
SHOWN_STATES = ("starting", "stopping", "pending")
STOPPING = {
    "before it began": "stopping: nothing was begun",
    "with a checkpoint": "stopping after a last checkpoint; Ctrl-C again stops at once",
    "at once": "stopping at once",
    "nothing to save": "stopping: there is nothing to save",
}
TROUBLE = {
    "cluster silent": "the cluster does not answer; the run goes on: ",
    "journal unreadable": "the journal cannot be read: ",
    "cleared": "the connection is back",
}


class RunDisplay(TaskDisplay):
    """Called with each event of a submit or a resume. `other_plans` is the command that shows them;
    `detach` says that nobody follows the run. It is `left` once nobody follows it any more.
    """

    def __init__(self, other_plans: str = "", *, detach: bool = False) -> None:
        super().__init__()
        self.other_plans, self.detach, self.left = other_plans, detach, False
        self.task, self.began_s, self.shown_at_s = "", 0.0, 0.0
        self.attempt, self.state = 0, ("", "")

    def __call__(self, event: object) -> None:
        shown = self.show_preparation(event) or self.show_following(event) or self.show_trial(event)
        if not shown:
            super().__call__(event)

    def show_preparation(self, event: object) -> bool:
        match event:
            case events.AlreadySubmitted(run=run):
                say(already_submitted(run))
            case events.SubmitStarted():
                say(intro(event))
            case events.Planned(plan=plan):
                say("\n", plan_screen(plan, None))
            case events.Proved(result=result):
                following = None if result.proof.passes else self.other_plans
                say("\n", proof_screen(result.plan, result.proof, result.age_s, following))
            case events.RehearsalReady(plan=plan, rehearsal=small):
                table = rehearsal.rehearsal_screen(plan, small.plan, small.steps, small.changes)
                say("\n", table, "\n")
            case events.ClusterReady():
                say("\n", cluster_table(event))
            case events.JobStarted(run=run, job=job):
                say("\n", launch.submitted_screen(run, job), "\n")
                if self.detach:
                    say(f"\nNext: {run_command('logs', run.run, storage_of(run), '-f')}\n")
            case events.Resumed(run=run, plan=plan):
                say(rehearsal.resume_intro(run, plan), "\n")
            case _:
                return False
        return True

    def show_following(self, event: object) -> bool:
        match event:
            case events.FollowStarted(task=task, attempts=attempts):
                self.task, self.attempt, self.state = task, attempts, ("", "")
                self.began_s, self.shown_at_s = time.monotonic(), 0.0
                self.status.update(f"{task}: {rehearsal.WAITING_FOR_DRIVER}")
            case events.NodesUp(up=up, total=total):
                self.line(f"node {up} of {total} is up")
            case events.RunUpdate(run=run, steps=steps):
                self.show_run(run, steps)
            case events.Stopping(how=how):
                self.line(STOPPING[how])
            case events.Trouble(kind=kind, why=why):
                self.line(TROUBLE.get(kind, "") + why)
            case events.LeftRunning(run=run):
                self.left = True
                say("\n", left_running(run))
            case events.RunEnded():
                say("\n", result_text(event))
            case _:
                return False
        return True

    def show_trial(self, event: object) -> bool:
        match event:
            case events.StudyPlanned(forecast=forecast):
                say("\n", study.study_screen(forecast), "\n")
            case events.TrialStarted(study=of, trial=trial, repeat=repeat):
                say(study.trial_line(of, trial, repeat))
            case events.TrialDoneBefore(run=run):
                say(f"  done before: {run.run}\n")
            case events.TrialContinues(run=run):
                say(f"  {run.run} goes on, and is followed again\n")
            case events.TrialEnded(run=run, tracked=tracked):
                say(f"  mlflow {tracked_text(run, tracked)}\n")
                say(f"  {run.run}: {run.state}, {run.steps_done} of {run.steps} steps\n\n")
            case _:
                return False
        return True

    def show_run(self, run: Run, steps: tuple[Step, ...]) -> None:
        """What is new of a run; of many steps those that somebody can read."""
        self.status.update(f"{self.task}: {rehearsal.waiting_for(run)}")
        state = run.state, (run.detail or "") if run.state == "pending" else ""
        if state != self.state and run.state in SHOWN_STATES:
            self.line(": ".join(part for part in state if part))
        self.state = state
        if run.attempts and run.attempts[-1].number != self.attempt:
            if self.attempt and run.attempts[self.attempt - 1].number >= run.resumed_at:
                before = run.attempts[self.attempt - 1]
                self.line(rehearsal.new_attempt_line(before, run.attempts[-1]))
            self.attempt = run.attempts[-1].number
        for step in steps:
            if line := rehearsal.startup_line(step):
                self.line(line)
            is_last = step.index + 1 == run.steps
            if is_last or time.monotonic() - self.shown_at_s >= SHOW_EVERY_S:
                self.line(rehearsal.step_line(step, run.steps))
                self.shown_at_s = time.monotonic()

    def line(self, text: str) -> None:
        """A line that stays, behind the seconds since the run is followed."""
        self.status.above(f"{time.monotonic() - self.began_s:5.0f} s  {text}")


def already_submitted(run: Run) -> str:
    stands = f"{run.state}, {run.steps_done:,} of {run.steps:,} steps done"
    following = run_command("status", run.run, storage_of(run))
    said = f"run {run.run} is there already: {stands}. Nothing was submitted."
    return f"{said}\nNext: {following}\n"


def left_running(run: Run) -> str:
    status, cancel = (run_command(name, run.run, storage_of(run)) for name in ("status", "cancel"))
    return launch.detached_text(run.run, status, cancel)


def intro(event: events.SubmitStarted) -> str:
    if event.study and event.address and event.named_by:
        runs = len(event.study.trials) * event.study.repeats
        return launch.study_launch_intro(event.name, runs, event.address, event.named_by)
    if event.study:
        return study.study_intro(event.study)
    if event.address and event.named_by:
        return launch.launch_intro(event.name, event.address, event.named_by)
    return rehearsal.rehearsal_intro(event.name)


def cluster_table(event: events.ClusterReady) -> str:
    [(plan, steps), *others] = event.runs
    price = launch.cost_of_runs(event.runs) if others else launch.cost_of_run(plan, steps)
    hosts = launch.hosts(event.hosts, event.versions)
    return launch.cluster_screen(event.address, event.slices, hosts, event.storage, price)


def result_text(event: events.RunEnded) -> str:
    run, recorded = event.run, tracked_text(event.run, event.tracked)
    following = next_step(run, run.run, storage_of(run))
    if run.rehearsal:
        return rehearsal.rehearsal_result(run, event.plan, recorded, following)
    return launch.launch_result(run, recorded, following)


def tracked_text(run: Run, tracked: events.Tracked) -> str:
    """Where a run is recorded, and what shows it there."""
    if tracked.problem:
        return f"not recorded yet: {tracked.problem}; orch sync records it"
    return f"{tracked.place}, shown by {storage_command('ui', storage_of(run))}"
