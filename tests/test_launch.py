"""Rehearsals as a person starts them: real Ray, real processes, and nothing left of either."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from orchestrator import journal, reading
from orchestrator.journal import heartbeat
from orchestrator.launch.ray import attempt_process
from orchestrator.launch.ray.local_cluster import PrivateCluster, private_cluster
from orchestrator.launch.ray.slices import emulated_hosts
from orchestrator.planning.calibrated import ChipProfile, Measurements
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.run import calibrate
from orchestrator.run.calibrate import _measure_plan
from orchestrator.values import codec
from tests.clusters import child_of, descendants, eventually, listening, variable
from tests.conftest import ROOT, RunOrch
from tests.example_specs import TINY, spec_of
from tests.profiles import rehearsal_timings
from tests.records import points, rows

ORCH = Path(sys.executable).with_name("orch")
TINY_TWO_PODS = "specs/tiny_2pod.yaml"
LIMIT_S = 300  # on a machine that does other work too
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored profile with the step of the tiny rehearsal, which is then not measured: that costs
    as much as the rehearsal, and tests/test_calibrate.py does it.
    """
    asked = reading.load(ROOT / TINY_TWO_PODS)
    plan = rehearse(asked, make_plan(asked)).plan
    timed = Measurements(platform="cpu", device_kind="cpu", timings=rehearsal_timings(plan))
    monkeypatch.setattr(calibrate, "_measure", lambda _: timed)
    _measure_plan(plan)


