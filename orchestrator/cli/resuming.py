"""Command line room: `orch resume`, which lets a run go on that nothing drives any more."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.running import RUN, STORAGE, next_command
from orchestrator.cli.submitting import EXIT_CODES
from orchestrator.cli.terminal import JSON, say, say_json
from orchestrator.errors import OrchError, RunHasEnded, RunIsLive
from orchestrator.stations.run import LIVE, Run

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.stations.plan import Plan


@click.command()
@RUN
@STORAGE
@click.option(
    "--pods",
    type=click.IntRange(1),
    metavar="N",
    help="Go on with so many pods, instead of those of the spec.",
)
@JSON
def resume(run: str, storage: Path, pods: int | None, as_json: bool) -> None:
    """Let RUN go on from its last checkpoint, when it failed, was cancelled or lost its driver.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.
    A new attempt begins in the same journal, with fresh budgets of retries; what was asked of the
    run before no longer counts. With --pods the plan is another one: of the same batch, by more
    accumulation, or of the nearest batch that those pods can have; the data goes on where it was.
    A rehearsal is rehearsed again, on a private cluster of this machine, and followed.

    \b
    Exit status: as that of `orch submit`.

    \b
    Example:
      orch resume tiny-2pod-cb3244a4-1
      orch resume llama3-70b-4pod-3f9a1c07-1 --pods 3
    """
    from orchestrator import journal
    from orchestrator.cli import rehearsing
    from orchestrator.render import rehearsal as render

    found = journal.find(storage, run)
    before = found.run()
    refuse(before, run, storage)
    plan = plan_of(found, pods)
    if not as_json:
        say(render.resumed(before, plan) + "\n")
    how = ("--resume", *(("--pods", str(pods)) if pods else ()))
    error, _ = rehearsing.drive(found, plan, *how)
    after = found.run()
    if as_json:
        say_json(after)
    else:
        say(
            "\n"
            + render.ending(
                after, found.plan(after.plan_digest), next_command("status", run, storage)
            )
        )
    if error and after.attempts == before.attempts:
        raise OrchError(error)
    raise SystemExit(EXIT_CODES.get(after.state, 1))


def refuse(run: Run, named: str, storage: Path) -> None:
    """Say why a run cannot go on, and what can be done about it."""
    if run.state in LIVE:
        cancelling = next_command("cancel", named, storage)
        raise RunIsLive(f"run {run.run} is {run.state}: something drives it\nNext: {cancelling}")
    if run.state == "succeeded":
        raise RunHasEnded(f"run {run.run} has succeeded: all its {run.steps:,} steps are done")


def plan_of(found: "Journal", pods: int | None) -> "Plan":
    """The plan that the run was submitted with, on as many pods as it is to have now."""
    from orchestrator.plan.fewer import plan_on

    spec, submission = found.spec(), found.story().submitted.submission
    wanted = pods or spec.resources.pods.max
    return plan_on(spec, found.plan(submission.plan_digest), wanted)


COMMANDS = (resume,)
