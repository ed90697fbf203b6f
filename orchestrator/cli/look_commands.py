"""The commands that look at runs, at this machine and at this shell."""

from pathlib import Path

import click
from click.shell_completion import get_completion_class

import orchestrator as orch
from orchestrator import cli as shared
from orchestrator.errors import Interrupted, OrchError
from orchestrator.journal.listing import find_run
from orchestrator.run.progress import interruptible, run_command, storage_command
from orchestrator.show import machine_screens as machine
from orchestrator.show import parts as ui
from orchestrator.show import status_screen as screens
from orchestrator.show.progress import Display, say_end
from orchestrator.show.terminal import aside, echo, echo_json, say, show
from orchestrator.values.report import Report
from orchestrator.values.run import LIVE, Status
from orchestrator.values.study import StudyStatus


@click.command("runs")
@shared.STORAGE
@shared.JSON
def runs_command(storage: Path, as_json: bool) -> None:
    """List all runs, newest first. The runs of a study follow it.

    --json is a list of the runs; `orch status STUDY --json` describes a study.

    Example: orch runs --storage /mnt/shared/runs --json
    """
    found = orch.runs(storage, progress=Display())
    next_one = run_command("status", found[0].run, storage) if found else None
    studies = orch.studies(storage, found)
    show(found, lambda: screens.runs_screen(found, storage, studies, next_one), as_json=as_json)


@click.command("status", epilog=shared.NEWEST_HELP)
@shared.OPTIONAL_RUN
@shared.STORAGE
@click.option("-f", "--follow", "follows", is_flag=True, help="Show steps until the run has ended.")
@shared.JSON
def status_command(run: str | None, storage: Path, follows: bool, as_json: bool) -> None:
    """Show the state of RUN. Steps, speed against the forecast, every attempt.

    With a study it shows every run, and the scaling as far as it is measured. Ctrl-C ends -f with
    exit status 130; the run goes on.

    Example: orch status llama3-70b-4pod-3f9a1c07-1 -f
    """
    run = shared.or_newest(run, storage)
    found: Status | StudyStatus
    if follows:
        with aside(as_json):
            found = orch.follow(run, storage, progress=Display())
        if found.state in LIVE:
            raise SystemExit(Interrupted.exit_code)
    else:
        found = orch.status(run, storage)
    if as_json:
        show(found, as_json=True)
    elif isinstance(found, Status):
        try:
            if found.forecast is None and found.state not in LIVE:
                find_run(storage, found.run).plan(found.plan_digest)
            following = screens.next_run_command(found, run, storage)
        except OrchError as error:  # it has ended, and its plan is unreadable
            from orchestrator.cli.endings import next_after  # noqa: PLC0415  as in `cli`

            following = error.next_command or next_after(error)
        say(screens.status_screen(found, following))
    else:
        from orchestrator.show.study_screens import study_report_screen  # noqa: PLC0415  as below

        following = run_command("report", found.study, storage)
        report = orch.report(found.study, storage)
        assert not isinstance(report, Report)
        measured = study_report_screen(report, following)
        say(screens.study_runs_screen(found), "\n", measured)