@pytest.mark.usefixtures("measured")
def test_a_rehearsal_runs_to_its_end_and_leaves_nothing(
    orch_process: RunOrch, tmp_path: Path
) -> None:
    """Two pods in two processes do every step; the journal tells it, and says a rehearsal."""
    stored = ("--set", f"run.storage={tmp_path}")
    done = orch_process(
        "submit", TINY_TWO_PODS, "--no-prove", "--steps", "6", *stored, timeout_s=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rehearsal" in done.stdout.splitlines()[0]
    assert "measuring this machine" not in done.stderr
    assert "6 of 6 steps" in done.stdout
    [recorded] = journal.list_journals(tmp_path)
    path, run = recorded.path, recorded.run()
    assert (run.state, run.rehearsal, run.problems) == ("succeeded", True, ())
    assert run.rehearses is not None
    assert [timed.step.index for timed in recorded.steps(run)] == list(range(6))
    assert run.recent is not None
    assert run.recent.mfu is not None
    assert 0 < run.recent.mfu < 1
    plan = recorded.plan(run.plan_digest)
    kept = codec.from_json((path / "documents/chip_profile.json").read_bytes(), ChipProfile)
    assert plan.chip_profile == codec.digest(kept)
    assert "expected" in done.stdout
    assert len(list(recorded.paths.logs(1).glob("rank-*.log"))) == 2
    assert f"Next: orch report {path.name}" in done.stdout
    assert f"mlflow   {tmp_path}/mlflow.db, shown by orch ui" in done.stdout
    assert run.tracking
    tracked = (run.tracking.run_id, "FINISHED")
    assert rows(tmp_path, "SELECT run_uuid, status FROM runs") == [tracked]
    assert [at for at, _ in points(tmp_path, "mfu/measured")] == list(range(1, 6))
    status = orch_process("status", path.name, "--storage", str(tmp_path))
    assert "succeeded, a rehearsal" in status.stdout


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_nothing(tmp_path: Path) -> None:
    """Once is a clean stop: a last checkpoint of exactly the steps that were done. Until then all
    that listens does so on loopback, and whoever connects there ends nothing.
    """
    with submitted(tmp_path, steps=100_000) as process:
        eventually(lambda: steps_done(tmp_path) > 0, LIMIT_S)
        mark = mark_of(process)
        found = listening(attempt_process.marked(mark))
        assert {address for address, _ in found} <= LOOPBACK
        assert coordinator_of(tmp_path, found)
        for _, port in found:
            send_noise(port)
        done = steps_done(tmp_path)
        eventually(lambda: steps_done(tmp_path) > done + 5, LIMIT_S)
        [running] = journal.list_journals(tmp_path)
        assert len(running.run().attempts) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    assert attempt_process.marked(mark) == []
    [recorded] = journal.list_journals(tmp_path)
    run = recorded.run()
    assert (run.state, run.attempts[0].reason) == ("cancelled", "cancelled")
    assert run.detail == (
        f"interrupted (Ctrl-C), after step {run.steps_done:,}; its checkpoint is saved"
    )
    assert list((recorded.path / "checkpoints").glob(f"{run.steps_done}-claim-2-attempt-1"))


@pytest.mark.chaos
def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    """The second one waits for no checkpoint, and leaves as little."""
    with submitted(tmp_path, steps=100_000) as process:
        eventually(lambda: steps_done(tmp_path) > 0, LIMIT_S)
        mark = mark_of(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    assert attempt_process.marked(mark) == []
    [recorded] = journal.list_journals(tmp_path)
    assert recorded.run().state == "cancelled"


@pytest.mark.chaos
def test_a_cancelled_rehearsal_goes_on_with_fewer_pods(
    orch_process: RunOrch, tmp_path: Path
) -> None:
    """`orch cancel` stops it after a checkpoint; `orch resume --pods 1` does the steps left, and
    prints nothing but JSON.
    """
    with submitted(tmp_path, steps=14) as process:
        eventually(lambda: steps_done(tmp_path) > 2, LIMIT_S)
        [recorded] = journal.list_journals(tmp_path)
        assert orch_process("cancel", str(recorded.path)).returncode == 0
        assert process.wait(LIMIT_S) == 130
    done = recorded.run().steps_done
    assert 2 < done < 14
    more = ("--pods", "1", "--json")
    resumed = orch_process("resume", str(recorded.path), *more, timeout_s=LIMIT_S)
    assert resumed.returncode == 0, resumed.stderr
    status = json.loads(resumed.stdout)
    assert (status["state"], status["steps_done"]) == ("succeeded", 14)
    first, second = recorded.run().attempts
    assert (first.pods, second.pods, second.restored_steps) == (2, 1, done)
    losses = [timed.step.loss for timed in recorded.steps(recorded.run())]
    assert len(losses) == 14


@pytest.mark.parametrize(
    "supervisor_gets",
    [
        pytest.param(None, marks=pytest.mark.chaos),
        signal.SIGKILL,
        pytest.param(signal.SIGSTOP, marks=pytest.mark.chaos),
    ],
)
def test_a_killed_orch_takes_its_cluster_with_it(
    tmp_path: Path, supervisor_gets: signal.Signals | None
) -> None:
    """SIGKILL while nodes start, also where the cluster's supervisor is killed or stopped: soon no
    process is left, and the journal says lost.
    """
    with submitted(tmp_path, steps=10) as process:
        eventually(lambda: len(attempt_process.marked(mark_of(process))) > 4, LIMIT_S)
        mark, folder = mark_of(process), folder_of(process)
        supervisor = child_of(process.pid)
        assert supervisor
        if supervisor_gets:
            os.kill(supervisor, supervisor_gets)
        process.kill()
        process.wait()
        eventually(lambda: not attempt_process.marked(mark), 90)
        eventually(lambda: not folder.exists(), 10)
    [recorded] = journal.list_journals(tmp_path)
    assert recorded.run().state == "lost"


def test_a_private_cluster_is_private() -> None:
    """Loopback alone; without the token, which nobody else can read, counters alone; then gone."""
    spec = spec_of(TINY, chip="v5e", topology="1x1", pods=1, sequences=8, length=64)
    with private_cluster(emulated_hosts(make_plan(spec)), 1, "sleep 600") as cluster:
        eventually(lambda: is_running(cluster), LIMIT_S)
        supervisor, mark = cluster.process.pid, cluster.mark
        eventually(lambda: descendants(supervisor) <= set(attempt_process.marked(mark)), LIMIT_S)
        found = listening(attempt_process.marked(mark))
        assert len(found) > 4
        assert {address for address, _ in found} <= LOOPBACK
        answers = {answer_of(port) for _, port in found}
        assert "401" in answers
        assert "everything" not in answers
        assert (cluster.folder / "token").stat().st_mode & 0o077 == 0
        assert cluster.folder.stat().st_mode & 0o077 == 0
    assert attempt_process.marked(cluster.mark) == []
    assert not cluster.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(cluster.process.pid, 0)


@contextmanager
def submitted(storage: Path, steps: int) -> Iterator[subprocess.Popen[bytes]]:
    """A rehearsal that was just submitted, of the trainer that starts soonest."""
    options = [TINY_TWO_PODS, "--no-prove", "--no-calibrate", "--steps", str(steps)]
    settings = ["--set", f"run.storage={storage}", "--set", "run.trainer=mlp"]
    command = [str(ORCH), "submit", *options, *settings]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def coordinator_of(storage: Path, found: set[tuple[str, int]]) -> bool:
    """Whether JAX's coordinator is among what listens: a rank, not a process of Ray, has it."""
    [recorded] = journal.list_journals(storage)
    beats = heartbeat.read_heartbeats(recorded.path, 1)
    return any(address in found for address in listening([beats[0].process.pid]))


def send_noise(port: int) -> None:
    """Connect as a stranger who speaks no protocol."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as stranger:
        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)))


def steps_done(storage: Path) -> int:
    return sum(found.run().steps_done for found in journal.list_journals(storage))


def mark_of(process: subprocess.Popen[bytes]) -> str:
    """The mark of the cluster that a command started; of none, one that nothing carries."""
    supervisor = child_of(process.pid)
    return (supervisor and variable(supervisor, attempt_process.MARK)) or "no cluster yet"


def folder_of(process: subprocess.Popen[bytes]) -> Path:
    supervisor = child_of(process.pid)
    assert supervisor
    return Path(variable(supervisor, "RAY_TMPDIR") or "")


def is_running(cluster: PrivateCluster) -> bool:
    event = cluster.next_event(0.1)
    assert event is None or event.error is None, event
    return event is not None and event.job == "RUNNING"


def answer_of(port: int) -> str | None:
    """What a port answers who lists jobs without the token; None where it speaks no HTTP."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs/", timeout=2) as answer:
            return "metrics" if answer.read().startswith(b"# HELP") else "everything"
    except urllib.error.HTTPError as refused:
        with refused:
            return str(refused.code)
    except (OSError, HTTPException):
        return None
