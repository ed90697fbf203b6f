"""The check of hosts: who is slow, who is left out, and what follows when it fails."""

import json
from pathlib import Path

import numpy as np
import pytest

from orchestrator import journal
from orchestrator.drive.driver import Driver, _select, _SliceRequest, run_to_end
from orchestrator.goodput.slowdowns import HostSeconds, host_check, slices_to_avoid, slow_hosts
from orchestrator.launch.backend import Slice
from orchestrator.show.machine_screens import host_check_screen
from orchestrator.values.slowdowns import HostCheck, SlowHost
from orchestrator.values.spec import Pods
from tests.conftest import RunOrch
from tests.fake_worker import CHECKER
from tests.test_driver import driver


def seconds(*rows: tuple[float, ...], emulated: bool = False) -> HostSeconds:
    return HostSeconds(("matmul", "copy"), np.array(rows), emulated=emulated)


def named(taken: HostSeconds) -> list[tuple[int, str]]:
    return [(slow.rank, slow.test) for slow in slow_hosts(taken)]


def test_hosts_beyond_the_noise_are_named_the_slowest_first() -> None:
    calm = [(1.0, 2.0), (1.05, 2.05), (0.97, 1.9)]
    assert named(seconds(*calm, (1.02, 2.1))) == []
    assert named(seconds(*calm, (1.2, 5.0))) == [(3, "copy"), (3, "matmul")]
    assert named(seconds(*calm, (1.2, 2.0), emulated=True)) == []
    assert named(seconds(*calm, (1.7, 2.0), emulated=True)) == [(3, "matmul")]


def test_of_two_hosts_the_slower_one_is_named_and_of_one_none() -> None:
    assert named(seconds((1.0, 1.0), (1.5, 1.05))) == [(1, "matmul")]
    alone = seconds((1.0, 1.0))
    assert named(alone) == []
    check = host_check(1, alone, 3.0)
    shown = str(host_check_screen(check, "orch resume it"))
    assert "Hosts: 1 host checked in 3 s: nothing to compare it with." in shown


def test_many_hosts_show_how_much_they_differ() -> None:
    wide = np.random.default_rng(0).normal(1.0, 0.1, (64, 2))
    assert named(HostSeconds(("matmul", "copy"), wide, emulated=False)) == []
    wide[7] = 2.0
    assert {rank for rank, _ in named(HostSeconds(("matmul", "copy"), wide, emulated=False))} == {7}


def checked(attempt: int, *hosts: str) -> HostCheck:
    slow = tuple(
        SlowHost(rank=rank, slice_name=name[0], host=name, test=test, seconds=2.0, times=2.0)
        for rank, name in enumerate(hosts)
        for test in ("matmul", "copy")
    )
    return HostCheck(attempt=attempt, hosts=4, took_s=1.0, tests=(), slow=slow)


def test_a_slice_is_avoided_when_one_of_its_hosts_was_named_in_two_checks() -> None:
    """Two tests of one check name it once, and two hosts of a slice are two."""
    assert slices_to_avoid([checked(1, "a1", "b1")]) == frozenset()
    assert slices_to_avoid([checked(1, "a1", "b1"), checked(2, "a2", "b1")]) == {"b"}
    assert slices_to_avoid([checked(1, "a1"), checked(1, "a1")]) == {"a"}  # asked for twice


def test_an_avoided_slice_is_left_out_where_a_spare_one_is_ready() -> None:
    request = _SliceRequest(pods=Pods(min=2, max=3), kind="v5e 2x2", started=True, private=True)

    def free(names: str) -> list[Slice]:
        return [Slice(name=name, hosts=1, size=1, free=True) for name in names]

    assert _select(free("abcd"), request, "abc", 0.0, frozenset("b")) == ("a", "c", "d")
    assert _select(free("abc"), request, "abc", 0.0, frozenset("b")) == ("a", "b", "c")


def checking(of: Driver) -> Driver:
    of.checks_only, of.worker = True, CHECKER
    return of


def test_a_check_trains_nothing_and_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    first = checking(driver(tmp_path))
    assert run_to_end(first) == 0
    run = first.writer.run()
    assert (run.state, run.steps_done, len(run.attempts)) == ("cancelled", 0, 1)
    assert run.detail == "its hosts were checked, and no step was asked for"
    [slow] = run.host_checks[0].slow
    assert (slow.rank, slow.slice_name) == (1, "pod-1")

    again = journal.claim_run(first.journal, resumes=True)
    assert run_to_end(Driver(again, first.backend, worker=CHECKER, checks_only=True)) == 0
    assert slices_to_avoid(again.run().host_checks) == {"pod-1"}
    done = journal.claim_run(first.journal, resumes=True)
    assert run_to_end(Driver(done, first.backend, worker=CHECKER.replace("check", "work"))) == 0
    assert done.run().state == "succeeded"


def test_a_run_that_failed_is_still_a_run_that_failed_after_a_check(tmp_path: Path) -> None:
    first = driver(tmp_path, _1_0_2="no such file", _2_0_2="no such file")
    assert run_to_end(first) == 1
    before = first.writer.run()
    again = journal.claim_run(first.journal, resumes=True)
    assert run_to_end(Driver(again, first.backend, worker=CHECKER, checks_only=True)) == 0
    after = again.run()
    assert (after.state, after.reason) == (before.state, before.reason) == ("failed", before.reason)
    assert len(after.host_checks) == 1


def test_a_host_that_fails_its_check_is_named(tmp_path: Path) -> None:
    first = checking(driver(tmp_path, _1_1_check="out of memory"))
    assert run_to_end(first) == 1
    run = first.writer.run()
    assert run.state == "cancelled"
    assert run.detail == (
        "its hosts could not be checked: attempt 1 failed: ValueError: out of memory"
    )
    assert run.attempts[0].first_dead_rank == 1


@pytest.mark.slow
def test_the_hosts_of_a_rehearsal_are_checked_and_it_goes_on(
    tmp_path: Path, orch_process: RunOrch
) -> None:
    settings = (f"run.storage={tmp_path}", "cluster.backend=hosts", "run.trainer=mlp")
    sets = [word for setting in (*settings, "run.preflight=true") for word in ("--set", setting)]
    done = orch_process("preflight", "specs/tiny_2pod.yaml", *sets, "--json", timeout_s=300)
    check = json.loads(done.stdout)
    assert done.returncode == int(bool(check["slow"])), done.stderr
    assert [test["name"] for test in check["tests"]] == [
        "matmul", "copy in memory", "copy to the host", "collective over pods",
        "collective over fsdp",
    ]  # fmt: skip
    assert check["hosts"] == 2
    [recorded] = journal.list_journals(tmp_path)
    again = orch_process("preflight", recorded.key, "--storage", str(tmp_path), timeout_s=300)
    assert "2 hosts" in again.stdout
    done = orch_process("resume", recorded.key, "--storage", str(tmp_path), timeout_s=300)
    assert done.returncode == 0, done.stderr
    run = recorded.run()
    assert (run.state, [each.attempt for each in run.host_checks]) == ("succeeded", [1, 2, 3])


def test_what_is_no_spec_takes_no_settings(orch_process: RunOrch) -> None:
    refused = orch_process("preflight", "some-run", "--set", "run.steps=3")
    assert refused.returncode == 2
    assert "--set goes with a spec" in refused.stderr
