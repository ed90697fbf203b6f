"""Command line room: the command that carries a plan out."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.calibrating import on_this_machine
from orchestrator.cli.origin import check_kept, origin_of
from orchestrator.cli.proving import NO_FIT, proved, show
from orchestrator.cli.running import next_about, next_of
from orchestrator.cli.studying import INTERRUPTED, Way, is_study, submit_study
from orchestrator.cli.terminal import (
    JSON,
    SET,
    SPEC,
    aside,
    make_plans,
    next_command,
    say,
    say_dry,
    say_json,
)
from orchestrator.errors import SpecError
from orchestrator.extras import require
from orchestrator.lifecycle.events import interruptible
from orchestrator.types.codec import to_pretty_json
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import LIVE, Run
from orchestrator.types.spec import Spec

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.launch.ray.job_client import RayJobs

REHEARSED_STEPS = 20
EXIT_CODES = {"succeeded": 0, "cancelled": INTERRUPTED}
ADDRESS = click.option(
    "--address", metavar="ADDRESS", help="The cluster to run on, instead of RAY_ADDRESS."
)
YES = click.option("--yes", is_flag=True, help="Do not ask before chips are taken.")
DETACH = click.option("--detach", is_flag=True, help="Do not follow a run on a named cluster.")


class Steps(click.ParamType[tuple[int, int]]):
    """A range of steps, as in 10:13: 10, 11 and 12."""

    name = "steps"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """The first step, and the one after the last."""
        first, _, end = value.partition(":")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            self.fail(f"{value!r}: must be A:B with A below B, for example 10:13", param, ctx)
        return int(first), int(end)


@click.command()
@SPEC
@SET
@click.option("--no-prove", is_flag=True, help="Do not compile the plan first.")
@click.option(
    "--no-calibrate",
    is_flag=True,
    help="Do not measure this machine: then a rehearsal has nothing to be held against.",
)
@ADDRESS
@YES
@click.option("--dry-run", is_flag=True, help="Show all that is known beforehand, and stop.")
@DETACH
@click.option(
    "--code",
    type=click.Choice(["sent", "installed"]),
    default="sent",
    show_default=True,
    help="Whether this project's code travels to a named cluster, or is in its image.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help=f"Steps to do; {REHEARSED_STEPS} in a rehearsal and run.steps on a cluster unless said.",
)
@click.option(
    "--devices-per-pod",
    type=click.Choice(["4", "8"]),
    help="Emulated devices of each pod of a rehearsal; as few as the chip's slices allow.",
)
@click.option(
    "--key",
    metavar="KEY",
    help="What to call the run. The same key twice is one run: the second time none is made.",
)
@click.option(
    "--profile",
    type=Steps(),
    metavar="A:B",
    help="Keep an XProf trace of steps A to B - 1, counted from 0, with the run.",
)
@JSON
def submit(
    spec: Path, overrides: tuple[str, ...], address: str | None, as_json: bool, **wishes: Any
) -> None:
    """Plan and prove SPEC, and run it. It runs on the cluster that is named, or is rehearsed here.

    With no cluster named (--address, RAY_ADDRESS, cluster.address of SPEC), it is a rehearsal: a
    small copy on emulated slices of this machine, with as many pods as SPEC has, up to eight: real
    processes, real collectives between pods, the real trainer, checkpoints and journal. When it has
    ended, or this command has, nothing of it is left running. Ctrl-C stops it after a last
    checkpoint, twice at once.

    Of a study every trial is carried out so, one after another. What is done is not done again: the
    same command goes on where it was stopped.

    On a named cluster it is the run itself, and outlives this command. First the cluster is asked
    whether it can serve: slices, versions, storage, secrets. Then chips, time and dollars are shown
    and a person is asked. Ctrl-C ends the following and not the run: `orch cancel` does that.

    \b
    Exit status:
      0    all steps are done; or submitted, with --detach; or shown, with --dry-run
      1    it failed, run.storage takes no run, or the cluster cannot serve it
           or be reached
      2    the spec cannot be served, or --yes is needed where nobody can be asked
      3    the plan does not fit, or more than gradients crosses pods
      130  interrupted, cancelled or no longer followed, or the answer was no

    \b
    Example:
      orch submit specs/llama3_70b_4pod.yaml
      orch submit specs/tiny_2pod.yaml --no-prove --steps 50
      orch submit specs/studies/tiny_weak.yaml --no-prove
      orch submit specs/llama3_70b_4pod.yaml --address http://10.0.0.2:8265 --detach --key nightly
    """
    require("run")
    wished = Wishes(**wishes)
    if is_study(spec):
        refuse_of_studies(wished, as_json=as_json)
        raise SystemExit(study_submitted(spec, overrides, address, wished))
    if as_json and wished.dry_run:
        raise SpecError("--json tells of the run, and --dry-run makes none: see orch plan --json")
    loaded, [plan] = make_plans(spec, overrides, 1)
    check_kept(loaded)
    order = Order(spec, overrides, loaded, plan, wished)
    named = named_cluster(loaded, address)
    with aside(as_json):
        if (run := before(order)) is not None:
            code = said_again(run, Path(loaded.run.storage))
        else:
            code, run = launched(order, *named) if named else rehearsed(order)
    if as_json:
        say_json(run)
    raise SystemExit(code)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The options of the command, as they were given."""

    no_prove: bool
    no_calibrate: bool
    yes: bool
    dry_run: bool
    detach: bool
    code: str
    steps: int | None
    devices_per_pod: str | None
    key: str | None
    profile: tuple[int, int] | None


