"""Runs on hosts that meet in a folder: emulated here, each a process that runs one rank."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator import journal
from orchestrator.drive.driver import Driver, run_to_end
from orchestrator.drive.monitor import explain_failure
from orchestrator.errors import Superseded
from orchestrator.journal import boundary
from orchestrator.launch.backend import (
    AttemptHandle,
    AttemptSpec,
    ClusterUnusable,
    PreflightRequest,
    WorkerArgs,
)
from orchestrator.launch.hosts.backend import (
    _GONE_S,
    HostsBackend,
    _MeetingClient,
    _start_host,
    end,
)
from orchestrator.launch.hosts.host_process import _EMULATED_S, _environment
from orchestrator.launch.hosts.meeting import VARIABLE, HostName, HostState, Meeting, Order
from orchestrator.planning.planner import make_plan
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import Run
from orchestrator.values.spec import Pods, RetryLimits, RunOptions, Spec
from tests import disk_faults
from tests.clusters import eventually
from tests.conftest import ROOT, RunOrch
from tests.example_specs import TINY, spec_of
from tests.fake_worker import FAILURES, WORKER

STEPS, LIMIT_S = 6, 60.0


def spec(pods: int = 2) -> Spec:
    tiny = spec_of(TINY, chip="v5e", topology="2x2", pods=pods, sequences=16 * pods, length=64)
    options = RunOptions(hang_limit_s=20.0, retries=RetryLimits(failures=1, preemptions=2))
    resources = replace(tiny.resources, pods=Pods(min=1, max=pods))
    return replace(tiny, resources=resources, run=options)


def within(happens: Callable[[], bool]) -> None:
    eventually(happens, LIMIT_S)


def wait_for_event(attempt: AttemptHandle) -> None:
    """The hosts are known."""
    within(lambda: attempt.next_event(1.0) is not None)


@contextmanager
def hosts(folder: Path, plan: Plan) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The emulated hosts of a plan, joined in a folder."""
    folder.mkdir()
    started = [_start_host(plan, folder, number) for number in range(plan.hosts)]
    try:
        within(lambda: len(Meeting(folder).hosts()) == plan.hosts)
        yield started
    finally:
        end(started)


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which hosts meet, named to this process as to a driver."""
    folder = tmp_path / "meeting"
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # hosts look for no module in their directory
    return folder


def driver(storage: Path, steps: int = STEPS, **failures: str) -> Driver:
    """The driver of a new run. `failures` are called ATTEMPT.RANK.STEP, with _ for the dot."""
    plan = make_plan(spec())
    request = journal.RunRequest(spec=spec(), plan=plan, steps=steps, rehearsal=True)
    writer = journal.claim_run(journal.create_run(storage, request, "it").journal)
    named = {name.strip("_").replace("_", "."): how for name, how in failures.items()}
    (writer.journal.path / FAILURES).write_text(json.dumps(named))
    return Driver(writer, HostsBackend(), worker=WORKER)


def reasons(run: Run) -> list[str | None]:
    return [attempt.reason for attempt in run.attempts]


def test_a_run_does_all_its_steps(tmp_path: Path, meeting: Path) -> None:
    """On one rank for each host, and no process of a rank is left."""
    first = driver(tmp_path)
    with hosts(meeting, first.first_plan) as started:
        assert run_to_end(first) == 0
        assert not [
            child for process in started for child in psutil.Process(process.pid).children()
        ]
    run = first.writer.run()
    assert (run.state, reasons(run), run.steps_done) == ("succeeded", ["finished"], STEPS)
    assert run.attempts[0].slices == ("slice-0", "slice-1")


def test_a_failure_is_tried_again_on_the_same_hosts(tmp_path: Path, meeting: Path) -> None:
    first = driver(tmp_path, _1_1_3="out of luck")
    with hosts(meeting, first.first_plan):
        assert run_to_end(first) == 0
    run = first.writer.run()
    assert reasons(run) == ["failure", "finished"]
    assert (run.attempts[0].first_dead_rank, run.attempts[0].error) == (
        1,
        "ValueError: out of luck",
    )


def test_a_rank_that_is_killed_before_its_first_heartbeat_is_named(
    tmp_path: Path, meeting: Path
) -> None:
    """With its host, its slice and the signal; the other only waits for it."""
    first = driver(tmp_path, _1_1_start="kill", _1_0_start="wait")
    with hosts(meeting, first.first_plan):
        assert run_to_end(first) == 0
    run = first.writer.run()
    assert reasons(run) == ["failure", "finished"]
    died = "rank 1 was killed (signal 9) (host slice-1-0 at 127.0.0.1, slice slice-1)"
    assert run.attempts[0].first_dead_rank == 1
    assert run.attempts[0].error == f"{died}, before its first heartbeat"


def test_a_lost_host_is_a_preemption_and_the_run_goes_on_without_its_slice(
    tmp_path: Path, meeting: Path
) -> None:
    first = driver(tmp_path, steps=60)
    with hosts(meeting, first.first_plan) as started:

        def strike() -> None:
            within(lambda: first.writer.journal.run().steps_done > 2)
            rank = psutil.Process(started[1].pid).children()
            started[1].kill()
            started[1].wait()
            within(lambda: not any(process.is_running() for process in rank))

        striker = threading.Thread(target=strike)
        striker.start()
        assert run_to_end(first) == 0
        striker.join()
    run = first.writer.run()
    assert (run.state, reasons(run)[-1]) == ("succeeded", "finished")
    assert run.attempts[-1].slices == ("slice-0",)


@pytest.mark.slow
def test_a_host_that_is_stopped_is_gone_and_comes_back(tmp_path: Path, meeting: Path) -> None:
    """Its rank, which trains on, is ended; later the host obeys the newest order."""
    first = driver(tmp_path, steps=500)
    with hosts(meeting, first.first_plan) as started:
        stopped, ranks = psutil.Process(started[1].pid), list[psutil.Process]()

        def strike() -> None:
            within(lambda: first.writer.journal.run().steps_done > 2)
            ranks.extend(stopped.children())
            stopped.suspend()
            within(lambda: len(first.writer.journal.run().attempts) > 1)
            stopped.resume()

        striker = threading.Thread(target=strike)
        striker.start()
        assert run_to_end(first) == 0
        striker.join()
        assert ranks
        within(lambda: all(host.run is None for host in Meeting(meeting).hosts()))
        assert not any(liveness_of(rank) for rank in ranks)
    run = first.writer.run()
    assert run.state == "succeeded"
    assert run.attempts[0].reason in ("failure", "preemption")
    assert run.attempts[1].slices == ("slice-0",)


def liveness_of(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_new_driver_of_the_run_takes_the_hosts_from_a_driver_that_stalls(
    tmp_path: Path, meeting: Path
) -> None:
    """The old attempt's ranks are ended by the new order, and the old driver gives no other."""
    first = driver(tmp_path, steps=60)
    plan, path = first.first_plan, str(first.journal.path)
    backend = HostsBackend()
    with hosts(meeting, plan):
        claim = first.writer.number
        spec = AttemptSpec(run=path, claim=claim, worker=WORKER)
        old, new = (backend.attempt(spec) for _ in range(2))
        for number, attempt in ((1, old), (2, new)):
            wait_for_event(attempt)
            first.writer.start_attempt(plan, ("slice-0", "slice-1"))
            args = WorkerArgs(
                run=path, claim=claim, attempt=number, plan_digest=plan.digest, heartbeat_s=0.25
            )
            attempt.start(args, ("slice-0", "slice-1"))
            within(lambda: all(host.run for host in Meeting(meeting).hosts()))
            first.writer.end_attempt("failure")
        ended = old.next_event(5.0)
        assert ended is not None
        assert ended.error == "another driver has taken the hosts"
        before = Meeting(meeting).order()
        old.__exit__(None, None, None)
        assert Meeting(meeting).order() == before
        new.__exit__(None, None, None)
        within(lambda: all(host.run is None for host in Meeting(meeting).hosts()))


