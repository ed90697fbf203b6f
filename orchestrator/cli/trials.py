"""Command line room: how a trial of a study is carried out: rehearsed here, or on a cluster."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator import journal
from orchestrator.cli.calibrating import on_this_machine
from orchestrator.cli.origin import Origin, origin_of
from orchestrator.cli.proving import NO_FIT, proved, show
from orchestrator.cli.running import next_about
from orchestrator.cli.studying import Turn, going_on
from orchestrator.cli.terminal import next_command, say, say_dry
from orchestrator.errors import SpecError
from orchestrator.lifecycle.events import interruptible
from orchestrator.render import launch_screen as render
from orchestrator.render.study_screen import study_intro
from orchestrator.types.codec import to_pretty_json
from orchestrator.types.proof import Proof
from orchestrator.types.run import Run
from orchestrator.types.study import Study, TrialStart

if TYPE_CHECKING:
    from orchestrator.cli.launching import Launch
    from orchestrator.launch.ray.job_client import RayJobs

DETACHED = "--detach: somebody must start trial after trial, and this command does"


@dataclass(frozen=True, kw_only=True)
class Common:
    """What was asked of all trials alike."""

    path: Path
    steps: int | None
    devices: int | None
    profile: tuple[int, int] | None
    prove: bool
    dry_run: bool

    def proof(self, turn: Turn) -> Proof | None:
        """The proof of a trial's plan; one that does not pass ends the command."""
        if not self.prove:
            return None
        proven = proved(turn.trial.spec, turn.plan)
        if not proven.proof.passes:
            show(proven, next_command("plan", self.path, ()))
            raise SystemExit(NO_FIT)
        return proven.proof

    def origin(self, turn: Turn, steps: int, recorded: journal.StudyJournal) -> Origin:
        """What a run of a trial is made of."""
        origin = origin_of(turn.base, turn.trial.spec, steps, self.profile)
        return replace(origin, study=recorded.key)


@dataclass(frozen=True, kw_only=True)
class Rehearsed(Common):
    """Each trial as a small copy on this machine."""

    steps: int
    calibrate: bool
    rehearsal: bool = True

    def first_line(self, study: Study) -> str:
        return study_intro(study)

    def agreed(self, _: list[Turn]) -> bool:
        """A rehearsal takes no chip: nobody is asked."""
        if self.dry_run:
            say_dry()
        return not self.dry_run

    def run(self, recorded: journal.StudyJournal, turn: Turn) -> Run:
        """One run of a trial, from its name in the study's journal to its end."""
        from orchestrator.cli import recording

        with interruptible("preparing the rehearsal"):
            begun, run = self.carried_out(recorded, turn)
        say(f"  mlflow {recording.ending(recorded.trial_journal(begun))}\n")
        return run

    def carried_out(self, recorded: journal.StudyJournal, turn: Turn) -> tuple[TrialStart, Run]:
        """The run under its name in the study's journal, and how it ended."""
        from orchestrator.cli import rehearsing
        from orchestrator.plan.rehearsal import rehearse

        proof, spec = self.proof(turn), turn.trial.spec
        small = rehearse(spec, turn.plan, steps=self.steps, devices=self.devices)
        origin = self.origin(turn, self.steps, recorded)
        if self.calibrate:
            small, reached = on_this_machine(small)
            origin = origin.keeping("chip_profile.json", to_pretty_json(reached).encode())
        begun = journal.start_trial(recorded, turn.trial.number, turn.repeat)
        return begun, rehearsing.carry_out(small, turn.plan, proof, origin, begun.run)


@dataclass(frozen=True, kw_only=True)
class Launched(Common):
    """Each trial as a run on a named cluster, one after another."""

    address: str
    place: str
    code: str
    yes: bool
    rehearsal: bool = False
    jobs: "list[RayJobs]" = field(default_factory=list)

    def first_line(self, study: Study) -> str:
        runs = len(study.trials) * study.repeats
        return render.study_launch_intro(study.name, runs, self.address, self.place)

    def agreed(self, left: list[Turn]) -> bool:
        """Look at the cluster and the plans, say what all of it takes, and ask once."""
        from orchestrator.cli import launching

        if not left:
            return True
        if not (self.yes or self.dry_run):
            launching.check_askable()
        asks = render.cost_of_runs([(turn.plan, self.steps_of(turn)) for turn in left])
        for turn in most_pods(left):
            jobs, seen = launching.looked(self.launch(turn, {}), asks)
            self.jobs[:] = [jobs]
            say(seen)
        for turn in left:
            self.proof(turn)
        if self.dry_run:
            say_dry()
        elif not self.yes:
            click.confirm(f"Run all of it on {self.address}?", abort=True, err=True)
        return not self.dry_run

    def steps_of(self, turn: Turn) -> int:
        """The steps of a trial. Its tokens say how long a training is, and a trial is not one."""
        steps = self.steps or turn.trial.spec.run.steps
        if steps is None:
            raise SpecError("a study on a named cluster needs --steps, or run.steps in its base")
        return steps

    def launch(self, turn: Turn, environment: dict[str, str]) -> "Launch":
        from orchestrator.cli.launching import Launch
        from orchestrator.launch import provenance

        return Launch(
            spec=turn.trial.spec,
            plan=turn.plan,
            steps=self.steps_of(turn),
            versions=environment or provenance.versions(),
            archive=provenance.archive() if self.code == "sent" else None,
            address=self.address,
            storage=Path(turn.trial.spec.run.storage).absolute(),
        )

    def run(self, recorded: journal.StudyJournal, turn: Turn) -> Run | None:
        """One run, followed to its end; None when it is no longer followed, and goes on.

        One that goes on, because it was no longer followed before, is followed again.
        """
        from orchestrator.cli import following, recording

        [jobs], live = self.jobs, going_on(recorded, turn)
        started, job = again(recorded, live) if live else self.begun(recorded, turn)
        run = following.follow(started, jobs, job, 0)
        storage = Path(turn.trial.spec.run.storage)
        if run is None:
            status, cancel = (
                next_about(name, started.key, storage) for name in ("status", "cancel")
            )
            say("\n", render.detached_text(started.key, status, cancel))
        else:
            say(f"  mlflow {recording.ending(started)}\n")
        return run

    def begun(self, recorded: journal.StudyJournal, turn: Turn) -> tuple[journal.Journal, str]:
        """A new run of a trial, and its job."""
        from orchestrator.cli import launching

        origin = self.origin(turn, self.steps_of(turn), recorded)
        origin = replace(origin, environment={**origin.environment, "cluster": self.address})
        launch = self.launch(turn, dict(origin.environment))
        begun = journal.start_trial(recorded, turn.trial.number, turn.repeat)
        [jobs], proof = self.jobs, self.proof(turn)
        return launching.submitted(launch, jobs, origin, proof, begun.run)


def again(recorded: journal.StudyJournal, live: Run) -> tuple[journal.Journal, str]:
    """A run of a study that goes on, and the job that it was submitted as."""
    from orchestrator.cli import launching

    say(f"  {live.run} goes on, and is followed again\n")
    job = launching.job_name(live, launching.SUBMITTED)
    return journal.Journal(recorded.storage / live.run), job


def most_pods(turns: list[Turn]) -> list[Turn]:
    """Of each kind of slice the turn that wants the most of them: it needs what the others do."""
    found: dict[tuple[str, str], Turn] = {}
    for turn in turns:
        kind = turn.plan.chip, turn.plan.topology
        if kind not in found or turn.plan.pods > found[kind].plan.pods:
            found[kind] = turn
    return list(found.values())