@dataclass(frozen=True)
class Order:
    """What was asked: the spec and its file, the plan made of it, and how to go about it."""

    path: Path
    overrides: tuple[str, ...]
    spec: Spec
    plan: Plan
    wished: Wishes

    @property
    def alternatives(self) -> str:
        """The command that shows other plans."""
        return next_command("plan", self.path, self.overrides, "--alternatives", "5")


def named_cluster(spec: Spec, address: str | None) -> tuple[str, str] | None:
    """The cluster that is named, and by what; None where none is."""
    written = spec.cluster.address
    named = {
        "--address": address,
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS"),
        "cluster.address": None if written == "auto" else written,
    }
    return next(((where, place) for place, where in named.items() if where), None)


def before(order: Order) -> Run | None:
    """The run of the same plan that has the key already."""
    from orchestrator import journal

    key, storage = order.wished.key, Path(order.spec.run.storage)
    known = {one.key: one for one in journal.list_journals(storage)} if key else {}
    if key not in known:
        return None
    run, submission = known[key].run(), known[key].state().submitted.submission
    if order.plan.digest not in (submission.plan_digest, submission.rehearses):
        raise SpecError(f"run {key} is there already, of another plan: take another --key")
    return run


def said_again(run: Run, storage: Path) -> int:
    """That a run is there already, and how it stands; the exit code."""
    following = next_about("status", run.run, storage)
    stands = f"{run.state}, {run.steps_done:,} of {run.steps:,} steps done"
    say(f"run {run.run} is there already: {stands}. Nothing was submitted.\nNext: {following}\n")
    return 0 if run.state in LIVE else EXIT_CODES.get(run.state, 1)


def refuse_of_studies(wished: Wishes, *, as_json: bool) -> None:
    """What a study has otherwise."""
    if wished.key:
        raise SpecError("--key is of one run: a study's key is made of all that it asks")
    if as_json:
        raise SpecError("--json tells of one run: see orch status STUDY --json")


def study_submitted(
    path: Path, overrides: tuple[str, ...], address: str | None, wished: Wishes
) -> int:
    """Carry out the trials of a study; the exit code."""
    from orchestrator import spec as room

    study = room.load_study(path, overrides)
    base = study.trials[0].spec
    check_kept(base)
    return submit_study(path, study, way_of(path, base, address, wished))


def way_of(path: Path, base: Spec, address: str | None, wished: Wishes) -> Way:
    """How the trials of a study are carried out. A named cluster is never passed over."""
    from orchestrator.cli.trials import DETACHED, Launched, Rehearsed

    if wished.detach:
        raise SpecError(DETACHED)
    asked: dict[str, Any] = {
        "path": path,
        "devices": int(wished.devices_per_pod or 0) or None,
        "profile": wished.profile,
        "prove": not wished.no_prove,
        "dry_run": wished.dry_run,
    }
    if named := named_cluster(base, address):
        where, place = named
        if wished.devices_per_pod:
            raise SpecError(of_rehearsals(place))
        asked |= {"address": where, "place": place, "code": wished.code, "yes": wished.yes}
        return Launched(steps=wished.steps, **asked)
    return Rehearsed(
        steps=wished.steps or REHEARSED_STEPS, calibrate=not wished.no_calibrate, **asked
    )


def rehearsed(order: Order) -> tuple[int, Run | None]:
    """Rehearse the plan on this machine; the exit code, and the run."""
    with interruptible("preparing the rehearsal"):
        done = carried_out(order)
    if done is None:
        return say_dry(), None
    from orchestrator import journal
    from orchestrator.cli import recording
    from orchestrator.render import rehearsal_screen as render

    run, plan = done
    following = next_of(run, run.run, Path(order.spec.run.storage))
    recorded = recording.ending(journal.Journal(Path(run.journal)))
    say("\n", render.rehearsal_result(run, plan, recorded, following))
    return EXIT_CODES.get(run.state, 1), run


