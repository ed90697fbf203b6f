"""Disks that fill up or fail at every phase of a run, alone and with the death of a process."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.values.run import Run
from tests import disk_faults
from tests.chaos.faults import losses
from tests.chaos.plain_runs import LIMIT_S, POLL_S, PlainRun, plain_run, undisturbed_losses
from tests.model.traces import faults_of

pytestmark = pytest.mark.chaos

STEPS, LASTS_S, AHEAD = 120, 3.0, 3
CLAIMS = ("before claim", "after claim")
PHASES = (
    ("step", ""),
    ("before claim", "driver"),
    ("after claim", "driver"),
    ("before attempt", "driver"),
    ("after attempt", "driver"),
    ("start", "rank-1"),
    ("compile", "rank-0"),
    ("save", "rank-0"),
    ("commit", "rank-0"),
    ("before end of attempt", "driver"),
)


def newest(run: Run) -> int:
    return run.attempts[-1].steps_done if run.attempts else 0


def farthest(run: Run) -> int:
    return max((attempt.steps_done for attempt in run.attempts), default=0)


def come_to(run: PlainRun, point: str, who: str) -> None:
    """Bring a run that trains to a point of its life."""
    if point == "step":
        return
    run.points.arm(point, who)
    if point in CLAIMS:
        run.driver.kill()
        run.driver.wait()
        run.start_driver()
    elif point not in ("save", "commit"):  # the point comes with another attempt
        os.kill(run.rank(0), signal.SIGKILL)
    run.until_reached()


def recovered(run: PlainRun, steps: int) -> None:
    """Resume it as often as a person would, until it has come beyond those steps."""
    deadline = time.monotonic() + LIMIT_S
    while (now := run.run()).state != "running" or newest(now) <= steps:
        assert now.problems == ()
        assert time.monotonic() < deadline, now
        if run.driver.poll() is not None and (now.state == "lost" or now.ended_at_s is not None):
            run.start_driver()
        time.sleep(POLL_S)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run on a disk that does not fail."""
    return undisturbed_losses(tmp_path_factory.mktemp("undisturbed"), STEPS)


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    """The file that names the error of the disk, while there is one."""
    return tmp_path / "fault"


@pytest.fixture
def run(tmp_path: Path, fault: Path) -> Iterator[PlainRun]:
    """A run that trains, on a disk that may fail."""
    library = disk_faults.built(tmp_path)
    variables = disk_faults.variables(library, fault, tmp_path / "runs")
    with plain_run(tmp_path, steps=STEPS, variables=variables) as started:
        started.start_driver()
        recovered(started, AHEAD)
        yield started


@pytest.mark.parametrize(
    ("number", "dies"),
    [
        pytest.param(errno.ENOSPC, "", id="full"),
        pytest.param(errno.EIO, "", id="failing"),
        pytest.param(errno.ENOSPC, "rank-1", id="full and a rank dies"),
        pytest.param(errno.EIO, "driver", id="failing and the driver dies"),
    ],
)
def test_a_disk_that_fails_at_every_phase_loses_nothing(
    run: PlainRun, fault: Path, expected: list[float], number: int, dies: str
) -> None:
    """Each phase of one run in turn: it goes on or is resumed, and every step is as undisturbed."""
    for point, who in PHASES:
        come_to(run, point, who)
        fault.write_text(str(number))
        steps = farthest(run.run())
        if dies == "driver":
            run.driver.kill()
        elif dies and who != "driver":
            os.kill(run.rank(1), signal.SIGKILL)
        run.points.disarm()
        time.sleep(LASTS_S)
        fault.unlink()
        recovered(run, steps + AHEAD)
    run.points.pace(0.0)
    run.until(lambda now: now.steps_done == STEPS and now.state in ("running", "succeeded"))
    deadline = time.monotonic() + LIMIT_S
    while run.run().ended_at_s is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    ended = run.run()
    assert (ended.state, ended.problems) == ("succeeded", ())
    assert losses(run.recorded) == expected
    assert run.left_over() == []
    assert run.recorded.state().damage == ()
    assert faults_of(run.recorded.path) == []
