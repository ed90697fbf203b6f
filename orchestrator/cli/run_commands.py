"""The commands that start and end runs: submit, resume, cancel, rm."""

import sys
from pathlib import Path
from typing import Any

import click

import orchestrator as orch
from orchestrator import cli as shared
from orchestrator.cli.endings import as_typed
from orchestrator.errors import Interrupted, NotAnswered, SpecError, refuse_options
from orchestrator.evidence.studies import report_of_study
from orchestrator.formatting import count, counted
from orchestrator.run.progress import run_command, spec_command
from orchestrator.run.studies import Outcome
from orchestrator.run.submit import Confirm, exit_code
from orchestrator.show.machine_screens import host_check_screen
from orchestrator.show.progress import Display
from orchestrator.show.status_screen import cancelled_text
from orchestrator.show.study_screens import study_report_screen
from orchestrator.show.terminal import CommandResult, aside, say, show, show_result
from orchestrator.storage.addresses import folder
from orchestrator.values.run import LIVE, Run
from orchestrator.values.spec import Proposal
from orchestrator.values.study import StudyStatus

_STUDY_CODES: dict[Outcome, int] = {
    "succeeded": 0,
    "failed": 1,
    "infeasible": SpecError.exit_code,
    "stopped": Interrupted.exit_code,
}
_ADDRESS = click.option("--address", metavar="ADDRESS", help="A cluster, instead of RAY_ADDRESS.")
_YES = click.option("--yes", is_flag=True, help="Do not ask before chips are taken.")
_DETACH = click.option("--detach", is_flag=True, help="Do not follow a run on a named cluster.")


class _Steps(click.ParamType[tuple[int, int]]):
    """A range of steps, as in 10:13: 10, 11 and 12."""

    name = "steps"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        first, _, end = value.partition(":")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            self.fail(f"{value!r}: must be A:B with A below B, for example 10:13", param, ctx)
        return int(first), int(end)


@click.command("submit")
@shared.SPEC
@shared.SET
@click.option("--no-prove", is_flag=True, help="Do not compile the plan first.")
@click.option(
    "--no-calibrate", is_flag=True,
    help="Do not measure this machine: a rehearsal then has no forecast to compare with.",
)  # fmt: skip
@_ADDRESS
@_YES
@click.option("--dry-run", is_flag=True, help="Show the plan, the cluster and the price, and stop.")
@_DETACH
@click.option(
    "--code", type=click.Choice(["sent", "installed"]), default="sent", show_default=True,
    help="Send this project's code to a named cluster, or use the code in its image.",
)  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(1), metavar="N",
    help="Steps to train. The default is 20 in a rehearsal and run.steps on a cluster.",
)  # fmt: skip
@click.option(
    "--devices-per-pod", type=click.Choice([4, 8]),
    help="Emulated devices in each pod of a rehearsal; by default the fewest that the chip allows.",
)  # fmt: skip
@click.option(
    "--key", metavar="KEY",
    help="The run's key. A second submit with the same key starts no second run.",
)  # fmt: skip
@click.option(
    "--resume", type=click.Choice(["lost", "stopped"]),
    help="Go on with the run of --key if its driver is lost, or however it stopped before its end.",
)  # fmt: skip
@click.option(
    "--profile", type=_Steps(), metavar="A:B",
    help="Keep an XProf trace of steps A to B - 1 with the run. Steps count from 0.",
)  # fmt: skip
@shared.JSON
def submit_command(
    spec: Path, overrides: tuple[str, ...], as_json: bool, yes: bool, dry_run: bool,
    no_prove: bool, no_calibrate: bool, **how: Any,
) -> None:  # fmt: skip
    """Plan, prove and run SPEC. It runs on a named cluster, or as a rehearsal on this machine.

    Without a cluster (--address, RAY_ADDRESS, cluster.address of SPEC) it is a rehearsal: a small
    copy on emulated slices of this machine, with up to eight pods, real processes, real
    collectives, the real trainer, checkpoints and journal. Ctrl-C checkpoints and stops; press it
    twice to stop immediately. Nothing is left running.

    On a named cluster it is the run itself, and it outlives this command. The command checks the
    cluster (slices, versions, storage, secrets), shows chips, time and dollars, and asks. Ctrl-C
    stops following; `orch cancel` stops the run.

    The trials of a study run one after another. The same command continues where it was stopped.

    \b
    Exit status:
      0    all steps are done; submitted, with --detach; shown, with --dry-run
      1    it failed, run.storage takes no run, or the cluster cannot be used
      2    the spec has no plan, or --yes is missing where nobody can answer
      3    the plan does not fit, or more than planned crosses pods
      4    with --resume: the run is over, it failed or was cancelled
      130  interrupted, cancelled or no longer followed, or the answer was no

    \b
    Example:
      orch submit specs/llama3_70b_4pod.yaml
      orch submit specs/tiny_2pod.yaml --no-prove --steps 50
      orch submit specs/studies/tiny_weak.yaml --no-prove
      orch submit my-run.yaml --address http://10.0.0.2:8265 --detach
    """
    options = orch.SubmitOptions(prove=not no_prove, calibrate=not (no_calibrate or dry_run), **how)
    other_plans = spec_command("plan", spec, overrides, "--alternatives", "5")
    display = Display(other_plans, detach=options.detach)
    confirm = _confirmation(yes=yes, dry_run=dry_run)
    if orch.is_study(spec):
        refuse_options({"--json": as_json}, "one run; `orch status STUDY --json` shows a study")
        done = orch.submit_study(spec, overrides, options, confirm=confirm, progress=display)
        code, study = _STUDY_CODES[done.outcome], done.study
        if study is None:
            raise SystemExit(code)
        # Its scaling, as far as it is measured.
        following = as_typed() if code else run_command("report", study.key, study.storage)
        say(study_report_screen(report_of_study(study), following))
        raise SystemExit(code)
    refuse_options({"--dry-run": dry_run and as_json}, "a screen; see `orch plan --json`")
    with aside(as_json):
        run = orch.submit(spec, overrides, options, confirm=confirm, progress=display)
    code = exit_code(run, left=display.left, restarted=options.resume is not None)
    show_result(CommandResult(run, exit_code=code), as_json=as_json)


