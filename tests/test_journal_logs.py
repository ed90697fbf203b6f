"""The logs of a run, shown and followed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Journal
from tests.conftest import RunOrch
from tests.journals import abandoned_run, claimed_run, failed_once, tiny_plan, write_steps


def abandoned(storage: Path) -> Journal:
    """A failed run with logs."""
    run_journal = failed_once(storage)
    for attempt in (1, 2):
        for rank in range(11):
            text = f"attempt {attempt} rank {rank} begins\nand goes on"
            run_journal.paths.rank_log(attempt, rank).write_text(text)
    run_journal.paths.driver_log(2).write_text("the driver begins\n")
    return run_journal


def test_the_first_dead_rank_is_on_top(orch: RunOrch, tmp_path: Path) -> None:
    """Then some other ranks, then the driver; those left out are counted."""
    abandoned(tmp_path)
    done = orch("logs", "it", "--attempt", "1", "--storage", str(tmp_path))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "== attempt 1, rank 1, died first ==", "attempt 1 rank 1 begins", "and goes on",
    ]  # fmt: skip
    assert lines[3] == "== attempt 1, rank 0 =="
    assert lines[-2:] == ["== driver ==", "the driver begins"]
    assert done.stderr == "3 more ranks are shown by --rank N\n"


def test_orch_logs_shows_one_rank_of_the_newest_attempt(orch: RunOrch, tmp_path: Path) -> None:
    run_journal = abandoned(tmp_path)
    run_journal.paths.rank_log(2, 4).write_bytes(
        b"".join(b"%d\n" % i for i in range(500)) + b"\xff"
    )
    storage = ("--storage", str(tmp_path))
    done = orch("logs", "it", "--rank", "4", *storage)
    assert done.stdout.splitlines() == [*map(str, range(500)), "\ufffd"]
    assert "499" in orch("logs", "it", *storage).stdout
    assert "399\n" not in orch("logs", "it", *storage).stdout
    read = [json.loads(line) for line in orch("logs", "it", "--json", *storage).stdout.splitlines()]
    assert read[0] == {"attempt": 2, "rank": 0, "line": "attempt 2 rank 0 begins"}
    assert read[-1] == {"attempt": None, "rank": None, "line": "the driver begins"}


def test_an_unknown_rank_or_attempt_is_an_error(orch: RunOrch, tmp_path: Path) -> None:
    """A run without logs is no error."""
    abandoned(tmp_path)
    storage = ("--storage", str(tmp_path))
    done = orch("logs", "it", "--rank", "99", *storage)
    assert (done.returncode, done.stdout) == (2, "")
    help_line = "Next: orch logs --help\n"
    known = "known: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    assert done.stderr == f"error: unknown rank 99; {known}\n{help_line}"
    done = orch("logs", "it", "--attempt", "3", *storage)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: unknown attempt 3; known: 1, 2\n{help_line}",
    )
    claimed_run(tmp_path, key="silent").journal.paths.driver_log(2).touch()
    done = orch("logs", "silent", *storage)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "silent: no process has written a log yet\n"


def followed(storage: Path, *options: str) -> subprocess.Popen[str]:
    """`orch logs -f`, reading."""
    orch_path = Path(sys.executable).with_name("orch")
    return subprocess.Popen(
        [orch_path, "logs", "it", "-f", "--storage", str(storage), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def two_attempts(writer: Writer) -> tuple[Path, Path]:
    """The logs of the running attempt and of the next one."""
    writer.start_attempt(tiny_plan())
    return (writer.journal.paths.rank_log(1, 0), writer.journal.paths.rank_log(2, 0))


def test_following_continues_through_attempts(tmp_path: Path) -> None:
    """Each line appears once, and an incomplete last one at the end."""
    writer = claimed_run(tmp_path)
    first, second = two_attempts(writer)
    first.write_text("".join(f"old {i}\n" for i in range(150)))
    with writer.background_heartbeat(), followed(tmp_path) as reading:
        assert [read_line(reading) for _ in range(100)][-1] == "rank 0 | old 149\n"
        with first.open("a") as log:
            log.write("new\nto")
        assert read_line(reading) == "rank 0 | new\n"
        with first.open("a") as log:
            log.write("rn\n")
        assert read_line(reading) == "rank 0 | torn\n"
        writer.end_attempt("preemption")
        writer.start_attempt(tiny_plan())
        second.write_text("again\n")
        assert read_line(reading) == "rank 0 | again\n"
        write_steps(writer.journal.path, 2, range(2))
        with second.open("a") as log:
            log.write("last words")
        writer.end_attempt("finished")
        writer.end_run("succeeded")
        rest, errors = reading.communicate(timeout=60)
    assert (reading.returncode, rest, errors) == (0, "rank 0 | last words\n", "it: succeeded\n")


def test_following_one_rank_can_be_interrupted(tmp_path: Path) -> None:
    """The run goes on."""
    writer = claimed_run(tmp_path)
    first, _ = two_attempts(writer)
    first.write_text("".join(f"{i}\n" for i in range(150)))
    with writer.background_heartbeat(), followed(tmp_path, "--rank", "0") as reading:
        assert [read_line(reading) for _ in range(150)] == [f"{i}\n" for i in range(150)]
        reading.send_signal(signal.SIGINT)
        rest, errors = reading.communicate(timeout=60)
    assert (reading.returncode, rest, errors.strip()) == (130, "", "interrupted")
    assert writer.run().state == "starting"


def test_following_ends_when_the_run_is_lost(tmp_path: Path, orch: RunOrch) -> None:
    abandoned_run(tmp_path, "it")
    done = orch("logs", "it", "-f", "--storage", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "it: lost\n")
