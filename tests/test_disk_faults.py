"""Disks that fill up or fail under a live run: it goes on, or stops and can be resumed."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepReader
from orchestrator.values.run import TimedStep
from tests import disk_faults
from tests.clusters import eventually
from tests.conftest import ROOT

STEPS, LASTS_S, LIMIT_S = 40, 1.5, 60
DRIVE = """
import sys
from pathlib import Path
from orchestrator.drive.driver import Driver, run_to_end
from orchestrator.journal import Journal, claim_run
from tests.fake_worker import WORKER
from tests.process_backend import ProcessBackend
writer = claim_run(Journal(Path(sys.argv[1])), resumes=True)
sys.exit(run_to_end(Driver(writer, ProcessBackend(), worker=WORKER)))
"""
CREATE = """
import sys
from pathlib import Path
from tests.test_driver import driver
driver(Path(sys.argv[1]), steps=int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def failing_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes a disk fail."""
    return disk_faults.built(tmp_path_factory.mktemp("library"))


def drive(run: Journal, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVE, str(run.path)],
        cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def steps_of(run: Journal) -> list[TimedStep]:
    return StepReader(run.path, 1).read()


@pytest.mark.parametrize(
    ("number", "after"),
    [
        pytest.param(errno.ENOSPC, 0, id="full at its start"),
        pytest.param(errno.EIO, 4, id="failing while it trains"),
        pytest.param(errno.ENOSPC, 4, id="full while it trains", marks=pytest.mark.slow),
        pytest.param(errno.EIO, 0, id="failing at its start", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_fails_for_a_while_loses_nothing(
    tmp_path: Path, failing_disk: Path, number: int, after: int
) -> None:
    """Whatever stops, a resume does the other steps, and nobody finds damage."""
    storage = tmp_path / "storage"
    subprocess.run([sys.executable, "-c", CREATE, str(storage), str(STEPS)], cwd=ROOT, check=True)
    [run] = [Journal(path) for path in storage.iterdir()]
    fault = tmp_path / "fault"
    process = drive(run, **disk_faults.variables(failing_disk, fault, storage))
    eventually(lambda: run.run().attempts and len(steps_of(run)) >= after, LIMIT_S)
    fault.write_text(str(number))
    seen = steps_of(run)
    if after:
        time.sleep(LASTS_S)
    else:  # processes take a while to start: it lasts until the driver has given up
        process.wait(LIMIT_S)
    fault.unlink()
    process.communicate(timeout=LIMIT_S)
    for _ in range(3):
        if run.run().state == "succeeded":
            break
        assert process.returncode != 0
        process = drive(run)
        process.communicate(timeout=LIMIT_S)
    ended = run.run()
    assert (ended.state, ended.problems) == ("succeeded", ())
    assert len(ended.attempts) > 1  # the disk did fail
    assert [step.step.index for step in run.steps(ended)] == list(range(STEPS))
    assert steps_of(run)[: len(seen)] == seen
    assert run.state().damage == ()


def test_the_disk_does_fail(tmp_path: Path, failing_disk: Path) -> None:
    """The library refuses writes below the folder, and none elsewhere."""
    fault = tmp_path / "fault"
    fault.write_text(str(errno.ENOSPC))
    script = "from pathlib import Path; import sys; Path(sys.argv[1]).write_bytes(b'12')"
    (tmp_path / "below").mkdir()
    environment = os.environ | disk_faults.variables(failing_disk, fault, tmp_path / "below")
    for where, code in (("below/a", 1), ("elsewhere", 0)):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / where)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert "No space left" in subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "below/b")],
        env=environment, capture_output=True, text=True, check=False,
    ).stderr  # fmt: skip