def test_a_superseded_claim_gives_the_hosts_no_order(tmp_path: Path, meeting: Path) -> None:
    """Its driver was stopped when it had begun an attempt, and goes on when another has the run."""
    first = driver(tmp_path)
    plan, path = first.first_plan, str(first.journal.path)
    args = WorkerArgs(run=path, claim=2, attempt=1, plan_digest=plan.digest, heartbeat_s=0.25)
    backend = HostsBackend()
    with hosts(meeting, plan):
        old, new = (
            backend.attempt(AttemptSpec(run=path, claim=claim, worker=WORKER)) for claim in (2, 7)
        )
        for attempt in (old, new):
            wait_for_event(attempt)
        new.start(replace(args, claim=7), ("slice-0", "slice-1"))
        given = Meeting(meeting).order()
        with pytest.raises(Superseded):
            old.start(args, ("slice-0", "slice-1"))
        assert Meeting(meeting).order() == given
        new.__exit__(None, None, None)


def test_of_two_drivers_that_give_an_order_at_once_one_has_the_hosts(
    tmp_path: Path, meeting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = driver(tmp_path)
    plan, path = first.first_plan, str(first.journal.path)
    meeting.mkdir()
    slow, fast = (
        HostsBackend().attempt(AttemptSpec(run=path, claim=2, worker=WORKER)) for _ in range(2)
    )
    for beat in range(2):
        join_without_processes(meeting, plan, beat)
        for attempt in (slow, fast):
            attempt.slices()
    args = WorkerArgs(run=path, claim=2, attempt=1, plan_digest=plan.digest, heartbeat_s=0.25)
    give = Meeting.give

    def overtaken_by(then: Callable[[], None]) -> None:
        """The next order comes after what another driver does."""

        def late(meeting: Meeting, order: Order) -> None:
            monkeypatch.setattr(Meeting, "give", give)
            then()
            give(meeting, order)

        monkeypatch.setattr(Meeting, "give", late)

    overtaken_by(lambda: fast.start(replace(args, attempt=2), ("slice-0", "slice-1")))
    slow.start(args, ("slice-0", "slice-1"))
    event = slow.next_event(0.0)
    assert event is not None
    assert (event.ended, event.error) == (True, "another driver has taken the hosts")
    slow.__exit__(None, None, None)
    other = Order(number=2, run="another", run_id="another", claim=1)
    overtaken_by(lambda: give(Meeting(meeting), other))
    fast.__exit__(None, None, None)
    assert Meeting(meeting).order() == other


@pytest.mark.parametrize("gone", [(0, 1), (0,), (1,)])
def test_a_host_that_goes_between_choice_and_start_ends_the_attempt(
    tmp_path: Path, meeting: Path, monkeypatch: pytest.MonkeyPatch, gone: tuple[int, ...]
) -> None:
    """No rank is started: those that are left would wait for the one that is not there."""
    first = driver(tmp_path)
    plan, now_s = first.first_plan, [0.0]
    monkeypatch.setattr("orchestrator.launch.hosts.backend.time.monotonic", lambda: now_s[0])
    meeting.mkdir()
    spec_ = AttemptSpec(run=str(first.journal.path), claim=2, worker=WORKER)
    attempt = HostsBackend().attempt(spec_)
    for beat in range(2):
        join_without_processes(meeting, plan, beat)
        attempt.slices()
    now_s[0] = _GONE_S + 1
    left = [number for number in range(plan.hosts) if number not in gone]
    join_without_processes(meeting, plan, 3, left)
    args = WorkerArgs(run=spec_.run, claim=2, attempt=1, plan_digest=plan.digest, heartbeat_s=0.25)
    attempt.start(args, ("slice-0", "slice-1"))
    event = attempt.next_event(0.0)
    assert event is not None
    assert event.ended
    assert event.error
    assert f"slice-{min(gone)}" in event.error
    assert Meeting(meeting).order() is None
    used = ("slice-0", "slice-1")
    assert explain_failure(None, event.error, used, attempt.slices()).reason == "preemption"


def join_without_processes(
    folder: Path, plan: Plan, beat: int, numbers: Sequence[int] | None = None, order: int = 0
) -> None:
    """The hosts of a plan, or these alone, as files alone."""
    for number in range(plan.hosts) if numbers is None else numbers:
        pod, index = divmod(number, plan.hosts_per_slice)
        state = HostState(
            host=HostName(slice_name=f"slice-{pod}", index=index),
            size=plan.hosts_per_slice,
            kind=plan.slice_kind,
            address="127.0.0.1",
            free_port=1,
            beat=beat,
            order=order,
        )
        Meeting(folder).join(state)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_only_the_user_and_the_owner_of_the_folder_give_orders(tmp_path: Path) -> None:
    """Whoever else may write there would have the hosts run what they like."""
    folder, somebody, admin = tmp_path / "meeting", 65534, 65533
    folder.mkdir(mode=0o777)
    meeting = Meeting(folder)
    meeting.give(Order(number=1, run="theirs", run_id="theirs", claim=9))
    os.chown(folder / "order-000001.json", somebody, -1)
    assert meeting.order() is None
    os.chown(folder, admin, -1)
    os.chown(folder / "order-000001.json", admin, -1)
    assert Meeting(folder).order() is not None
    state = HostState(
        host=HostName(slice_name="s", index=0), size=1, kind="k", address="10.9.9.9", free_port=1,
        beat=1,
    )  # fmt: skip
    meeting.join(state)
    assert meeting.hosts() == (state,)
    os.chown(folder / "host-s-0.json", somebody, -1)
    assert meeting.hosts() == ()


ORDER = Order(number=1, run="it", run_id="it", claim=9)


def write_order(folder: Path, number: int, order: Order) -> None:
    (folder / f"order-{number:06d}.json").write_bytes(codec.to_json(order))


WRONG_ORDERS: dict[str, Callable[[Path], object]] = {
    "no order": lambda path: path.write_text("{}"),
    "not JSON": lambda path: path.write_bytes(b"\xff"),
    "too large": lambda path: path.write_text(" " * (1 << 20) + "{}"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to an order": lambda path: path.symlink_to("order-000001.json"),
    "another number": lambda path: write_order(path.parent, 2, replace(ORDER, number=10**9)),
    "an earlier claim": lambda path: write_order(path.parent, 2, replace(ORDER, number=2, claim=8)),
}


@pytest.mark.parametrize("wrong", WRONG_ORDERS)
def test_an_order_that_does_not_count_is_said_and_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: str
) -> None:
    """The next one counts, for those who have met before and for those who come later."""
    meeting = Meeting(tmp_path)
    meeting.give(ORDER)
    WRONG_ORDERS[wrong](tmp_path / "order-000002.json")
    for place in (meeting, Meeting(tmp_path)):
        assert (place.order(), place.next_number) == (ORDER, 3)
        assert "order-000002.json is passed over: it " in capfd.readouterr().err
        assert place.order() == ORDER
        assert capfd.readouterr().err == ""
    meeting.give(third := replace(ORDER, number=3))
    assert meeting.order() == Meeting(tmp_path).order() == third


def test_an_order_that_cannot_be_read_now_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who meet must pass over the same ones."""
    meeting, real = Meeting(tmp_path), boundary.read_trusted
    meeting.give(ORDER)
    monkeypatch.setattr(boundary, "read_trusted", raises(OSError(errno.EIO, "an error")))
    assert (meeting.order(), meeting.next_number) == (None, 1)
    monkeypatch.setattr(boundary, "read_trusted", real)
    assert (meeting.order(), meeting.next_number) == (ORDER, 2)


def raises(error: Exception) -> Callable[..., None]:
    def called(*_: object) -> None:
        raise error

    return called


def test_an_attempt_starts_and_ends_past_orders_that_do_not_count(
    tmp_path: Path, meeting: Path
) -> None:
    """They would have blocked every attempt: the number is taken, and nobody obeys it."""
    first = driver(tmp_path)
    plan, run = first.first_plan, str(first.journal.path)
    meeting.mkdir()
    (meeting / "order-000001.json").symlink_to("nowhere")
    attempt = HostsBackend().attempt(AttemptSpec(run=run, claim=5, worker=WORKER))
    args = WorkerArgs(run=run, claim=5, attempt=1, plan_digest=plan.digest, heartbeat_s=0.25)
    for beat in range(2):
        join_without_processes(meeting, plan, beat)
        attempt.slices()
    attempt.next_event(0.0)
    attempt.start(args, ("slice-0", "slice-1"))
    given = Meeting(meeting).order()
    assert given
    assert (given.number, given.claim, given.args) == (2, 5, args)
    assert attempt.next_event(0.0) is None
    write_order(meeting, 3, replace(given, number=3, claim=4))
    (meeting / "order-000004.json").mkdir()
    assert attempt.next_event(0.0) is None
    join_without_processes(meeting, plan, 2, order=5)
    attempt.__exit__(None, None, None)
    ended = Meeting(meeting).order()
    assert ended
    assert (ended.number, ended.args) == (5, None)


def test_an_earlier_claim_that_is_faster_does_not_get_the_hosts(
    tmp_path: Path, meeting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before there was a later one, and gives its order between that one's two steps."""
    first = driver(tmp_path)
    plan, run = first.first_plan, str(first.journal.path)
    meeting.mkdir()
    attempt = HostsBackend().attempt(AttemptSpec(run=run, claim=5, worker=WORKER))
    args = WorkerArgs(run=run, claim=5, attempt=1, plan_digest=plan.digest, heartbeat_s=0.25)
    for beat in range(2):
        join_without_processes(meeting, plan, beat)
        attempt.slices()
    give, run_id = Meeting.give, first.journal.state().submitted.submission.id

    def late(meeting: Meeting, order: Order) -> None:
        monkeypatch.setattr(Meeting, "give", give)
        give(meeting, Order(number=1, run=run, run_id=run_id, claim=4))
        give(meeting, order)

    monkeypatch.setattr(Meeting, "give", late)
    attempt.start(args, ("slice-0", "slice-1"))
    given = Meeting(meeting).order()
    assert given
    assert (given.number, given.claim) == (2, 5)
    assert attempt.next_event(0.0) is None


def test_a_new_run_in_the_folder_of_a_removed_one_gets_the_hosts(
    tmp_path: Path, meeting: Path
) -> None:
    """Its claims begin again, and those of the removed run were higher."""
    first = driver(tmp_path)
    plan, run = first.first_plan, str(first.journal.path)
    meeting.mkdir()
    Meeting(meeting).give(Order(number=1, run=run, run_id="removed", claim=9))
    attempt = HostsBackend().attempt(AttemptSpec(run=run, claim=2, worker=WORKER))
    for beat in range(2):
        join_without_processes(meeting, plan, beat)
        attempt.slices()
    args = WorkerArgs(run=run, claim=2, attempt=1, plan_digest=plan.digest, heartbeat_s=0.25)
    attempt.start(args, ("slice-0", "slice-1"))
    given = Meeting(meeting).order()
    assert given
    assert (given.number, given.claim) == (2, 2)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_host_outlives_a_folder_that_fails_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It shows itself again when the folder takes it, and what it runs goes on meanwhile."""
    folder, fault = tmp_path / "meeting", tmp_path / "fault"
    library = disk_faults.built(tmp_path)
    for name, value in disk_faults.variables(library, fault, folder).items():
        monkeypatch.setenv(name, value)
    with hosts(folder, make_plan(spec(1))) as [host, *_]:
        meeting = Meeting(folder)

        def beat() -> int:
            return next((state.beat for state in meeting.hosts()), 0)

        fault.write_text(str(number))
        wait_for_silence(beat)
        assert host.poll() is None
        last = beat()
        fault.unlink()
        within(lambda: beat() > last)
        assert host.poll() is None


def wait_for_silence(beat: Callable[[], int]) -> None:
    """Wait until a host has not shown itself for ten of its looks."""
    while True:
        before = beat()
        time.sleep(10 * _EMULATED_S)
        if beat() == before:
            return


def test_hosts_meet_in_a_relative_folder_and_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user names it on the command line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meeting").mkdir()
    (tmp_path / "linked").symlink_to("meeting")
    Meeting(Path("meeting")).give(order := Order(number=1, run="it", run_id="it", claim=1))
    assert Meeting(Path("linked")).order() == Meeting(Path("meeting")).order() == order


def test_the_environment_joins_ranks_and_slices() -> None:
    names = tuple(HostName(slice_name=f"s{n}", index=i) for n in range(2) for i in range(2))
    order = Order(
        number=1,
        run="r",
        run_id="r",
        claim=2,
        ranks=names,
        coordinator="10.0.0.1:30000",
        coordinator_host="10.0.0.1",
    )
    last = _environment(order, 3)
    assert (last["ORCH_PROCESSES"], last["ORCH_PROCESS"], last["TPU_NAME"]) == ("4", "3", "s1")
    assert last["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:30000"
    assert (last["MEGASCALE_NUM_SLICES"], last["MEGASCALE_SLICE_ID"]) == ("2", "1")
    assert last["MEGASCALE_COORDINATOR_ADDRESS"] == "10.0.0.1:8081"
    alone = _environment(replace(order, ranks=names[:2]), 1)
    assert not any(name.startswith("MEGASCALE") for name in alone)


def request_of(plan: Plan, secrets: tuple[str, ...] = (), file: str = "") -> PreflightRequest:
    return PreflightRequest(
        pods=plan.pods, kind=plan.slice_kind, versions={}, secrets=secrets, file=file
    )


def test_a_preflight_says_what_the_hosts_have(
    tmp_path: Path, meeting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(spec())
    marker = tmp_path / "marker"
    marker.touch()
    monkeypatch.setenv("PRESENT", "x")
    with hosts(meeting, plan):
        request = request_of(plan, ("PRESENT", "ABSENT"), str(marker))
        told: list[str] = []
        report = _MeetingClient(meeting).preflight(plan, request, None, told.append).report
    assert (told[0], told[-1]) == tuple(
        f"{count} of 2 hosts answered; they have 10 min" for count in (0, 2)
    )
    assert (report.present, report.free, dict(report.others)) == (2, 2, {})
    assert [(host.reaches, host.lacks) for host in report.hosts] == [(True, ("ABSENT",))] * 2
    assert all(host.versions["python"] for host in report.hosts)


def test_what_cannot_serve_is_refused(tmp_path: Path, meeting: Path) -> None:
    with pytest.raises(ClusterUnusable, match="not a meeting folder"):
        HostsBackend().connect(str(tmp_path / "nowhere"))
    meeting.mkdir()
    plan = make_plan(spec())
    with pytest.raises(ClusterUnusable, match="installed"):
        _MeetingClient(meeting).preflight(plan, request_of(plan), b"zip", lambda _: None)


def test_hosts_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """However it ends: here it is killed."""
    folder = tmp_path / "meeting"
    folder.mkdir()
    code = (
        "import sys, time; from tests.test_hosts_backend import spec, _start_host, make_plan;"
        "from pathlib import Path; print(_start_host(make_plan(spec(1)), Path(sys.argv[1]), 0).pid,"
        " flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout
        host = int(owner.stdout.readline())
        within(lambda: len(Meeting(folder).hosts()) == 1)
        os.kill(owner.pid, signal.SIGKILL)
    within(lambda: not psutil.pid_exists(host) or psutil.Process(host).status() == "zombie")


@pytest.mark.slow  # in test_working_directory one does, of another trainer
def test_a_rehearsal_trains_without_ray(tmp_path: Path, orch_process: RunOrch) -> None:
    """Two processes, a real trainer and its collectives."""
    settings = (f"run.storage={tmp_path}", "cluster.backend=hosts", "run.trainer=mlp")
    sets = [word for setting in settings for word in ("--set", setting)]
    quick = ("--no-prove", "--no-calibrate", "--steps", "3", "--json")
    done = orch_process("submit", "specs/tiny_2pod.yaml", *sets, *quick, timeout_s=300)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["state"], run["steps_done"]) == ("succeeded", 3)


@pytest.mark.chaos
def test_a_killed_rehearsal_goes_on_from_a_save_at_the_interval_of_the_spec(
    tmp_path: Path, orch_process: RunOrch
) -> None:
    """Its 600 steps have a save every 100, as the 300 of the spec have one every 50."""
    settings = (f"run.storage={tmp_path}", "cluster.backend=hosts", "run.trainer=mlp")
    sets = [word for setting in settings for word in ("--set", setting)]
    quick = ("--no-prove", "--no-calibrate", "--steps", "600")
    orch_path = str(Path(sys.executable).with_name("orch"))
    command = [orch_path, "submit", "specs/tiny_2pod.yaml", *sets, *quick]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as submitting:
        eventually(lambda: journal.list_journals(tmp_path), 300)
        [recorded] = journal.list_journals(tmp_path)
        eventually(lambda: recorded.state().saves, 300)
        driver_process = recorded.run().driver
        assert driver_process is not None
        os.kill(driver_process.pid, signal.SIGKILL)
        out, _ = submitting.communicate(timeout=300)
    assert "the driver was killed (signal 9)" in out
    assert "saves    every 50 steps" in out
    assert out.splitlines()[-1].startswith("Next: orch resume ")
    saved = recorded.state().saves[-1].step
    done = orch_process("resume", "--storage", str(tmp_path), timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert saved % 100 == 0
    assert f", {saved} steps restored" in done.stdout
    assert recorded.run().state == "succeeded"


@pytest.mark.chaos
def test_a_run_goes_on_while_orch_is_stopped(tmp_path: Path) -> None:
    """To its end, as after Ctrl-Z; `orch` says so when it goes on."""
    where = ("--set", f"run.storage={tmp_path}", "--set", "cluster.backend=hosts")
    quick = ("--no-prove", "--no-calibrate", "--steps", "20", "--json")
    command = [sys.executable, "-m", "orchestrator", "submit", "specs/tiny_2pod.yaml"]
    with subprocess.Popen(
        [*command, *where, *quick], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as submitting:
        eventually(lambda: journal.list_journals(tmp_path), 300)
        [recorded] = journal.list_journals(tmp_path)
        eventually(lambda: recorded.run().steps_done > 2, 300)
        os.kill(submitting.pid, signal.SIGSTOP)
        try:
            assert recorded.run().ended_at_s is None
            eventually(lambda: recorded.run().ended_at_s, 300)
            assert psutil.Process(submitting.pid).status() == psutil.STATUS_STOPPED
        finally:
            os.kill(submitting.pid, signal.SIGCONT)
        out, _ = submitting.communicate(timeout=300)
    assert submitting.returncode == 0
    run = json.loads(out)
    assert (run["state"], run["steps_done"]) == ("succeeded", 20)
