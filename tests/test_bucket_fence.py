"""One fence on a bucket: a driver stalls, another goes on, and what is old does not count."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import storage
from orchestrator.errors import Superseded
from orchestrator.storage import addresses
from orchestrator.values.run import checkpoint_folder
from tests.bucket_server import BucketServer
from tests.chaos.faults import losses
from tests.chaos.plain_runs import LIMIT_S, PlainRun, plain_run, signal_all, undisturbed_losses
from tests.chaos.points import MACHINE
from tests.clusters import eventually
from tests.model.traces import faults_of
from trainers.checkpoint.objects import _MANIFEST

pytestmark = pytest.mark.slow

STEPS, STALL_S = 150, 14.0
ADDRESS = "gs://bucket/team/runs"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nothing disturbs, in a folder."""
    return undisturbed_losses(tmp_path_factory.mktemp("undisturbed"), STEPS)


@pytest.fixture
def run(bucket_server: BucketServer, tmp_path: Path) -> Iterator[PlainRun]:
    """A run on a bucket that trains; each driver has a machine and a copy of its own."""
    assert bucket_server.url
    with plain_run(tmp_path, steps=STEPS, storage=storage.folder(ADDRESS)) as started:
        start_on(started, tmp_path, "first")
        started.until(lambda now: now.state == "running" and now.steps_done > 6, 60)
        yield started


def start_on(run: PlainRun, folder: Path, machine: str) -> None:
    run.variables |= {MACHINE: machine, addresses.VARIABLE: str(folder / machine)}
    run.start_driver()


@pytest.mark.parametrize("stopped", ["driver", "driver, and rank 0 before its manifest"])
def test_a_superseded_claim_commits_nothing(
    stopped: str,
    run: PlainRun,
    expected: list[float],
    bucket_server: BucketServer,
    tmp_path: Path,
) -> None:
    """The old ranks end by themselves; a manifest that comes late is of no checkpoint."""
    old, ranks, late = run.driver, [run.rank(0), run.rank(1)], []
    if "manifest" in stopped:
        run.points.arm("save", "rank-0")
        late = [run.until_reached()]
        signal_all(late, signal.SIGSTOP)
        run.points.disarm()
    signal_all([old.pid], signal.SIGSTOP)
    time.sleep(STALL_S)
    run.until(lambda now: now.state == "lost")
    start_on(run, tmp_path, "second")
    now = run.until(lambda now: len(now.attempts) == 2 and now.state == "running")
    assert now.attempts[0].reason == "lost"
    counted = now.attempts[0].saved_steps
    awake = [pid for pid in ranks if pid not in late]
    eventually(lambda: not any(process.pid in awake for process in run.processes()), 30)
    signal_all([*late, old.pid], signal.SIGCONT)
    assert old.wait(LIMIT_S) == Superseded.exit_code
    eventually(lambda: not any(process.pid in ranks for process in run.processes()), 30)
    run.points.pace(0.0)
    eventually(lambda: run.run().ended_at_s is not None, LIMIT_S)
    ended = run.run()
    assert (ended.state, ended.problems) == ("succeeded", ())
    assert ended.attempts[0].saved_steps == counted
    assert ended.attempts[1].restored_steps == counted
    kept = {name.split("/")[-2] for name in bucket_server.names() if name.endswith(_MANIFEST)}
    assert checkpoint_folder(*claim_of(run, 2), STEPS) in kept
    assert losses(run.recorded) == expected
    assert faults_of(run.recorded.path) == []


def claim_of(run: PlainRun, attempt: int) -> tuple[int, int]:
    """The claim that carried out an attempt, and its number."""
    [claim] = {save.claim for save in run.recorded.state().saves if save.attempt == attempt}
    return claim, attempt
