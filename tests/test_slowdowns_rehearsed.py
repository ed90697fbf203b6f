"""Rehearsals that go wrong on purpose: it is found within 20 steps, said truly, and costs no step.
The other kinds are in `make bench-slowdowns`.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.journal.run_journal import Journal
from orchestrator.values.slowdowns import Slowdown
from tests.bench.slowdowns import BEGINS, WITHIN, first_told, rehearse, strike, written
from tests.conftest import ROOT, RunOrch
from tests.troubled import VARIABLE

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that a file can fill."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize(
    ("what", "size_s", "kind", "rank", "says"),
    [
        ("compilation", 0.3, "compilation", None, "for the compiler"),
        ("input-1", 0.25, "host", 1, "its input came"),
    ],
)
def test_a_slowdown_is_found_and_said(
    tmp_path: Path, what: str, size_s: float, kind: str, rank: int | None, says: str
) -> None:
    began: list[int] = []

    def trouble(journal: Journal) -> None:
        began.append(written(journal))
        strike(journal, what, size_s)
        # The steps after it was found need not be slow.
        while not found(journal) and written(journal) < steps:
            time.sleep(0.1)
        (tmp_path / "trouble of slow" / what).unlink()

    def found(journal: Journal) -> list[Slowdown]:
        return [each for each in first_told(journal) if each.kind == kind]

    steps = BEGINS + 40
    journal = rehearse(tmp_path, "slow", steps, trouble)
    told = found(journal)[0]
    assert told.first_step + told.steps - began[0] <= WITHIN
    assert (told.rank, says in told.text) == (rank, True), told.text
    assert (told.excess or 0.0) < 2 * told.step_s
    assert [timed.step.index for timed in journal.steps(journal.run())] == [*range(steps)]


def test_a_disk_that_fills_up_ends_the_attempt_says_so_and_loses_no_step(
    small_disk: Path, orch_process: RunOrch, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int] = []
    filler = small_disk / "filler"

    def fill(journal: Journal) -> None:
        with filler.open("wb", 0) as file, suppress(OSError):
            began.append(written(journal))
            while True:
                file.write(bytes(4096))

    steps, where = BEGINS + 100, ("full", "--storage", str(small_disk))
    journal = rehearse(small_disk, "full", steps, fill, ends=1)
    assert written(journal) - began[0] <= WITHIN
    shown = " ".join(orch_process("status", *where).stdout.split())
    assert "is gone: /" in shown
    assert "No space left on device; free some space there, then resume the run" in shown
    filler.unlink()
    monkeypatch.setenv(VARIABLE, str(small_disk / "trouble of full"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = orch_process("resume", *where, timeout_s=300)
    assert done.returncode == 0, done.stderr
    run = journal.run()
    assert (run.state, run.problems, len(run.attempts)) == ("succeeded", (), 2)
    assert [timed.step.index for timed in journal.steps(run)] == [*range(steps)]
    assert journal.state().damage == ()
