"""Runs with injected faults, on real Ray clusters of emulated slices, and go on."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from orchestrator import journal
from orchestrator.journal import liveness
from orchestrator.launch.ray import attempt_process
from orchestrator.values.spec import Pods
from tests.chaos.faults import emulated, losses, small_spec
from tests.clusters import eventually
from tests.test_named_cluster import LIMIT_S, V5P, standing


@pytest.mark.chaos
def test_lost_slices_and_a_hang_are_survived(tmp_path: Path) -> None:
    """A slice is lost and its spare is used; another is lost, with none left, and one pod goes on;
    a rank is stopped, found within twice the limit, and tried again. The data stays in order.
    """
    spec = small_spec(Pods(min=1, max=2))
    with emulated(spec, tmp_path / "faulty", steps=40, spares=1) as run:
        run.until_step(1, 6)
        run.lose_host("pod-1")
        first = run.until_ended(1)
        assert (first.reason, first.slices, first.pods) == ("preemption", ("pod-0", "pod-1"), 2)
        assert (first.error, first.first_dead_rank) == ("slice pod-1 is gone", 1)
        run.until_step(2, 14)
        run.lose_host("pod-0")
        second = run.until_ended(2)
        assert (second.reason, second.slices) == ("preemption", ("pod-0", "pod-2"))
        run.until_step(3, 20)
        stopped_s = time.monotonic()
        run.signal_rank(3, 0, signal.SIGSTOP)
        third = run.until_ended(3)
        assert time.monotonic() - stopped_s < 2 * spec.run.hang_limit_s
        assert (third.reason, third.slices, third.pods) == ("hang", ("pod-2",), 1)
        assert third.first_dead_rank == 0
        assert third.error is not None
        assert third.error.startswith("rank 0 has sent no heartbeat for 40 s (process ")
        ended = run.to_the_end()
    assert (ended.state, ended.problems) == ("succeeded", ())
    assert [attempt.restored_steps for attempt in ended.attempts[1:]] == sorted(
        attempt.restored_steps for attempt in ended.attempts[1:]
    )
    assert attempt_process.marked(run.cluster.mark) == []
    with emulated(spec, tmp_path / "whole", steps=40) as undisturbed:
        undisturbed.to_the_end()
    expected = losses(undisturbed.recorded)
    same_shape = ended.attempts[2].restored_steps
    assert same_shape > 0
    assert losses(run.recorded)[:same_shape] == expected[:same_shape]  # to the bit
    assert losses(run.recorded) == pytest.approx(expected, rel=1e-3)
    eventually(lambda: not run.cluster.folder.exists(), 10)


@pytest.mark.chaos
def test_three_pods_of_four_go_on_in_the_same_order(tmp_path: Path) -> None:
    """One of four slices is lost and none is spare: three go on with the same batch, and every
    step sees the sequences that it would have seen.
    """
    spec = small_spec(Pods(min=3, max=4))
    with emulated(spec, tmp_path / "faulty", steps=24) as run:
        run.until_step(1, 9)
        run.lose_host("pod-2")
        ended = run.to_the_end()
    assert (ended.state, ended.problems) == ("succeeded", ())
    lost, after = ended.attempts
    assert (lost.reason, lost.pods, lost.first_dead_rank) == ("preemption", 4, 2)
    assert (after.reason, after.pods) == ("finished", 3)
    assert after.slices == ("pod-0", "pod-1", "pod-3")
    assert after.restored_steps > 0
    batches = [run.recorded.plan(attempt.plan_digest).batch for attempt in ended.attempts]
    assert [batch.sequences for batch in batches] == [24, 24]
    with emulated(spec, tmp_path / "whole", steps=24) as undisturbed:
        undisturbed.to_the_end()
    expected = losses(undisturbed.recorded)
    same_shape = after.restored_steps
    assert losses(run.recorded)[:same_shape] == expected[:same_shape]
    assert losses(run.recorded) == pytest.approx(expected, rel=1e-3)


@pytest.mark.chaos
def test_a_slice_that_lost_one_of_two_hosts_is_fenced(tmp_path: Path) -> None:
    """Slices of two hosts: one host of a slice is lost, the other stands and would be taken again;
    the spare slice is used instead.
    """
    spec = small_spec(Pods(min=2, max=2), chip="v5p", topology="2x2x2")
    with emulated(spec, tmp_path, steps=16, spares=1) as run:
        run.until_step(1, 6)
        [rank] = run.ranks_on(1, "pod-1", worker=1)
        run.lose_host("pod-1", worker=1)
        ended = run.to_the_end()
    assert (ended.state, ended.problems) == ("succeeded", ())
    lost, after = ended.attempts
    assert (lost.reason, lost.slices) == ("preemption", ("pod-0", "pod-1"))
    assert (lost.error, lost.first_dead_rank) == ("slice pod-1 has 1 of 2 hosts left", rank)
    assert (after.reason, after.slices, after.pods) == ("finished", ("pod-0", "pod-2"), 2)


SLOW_AGENTS = """
import sys, time
if any("agent" in word for word in sys.orig_argv[1:6]):
    time.sleep(20)
"""


@pytest.mark.chaos
def test_agents_may_start_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than Ray gives them, as on a machine that does other work too: the nodes stand."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_AGENTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with standing("2x2x1", 2) as cluster:
        assert cluster.address


@pytest.mark.chaos
@pytest.mark.parametrize("with_its_attempt", [False, True])
def test_a_run_is_taken_over_from_a_driver_that_was_stopped(
    tmp_path: Path, with_its_attempt: bool
) -> None:
    """Its ranks hold the slices that the new driver needs; so does the process that started them,
    which may be stopped too. The new driver gets them, and the run ends with each step once.
    """
    with standing("2x2x1", 2) as cluster:
        more = (*V5P, "--yes", "--detach", "--steps", "60", "--set", "run.checkpoint.every=5")
        submitted = cluster.orch(*cluster.submit(tmp_path, *more))
        assert submitted.returncode == 0, submitted.stderr
        [recorded] = journal.list_journals(tmp_path)
        eventually(lambda: recorded.run().steps_done > 6, LIMIT_S)
        driver = recorded.run().driver
        assert driver
        process = psutil.Process(driver.pid)
        for started in (process, *(process.children() if with_its_attempt else ())):
            started.suspend()
        eventually(lambda: recorded.run().state == "lost", 60)
        resumed = cluster.orch("resume", str(recorded.path), "--yes")
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        assert liveness.is_gone(driver)
    run = recorded.run()
    assert (run.state, run.problems) == ("succeeded", ())
    assert [attempt.reason for attempt in run.attempts] == ["lost", "finished"]
    assert run.attempts[1].restored_steps == run.attempts[0].saved_steps
    assert len(losses(recorded)) == 60