@click.command("logs", epilog=shared.NEWEST_HELP)
@shared.OPTIONAL_RUN
@shared.STORAGE
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on until the run has ended.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Show all lines of this rank.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Show an earlier attempt.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as JSON.")
def logs_command(
    run: str | None, storage: Path, follows: bool, rank: int | None, attempt: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the logs of RUN's newest attempt. The log of the rank that died first comes first.

    Without --rank, the last 100 lines of each of 8 ranks, and of the driver.

    Example: orch logs llama3-70b-4pod-3f9a1c07-1 --rank 3 -f
    """
    run = shared.or_newest(run, storage)
    is_one_rank, echo_line = rank is not None, echo_json if as_json else echo
    if follows:
        for line in orch.follow_logs(run, storage, rank=rank, attempt=attempt, progress=say_end):
            echo_line(screens.log_line(line, as_json=as_json, with_rank=not is_one_rank))
        return
    found = orch.logs(run, storage, rank=rank, attempt=attempt)
    if found.empty:
        echo(f"{found.run.run}: no process has written a log yet", err=True)
    if found.more:
        echo(f"{found.more} more ranks are shown by --rank N", err=True)
    for tail in found.tails:
        log = tail.log
        if not is_one_rank and not as_json:
            first = ", died first" if log.first_dead else ""
            title = f"== attempt {log.attempt}, rank {log.rank}{first} =="
            echo("== driver ==" if log.rank is None else title)
        for line in tail.lines:
            echo_line(screens.log_line(line, as_json=as_json, with_rank=False))


@click.command("compare", epilog=shared.RUN_HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@shared.STORAGE
@shared.JSON
@interruptible("comparing")
def compare_command(runs: tuple[str, ...], storage: Path, as_json: bool) -> None:
    """Compare RUNs with their forecasts and with each other.

    Example: orch compare llama3-70b-4pod-3f9a1c07-1 llama3-70b-4pod-3f9a1c07-2
    """
    from orchestrator.show.report_screen import compare_screen  # noqa: PLC0415  a long import

    found, following = orch.compare(runs, storage), run_command("report", runs[-1], storage)
    show(found, lambda: compare_screen(found, following), as_json=as_json)


@click.command("report", epilog=shared.NEWEST_HELP)
@shared.RUNS_OF
@shared.STORAGE
@click.option(
    "--watch", "watches", is_flag=True,
    help="Serve a page of RUNs on this machine that shows what is new, until Ctrl-C.",
)  # fmt: skip
@click.option(
    "-o", "--out", type=shared.FILE, metavar="FILE",
    help="Where the page goes, instead of report.html in RUN's directory.",
)  # fmt: skip
@shared.JSON
@shared.BRIEF
@shared.FULL
@interruptible("writing the report")
def report_command(
    runs: tuple[str, ...], storage: Path, watches: bool, out: Path | None, as_json: bool,
    detail: ui.Detail | None,
) -> None:  # fmt: skip
    """Write a self-contained HTML page about RUN. It shows measured next to predicted.

    It has the roofline, time per step line by line, memory, MFU over steps, and where the time
    went; for a study the scaling curves, its trials, and where measured and predicted differ.

    --watch serves a page of any number of RUNs, which follows them while they go on. Only this
    machine reaches it, at the address that is printed; Ctrl-C ends it, and the runs go on.

    Example: orch report llama3-70b-4pod-3f9a1c07-1 -o page.html
    """
    if len(runs) > 1 and not watches:
        raise click.UsageError("a page is of one RUN; --watch and orch compare take several")
    if watches and (out or detail):
        raise click.UsageError("--watch serves a page: -o, --brief and --full go with a file")
    run = shared.or_newest(runs[0] if runs else None, storage)
    if watches:
        from orchestrator.show.watch import serve  # noqa: PLC0415  a long import

        serve(runs or (run,), storage, as_json=as_json)
        return
    if as_json:
        show(orch.report(run, storage), as_json=True)
        return
    from orchestrator.show.report_screen import report_screen  # noqa: PLC0415  a long import
    from orchestrator.show.serving_screen import serving_text  # noqa: PLC0415
    from orchestrator.show.study_screens import study_report_screen, verdict_text  # noqa: PLC0415

    page = orch.write_report(run, storage, out=out)
    for problem in page.problems:
        echo(f"warning: {problem}", err=True)
    report, where = page.report, f"open {page.path.absolute().as_uri()}"
    if isinstance(report, Report):
        served = serving_text(page.serving, report.run, storage) if page.serving else None
        say(report_screen(report, str(page.path), where, detail or "usual", served))
        return
    wrote = ui.screen([ui.Command(text=f"wrote {page.path}"), *ui.next_step(where)])
    said = verdict_text(report) if detail == "brief" else study_report_screen(report, "")
    say(said, "\n", wrote)


@click.command("profile", epilog=shared.NEWEST_HELP)
@shared.OPTIONAL_RUN
@shared.STORAGE
@click.option(
    "--steps", type=click.IntRange(1), metavar="N",
    help="Let a run that goes on trace its next N steps first.",
)  # fmt: skip
@shared.JSON
@shared.BRIEF
@shared.FULL
def profile_command(
    run: str | None, storage: Path, steps: int | None, as_json: bool, detail: ui.Detail | None
) -> None:
    """Show where the time of RUN's step went, line by line. From its newest XProf traces.

    Measured seconds stand next to the ledger's, the compiler's and the expected ones; then by
    source line and by transfer. `orch submit --profile A:B` keeps traces; --steps asks a run that
    goes on for one.

    \b
    Exit status:
      0  shown
      1  the run has no trace that can be read, or has ended before a new one

    Example: orch profile llama3-70b-4pod-3f9a1c07-1 --steps 3
    """
    from orchestrator.show.profile_screen import profile_screen  # noqa: PLC0415  a long import

    run = shared.or_newest(run, storage)
    with aside(as_json):
        found = orch.profile(run, storage, steps=steps, progress=Display())
    following = run_command("report", found.run, storage)
    show(found, lambda: profile_screen(found, following, detail or "usual"), as_json=as_json)


@click.command("top", epilog=f"{shared.RUN_HELP} Without it, all runs that go on, or the newest.")
@shared.RUNS_OF
@shared.STORAGE
@shared.JSON
@interruptible("looking at runs")
def top_command(runs: tuple[str, ...], storage: Path, as_json: bool) -> None:
    """Show RUNs while they go on, as `report --watch` does.

    q ends it. Into a pipe it is written once. --json is what `orch compare --json` prints.

    Example: orch top llama3-70b-4pod-3f9a1c07-1
    """
    if not runs:
        going_on = tuple(entry.run for entry in orch.runs(storage) if entry.state in LIVE)
        runs = going_on or (shared.or_newest(None, storage),)
    if as_json:
        show(orch.compare(runs, storage), as_json=True)
        return
    from orchestrator.show.watch import show_top  # noqa: PLC0415  a long import

    show_top(runs, storage)


@click.command("sync", epilog=shared.RUN_HELP)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@shared.STORAGE
@shared.JSON
@interruptible("recording", "what is recorded stays")
def sync_command(runs: tuple[str, ...], storage: Path, as_json: bool) -> None:
    """Bring MLflow up to date with RUNs. Without RUNs, with all runs.

    Runs are recorded while they go on, and later commands record what was missed: this is for
    being sure, or for after a server was gone. What MLflow has is not sent again.

    \b
    Exit status:
      0  everything is recorded, or its own driver is at it
      1  a run could not be recorded
      2  an unknown run, or an address that cannot be used

    Example: orch sync llama3-70b-4pod-3f9a1c07-1 --json
    """
    results = orch.sync(runs, storage, progress=Display())
    following = storage_command("ui", storage)
    show(results, lambda: machine.sync_screen(results, storage, following), as_json=as_json)
    raise SystemExit(1 if any(result.problem for result in results) else 0)


@click.command("ui")
@shared.STORAGE
@click.option("--port", type=click.IntRange(1, 65_535), metavar="N", help="Listen on this port.")
def ui_command(storage: Path, port: int | None) -> None:
    """Show recorded runs in the MLflow UI. Comparisons are set up; Ctrl-C ends it.

    It listens only on 127.0.0.1. Runs that are recorded on a server are shown by that server.

    Example: orch ui --storage /mnt/shared/runs --port 5000
    """
    orch.ui(storage, port=port, progress=Display())


@click.command("doctor")
@click.argument("run", required=False, shell_complete=shared.complete_key)
@shared.STORAGE
@click.option("--address", metavar="ADDRESS", help="A cluster to look for, besides RAY_ADDRESS.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired of RUN.")
@shared.JSON
@interruptible("looking at this machine")
def doctor_command(
    run: str | None, storage: Path, address: str | None, repair: bool, as_json: bool
) -> None:
    """Check what this machine can do, or the files of RUN. It gives advice for the rest.

    Without --repair it changes nothing. The exit status is 1 when something that most commands
    need is broken, a cluster or MLflow server that is named does not answer, or RUN cannot go on.

    Example: orch doctor --address http://10.0.0.2:8265
    """
    if repair and run is None:
        raise click.UsageError("--repair: name the run to repair")
    if run is not None:
        health = orch.doctor_run(run, storage, repairs=repair)
        more = run_command("doctor", health.run, storage, "--repair")
        show(health, lambda: machine.run_doctor_screen(health, more), as_json=as_json)
        raise SystemExit(int(health.stops))
    found = orch.doctor(storage, address=address)
    show(found, lambda: machine.doctor_screen(found), as_json=as_json)
    raise SystemExit(int(found.broken > 0))


@click.command("calibrate")
@shared.JSON
@interruptible("measuring this machine")
def calibrate_command(as_json: bool) -> None:
    """Measure the rates of this machine's devices. It takes a minute or two.

    It times matmuls, copies and the trainer's attention on one device. The result is a chip
    profile; its digest is its name, and `orch plan --profile DIGEST` forecasts with its rates. A
    rehearsal measures its own step, and adds it to the newest profile of this machine.

    \b
    Exit status:
      0  the profile is stored
      1  the devices cannot be measured, or the profile cannot be stored

    Example: orch calibrate --json
    """
    stored = orch.calibrate(progress=Display())
    profile, path = stored.profile, str(stored.path)
    show(profile, lambda: machine.calibration_screen(profile, path), as_json=as_json)


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the shell completion script.

    Example: eval "$(orch completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(click.Group(), {}, "orch", "_ORCH_COMPLETE").source())