def _confirmation(*, yes: bool, dry_run: bool = False) -> Confirm | None:
    """Return a function that asks before chips are taken; None where nobody can answer."""

    def confirm(proposal: Proposal) -> bool:
        if dry_run:
            say(f"Nothing was submitted: --dry-run.\nNext: {as_typed('--dry-run')}\n")
            raise SystemExit(0)
        if proposal.address and not yes:
            what = proposal.name if proposal.runs == 1 else "all of it"
            click.confirm(f"Run {what} on {proposal.address}?", abort=True, err=True)
        return True

    return confirm if yes or dry_run or sys.stdin.isatty() else None


@click.command("resume", epilog=shared.NEWEST_HELP)
@shared.OPTIONAL_RUN
@shared.STORAGE
@click.option(
    "--pods", type=click.IntRange(1), metavar="N",
    help="Continue with this number of pods instead of the spec's.",
)  # fmt: skip
@_ADDRESS
@_YES
@_DETACH
@shared.JSON
def resume_command(
    run: str | None, storage: Path, yes: bool, detach: bool, as_json: bool, **how: Any
) -> None:
    """Resume RUN from its last checkpoint. It works for failed, cancelled and lost runs.

    A new attempt starts in the same journal, with fresh retry budgets. With --pods it has another
    plan: the same batch with more accumulation, or the nearest batch that those pods allow. The
    data continues where it stopped. A rehearsal continues on this machine. Any other run continues
    on its cluster, or on the cluster named now, with the code that it was submitted with. Questions
    and exit status are those of `orch submit`.

    Example: orch resume llama3-70b-4pod-3f9a1c07-1 --pods 3
    """
    run = shared.or_newest(run, storage)
    display, confirm = Display(detach=detach), _confirmation(yes=yes)
    with aside(as_json):
        run_now = orch.resume(run, storage, detach=detach, confirm=confirm, progress=display, **how)
    # A run that was only submitted has no driver yet.
    code = 0 if detach else exit_code(run_now, left=display.left)
    show_result(CommandResult(run_now, exit_code=code), as_json=as_json)


