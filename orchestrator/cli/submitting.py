"""Command line room: the command that carries a plan out."""

import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.calibrating import on_this_machine
from orchestrator.cli.origin import origin_of
from orchestrator.cli.proving import NO_FIT, proved, show
from orchestrator.cli.running import next_command as next_about
from orchestrator.cli.studying import Rehearsing, is_study, submit_study
from orchestrator.cli.terminal import SET, SPEC, make_plans, next_command, say
from orchestrator.errors import Unservable
from orchestrator.stations.codec import to_pretty_json
from orchestrator.stations.plan import Plan
from orchestrator.stations.proof import Proof
from orchestrator.stations.spec import Spec
from orchestrator.stations.study import Trial

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.launch.named import Jobs

REHEARSED_STEPS = 20
INTERRUPTED = 130
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
    "--profile",
    type=Steps(),
    metavar="A:B",
    help="Keep an XProf trace of steps A to B - 1, counted from 0, with the run.",
)
def submit(spec: Path, overrides: tuple[str, ...], address: str | None, **wishes: Any) -> None:
    """Plan and prove SPEC, and run it: on the cluster that is named, or as a rehearsal here.

    With no cluster named (--address, RAY_ADDRESS, cluster.address of SPEC), it is a rehearsal: a
    small copy on emulated slices of this machine, with as many pods as SPEC has, up to eight: real
    processes, real collectives between pods, the real trainer, checkpoints and journal. When it has
    ended, or this command has, nothing of it is left running. Ctrl-C stops it after a last
    checkpoint, twice at once.

    Of a study every trial is rehearsed, one after another. What is done is not done again: the same
    command goes on where it was stopped.

    On a named cluster it is the run itself, and outlives this command. First the cluster is asked
    whether it can serve: slices, versions, storage, secrets. Then chips, time and dollars are shown
    and a person is asked. Ctrl-C ends the following and not the run: `orch cancel` does that.

    \b
    Exit status:
      0    all steps are done; or submitted, with --detach; or shown, with --dry-run
      1    it failed, or the cluster cannot serve it or be reached
      2    the spec cannot be served, or --yes is needed where nobody can be asked
      3    the plan does not fit, or more than gradients crosses pods
      130  it was cancelled, or no longer followed, or the answer was no

    \b
    Example:
      orch submit specs/llama3_70b_4pod.yaml
      orch submit specs/tiny_2pod.yaml --no-prove --steps 50
      orch submit specs/studies/tiny_weak.yaml --no-prove
      orch submit specs/llama3_70b_4pod.yaml --address http://10.0.0.2:8265 --detach
    """
    from orchestrator import record

    if is_study(spec):
        raise SystemExit(study_submitted(spec, overrides, address, Wishes(**wishes)))
    wished, (loaded, [plan]) = Wishes(**wishes), make_plans(spec, overrides, 1)
    record.destination(loaded.tracking, Path(loaded.run.storage), os.environ)  # or refuse now
    order = Order(spec, overrides, loaded, plan, wished)
    named = named_cluster(loaded, address)
    raise SystemExit(launched(order, *named) if named else rehearsed(order))


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


def study_submitted(
    path: Path, overrides: tuple[str, ...], address: str | None, wished: Wishes
) -> int:
    """Rehearse the trials of a study; the exit code. A named cluster is never passed over."""

    def refuse(trial: Trial) -> None:
        if named := named_cluster(trial.spec, address):
            where, place = named
            raise Unservable(
                f"{place} names the cluster {where}: trials of a study are rehearsed on this"
                " machine; submit each of their specs to a cluster by itself"
            )
        if wished.detach or wished.dry_run:
            raise Unservable("--detach and --dry-run are of one run, and this is a study")

    asked = Rehearsing(
        path=path,
        steps=wished.steps or REHEARSED_STEPS,
        devices=int(wished.devices_per_pod or 0) or None,
        profile=wished.profile,
        prove=not wished.no_prove,
        calibrate=not wished.no_calibrate,
    )
    return submit_study(overrides, asked, refuse)


