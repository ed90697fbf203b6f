"""Print the progress of operations: screens and lines on stdout, what happens now on stderr."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

from orchestrator import formatting as fmt
from orchestrator.journal.run_state import first_line
from orchestrator.run import progress as events
from orchestrator.run.progress import run_command, storage_command, storage_of
from orchestrator.show import parts as ui
from orchestrator.show import status_screen as screens
from orchestrator.show.machine_screens import mlflow_links
from orchestrator.show.terminal import StatusLine, echo, is_live, say
from orchestrator.values.plan import Plan
from orchestrator.values.run import Run, State, Step
from orchestrator.values.study import Study, Trial

_Texts = tuple[str, ...]


def _long(name: str) -> Any:
    """Return a screen whose module is a long import: most commands never show it."""
    return resolve_name(f"orchestrator.show.{name}")


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
        self.stage, self.stated, self.counted_at_s = "", "", time.monotonic()
        self.rehearses = False  # its plan is shown in brief: the result is of a small copy
        # The run that is followed: what it waits for, and the share of it that is done.
        self.task, self.waiting = "", ""
        self.share: float | None = None
        self.started_s, self.shown_at_s = 0.0, 0.0
        self.attempt, self.state = 0, ("", "")

    def __call__(self, event: events.ProgressEvent) -> None:
        match event:
            case events.Stage(task=task, stage=stage, state=state):
                text = f"{task}: {stage}"
                with_state = f"{text}: {state}" if state else text
                self.status.update(with_state)
                is_new = text != self.stage or (with_state != self.stated and self._is_due())
                if not self.status.live and is_new:
                    echo(with_state, err=True)
                    self.stated = with_state
                self.stage = text
            case events.UnitsDone():
                self._count(event)
            case events.TaskEnded():
                self.status.clear()
                self.waiting = self.stage = ""
            case events.RunUpdate(run=run, steps=steps):
                self._update(run, steps)
            case events.Notice(topic=topic, values=values):
                self._notice(topic, values)

    def _count(self, event: events.UnitsDone) -> None:
        total = "" if event.total is None else f" of {event.total:,}"
        text = f"{event.task}: {event.done:,}{total} {event.unit}"
        self.status.update(text, event.done / event.total if event.total else None)
        if not self.status.live and self._is_due():
            echo(text, err=True)

    def _is_due(self) -> bool:
        """Whether a pipe gets another line about the same; asked, it is not due for a while."""
        now_s = time.monotonic()
        due = now_s - self.counted_at_s >= _COUNT_EVERY_S
        self.counted_at_s = now_s if due else self.counted_at_s
        return due

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
                say("\n", _long("proof_screen:proof_screen")(plan, proof, age_s, following))
            case "job started":
                run = values["run"]
                logs = run_command("logs", run.run, storage_of(run), "-f")
                rows = [("run", run.run), ("job", values["job"]), ("journal", run.journal)]
                submitted = ui.screen(["submitted"], ui.indent([ui.Table(rows, "<<")]))
                say("\n", submitted, "\n", f"\nNext: {logs}\n" if self.detach else "")
            case "planned":
                detail: ui.Detail = "brief" if self.rehearses else "usual"
                shown = _long("plan_screen:plan_screen")(values["plan"], None, detail=detail)
                say("\n", shown)
            case _:
                self.rehearses |= topic == "started" and values["address"] is None
                self.left |= topic == "left running"
                make = _SCREENS.get(topic, partial(_noticed, topic))
                say(*make(**values))
        self.status.update(self.waiting, self.share)

    def _update(self, run: Run, steps: Sequence[Step]) -> None:
        """Print what is new about a run that is followed: its state, an attempt, its steps."""
        waiting = _WAITING.get(run.state, "")
        if run.state == "running" and run.steps_done < run.steps:
            waiting = f"step {fmt.count(run.steps_done + 1)} of {fmt.count(run.steps)}"
        self.waiting = f"{self.task}: {waiting}"
        self.share = run.steps_done / run.steps if run.steps_done else None
        state = run.state, (run.detail or "") if run.state == "pending" else ""
        if state != self.state and run.state in _SHOWN_STATES:
            self._line(": ".join(filter(None, state)))
        self.state = state
        before, self.attempt = self.attempt, run.attempts[-1].number if run.attempts else 0
        if before and before != self.attempt:
            ended = run.attempts[before - 1]
            if ended.number >= run.resumed_at:
                # Why another attempt starts, and on how many pods if that changed.
                pods = run.attempts[-1].pods
                on_pods = f" on {fmt.counted(pods, 'pod')}" if pods != ended.pods else ""
                why = ": ".join(filter(None, (ended.reason, first_line(ended.error))))
                self._line(f"new attempt{on_pods}; attempt {ended.number} ended: {why}")
        for step in steps:  # a line in two seconds, and always the last
            if startup := step.startup:  # before the first step of an attempt
                compiled, ready = fmt.seconds(startup.compile_s), fmt.seconds(startup.state_s)
                done = f", {fmt.count(startup.steps_done)} steps restored"
                restored = done if startup.steps_done else ""
                self._line(f"compiled in {compiled}, state ready in {ready}{restored}")
            is_last = step.index + 1 == run.steps
            if is_last or time.monotonic() - self.shown_at_s >= _SHOW_EVERY_S:
                held_out = step.own_evaluation
                more = f"  held-out loss {held_out.loss:.4f}" if held_out else ""
                number = f"step {step.index + 1:{len(str(run.steps))}} of {run.steps}"
                took = fmt.seconds(step.step_s)
                self._line(f"{number}  loss {step.loss:.4f}  {took}{more}")
                self.shown_at_s = time.monotonic()
        self.status.update(self.waiting, self.share)

    def _line(self, text: str) -> None:
        with self.status.hidden():
            echo(f"{time.monotonic() - self.started_s:5.0f} s  {text}")


def _started(
    name: str, address: str | None, named_by: str | None, study: Study | None
) -> _Texts:  # fmt: skip
    runs = len(study.trials) * study.repeats if study else 1
    if address and named_by:
        order = ", one after another," if runs != 1 else ""
        what = f"{fmt.counted(runs, 'run')}{order}" if study else "a run"
        text = f"{what} on the cluster {address}, from {named_by}."
    else:
        of_runs = f" of {fmt.counted(runs, 'run')}" if study else ""
        copies = "small copies, one after another" if study else "a small copy"
        runs_here = f"so this machine runs {copies}; no chip is reserved."
        text = f"a rehearsal{of_runs}. No cluster is configured, {runs_here}"
    return (ui.fit(f"{name}: {text}\n"),)


def _resumed(run: Run, plan: Plan) -> _Texts:
    why = f", {first_line(run.detail)}" if run.detail else ""
    pods = f"{fmt.counted(plan.pods, 'pod')} of {plan.topology}"
    steps = f"{fmt.count(run.steps_done)} of {fmt.count(run.steps)} steps"
    text = f"{run.run}: a rehearsal, resumed with {pods} on this machine."
    return ui.fit(f"{text}\nIt was {run.state} after {steps}{why}.\n"), "\n"


def _trial_started(study: Study, trial: Trial, repeat: int) -> _Texts:
    repeats = f" (repeat {repeat} of {study.repeats})" if study.repeats > 1 else ""
    settings = " ".join(f"{key}={text}" for key, text in trial.settings.items())
    return (ui.fit(f"trial {trial.number} of {len(study.trials)}{repeats}: {settings}\n"),)


def _ended(run: Run, plan: Plan, tracked: events.Tracked) -> _Texts:
    if run.reason and run.reason.code == "hosts_checked":
        return ("\n",)  # what was found is shown instead
    record = f"{tracked.tracker:8} {_tracked_text(run, tracked)}"
    following = screens.next_run_command(run, run.run, storage_of(run))
    return "\n", screens.result_screen(run, plan, record, following)


def _tracked_text(run: Run, tracked: events.Tracked) -> str:
    is_shown = tracked.tracker == _MLFLOW
    shown = f", shown by {storage_command('ui', storage_of(run))}" if is_shown else ""
    if tracked.problem:
        completed = run_command("sync", run.run, storage_of(run))
        return f"not recorded yet: {tracked.problem}; completed by {completed}{shown}"
    return f"{tracked.place}{shown}"


def _noticed(topic: str, run: Run) -> _Texts:
    status, cancel = (run_command(name, run.run, storage_of(run)) for name in ("status", "cancel"))
    match topic:
        case "already submitted":
            progress = f"{run.state}, {run.steps_done:,} of {run.steps:,} steps done"
            text = f"run {run.run} already exists: {progress}. Nothing was submitted."
            return (f"{text}\nNext: {status}\n",)
        case "left running":
            text = f"{run.run} continues without this command; {cancel} stops it"
            return "\n", f"{text}\nNext: {status}\n"
        case "trial done before":
            return (f"  done before: {run.run}\n",)
        case _:  # trial continues
            return (f"  {run.run} is still running; following it again\n",)


# The screens of notices, by topic. Each takes the values of its topic.
_SCREENS: dict[str, Callable[..., _Texts]] = {
    "started": _started,
    "rehearsal ready": lambda plan, small, steps, changes: (
        "\n",
        screens.rehearsal_screen(plan, small, steps, changes),
        "\n",
    ),
    "cluster ready": lambda **values: ("\n", screens.cluster_screen(**values)),
    "resumed": _resumed,
    "ended": _ended,
    "study planned": lambda forecast: (
        "\n",
        _long("study_screens:forecast_screen")(forecast),
        "\n",
    ),
    "trial started": _trial_started,
    "trial ended": lambda run, tracked: (
        f"  {tracked.tracker} {_tracked_text(run, tracked)}\n",
        f"  {run.run}: {run.state}, {run.steps_done} of {run.steps} steps\n\n",
    ),
    "ui ready": lambda address, place, experiments, served: (
        mlflow_links(address, place, experiments),
        "Ctrl-C ends it.\n" if served else "",
    ),
}


def say_end(event: events.ProgressEvent) -> None:
    if isinstance(event, events.RunUpdate):
        echo(f"{event.run.run}: {event.run.state}", err=True)