@click.command("preflight", epilog=shared.RUN_HELP)
@click.argument("run", metavar="RUN|SPEC", shell_complete=shared.complete_key)
@shared.STORAGE
@shared.SET
@_ADDRESS
@_YES
@shared.JSON
def preflight_command(
    run: str, storage: Path, overrides: tuple[str, ...], address: str | None, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Time every host of a run, and name the slow ones. It trains nothing.

    RUN is one that has stopped, or SPEC gets a new run that `orch resume` begins. Each host times a
    matmul, a copy in the memory of its devices, a copy to the host and back, and the collective
    of each axis of the mesh. Hosts that are slower than the rest are named and recorded with the
    run; one that is named twice is left out of the next attempt where a spare slice stands ready.
    With `run.preflight: true` in the spec, each attempt of a run begins with this check.

    \b
    Exit status:
      0  no host is slow, or there is only one
      1  a host is slow, or the hosts could not be checked

    Example: orch preflight specs/tiny_2pod.yaml
    """
    refuse_options({"--set": bool(overrides) and not run.endswith((".yaml", ".yml"))}, "a spec")
    with aside(as_json):
        done = orch.preflight(
            run, storage, overrides, address=address, confirm=_confirmation(yes=yes),
            progress=Display(),
        )  # fmt: skip
    checks = done.host_checks[-1:]
    following = run_command("resume", done.run, folder(done.journal).parent)
    for check in checks:  # none where this command was interrupted
        shown = CommandResult(check, lambda: host_check_screen(check, following), bool(check.slow))  # noqa: B023
        show_result(shown, as_json=as_json)
    raise SystemExit(0 if checks else Interrupted.exit_code)


@click.command("cancel", epilog=shared.NEWEST_HELP)
@shared.OPTIONAL_RUN
@shared.STORAGE
@click.option("--now", is_flag=True, help="Stop immediately, without a last checkpoint.")
@shared.JSON
def cancel_command(run: str | None, storage: Path, now: bool, as_json: bool) -> None:
    """Ask RUN to stop after a last checkpoint. The run's driver stops it.

    For a study, the current run stops and no other starts. Without RUN, the newest run that goes on
    stops; the answer names it.

    Example: orch cancel llama3-70b-4pod-3f9a1c07-1
    """
    run = shared.or_newest(run, storage, LIVE)
    results = orch.cancel(run, storage, at_once=now)
    if as_json:
        found = orch.status(run, storage)
        show(found if isinstance(found, StudyStatus) else results[0].after, as_json=True)
        return
    changes = [(result.before, result.after) for result in results]
    say(cancelled_text(run, changes, at_once=now), f"Next: {run_command('status', run, storage)}\n")


@click.command("rm", epilog=shared.RUN_HELP)
@shared.RUN
@shared.STORAGE
@click.option("--yes", is_flag=True, help="Do not ask first.")
@shared.JSON
def rm_command(run: str, storage: Path, yes: bool, as_json: bool) -> None:
    """Remove RUN with its journal, logs and checkpoints. It asks first.

    A run that is still active is not removed. A study is removed with all its runs.

    Example: orch rm llama3-70b-4pod-3f9a1c07-1
    """

    def confirm(doomed: Run | StudyStatus) -> bool:
        if not sys.stdin.isatty():
            raise NotAnswered(f"removing {run} needs --yes where nobody can answer")
        what = f"its journal, logs and checkpoints in {doomed.journal}"
        if isinstance(doomed, Run):
            state = f"{doomed.run} ({doomed.state}, {count(doomed.steps_done)} steps), "
        else:
            done = f"{doomed.done} of {doomed.total} done"
            state = f"{doomed.study} ({doomed.state}, {done}), with "
            runs, folder = counted(len(doomed.runs), "run"), doomed.journal.rpartition("/")[0]
            what = f"the journals, logs and checkpoints of its {runs} in {folder}"
        return click.confirm(f"Remove {state}{what}?", abort=True, err=True)

    removed = orch.remove(run, storage, confirm=None if yes else confirm)
    if isinstance(removed, StudyStatus):
        fields = {"study": removed.study, "runs": [each.run for each in removed.runs]}
        what = f"{removed.study} and its {counted(len(removed.runs), 'run')}"
    else:
        fields, what = {"run": removed.run, "journal": removed.journal}, removed.run
    show(fields | {"removed": True}, lambda: f"removed {what}\n", as_json=as_json)
