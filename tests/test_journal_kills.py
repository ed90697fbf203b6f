"""The journal under kills and full disks."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import journal
from orchestrator.errors import JournalUnwritable
from orchestrator.journal.steps import StepLog
from orchestrator.values.run import Run
from tests.conftest import ROOT
from tests.journals import claimed_run, reason, run_request, step, tiny_plan


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: these tests create thousands of files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def campaign(folder: Path, *options: str) -> dict[str, Any]:
    """The result of killing a writer at every change."""
    command = [sys.executable, "-m", "tests.chaos.journal_kills", str(folder), *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_kill_at_any_change_loses_nothing(in_memory: Path) -> None:
    """What was acknowledged stays, and a second writer can continue."""
    result = campaign(in_memory)
    assert result["faults"] == []
    assert result["deaths"] > 150


def test_the_campaign_catches_a_journal_that_writes_in_place(in_memory: Path) -> None:
    assert len(campaign(in_memory, "--in-place")["faults"]) > 10


# --- a full disk

NEED_ROOM = ("open", "write", "link", "mkdir")


class FullDisk:
    """A disk that is full at the `at`-th change that needs space, and only then."""

    def __init__(self, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.count = at, 0
        for name in NEED_ROOM:
            monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which fails once; a write then has written half of its content."""

        def limited(*args: Any, **named: Any) -> Any:
            needs_room = name != "open" or args[1] & os.O_CREAT
            self.count += bool(needs_room)
            if needs_room and self.count == self.at:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **named)

        return limited


def persist(write: Callable[[], Any]) -> Any:
    """Write again when the disk was full; any other error is a failure."""
    try:
        return write()
    except JournalUnwritable as error:
        if "No space left on device; free some space" not in str(error):
            raise
        return write()


def persistent_life(storage: Path) -> Run:
    """A run whose writer retries; a reader never sees a problem."""
    writer = persist(lambda: journal.create_run(storage, run_request(), "it"))
    run_journal = writer.journal
    writer = persist(lambda: journal.claim_run(run_journal))
    persist(writer.heartbeat)
    number = persist(lambda: writer.start_attempt(tiny_plan()))
    with persist(lambda: StepLog(run_journal.path, number)) as log:
        for index in range(3):
            timed = step(index, restored=None if index else 0)
            persist(lambda: log.append(timed))  # noqa: B023  # it is called at once
            assert run_journal.run().steps_done == index + 1
    persist(lambda: journal.request_cancel(run_journal))
    persist(lambda: writer.end_attempt("finished"))
    persist(lambda: writer.end_run("succeeded"))
    run: Run = run_journal.run()
    return run


def test_a_full_disk_loses_nothing(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any change: the writer gets an error and may try again."""
    at, met = 0, True
    while met:
        at += 1
        with monkeypatch.context() as patched:
            disk = FullDisk(at, patched)
            run = persistent_life(in_memory / str(at))
            met = disk.count >= at
        assert (run.state, run.steps_done, run.problems) == ("succeeded", 3, ())
        assert [path.name for path in (in_memory / str(at)).iterdir()] == ["it"]
    assert at > 30


FILL = """
import sys
from pathlib import Path
from orchestrator import journal
from orchestrator.errors import JournalUnwritable
from tests.journals import run_request, step, tiny_plan
storage = Path(sys.argv[1])
ballast = storage / "ballast"
writer = journal.claim_run(journal.create_run(storage, run_request(), "it").journal)
number = writer.start_attempt(tiny_plan())
ballast.write_bytes(bytes(100_000))
appended = 0
with journal.StepLog(writer.journal.path, number) as log:
    try:
        for appended in range(10_000):
            log.append(step(appended, restored=None if appended else 0))
        sys.exit("the disk never filled")
    except JournalUnwritable as error:
        assert "steps.jsonl: the journal cannot be written: No space left on device" in str(error)
    full = writer.run()
    assert (full.state, full.steps_done, full.problems) == ("running", appended, ()), full
    writer.heartbeat()
    try:
        writer.end_attempt("failure", error="no space " * 1000)
        sys.exit("an event was written to a full disk")
    except JournalUnwritable as error:
        assert "events/000004.json: the journal cannot be written" in str(error)
    ballast.unlink()
    log.append(step(appended))
writer.end_attempt("finished")
writer.end_run("succeeded")
run = writer.run()
assert (run.state, run.steps_done, run.problems) == ("succeeded", appended + 1, ()), run
"""


def test_a_real_full_file_system(tmp_path: Path) -> None:
    """Steps and events that do not fit are refused whole; with space again the run continues."""
    mount = 'mount -t tmpfs -o size=640k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(tmp_path)]
    probe = [*inside[:5], "mount -t tmpfs -o size=8k tmpfs /mnt"]
    if (
        not shutil.which("unshare")
        or subprocess.run(probe, capture_output=True, check=False).returncode
    ):
        pytest.skip("this system does not let its users mount a small file system")
    done = subprocess.run(
        [*inside, sys.executable, FILL], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EPERM, "hard links"),
        (errno.ENOTSUP, "needs a file system with hard links"),
        (errno.ENOSYS, "needs a file system with hard links"),
        (errno.EACCES, "permission to write there"),
        (errno.EROFS, "Read-only file system"),
    ],
)
def test_a_refused_write_names_file_and_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: str
) -> None:
    writer = claimed_run(tmp_path)

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refused)
        with pytest.raises(JournalUnwritable, match=expected) as met:
            writer.record_pending(reason("a slice", "waiting_for_slices"))
    assert "events/000003.json: the journal cannot be written" in str(met.value)
    assert writer.run().problems == ()


def test_a_repeated_link_request_counts_as_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared file system may carry a request out, and refuse it when it is sent again."""
    real = os.link

    def answered_late(source: Any, target: Any, **named: Any) -> None:
        real(source, target, **named)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    writer = claimed_run(tmp_path)
    monkeypatch.setattr(os, "link", answered_late)
    writer.record_pending(reason("a slice", "waiting_for_slices"))
    assert writer.run().state == "pending"


def test_a_step_that_does_not_fit_leaves_no_partial_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    with StepLog(writer.journal.path, number) as log:
        log.append(step(0, restored=0))
        with monkeypatch.context() as patched:
            FullDisk(1, patched)
            with pytest.raises(JournalUnwritable):
                log.append(step(1))
        log.append(step(1, loss=9.0))
    assert [timed.step.loss for timed in writer.journal.steps(writer.run())] == [2.0, 9.0]


def test_metrics_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    """JSON has no infinity."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    metrics = {"z": float("inf"), "n": float("nan"), "ok": 1.5}
    with StepLog(writer.journal.path, number) as log:
        log.append(step(0, restored=0, trainer_metrics=metrics))
    run = writer.run()
    assert run.last_step is not None
    assert run.last_step.step.trainer_metrics == {"ok": 1.5}
    assert run.problems == ()
