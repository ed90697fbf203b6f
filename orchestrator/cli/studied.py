"""Command line room: a study that was begun, as the commands about runs meet it."""

from pathlib import Path

from orchestrator import journal
from orchestrator.cli.running import ask_to_remove, next_about
from orchestrator.cli.studying import show_study
from orchestrator.cli.terminal import say, say_json
from orchestrator.errors import RunIsLive
from orchestrator.render import runs_screen as render
from orchestrator.render import status_screen
from orchestrator.types.run import LIVE


def tell(found: journal.StudyJournal, storage: Path, *, as_json: bool) -> None:
    """How it stands: every run, and the scaling as far as it is measured."""
    status = found.status()
    if as_json:
        say_json(status)
    else:
        say(render.study_runs_screen(status), "\n")
        show_study(found, storage)


def cancel(found: journal.StudyJournal, storage: Path, *, at_once: bool, as_json: bool) -> None:
    """Ask the run of it that goes on to stop. Who carries the study out begins no other then."""
    live = [one for one in found.status().runs if one.state in LIVE]
    told = []
    for before in live:
        run = journal.find_run(found.storage, before.run)
        journal.request_cancel(run, at_once=at_once)
        told.append(status_screen.cancel_text(before, run.run(), at_once=at_once))
    if as_json:
        say_json(found.status())
    else:
        none = f"{found.key}: no run of it goes on. Nothing was asked."
        following = next_about("status", found.key, storage)
        say("\n".join([*(told or [none]), f"Next: {following}\n"]))


def remove(found: journal.StudyJournal, storage: Path, *, yes: bool, as_json: bool) -> None:
    """Remove it with its runs, when a person says so."""
    doomed = found.status()
    if doomed.state == "running":
        following = next_about("cancel", found.key, storage)
        raise RunIsLive(f"study {found.key}: a run of it goes on\nNext: {following}")
    runs = f"{len(doomed.runs)} run{'s' * (len(doomed.runs) != 1)}"
    if not yes:
        what = f"{found.key} ({doomed.state}, {doomed.done} of {doomed.total} done)"
        where = f"with the journals, logs and checkpoints of its {runs} in {found.storage}"
        ask_to_remove(found.key, f"{what}, {where}")
    journal.remove_study(found)
    if as_json:
        say_json({"study": doomed.study, "runs": [one.run for one in doomed.runs], "removed": True})
    else:
        say(f"removed {doomed.study} and its {runs}\n")
