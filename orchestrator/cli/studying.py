"""Command line room: a study, from its file to its plans, its trials and its scaling."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.terminal import next_command, say, say_json
from orchestrator.errors import Unservable
from orchestrator.stations.plan import Plan
from orchestrator.stations.run import Run
from orchestrator.stations.study import Study, Trial

if TYPE_CHECKING:
    from orchestrator.journal import StudyJournal

UNSERVED = 2
INTERRUPTED = 130
SHOW_AFTER_S = 2.0


def is_study(path: Path) -> bool:
    """Whether a file is about a study and not a spec."""
    from orchestrator import spec

    return spec.is_study(path)


def plan_study(path: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """The predicted scaling of a study; exit 2 where a trial cannot be served."""
    from orchestrator import spec
    from orchestrator import study as room
    from orchestrator.render import study as render

    asked = spec.load_study(path, overrides)
    made = planned(asked)
    found = room.forecast(asked, made)
    refused = any(one.refused for one in found.trials)
    if as_json:
        say_json(found)
    else:
        say(render.screen(found, "" if refused else next_command("submit", path, overrides)))
    if refused:
        raise SystemExit(UNSERVED)


def planned(study: Study) -> dict[int, Plan | str]:
    """The plan of each trial, or why there is none."""
    from orchestrator.plan.make import make_plan

    made: dict[int, Plan | str] = {}
    with counted("planned", len(study.trials)) as count:
        for trial in study.trials:
            try:
                made[trial.number] = make_plan(trial.spec)
            except Unservable as error:
                made[trial.number] = str(error)
            count(trial.number)
    return made


@contextmanager
def counted(what: str, of: int) -> Iterator[Callable[[int], None]]:
    """On a terminal, a line that counts, from the time on that a person begins to wonder."""
    began, shown = time.monotonic(), sys.stderr.isatty()

    def count(number: int) -> None:
        if shown and time.monotonic() - began > SHOW_AFTER_S:
            click.echo(f"\r\033[K{what} {number} of {of}", err=True, nl=False)

    yield count
    if shown:
        click.echo("\r\033[K", err=True, nl=False)


@dataclass(frozen=True, kw_only=True)
class Rehearsing:
    """How the trials of a study are rehearsed."""

    path: Path
    steps: int
    devices: int | None
    profile: tuple[int, int] | None
    prove: bool
    calibrate: bool


def submit_study(
    overrides: tuple[str, ...], asked: Rehearsing, refuse: Callable[[Trial], None]
) -> int:
    """Rehearse every trial that is not done, one after another; the exit code.

    `refuse` ends the command where a trial names a cluster.
    """
    from orchestrator import journal, spec
    from orchestrator import study as room
    from orchestrator.render import study as render

    study = spec.load_study(asked.path, overrides)
    refuse(study.trials[0])
    made = planned(study)
    say(render.first_line(study))
    say("\n" + render.screen(room.forecast(study, made)) + "\n")
    served = {number: plan for number, plan in made.items() if isinstance(plan, Plan)}
    if len(served) < len(made) and study.after_failure == "stop":
        return UNSERVED
    recorded = journal.open_study(
        storage_of(study),
        study,
        steps=asked.steps,
        devices=asked.devices,
        documents={"study.yaml": asked.path.read_bytes()},
    )
    code = carry_on(recorded, study, served, asked)
    show_study(recorded)
    return code or (UNSERVED if len(served) < len(made) else 0)


def storage_of(study: Study) -> Path:
    return Path(study.trials[0].spec.run.storage)


def carry_on(
    recorded: "StudyJournal", study: Study, served: dict[int, Plan], asked: Rehearsing
) -> int:
    """Each repeat of each trial in turn, past those that are done; 0 when all have succeeded."""
    from orchestrator.render import study as render

    failed = False
    turns = [(n, trial) for n in range(1, study.repeats + 1) for trial in study.trials]
    for repeat, trial in turns:
        if trial.number not in served:
            continue
        say(render.turn(study, trial, repeat))
        if done := succeeded(recorded, trial.number, repeat):
            say(f"  done before: {done.run}\n")
            continue
        run = rehearse_trial(recorded, trial, repeat, served[trial.number], asked)
        say(f"  {run.run}: {run.state}, {run.steps_done} of {run.steps} steps\n\n")
        if run.state == "cancelled":
            return INTERRUPTED
        failed |= run.state != "succeeded"
        if failed and study.after_failure == "stop":
            return 1
    return 1 if failed else 0


def succeeded(recorded: "StudyJournal", trial: int, repeat: int) -> Run | None:
    """The run of a trial that is done; None where there is none."""
    from orchestrator import journal

    mine = [one for one in recorded.begun() if (one.trial, one.repeat) == (trial, repeat)]
    runs = [journal.run_of(recorded, one) for one in mine]
    return next((run for run in runs if run and run.state == "succeeded"), None)


def rehearse_trial(
    recorded: "StudyJournal", trial: Trial, repeat: int, plan: Plan, asked: Rehearsing
) -> Run:
    """One run of a trial, from its name in the study's journal to its end."""
    from orchestrator import journal
    from orchestrator.cli import rehearsing
    from orchestrator.cli.calibrating import on_this_machine
    from orchestrator.cli.origin import origin_of
    from orchestrator.cli.proving import NO_FIT, proved, show
    from orchestrator.plan.rehearsal import rehearse
    from orchestrator.stations.codec import to_pretty_json

    proven = proved(trial.spec, plan) if asked.prove else None
    if proven and not proven.proof.passes:
        show(proven, next_command("plan", asked.path, ()))
        raise SystemExit(NO_FIT)
    small = rehearse(trial.spec, plan, steps=asked.steps, devices=asked.devices)
    origin = origin_of(asked.path, trial.spec, asked.steps, asked.profile)
    if asked.calibrate:
        small, reached = on_this_machine(small)
        origin = origin.keeping("chip_profile.json", to_pretty_json(reached).encode())
    begun = journal.begin_trial(recorded, trial.number, repeat)
    return rehearsing.carry_out(
        small,
        plan,
        proven.proof if proven else None,
        replace(origin, study=recorded.key),
        begun.run,
    )


def show_study(recorded: "StudyJournal") -> None:
    """The measured scaling, as far as it is."""
    from orchestrator import study as room
    from orchestrator.cli.running import next_command as next_about
    from orchestrator.render import scaling as render

    opened = recorded.opened()
    found = room.study_report(recorded.key, opened.study, room.gather(recorded))
    say(render.screen(found, next_about("report", recorded.key, storage_of(opened.study))))
