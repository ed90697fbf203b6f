"""Print the progress of operations: screens and lines on stdout, what happens now on stderr."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator import formatting as fmt
from orchestrator.journal.run_state import first_line
from orchestrator.run.progress import (
    Notice,
    ProgressEvent,
    RunUpdate,
    Stage,
    TaskEnded,
    Tracked,
    UnitsDone,
    run_command,
    storage_command,
    storage_of,
)
from orchestrator.show import rehearsal_screen as screens
from orchestrator.show.machine_screens import mlflow_links
from orchestrator.show.plan_screen import plan_screen
from orchestrator.show.proof_screen import proof_screen
from orchestrator.show.status_screen import next_run_command
from orchestrator.show.study_screens import forecast_screen, study_intro, trial_line
from orchestrator.show.terminal import StatusLine, echo, is_live, say
from orchestrator.values.plan import Plan
from orchestrator.values.run import Attempt, Run, State, Step
from orchestrator.values.study import Study

_Texts = tuple[str, ...]

_COUNT_EVERY_S = _SHOW_EVERY_S = 2.0
_SHOWN_STATES = ("starting", "stopping", "pending")
_WAITING_FOR_DRIVER = "the driver starts"
_WAITING: dict[State, str] = {
    "submitted": _WAITING_FOR_DRIVER,
    "pending": "waiting for slices",
    "starting": "processes start and compile the step",
    "running": "all steps are done; the run ends",
    "stopping": "writing a last checkpoint",
}
_STOPPING = {
    "before it began": "stopping: nothing has started",
    "with a checkpoint": "stopping after a last checkpoint; Ctrl-C again stops at once",
    "at once": "stopping at once",
    "nothing to save": "stopping: there is nothing to save",
}
_TROUBLE = {
    "cluster silent": "the cluster does not answer; the run continues: ",
    "journal unreadable": "the journal cannot be read: ",
    "cleared": "the connection is back",
}
_MLFLOW = "mlflow"  # the one tracker whose records `orch ui` shows


class Display:
    """Prints events. `other_plans` is the command that shows other plans; with `detach` nobody will
    follow the run. `left` says whether a run goes on that is no longer followed.
    """

    def __init__(self, other_plans: str = "", *, detach: bool = False) -> None:
        self.other_plans, self.detach, self.left = other_plans, detach, False
        self.status = StatusLine(live=is_live(sys.stderr))
        self.stage, self.counted_at_s = "", time.monotonic()
        # The run that is followed: what it waits for, and the share of it that is done.
        self.task, self.waiting = "", ""
        self.share: float | None = None
        self.started_s, self.shown_at_s = 0.0, 0.0
        self.attempt, self.state = 0, ("", "")

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case Stage(task=task, stage=stage, state=state):
                text = f"{task}: {stage}"
                self.status.update(f"{text}: {state}" if state else text)
                if not self.status.live and text != self.stage:
                    echo(text, err=True)
                self.stage = text
            case UnitsDone():
                self._count(event)
            case TaskEnded():
                self.status.clear()
                self.waiting = self.stage = ""
            case RunUpdate(run=run, steps=steps):
                self._update(run, steps)
            case Notice(topic=topic, values=values):
                self._notice(topic, values)

    def _count(self, event: UnitsDone) -> None:
        total = "" if event.total is None else f" of {event.total:,}"
        text = f"{event.task}: {event.done:,}{total} {event.unit}"
        self.status.update(text, event.done / event.total if event.total else None)
        if not self.status.live and time.monotonic() - self.counted_at_s >= _COUNT_EVERY_S:
            echo(text, err=True)
            self.counted_at_s = time.monotonic()

    def _notice(self, topic: str, values: Mapping[str, Any]) -> None:
        match topic:
            case "problem":
                echo(f"warning: {values['message']}", err=True)
                return
            case "following":
                self.task, self.attempt, self.state = values["task"], values["attempts"], ("", "")
                self.started_s, self.shown_at_s = time.monotonic(), 0.0
                self.waiting, self.share = f"{self.task}: {_WAITING_FOR_DRIVER}", None
            case "nodes up":
                self._line(f"node {values['up']} of {values['total']} is up")
            case "trouble":
                self._line(_TROUBLE.get(values["kind"], "") + values["why"])
            case "stopping":
                self._line(_STOPPING[values["how"]])
            case "proved":
                plan, proof, age_s = values["plan"], values["proof"], values["age_s"]
                following = None if proof.passes else self.other_plans
                say("\n", proof_screen(plan, proof, age_s, following))
            case "job started":
                run = values["run"]
                logs = run_command("logs", run.run, storage_of(run), "-f")
                say("\n", screens.submitted_screen(**values), "\n")
                say(f"\nNext: {logs}\n" if self.detach else "")
            case _:
                self.left |= topic == "left running"
                say(*_SCREENS[topic](**values))
        self.status.update(self.waiting, self.share)

    def _update(self, run: Run, steps: Sequence[Step]) -> None:
        """Print what is new about a run that is followed: its state, an attempt, its steps."""
        self.waiting = f"{self.task}: {_waiting_for(run)}"
        self.share = run.steps_done / run.steps if run.steps_done else None
        state = run.state, (run.detail or "") if run.state == "pending" else ""
        if state != self.state and run.state in _SHOWN_STATES:
            self._line(": ".join(filter(None, state)))
        self.state = state
        before, self.attempt = self.attempt, run.attempts[-1].number if run.attempts else 0
        if before and before != self.attempt:
            ended = run.attempts[before - 1]
            if ended.number >= run.resumed_at:
                self._line(_new_attempt_line(ended, run.attempts[-1]))
        for step in steps:  # a line in two seconds, and always the last
            if line := _startup_line(step):
                self._line(line)
            is_last = step.index + 1 == run.steps
            if is_last or time.monotonic() - self.shown_at_s >= _SHOW_EVERY_S:
                self._line(_step_line(step, run.steps))
                self.shown_at_s = time.monotonic()
        self.status.update(self.waiting, self.share)

    def _line(self, text: str) -> None:
        """Print a line about a run that is followed, after the seconds so far."""
        with self.status.hidden():
            echo(f"{time.monotonic() - self.started_s:5.0f} s  {text}")


def _step_line(step: Step, steps: int) -> str:
    held_out = step.own_evaluation
    more = f"  held-out loss {held_out.loss:.4f}" if held_out else ""
    number = f"{step.index + 1:{len(str(steps))}}"
    return f"step {number} of {steps}  loss {step.loss:.4f}  {fmt.seconds(step.step_s)}{more}"


def _startup_line(step: Step) -> str | None:
    """Return what came before the first step of an attempt."""
    if step.startup is None:
        return None
    compiled, state = fmt.seconds(step.startup.compile_s), fmt.seconds(step.startup.state_s)
    done = step.startup.steps_done
    restored = f", {fmt.count(done)} steps restored" if done else ""
    return f"compiled in {compiled}, state ready in {state}{restored}"


def _waiting_for(run: Run) -> str:
    """Return what a run waits for while it shows nothing new."""
    if run.state == "running" and run.steps_done < run.steps:
        return f"step {fmt.count(run.steps_done + 1)} of {fmt.count(run.steps)}"
    return _WAITING.get(run.state, "")


def _new_attempt_line(ended: Attempt, started: Attempt) -> str:
    """Return why another attempt starts, and on how many pods if that changed."""
    pods = f" on {fmt.counted(started.pods, 'pod')}" if started.pods != ended.pods else ""
    error = first_line(ended.error)
    why = f"attempt {ended.number} ended: {ended.reason}" + (f": {error}" if error else "")
    return f"new attempt{pods}; {why}"


# The screens of notices, by topic. Each takes the values of its topic.


def _already_submitted(run: Run) -> _Texts:
    progress = f"{run.state}, {run.steps_done:,} of {run.steps:,} steps done"
    status = run_command("status", run.run, storage_of(run))
    text = f"run {run.run} already exists: {progress}. Nothing was submitted."
    return (f"{text}\nNext: {status}\n",)


def _started(
    name: str, address: str | None, named_by: str | None, study: Study | None
) -> _Texts:  # fmt: skip
    if study and address and named_by:
        runs = len(study.trials) * study.repeats
        return (screens.study_launch_intro(name, runs, address, named_by),)
    if study:
        return (study_intro(study),)
    if address and named_by:
        return (screens.launch_intro(name, address, named_by),)
    return (screens.rehearsal_intro(name),)


def _cluster_ready(
    address: str, slices: str, hosts: int, versions: Mapping[str, str], storage: str,
    runs: Sequence[tuple[Plan, int]],
) -> _Texts:  # fmt: skip
    hosts_text, price = screens.hosts(hosts, versions), screens.cost_of_runs(runs)
    return "\n", screens.cluster_screen(address, slices, hosts_text, storage, price)


def _left_running(run: Run) -> _Texts:
    status, cancel = (run_command(name, run.run, storage_of(run)) for name in ("status", "cancel"))
    return "\n", screens.detached_text(run.run, status, cancel)


def _ended(run: Run, plan: Plan, tracked: Tracked) -> _Texts:
    """Return how a run ended, and where its journal and its record are."""
    record = f"{tracked.tracker:8} {_tracked_text(run, tracked)}"
    following = next_run_command(run, run.run, storage_of(run))
    if run.rehearsal:
        return "\n", screens.rehearsal_result(run, plan, record, following)
    return "\n", screens.launch_result(run, record, following)


def _trial_ended(run: Run, tracked: Tracked) -> _Texts:
    place = f"  {tracked.tracker} {_tracked_text(run, tracked)}\n"
    return place, f"  {run.run}: {run.state}, {run.steps_done} of {run.steps} steps\n\n"


def _tracked_text(run: Run, tracked: Tracked) -> str:
    """Return where a run is recorded, and what shows it there."""
    shown = ""
    if tracked.tracker == _MLFLOW:
        shown = f", shown by {storage_command('ui', storage_of(run))}"
    if tracked.problem:
        completed = run_command("sync", run.run, storage_of(run))
        return f"not recorded yet: {tracked.problem}; completed by {completed}{shown}"
    return f"{tracked.place}{shown}"


_SCREENS: dict[str, Callable[..., _Texts]] = {
    "already submitted": _already_submitted,
    "started": _started,
    "planned": lambda plan: ("\n", plan_screen(plan, None)),
    "rehearsal ready": lambda plan, small, steps, changes: (
        "\n",
        screens.rehearsal_screen(plan, small, steps, changes),
        "\n",
    ),
    "cluster ready": _cluster_ready,
    "resumed": lambda run, plan: (screens.resume_intro(run, plan), "\n"),
    "left running": _left_running,
    "ended": _ended,
    "study planned": lambda forecast: ("\n", forecast_screen(forecast), "\n"),
    "trial started": lambda study, trial, repeat: (trial_line(study, trial, repeat),),
    "trial done before": lambda run: (f"  done before: {run.run}\n",),
    "trial continues": lambda run: (f"  {run.run} is still running; following it again\n",),
    "trial ended": _trial_ended,
    "ui ready": lambda address, place, experiments, served: (
        mlflow_links(address, place, experiments),
        "Ctrl-C ends it.\n" if served else "",
    ),
}


def say_end(event: ProgressEvent) -> None:
    """Say how a run ended whose logs are followed, apart from their lines."""
    if isinstance(event, RunUpdate):
        echo(f"{event.run.run}: {event.run.state}", err=True)