def carried_out(order: Order) -> tuple[Run, Plan] | None:
    """Show the rehearsal and run it to its end: the run, and its plan; None where it is only to be
    shown.
    """
    from orchestrator.plan.rehearsal import rehearse
    from orchestrator.render import rehearsal_screen as render

    wished, loaded, plan = order.wished, order.spec, order.plan
    if wished.detach:
        raise SpecError("--detach: no cluster is named, and a rehearsal ends with this command")
    steps = wished.steps or REHEARSED_STEPS
    small = rehearse(loaded, plan, steps=steps, devices=int(wished.devices_per_pod or 0) or None)
    origin = origin_of(order.path, loaded, steps, wished.profile)
    say(render.rehearsal_intro(plan.name))
    proof = show_plan(loaded, plan, order.alternatives, prove=not wished.no_prove)
    if not (wished.no_calibrate or wished.dry_run):
        small, reached = on_this_machine(small)
        origin = origin.keeping("chip_profile.json", to_pretty_json(reached).encode())
    say("\n", render.rehearsal_screen(plan, small.plan, steps, small.changes), "\n")
    if wished.dry_run:
        return None
    from orchestrator.cli import rehearsing

    return rehearsing.carry_out(small, plan, proof, origin, wished.key), small.plan


def launched(order: Order, address: str, place: str) -> tuple[int, Run | None]:
    """Run the plan on a named cluster; the exit code, and the run."""
    from orchestrator.cli import launching
    from orchestrator.launch import provenance
    from orchestrator.render import launch_screen as render

    wished, loaded, plan = order.wished, order.spec, order.plan
    if wished.devices_per_pod:
        raise SpecError(of_rehearsals(place))
    steps = launching.steps_of(loaded, plan, wished.steps)
    origin = origin_of(order.path, loaded, steps, wished.profile)
    origin = replace(origin, environment={**origin.environment, "cluster": address})
    launch = launching.Launch(
        spec=loaded,
        plan=plan,
        steps=steps,
        versions=origin.environment,
        archive=provenance.archive() if wished.code == "sent" else None,
        address=address,
        storage=Path(loaded.run.storage).absolute(),
    )
    if not (wished.yes or wished.dry_run):
        launching.check_askable()
    say(render.launch_intro(plan.name, address, place))
    jobs, seen = launching.looked(launch)
    proof = show_plan(loaded, plan, order.alternatives, prove=not wished.no_prove)
    say("\n", seen)
    if wished.dry_run:
        return say_dry(), None
    if not wished.yes:
        launching.ask(launch)
    recorded, job = launching.submitted(launch, jobs, origin, proof, wished.key)
    storage = Path(loaded.run.storage)
    code = (
        say_detached(recorded.key, storage)
        if wished.detach
        else followed(recorded, storage, jobs, job)
    )
    return code, recorded.run()


def followed(
    recorded: "Journal", storage: Path, jobs: "RayJobs", job: str, driver_before: int = 0
) -> int:
    """Follow a run on a named cluster to its end, or for as long as somebody looks."""
    from orchestrator.cli import following, recording
    from orchestrator.render import launch_screen as render

    run = following.follow(recorded, jobs, job, driver_before)
    status, cancel = (next_about(name, recorded.key, storage) for name in ("status", "cancel"))
    if run is None:
        say("\n", render.detached_text(recorded.key, status, cancel))
        return INTERRUPTED
    say("\n", render.launch_result(run, recording.ending(recorded), next_of(run, run.run, storage)))
    return EXIT_CODES.get(run.state, 1)


def of_rehearsals(place: str) -> str:
    return f"--devices-per-pod is of rehearsals, and {place} names a cluster"


def say_detached(key: str, storage: Path) -> int:
    say(f"\nNext: {next_about('logs', key, storage, '-f')}\n")
    return 0


def show_plan(spec: Spec, plan: Plan, following: str, *, prove: bool) -> Proof | None:
    """The real plan and its proof; a plan that does not pass ends the command."""
    from orchestrator.render import plan_screen as render

    say("\n", render.plan_screen(plan, None))
    if not prove:
        return None
    proven = proved(spec, plan)
    say("\n")
    show(proven, None if proven.proof.passes else following)
    if not proven.proof.passes:
        raise SystemExit(NO_FIT)
    return proven.proof


COMMANDS = (submit,)
