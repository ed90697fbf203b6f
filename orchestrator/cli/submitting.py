"""Command line room: the command that carries a plan out."""

import os
from pathlib import Path

import click

from orchestrator.cli.calibrating import on_this_machine
from orchestrator.cli.origin import origin_of
from orchestrator.cli.proving import NO_FIT, proved, show
from orchestrator.cli.running import next_command as next_about
from orchestrator.cli.terminal import SET, SPEC, make_plans, next_command, say
from orchestrator.errors import OrchError
from orchestrator.stations.codec import to_pretty_json
from orchestrator.stations.plan import Plan
from orchestrator.stations.proof import Proof
from orchestrator.stations.spec import Spec

INTERRUPTED = 130
EXIT_CODES = {"succeeded": 0, "cancelled": INTERRUPTED}


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
@click.option("--address", metavar="ADDRESS", help="The cluster to run on, instead of RAY_ADDRESS.")
@click.option(
    "--steps",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Steps of a rehearsal.",
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
def submit(
    spec: Path,
    overrides: tuple[str, ...],
    no_prove: bool,
    no_calibrate: bool,
    address: str | None,
    steps: int,
    devices_per_pod: str | None,
    profile: tuple[int, int] | None,
) -> None:
    """Plan and prove SPEC, and rehearse it: a small copy, on emulated slices of this machine.

    The rehearsal is a Ray Job on a private cluster, with as many pods as SPEC has, up to eight:
    real processes, real collectives between pods, the real trainer, checkpoints and journal. When
    it has ended, or this command has, nothing of it is left running. Ctrl-C stops it after a last
    checkpoint, twice at once.

    A named cluster (--address, RAY_ADDRESS, or cluster.address of SPEC) is an error for now:
    launching on one is not built yet. `cluster.address: auto` is the cluster that RAY_ADDRESS
    names, and this machine where it names none.

    \b
    Exit status:
      0    the rehearsal has done all its steps
      1    it failed, or a cluster is named
      2    the spec cannot be served
      3    the plan does not fit, or more than gradients crosses pods
      130  it was interrupted

    \b
    Example:
      orch submit specs/llama3_70b_4pod.yaml
      orch submit specs/tiny_2pod.yaml --no-prove --steps 50
    """
    from orchestrator.plan.rehearsal import rehearse
    from orchestrator.render import rehearsal as render

    loaded, [plan] = make_plans(spec, overrides, 1)
    refuse_named_cluster(loaded, address)
    small = rehearse(loaded, plan, steps=steps, devices=int(devices_per_pod or 0) or None)
    origin = origin_of(spec, loaded, steps, profile)
    say(render.first_line(plan.name))
    following = next_command("plan", spec, overrides, "--alternatives", "5")
    proof = show_plan(loaded, plan, following, prove=not no_prove)
    if not no_calibrate:
        small, reached = on_this_machine(small)
        origin = origin.keeping("chip_profile.json", to_pretty_json(reached).encode())
    say("\n" + render.opening(plan, small.plan, steps, small.changes) + "\n")
    from orchestrator.cli import rehearsing

    run = rehearsing.carry_out(small, plan, proof, origin)
    storage = Path(loaded.run.storage)
    say("\n" + render.ending(run, small.plan, next_about("status", run.run, storage)))
    raise SystemExit(EXIT_CODES.get(run.state, 1))


def refuse_named_cluster(spec: Spec, address: str | None) -> None:
    """Say that a cluster which is named cannot be used yet; never rehearse instead."""
    written = spec.cluster.address
    named = {
        "--address": address,
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS"),
        "cluster.address": None if written == "auto" else written,
    }
    for place, where in named.items():
        if where:
            raise OrchError(
                f"{place} names the cluster {where}: launching on a named cluster is not built"
                " yet. Without one, orch submit rehearses on this machine"
            )


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
