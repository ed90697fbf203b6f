"""Command line room: a study, from its file to its plans, its trials and its scaling."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.cli.terminal import as_typed, say
from orchestrator.types.plan import Plan
from orchestrator.types.run import LIVE, Run
from orchestrator.types.study import Study, Trial

if TYPE_CHECKING:
    from orchestrator.journal import StudyJournal

UNSERVED = 2
INTERRUPTED = 130
SHOW_AFTER_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A repeat of a trial. `base` is the file of the spec that is varied."""

    trial: Trial
    repeat: int
    plan: Plan
    base: Path


class Way(Protocol):
    """How the trials of a study are carried out: rehearsed here, or on a named cluster.

    `steps` were asked of every run, None where each spec says them; `devices` of a rehearsal's pod.
    """

    @property
    def steps(self) -> int | None: ...
    @property
    def devices(self) -> int | None: ...
    @property
    def rehearsal(self) -> bool: ...

    def first_line(self, study: Study) -> str:
        """What comes before everything else."""

    def agreed(self, left: list[Turn]) -> bool:
        """Whether these are to be run now; says first what a person must know."""

    def run(self, recorded: "StudyJournal", turn: Turn) -> Run | None:
        """One run, to its end; None when somebody no longer wants to see it."""


def is_study(path: Path) -> bool:
    """Whether a file is about a study and not a spec."""
    from orchestrator import spec

    return spec.is_study(path)


def submit_study(path: Path, study: Study, way: Way) -> int:
    """Carry out every trial that is not done, one after another; the exit code."""
    from orchestrator import journal
    from orchestrator.cli.display import Display
    from orchestrator.lifecycle.studies import plan_trials
    from orchestrator.render import study_screen as render
    from orchestrator.study import forecast_study

    made = plan_trials(study, Display())
    say(way.first_line(study))
    say("\n", render.study_screen(forecast_study(study, made)), "\n")
    served = {number: plan for number, plan in made.items() if isinstance(plan, Plan)}
    if len(served) < len(made) and study.after_failure == "stop":
        return UNSERVED
    asked = journal.StudyRequest(
        study=study, steps=way.steps, devices=way.devices, rehearsal=way.rehearsal
    )
    turns = turns_of(study, served, path)
    if not way.agreed(
        [one for one in turns if not succeeded(asked.journal_in(storage_of(study)), one)]
    ):
        return 0
    documents = {"study.yaml": path.read_bytes()}
    recorded = journal.open_study(storage_of(study), asked, documents)
    code = carry_on(recorded, study, turns, way) or (UNSERVED if len(served) < len(made) else 0)
    again = "" if code == 0 else as_typed()
    show_study(recorded, storage_of(study), again)
    return code


def storage_of(study: Study) -> Path:
    return Path(study.trials[0].spec.run.storage)


def turns_of(study: Study, served: dict[int, Plan], path: Path) -> list[Turn]:
    """All trials that have a plan once, then again for each further repeat."""
    base = path.parent / study.base
    return [
        Turn(trial=trial, repeat=repeat, plan=served[trial.number], base=base)
        for repeat in range(1, study.repeats + 1)
        for trial in study.trials
        if trial.number in served
    ]


def carry_on(recorded: "StudyJournal", study: Study, turns: list[Turn], way: Way) -> int:
    """Each turn past those that are done; 0 when all have succeeded."""
    from orchestrator.render import study_screen as render

    failed = False
    # What goes on comes first: while it does, nothing else may begin.
    for turn in sorted(turns, key=lambda one: going_on(recorded, one) is None):
        say(render.trial_line(study, turn.trial, turn.repeat))
        if done := succeeded(recorded, turn):
            say(f"  done before: {done.run}\n")
            continue
        run = way.run(recorded, turn)
        if run is None:
            return INTERRUPTED
        say(f"  {run.run}: {run.state}, {run.steps_done} of {run.steps} steps\n\n")
        if run.state == "cancelled":
            return INTERRUPTED
        failed |= run.state != "succeeded"
        if failed and study.after_failure == "stop":
            return 1
    return 1 if failed else 0


def succeeded(recorded: "StudyJournal", turn: Turn) -> Run | None:
    """The run of a trial that is done; None where there is none."""
    return next((run for run in runs_of(recorded, turn) if run.state == "succeeded"), None)


def going_on(recorded: "StudyJournal", turn: Turn) -> Run | None:
    """The run of a trial that goes on; None where none does."""
    return next((run for run in runs_of(recorded, turn) if run.state in LIVE), None)


def runs_of(recorded: "StudyJournal", turn: Turn) -> Iterator[Run]:
    """Every run of a trial's repeat, as it stands."""

    wanted = turn.trial.number, turn.repeat
    for one in recorded.trial_starts():
        run = recorded.trial_run(one) if (one.trial, one.repeat) == wanted else None
        if run:
            yield run


def show_study(recorded: "StudyJournal", storage: Path, following: str = "") -> None:
    """The measured scaling, as far as it is."""
    from orchestrator.cli.running import next_about
    from orchestrator.render import study_report_screen as render
    from orchestrator.study import make_study_report, read_trial_runs

    opened = recorded.submission()
    found = make_study_report(recorded.key, opened.study, read_trial_runs(recorded))
    say(render.study_report_screen(found, following or next_about("report", recorded.key, storage)))
