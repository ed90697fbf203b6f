"""A storage that others write to: nothing hangs, nothing is followed, nothing is sent away."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from orchestrator import journal, tracking
from orchestrator.errors import ForeignRun, JournalUnreadable
from orchestrator.evidence.report import make_report
from orchestrator.journal import boundary, files
from orchestrator.journal.heartbeat import read_heartbeats
from orchestrator.journal.run_journal import Journal
from orchestrator.run.doctor import doctor_run
from orchestrator.run.records import _own_runs, _places_by_uri
from orchestrator.run.runs import logs
from orchestrator.run.submit import resume
from orchestrator.tracking import destinations, recorder
from orchestrator.tracking.destinations import read_sync_state
from orchestrator.tracking.mlflow.export import artifacts
from orchestrator.values import codec
from orchestrator.values.run import Destination, StateReason, SyncProgress, SyncState
from orchestrator.values.spec import TrackingOptions
from tests.conftest import RunOrch
from tests.journals import claimed_run, failed_once, run_request, tiny_plan, tiny_spec
from tests.records import destination_in, finished_run, record_once

NOBODY = 65534
HUGE = 1 << 40
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def listener() -> Iterator[tuple[str, list[bytes]]]:
    """A server of somebody else, and what it was sent."""
    heard: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                heard.append(connection.recv(4096))

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", heard
    server.close()


def give_away(folder: Path) -> None:
    """Make a folder with all that is in it another user's."""
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, NOBODY, NOBODY)


# --- files


def test_a_path_is_followed_above_a_storage_only(tmp_path: Path) -> None:
    """A user may link the storage itself; below it no link counts."""
    run = failed_once(tmp_path / "real").path
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    assert Journal(tmp_path / "runs" / "it").run().steps_done == 20
    (tmp_path / "real" / "linked").symlink_to(run)
    with pytest.raises(JournalUnreadable):
        Journal(tmp_path / "real" / "linked").run()
    assert journal.find_run(tmp_path, str(tmp_path / "real" / "linked")).key == "it"


def fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def device(path: Path, _: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def huge(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


@pytest.mark.parametrize("make", [fifo, device, link, huge])
@pytest.mark.parametrize(
    "name",
    [
        "events/000003.json",
        "requests/000001.json",
        "attempts/001/steps.jsonl",
        "tracking.json",
        "heartbeats/000002",
    ],
)
def test_what_is_no_small_regular_file_is_a_problem(
    tmp_path: Path, make: Callable[[Path, Path], None], name: str, orch_process: RunOrch
) -> None:
    """The run is shown with its problem, or refused with it; nothing waits and nothing is read."""
    run = failed_once(tmp_path / "runs")
    secret = tmp_path / "secret"
    secret.write_text('{"secret": 1}')
    (run.path / name).unlink(missing_ok=True)
    make(run.path / name, secret)
    done = orch_process("status", "it", "--storage", str(tmp_path / "runs"), "--json")
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode in (0, 1)
    if not name.startswith("heartbeats") or make is not huge:
        assert Path(name).name in said
        assert done.returncode == 1 or json.loads(done.stdout)["problems"]


@pytest.mark.parametrize("text", [b'{"a":' * 60_000, b'{"kind": "\xff\xfe"}', b"[" * 60_000])
@pytest.mark.parametrize(
    "name",
    [
        "newest_event.json", "events/000002.json", "requests/000001.json", "tracking.json",
        "sync.json", "attempts/001/steps.jsonl", "attempts/002/heartbeats/rank-0", "spec.json",
    ],
)  # fmt: skip
def test_no_text_of_one_folder_ends_a_command(tmp_path: Path, name: str, text: bytes) -> None:
    """Values inside values without end, and bytes that are no text: the other runs are listed."""
    failed_once(tmp_path, "other")
    run = failed_once(tmp_path)
    (run.path / name).write_bytes(text)
    runs, _ = journal.list_runs(tmp_path)
    assert "other" in [run.run for run in runs]
    with suppress(JournalUnreadable):
        make_report(run)
    read_sync_state(run)
    read_heartbeats(run.path, 2)
    doctor_run(run.key, run.path.parent)


def test_a_log_that_is_a_link_is_refused(tmp_path: Path, orch: RunOrch) -> None:
    run = failed_once(tmp_path)
    run.paths.rank_log(2, 0).symlink_to("/dev/zero")
    done = orch("logs", "it", "--storage", str(tmp_path))
    assert done.returncode == 1
    assert boundary._IS_LINK in done.stderr


@pytest.mark.parametrize("folder", ["events", "requests", "attempts"])
def test_a_folder_that_is_a_link_is_not_entered(tmp_path: Path, folder: str) -> None:
    """The files that it leads to are another run's, or none."""
    mine, theirs = failed_once(tmp_path, "mine"), failed_once(tmp_path, "theirs")
    (theirs.path / folder).rename(tmp_path / "moved")
    (theirs.path / folder).symlink_to(mine.path / folder)
    _, problems = journal.list_runs(tmp_path)
    try:
        problems += theirs.run().problems
    except JournalUnreadable as error:
        problems.append(str(error))
    assert any(boundary._IS_LINK in problem for problem in problems)


def test_a_log_is_appended_to_a_file_of_its_own(tmp_path: Path) -> None:
    """A link, symbolic or hard, would let a folder choose what gets written to."""
    target = tmp_path / "profile"
    target.write_text("mine\n")
    soft, hard = tmp_path / "soft.log", tmp_path / "hard.log"
    soft.symlink_to(target)
    hard.hardlink_to(target)
    for path in (soft, hard):
        with pytest.raises(OSError, match=r"link|another name"):
            boundary.appending_to(path)
    assert target.read_text() == "mine\n"


def test_recording_does_not_append_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of what records is left out where it cannot be trusted."""

    logged = []

    def start(_: list[str], *, stdout: IO[bytes] | int, **_others: object) -> None:
        if not isinstance(stdout, int):
            stdout.write(b"theirs\n")
        logged.append(stdout)

    monkeypatch.setattr(subprocess, "Popen", start)
    run, target = failed_once(tmp_path / "runs"), tmp_path / "profile"
    target.write_text("mine\n")
    run.paths.sync_log.symlink_to(target)
    recorder.in_background([run])
    assert target.read_text() == "mine\n"
    assert logged == [subprocess.DEVNULL]


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    """A log of one huge line, which is mostly a hole."""
    run = failed_once(tmp_path)
    huge(run.paths.rank_log(2, 0), tmp_path)
    with pytest.raises(JournalUnreadable, match="few lines"):
        logs(run.key, tmp_path)


# --- names and control characters


def test_a_name_cannot_forge_a_row(tmp_path: Path, orch: RunOrch) -> None:
    """A folder with a line end in its name is no run, and its name is written out."""
    good = failed_once(tmp_path)
    good.path.rename(tmp_path / "x\nforged  succeeded")
    listed = orch("runs", "--storage", str(tmp_path))
    lines = (listed.stdout + listed.stderr).splitlines()
    assert not any(line.startswith("forged") for line in lines)
    assert r"x\nforged" in listed.stderr


# --- whose a run is, and where it is recorded


@as_root
def test_nothing_is_sent_for_a_run_of_another_user(
    tmp_path: Path, listener: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the run nor a password, also where this is root."""
    address, heard = listener
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "canary")
    run = failed_once(tmp_path)
    give_away(run.path)
    assert _own_runs(tmp_path) == []
    [result] = record_once(run)
    assert result.problem
    assert result.destination is None
    with pytest.raises(ForeignRun) as refused:  # `orch sync` would send nothing
        _places_by_uri(tmp_path)
    assert refused.value.next_command == f"orch runs --storage {tmp_path}"
    assert heard == []
    with pytest.raises(ForeignRun):
        resume(run.key, tmp_path)


@as_root
def test_a_run_of_another_user_is_not_removed(tmp_path: Path, orch: RunOrch) -> None:
    """Root has no right to it either; its owner, or `rm`, removes it."""
    run = failed_once(tmp_path)
    give_away(run.path)
    refused = orch("rm", run.key, "--storage", str(tmp_path), "--yes")
    assert refused.returncode == 1
    assert f"{run.path} belongs to user {NOBODY}" in refused.stderr
    assert run.path.exists()


@as_root
@pytest.mark.parametrize("part", ["events/000002.json", "documents", "attempts/001/steps.jsonl"])
def test_a_part_of_another_user_is_not_sent_either(tmp_path: Path, part: str) -> None:
    """A folder in which somebody else wrote a file."""
    run = failed_once(tmp_path)
    os.lchown(run.path / part, NOBODY, NOBODY)
    with pytest.raises(ForeignRun):
        journal.check_own(run)


def test_a_linked_document_is_not_sent(tmp_path: Path) -> None:
    """It may lead to a private file."""
    run = finished_run(tmp_path)
    private = tmp_path / "private"
    private.write_text("canary")
    (run.paths.documents / "notes.txt").symlink_to(private)
    [result] = record_once(run)
    assert result.problem
    assert result.recorded is None
    assert "documents/notes.txt" not in artifacts(run, run.run())


def test_a_folder_does_not_choose_where_it_is_recorded(
    tmp_path: Path, listener: tuple[str, list[bytes]]
) -> None:
    """What a user's command chose counts, whatever the folder says later."""
    address, heard = listener
    evil = Destination(tracker="mlflow", uri=address, experiment="orch", artifacts=None)
    run = finished_run(tmp_path)
    recorded = SyncProgress(state="succeeded", attempts=2, steps=20)
    files.replace(
        run.paths.sync_state, codec.to_json(SyncState(destination=evil, recorded=recorded))
    )
    note = read_sync_state(run)
    assert note
    assert note.destination == destination_in(tmp_path)
    assert note.recorded is None
    with pytest.raises(Exception, match="nothing is recorded"):
        _places_by_uri(tmp_path)
    assert heard == []


def test_a_run_that_no_command_submitted_here_names_no_server(
    tmp_path: Path, listener: tuple[str, list[bytes]]
) -> None:
    """A copied folder asks for a server, or for a class to load: neither is followed."""
    address, heard = listener
    for options in ({"uri": address}, {"tracker": "tests.file_tracker:FileTracker"}):
        spec = replace(tiny_spec(), tracking=TrackingOptions(**options))
        [result] = record_once(claimed_run(tmp_path, key=min(options), spec=spec).journal)
        assert result.destination is None
        assert result.problem
    assert heard == []


def test_a_driver_elsewhere_is_told_where_to_record(tmp_path: Path) -> None:
    """By the command that starts it; another run is not meant."""
    writer = claimed_run(tmp_path)
    tracking.begin(writer.journal, destination_in(tmp_path))
    told = {destinations.VARIABLE: destinations.passed_on(writer.journal) or ""}
    os.environ["XDG_STATE_HOME"], before = str(tmp_path / "no"), os.environ["XDG_STATE_HOME"]
    try:
        assert destinations._chosen(writer.journal, {}) is None
        assert destinations._chosen(writer.journal, told) == destination_in(tmp_path)
        another = journal.create_run(tmp_path, run_request(), "another").journal
        assert destinations._chosen(another, told) is None
    finally:
        os.environ["XDG_STATE_HOME"] = before


@as_root
def test_a_database_of_another_user_beside_the_runs_is_not_used(tmp_path: Path) -> None:
    """It says where artifacts go."""
    run = finished_run(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(b"")
    give_away(tmp_path / "mlflow.db")
    [result] = record_once(run)
    assert result.problem
    assert "MLFLOW_TRACKING_URI" in result.problem


def test_a_command_shows_no_control_characters_of_others(tmp_path: Path, orch: RunOrch) -> None:
    """An error with an OSC sequence, however it is shown; JSON keeps its value."""
    osc = "\x1b]0;owned\x07\x9b31m\u202e"
    writer = claimed_run(tmp_path)
    writer.start_attempt(tiny_plan())
    writer.journal.paths.rank_log(1, 0).write_text(f"{osc}\n")
    writer.end_attempt("failure", error=f"ValueError: {osc}", first_dead_rank=0)
    writer.end_run("failed", StateReason(code="error", detail=osc))
    inside = "--storage", str(tmp_path)
    shown = [
        orch("status", "it", *inside),
        orch("logs", "it", *inside),
        orch("runs", *inside),
        orch("runs", *inside, "--json"),
        orch("logs", "it", *inside, "--json"),
        orch("status", f"{tmp_path}/{osc}", *inside),
        orch("plan", f"{tmp_path}/{osc}"),
    ]
    for done in shown:
        text = done.stdout + done.stderr
        assert not [sign for sign in text if sign != "\n" and not sign.isprintable()]
    assert json.loads(shown[3].stdout)[0]["reason"]["detail"] == osc
    assert osc in json.loads(shown[4].stdout)["line"]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "..", "x/../y"])
def test_a_name_that_no_file_has_is_refused(tmp_path: Path, name: str) -> None:
    """A record may name a file so; nothing above the folder is opened, and nothing else fails."""
    (tmp_path / "y").write_text("y")
    (tmp_path / "x").mkdir()
    looks = (boundary.read_bytes, boundary.status_of, boundary.names_in, boundary.open_file)
    for look in looks:
        with pytest.raises(OSError, match="no file has such a name"):
            look(Path(f"{tmp_path}/{name}"))
