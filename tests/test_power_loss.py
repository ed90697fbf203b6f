"""Power failures: whatever a disk holds then, a journal reads as it was, and loses no promise."""

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import OrchError
from orchestrator.journal import files
from orchestrator.journal.steps import StepLog
from tests.chaos.journal_kills import TRACKING, facts_of, finish_run
from tests.journals import reason, run_request, step, tiny_plan
from tests.power_loss import Crash, Recorder, crashes
from trainers.checkpoint import step_folders

# JAX, which another test may have started in this process, warns of forks; children do not use it.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork")


Program = Callable[[Path, Callable[[str], None]], None]


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: these tests create thousands of files."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)


def recorded(folder: Path, program: Program, *prepare: Callable[[], None]) -> Recorder:
    """What a program changed on disk, run in a process of its own that ends after it."""
    storage, result = folder / "storage", folder / "recorded"
    storage.mkdir()
    child = os.fork()
    if child == 0:
        try:
            os.fsync = unsynced
            for change in prepare:
                change()
            recorder = Recorder(storage)
            recorder.install()
            program(storage, recorder.acknowledge)
            with result.open("wb") as file:
                pickle.dump(recorder, file)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    made: Recorder = pickle.loads(result.read_bytes())
    return made


def life(storage: Path, ack: Callable[[str], None]) -> None:
    """A run from its submission to its end; each thing is acknowledged that must not be lost."""
    run = journal.create_run(storage, run_request(), "it").journal
    ack("created")
    writer = journal.claim_run(run)
    ack("claimed")
    journal.track(run, TRACKING)
    writer.record_pending(reason("no slice is free", "waiting_for_slices"))
    ack("pending")
    number = writer.start_attempt(tiny_plan())
    ack(f"began {number}")
    with StepLog(run.path, number) as log:
        for index in range(3):
            log.append(step(index, restored=None if index else 0))
    for index in range(3):
        ack(f"step {number} {index}")
    writer.end_attempt("preemption", error="slice 0 is gone", first_dead_rank=0)
    ack(f"ended {number}")
    journal.request_cancel(run)
    ack("asked")
    writer.end_run("cancelled", reason("somebody asked", "cancel_requested"))
    ack("concluded")


def judge_life(crash: Crash, storage: Path) -> Iterator[str]:
    """What is wrong with a journal after a power failure."""
    journals = journal.list_journals(storage)
    if not journals:
        if crash.acknowledged:
            yield f"nothing is left of {sorted(crash.acknowledged)}"
        return
    [found] = journals
    try:
        run = found.run()
        if lost := crash.acknowledged - facts_of(found, run):
            yield f"forgot {sorted(lost)}"
        yield from map(str, run.problems)
        if run.state not in ("submitted", "lost", "cancelled"):
            yield f"is {run.state}"
        found.plan(run.plan_digest), found.spec()
        yield from finish_run(found, run)
    except OrchError as error:
        yield f"cannot be read, or go on: {error}"


def faults_of(
    folder: Path, recorder: Recorder, judge: Callable[[Crash, Path], Iterator[str]]
) -> tuple[int, list[str]]:
    """How many disks there are, and what is wrong with them."""
    disk, disks = folder / "disk", 0
    faults: list[str] = []
    for crash in crashes(recorder):
        disk.mkdir()
        crash.build(disk)
        faults += [f"{crash.why}: {fault}" for fault in judge(crash, disk)]
        shutil.rmtree(disk)
        disks += 1
    return disks, faults


def unsynced(fd: object) -> None:
    """Nobody pulls the plug of this disk, and syncing takes most of the time."""
    del fd


@pytest.fixture
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", unsynced)


@pytest.mark.usefixtures("without_sync")
def test_a_journal_survives_a_power_failure_at_any_time(in_memory: Path) -> None:
    """What was acknowledged is there, and a second writer goes on."""
    count, faults = faults_of(in_memory, recorded(in_memory, life), judge_life)
    assert faults[:5] == []
    assert count > 200


def no_folder_sync() -> None:
    files._sync_folder = unsynced  # type: ignore[assignment]


def no_file_sync() -> None:
    """Write whole files without syncing them; folders are synced."""
    real = files._write_whole

    def write(path: Path, content: bytes, mode: int = 0o666) -> None:
        synced, os.fsync = os.fsync, unsynced
        real(path, content, mode)
        os.fsync = synced

    files._write_whole = write


@pytest.mark.usefixtures("without_sync")
@pytest.mark.parametrize(
    "leave_out",
    [pytest.param(no_folder_sync, id="folders", marks=pytest.mark.slow), no_file_sync],
)
def test_a_journal_that_does_not_sync_is_caught(
    in_memory: Path, leave_out: Callable[[], None]
) -> None:
    _, faults = faults_of(in_memory, recorded(in_memory, life, leave_out), judge_life)
    assert len(faults) > 10


# --- the manifest of a checkpoint

CONTENTS = {"ocdbt.process_0/d/a": b"shard 0" * 50, "ocdbt.process_1/d/b": b"shard 1" * 50,
            "manifest.ocdbt": b"merged"}  # fmt: skip


def save(storage: Path, ack: Callable[[str], None]) -> None:
    """Write a checkpoint as Orbax does, without its syncs, and sum it."""
    step_path = storage / "8"
    for name, content in CONTENTS.items():
        path = step_path / name
        for folder in (step_path, *path.parents[:2]):
            if not folder.is_dir() and folder != storage:
                folder.mkdir(parents=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(opened, content)
        os.close(opened)
    for process in range(2):
        step_folders._sum_shards(step_path, process)
    step_folders._write_checksums(step_path, 2)
    ack("saved")


def judge_save(_: Crash, storage: Path) -> Iterator[str]:
    """A step without a fault has every byte that was saved."""
    step_path = storage / "8"
    if not step_path.is_dir() or step_folders.StepFolders(storage).fault("8") is not None:
        return
    for name, content in CONTENTS.items():
        if not (step_path / name).is_file() or (step_path / name).read_bytes() != content:
            yield f"{name} is not what was saved, and no fault is found"


def test_a_checkpoint_that_lost_something_is_never_taken_for_whole(in_memory: Path) -> None:
    """Shards may be lost with the power; then their sums say so."""
    count, faults = faults_of(in_memory, recorded(in_memory, save), judge_save)
    assert faults[:5] == []
    assert count > 50