def rehearsed(order: Order) -> int:
    """Rehearse the plan on this machine; the exit code."""
    from orchestrator.plan.rehearsal import rehearse
    from orchestrator.render import rehearsal as render

    wished, loaded, plan = order.wished, order.spec, order.plan
    if wished.detach:
        raise Unservable("--detach: no cluster is named, and a rehearsal ends with this command")
    steps = wished.steps or REHEARSED_STEPS
    small = rehearse(loaded, plan, steps=steps, devices=int(wished.devices_per_pod or 0) or None)
    origin = origin_of(order.path, loaded, steps, wished.profile)
    say(render.first_line(plan.name))
    proof = show_plan(loaded, plan, order.alternatives, prove=not wished.no_prove)
    if not (wished.no_calibrate or wished.dry_run):
        small, reached = on_this_machine(small)
        origin = origin.keeping("chip_profile.json", to_pretty_json(reached).encode())
    say("\n" + render.opening(plan, small.plan, steps, small.changes) + "\n")
    if wished.dry_run:
        return say_dry()
    from orchestrator import journal
    from orchestrator.cli import recording, rehearsing

    run = rehearsing.carry_out(small, plan, proof, origin)
    following = next_about("status", run.run, Path(loaded.run.storage))
    recorded = recording.ending(journal.Journal(Path(run.journal)))
    say("\n" + render.ending(run, small.plan, recorded, following))
    return EXIT_CODES.get(run.state, 1)


def launched(order: Order, address: str, place: str) -> int:
    """Run the plan on a named cluster; the exit code."""
    from orchestrator.cli import launching
    from orchestrator.launch import package
    from orchestrator.render import launch as render

    wished, loaded, plan = order.wished, order.spec, order.plan
    if wished.devices_per_pod:
        raise Unservable(f"--devices-per-pod is of rehearsals, and {place} names a cluster")
    steps = launching.steps_of(loaded, plan, wished.steps)
    origin = origin_of(order.path, loaded, steps, wished.profile)
    origin = replace(origin, environment={**origin.environment, "cluster": address})
    launch = launching.Launch(
        spec=loaded,
        plan=plan,
        steps=steps,
        versions=origin.environment,
        archive=package.archive() if wished.code == "sent" else None,
        address=address,
        storage=Path(loaded.run.storage).absolute(),
    )
    if not (wished.yes or wished.dry_run):
        launching.check_askable()
    say(render.first_line(plan.name, address, place))
    jobs, seen = launching.looked(launch)
    proof = show_plan(loaded, plan, order.alternatives, prove=not wished.no_prove)
    say(f"\n{seen}\n")
    if wished.dry_run:
        return say_dry()
    if not wished.yes:
        launching.ask(launch)
    recorded, job = launching.submitted(launch, jobs, origin, proof)
    storage = Path(loaded.run.storage)
    return (
        say_detached(recorded.key, storage)
        if wished.detach
        else followed(recorded, storage, jobs, job)
    )


def followed(
    recorded: "Journal", storage: Path, jobs: "Jobs", job: str, driver_before: int = 0
) -> int:
    """Follow a run on a named cluster to its end, or for as long as somebody looks."""
    from orchestrator.cli import following, recording
    from orchestrator.render import launch as render

    run = following.follow(recorded, jobs, job, driver_before)
    status, cancel = (next_about(name, recorded.key, storage) for name in ("status", "cancel"))
    if run is None:
        say("\n" + render.left(recorded.key, status, cancel))
        return INTERRUPTED
    say("\n" + render.ending(run, recording.ending(recorded), status))
    return EXIT_CODES.get(run.state, 1)


def say_dry() -> int:
    """What to type to do it: the same, without --dry-run."""
    words = ["orch", *(word for word in sys.argv[1:] if word != "--dry-run")]
    say(f"\nNothing was submitted: --dry-run.\nNext: {shlex.join(words)}\n")
    return 0


def say_detached(key: str, storage: Path) -> int:
    say(f"\nNext: {next_about('logs', key, storage, '-f')}\n")
    return 0


def show_plan(spec: Spec, plan: Plan, following: str, *, prove: bool) -> Proof | None:
    """The real plan and its proof; a plan that does not pass ends the command."""
    from orchestrator.render import plan as render

    say("\n" + render.screen(plan, following))
    if not prove:
        return None
    proven = proved(spec, plan)
    say("\n")
    show(proven, following)
    if not proven.proof.passes:
        raise SystemExit(NO_FIT)
    return proven.proof


COMMANDS = (submit,)
