"""Command line room: `orch resume`, which lets a run go on that nothing drives any more."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.running import RUN, STORAGE, next_about, next_of
from orchestrator.cli.submitting import (
    ADDRESS,
    DETACH,
    EXIT_CODES,
    YES,
    followed,
    named_cluster,
    say_detached,
)
from orchestrator.cli.terminal import JSON, aside, say, say_json
from orchestrator.errors import Interrupted, OrchError, RunHasEnded, RunIsLive, SpecError
from orchestrator.extras import require
from orchestrator.types.run import LIVE, Run

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.types.plan import Plan


@click.command()
@RUN
@STORAGE
@click.option(
    "--pods",
    type=click.IntRange(1),
    metavar="N",
    help="Go on with so many pods, instead of those of the spec.",
)
@ADDRESS
@YES
@DETACH
@JSON
def resume(
    run: str,
    storage: Path,
    pods: int | None,
    address: str | None,
    yes: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """Let RUN go on from its last checkpoint. It failed, was cancelled or lost its driver.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.
    A new attempt begins in the same journal, with fresh budgets of retries; what was asked of the
    run before no longer counts. With --pods the plan is another one: of the same batch, by more
    accumulation, or of the nearest batch that those pods can have; the data goes on where it was.
    A rehearsal is rehearsed again, on a private cluster of this machine, and followed. Any other
    run goes on where it was, or on the cluster that is named now, in the code that it was submitted
    with, after the same questions as at `orch submit`.

    \b
    Exit status: as that of `orch submit`.

    \b
    Example:
      orch resume tiny-2pod-cb3244a4-1
      orch resume llama3-70b-4pod-3f9a1c07-1 --pods 3 --address http://10.0.0.2:8265
    """
    from orchestrator import journal

    require("run")
    found = journal.find_run(storage, run)
    before = found.run()
    refuse(before, run, storage)
    plan = plan_of(found, pods)
    how = ("--resume", *(("--pods", str(pods)) if pods else ()))
    with aside(as_json):
        if before.rehearsal:
            if address or detach:
                raise SpecError(
                    f"{before.run} is a rehearsal: no cluster but its own can resume it"
                )
            code = rehearsed(found, plan, how, storage)
        else:
            where = place_of(found, address)
            code = launched(found, plan, where, how, storage, yes=yes, detach=detach)
    if as_json:
        say_json(found.run())
    raise SystemExit(code)


def rehearsed(found: "Journal", plan: "Plan", how: tuple[str, ...], storage: Path) -> int:
    """Let a rehearsal go on, on a private cluster of this machine; the exit code."""
    from orchestrator.cli import recording, rehearsing
    from orchestrator.render import rehearsal_screen as render

    before = found.run()
    say(render.resume_intro(before, plan) + "\n")
    with rehearsing.interrupts() as asked:
        error = rehearsing.drive(found, plan, asked, *how)
    after = found.run()
    plan, following = found.plan(after.plan_digest), next_of(after, after.run, storage)
    say("\n", render.rehearsal_result(after, plan, recording.ending(found), following))
    if error and after.attempts == before.attempts:
        raise (Interrupted if asked else OrchError)(error)
    return EXIT_CODES.get(after.state, 1)


def place_of(found: "Journal", address: str | None) -> str:
    """The cluster that a run is to go on on: one that is named now, or that it was submitted to."""
    named = named_cluster(found.spec(), address)
    where = named[0] if named else found.run().environment.get("cluster")
    if where is None:
        raise SpecError(f"{found.key}: its journal names no cluster: name one with --address")
    return where


def launched(
    found: "Journal",
    plan: "Plan",
    address: str,
    how: tuple[str, ...],
    storage: Path,
    *,
    yes: bool,
    detach: bool,
) -> int:
    """Let a run go on on a named cluster; the exit code."""
    from orchestrator.cli import launching

    if not yes:
        launching.check_askable()
    run, driver_before = found.run(), found.state().writer
    launch = launching.Launch(
        spec=found.spec(),
        plan=plan,
        steps=run.steps - run.steps_done,
        versions=run.environment,
        archive=launching.archive_of(found),
        address=address,
        storage=found.path.absolute().parent,
    )
    jobs, seen = launching.looked(launch)
    say(seen)
    if not yes:
        launching.ask(launch)
    job = launching.driven(launch, jobs, found, *how)
    if detach:
        return say_detached(found.key, storage)
    return followed(found, storage, jobs, job, driver_before)


def refuse(run: Run, named: str, storage: Path) -> None:
    """Say why a run cannot go on, and what can be done about it."""
    if run.state in LIVE:
        cancelling = next_about("cancel", named, storage)
        raise RunIsLive(f"run {run.run} is {run.state}: something drives it\nNext: {cancelling}")
    if run.state == "succeeded":
        raise RunHasEnded(f"run {run.run} has succeeded: all its {run.steps:,} steps are done")


def plan_of(found: "Journal", pods: int | None) -> "Plan":
    """The plan that the run was submitted with, on as many pods as it is to have now."""
    from orchestrator.plan.elastic import plan_on

    spec, submission = found.spec(), found.state().submitted.submission
    wanted = pods or spec.resources.pods.max
    return plan_on(spec, found.plan(submission.plan_digest), wanted)


COMMANDS = (resume,)
