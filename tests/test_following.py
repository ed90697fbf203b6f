"""Following a run on a named cluster: the journal tells it, whatever the cluster answers."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple, cast

import pytest

import orchestrator
from orchestrator import journal, tracking
from orchestrator.errors import OrchError
from orchestrator.journal import liveness
from orchestrator.journal.steps import StepLog
from orchestrator.launch import provenance
from orchestrator.launch.backend import ClusterClient, ClusterUnusable, LocalCluster
from orchestrator.launch.ray.backend import _RayJobs
from orchestrator.run import cluster, follow
from orchestrator.run import submit as submitting
from orchestrator.run.follow import _ClusterFollower, _RehearsalFollower, _RunWatch
from orchestrator.run.progress import Notice, Progress, RunUpdate, Stage, TaskEnded, Tracked
from orchestrator.show import progress as display
from orchestrator.show import terminal
from orchestrator.show.progress import Display
from orchestrator.values.plan import Plan
from orchestrator.values.run import Run
from orchestrator.values.spec import SubmitOptions
from tests.conftest import ROOT, RunOrch
from tests.journals import Clock, reason, run_request, step, tiny_plan, tiny_spec, write_steps


@dataclass
class FakeJobs:
    """A cluster with answers that the test sets."""

    state_now: str | None = "RUNNING"
    submits: list[tuple[str, str | None]] = field(default_factory=list)
    refuses: bool = False
    live: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def live_jobs(self) -> list[str]:
        if self.refuses:
            raise ClusterUnusable("http://head:8265: does not answer: 500")
        return self.live

    def end(self, job: str) -> None:
        self.ended.append(job)

    def state(self, _: str) -> str:
        if self.state_now is None:
            raise ClusterUnusable("http://head:8265: does not answer: connection refused")
        return self.state_now

    def why(self, _: str) -> str:
        return "its job ended before the run began\n  No module named 'msgspec'"

    def start(self, arguments: Sequence[str], _: bytes | None, name: str | None = None) -> str:
        self.submits.append((" ".join(arguments), name))
        if self.refuses:
            raise ClusterUnusable("http://head:8265: does not take the job: 500")
        return name or "job"


@pytest.fixture
def recorded(tmp_path: Path) -> journal.Journal:
    return journal.create_run(tmp_path, run_request(steps=3), "it").journal


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask immediately, and record nothing: trackers run in processes of their own."""
    monkeypatch.setattr(follow, "_ASK_EVERY_S", -1.0)
    for name in ("begin", "in_background"):
        monkeypatch.setattr(tracking, name, lambda *_: None)


def follower(
    recorded: journal.Journal, jobs: FakeJobs, before: int = 0, progress: Progress | None = None
) -> _ClusterFollower:
    progress = progress or Display()
    watch = _RunWatch(recorded, progress)
    progress(Notice("following", task="run", attempts=watch.attempt))
    return _ClusterFollower(watch, cast(ClusterClient, jobs), "job", before)


def submit_to(jobs: FakeJobs, storage: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Submit to a cluster that was looked at before, and leave it there."""
    monkeypatch.setattr(provenance, "archive", lambda: b"code")
    spec, options = tiny_spec(), SubmitOptions(detach=True, prove=False)
    return submitting.run_once(
        submitting.Request(
            path=ROOT / "specs/tiny_2pod.yaml",
            spec=replace(spec, run=replace(spec.run, storage=str(storage), steps=3)),
            plan=tiny_plan(),
            options=options,
            cluster=("http://head:8265", "--address"),
            confirm=lambda _: True,
            progress=Display(),
            jobs=cast(ClusterClient, jobs),
        )
    )


def test_a_run_is_followed_to_its_end(
    recorded: journal.Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it waits for, its steps, and then the run itself."""
    jobs = FakeJobs()
    following = follower(recorded, jobs)
    assert following.look() is None
    writer = journal.claim_run(recorded)
    writer.record_pending(reason("4 slices asked, 1 free", "waiting_for_slices"))
    assert following.look() is None
    number = writer.start_attempt(tiny_plan())
    write_steps(recorded.path, number, range(3))
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    run = following.look()
    assert run
    assert run.state == "succeeded"
    output = capsys.readouterr().out
    assert "pending: 4 slices asked, 1 free" in output
    assert "step 3 of 3" in output


def test_a_run_that_is_followed_again_is_shown_from_there_on(
    recorded: journal.Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps to come, of the attempt that goes on, and not those that were."""
    number = journal.claim_run(recorded).start_attempt(tiny_plan())
    with StepLog(recorded.path, number) as log:
        log.append(step(0, restored=0))
        following = follower(recorded, FakeJobs())
        log.append(step(1))
        following.look()
    [line] = capsys.readouterr().out.splitlines()
    assert line.partition(" s  ")[2].startswith("step 2 of 3")


@pytest.mark.parametrize("live", [True, False])
def test_what_is_waited_for_is_counted_on_a_terminal_alone(
    recorded: journal.Journal,
    live: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Below the lines that stay, which are the same wherever they go."""
    monkeypatch.setattr(display, "is_live", lambda _: live)
    monkeypatch.setattr(terminal, "_start_line", DrawnLine)
    monkeypatch.setattr(DrawnLine, "texts", [])
    monkeypatch.setattr(DrawnLine, "shares", [])
    shown = Display()
    following = follower(recorded, FakeJobs(), progress=shown)
    following.look()
    writer = journal.claim_run(recorded)
    write_steps(recorded.path, writer.start_attempt(tiny_plan()), range(2))
    following.look()
    shown(TaskEnded(task="run"))
    printed = capsys.readouterr()
    assert [line.partition(" s  ")[2].partition("  ")[0] for line in printed.out.splitlines()] == [
        "compiled in 2 s, state ready in 1 s",
        "step 1 of 3",
    ]
    expected = ["run: the driver starts", "run: step 3 of 3"]
    assert list(dict.fromkeys(DrawnLine.texts)) == (expected if live else [])
    assert list(dict.fromkeys(DrawnLine.shares)) == ([None, 2 / 3] if live else [])
    assert printed.err == ""


def test_a_pipe_hears_what_a_stage_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stage at once; what changes in it, at most every two seconds."""
    now = iter([0.0, 0.5, 2.5, 3.0, 5.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    shown = Display()  # at 0.0; only a changed state asks for the time
    for stage, state in [
        ("looking", ""), ("looking", "0 of 2"), ("looking", "1 of 2"), ("looking", "1 of 2"),
        ("looking", "2 of 2"), ("taking", ""),
    ]:  # fmt: skip
        shown(Stage(task="hosts", stage=stage, state=state))
    expected = ["hosts: looking", "hosts: looking: 1 of 2", "hosts: taking"]
    assert capsys.readouterr().err.splitlines() == expected


class DrawnLine:
    """Stands for the line that rich draws."""

    texts: ClassVar[list[str]] = []
    shares: ClassVar[list[float | None]] = []

    def __init__(self) -> None:
        self.tasks = [SimpleNamespace(id=0, total=None, completed=0.0)]

    def update(self, _: int, description: str) -> None:
        self.texts.append(description)
        [task] = self.tasks
        self.shares.append(task.completed / task.total if task.total else None)

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize(
    ("done", "waits"), [(2, "step 3 of 3"), (3, "all steps are done; the run ends")]
)
def test_after_the_last_step_no_other_is_waited_for(
    recorded: journal.Journal, done: int, waits: str
) -> None:
    """A run has its last words to write then."""
    write_steps(recorded.path, journal.claim_run(recorded).start_attempt(tiny_plan()), range(done))
    shown = Display()
    shown(RunUpdate(run=recorded.run(), steps=()))
    assert shown.waiting == f": {waits}"


def test_a_dropped_connection_is_said_once_and_survived(
    recorded: journal.Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on, so does the following; when the cluster answers again, that is said."""
    jobs = FakeJobs(state_now=None)
    following = follower(recorded, jobs)
    journal.claim_run(recorded)
    assert following.look() is None
    assert following.look() is None
    jobs.state_now = "RUNNING"
    assert following.look() is None
    output = capsys.readouterr().out
    assert output.count("the cluster does not answer; the run continues") == 1
    assert output.count("the connection is back") == 1


def test_a_job_that_dies_before_its_driver_comes_ends_the_run(recorded: journal.Journal) -> None:
    """The journal says why; a driver that comes later finds the run ended."""
    run = follower(recorded, FakeJobs(state_now="FAILED")).look()
    assert run
    assert run.state == "failed"
    assert "No module named 'msgspec'" in (run.detail or "")


def test_a_resumed_run_is_not_taken_for_its_former_self(recorded: journal.Journal) -> None:
    """The end before does not end the following; nor does a job that never starts change it."""
    writer = journal.claim_run(recorded)
    writer.end_run("failed", reason("out of luck"))
    jobs = FakeJobs()
    following = follower(recorded, jobs, writer.number)
    assert following.look() is None
    jobs.state_now = "FAILED"
    run = following.look()
    assert run
    assert (run.state, run.detail) == ("failed", "out of luck")
    assert journal.claim_run(recorded, resumes=True).run().state == "starting"


def test_a_run_whose_job_is_not_taken_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the journal, with the reason: nothing is left that looks as if it would come."""
    jobs = FakeJobs(state_now=None, refuses=True)
    with pytest.raises(ClusterUnusable, match="does not take the job"):
        submit_to(jobs, tmp_path, monkeypatch)
    [run], _ = journal.list_runs(tmp_path)
    assert run.state == "failed"
    assert "does not take the job" in (run.detail or "")


def test_a_job_whose_answer_was_lost_is_not_submitted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster has it in spite of the error: then the run is under way."""
    jobs = FakeJobs(refuses=True)
    run = submit_to(jobs, tmp_path, monkeypatch)
    [(command, name)] = jobs.submits
    assert name == cluster.job_name(run, cluster.SUBMITTED)
    assert command == f"-P -m orchestrator.drive {run.journal}"
    assert cluster.archive_of(journal.Journal(tmp_path / run.run)) == b"code"
    assert run.state == "submitted"


@pytest.mark.parametrize("steps", [0, 3])
def test_the_first_ctrl_c_waits_for_no_checkpoint_where_nothing_is_to_be_saved(
    tmp_path: Path, steps: int
) -> None:
    """Before the first step of an attempt one is enough; after it the second ends at once."""
    writer = journal.create_run(tmp_path, run_request(rehearsal=True))
    signals = [signal.SIGINT.value]
    events: list[object] = []
    watch = _RunWatch(writer.journal, events.append)
    rehearsed = _RehearsalFollower(watch, cast(LocalCluster, None), signals, nodes=1)
    driver = journal.claim_run(writer.journal)
    attempt = driver.start_attempt(tiny_plan(), ("slice-0",))
    write_steps(driver.journal.path, attempt, range(steps))
    assert rehearsed.gives_up(driven=True) == (steps == 0)
    signals.append(signal.SIGINT.value)
    assert steps == 0 or rehearsed.gives_up(driven=True)
    assert events == (
        [Notice("stopping", how="nothing to save")]
        if steps == 0
        else [Notice("stopping", how="with a checkpoint"), Notice("stopping", how="at once")]
    )


def test_a_rehearsal_ends_when_its_driver_is_gone_and_the_cluster_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dashboard that hangs holds nobody; one that answers has a minute for it."""
    clock = Clock(now_s=0.0)
    monkeypatch.setattr("orchestrator.run.follow.time.monotonic", clock)
    writer = journal.create_run(tmp_path, run_request(rehearsal=True))
    watch = _RunWatch(writer.journal, lambda _: None)
    rehearsed = _RehearsalFollower(watch, cast(LocalCluster, None), [], nodes=1)
    journal.claim_run(writer.journal)
    assert rehearsed.gone(writer.run(), driven=True) is None
    monkeypatch.setattr(liveness, "is_gone", lambda _: True)
    for clock.now_s in (1.0, 89.0):
        assert rehearsed.gone(writer.run(), driven=True) is None
    clock.now_s = 92.0
    assert "is gone" in (rehearsed.gone(writer.run(), driven=True) or "")


@pytest.mark.parametrize(("pressed", "exit_code"), [(True, 130), (False, 1)])
def test_a_resumed_rehearsal_that_never_began_says_whether_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pressed: bool, exit_code: int
) -> None:
    """Ctrl-C ends it as it ends all else; a cluster that does not come up is a failure."""
    writer = journal.claim_run(journal.create_run(tmp_path, run_request(rehearsal=True)).journal)
    writer.end_run("failed", reason("out of luck"))

    def drive(_: journal.Journal, __: Plan, signals: list[int], *___: object) -> str:
        signals += [signal.SIGINT] * pressed
        return "why it never began"

    monkeypatch.setattr(submitting, "drive", drive)
    monkeypatch.setattr(
        submitting, "tracked_at_end", lambda _: Tracked(tracker="mlflow", place="mlflow.db")
    )
    with pytest.raises(OrchError, match="why it never began") as end:
        submitting.resume(writer.journal.key, tmp_path)
    assert end.value.exit_code == exit_code


class JobStatus(Enum):
    """As Ray's."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FAILED = "FAILED"


class Details(NamedTuple):
    """What Ray says of a job."""

    submission_id: str | None
    status: JobStatus


class RayClient:
    """Ray's client."""

    def __init__(self, *jobs: Details) -> None:
        self.jobs = jobs

    def list_jobs(self) -> tuple[Details, ...]:
        return self.jobs


def test_the_live_jobs_of_a_cluster() -> None:
    """Not those that have ended, nor those of people who joined without a job's name."""
    connected = _RayJobs.__new__(_RayJobs)
    connected.address = "http://head:8265"
    connected._client = RayClient(
        Details("failed", JobStatus.FAILED),
        Details("running", JobStatus.RUNNING),
        Details("pending", JobStatus.PENDING),
        Details(None, JobStatus.RUNNING),
    )
    assert connected.live_jobs() == ["running", "pending"]


def test_a_resume_ends_the_jobs_that_the_run_had_before(recorded: journal.Journal) -> None:
    """Their processes may be stopped, and see nothing. Other runs stay, and so does a job that
    another resume has started meanwhile. A cluster that does not answer keeps nobody from going on.
    """
    run, jobs = recorded.run(), FakeJobs()
    jobs.live = [*(cluster.job_name(run, event) for event in (1, 4, 7, 9)), "it-0123abcd-1"]
    cluster.end_earlier_jobs(cast(ClusterClient, jobs), run, 7)
    assert sorted(jobs.ended) == [cluster.job_name(run, event) for event in (1, 4)]
    cluster.end_earlier_jobs(cast(ClusterClient, FakeJobs(refuses=True)), run, 7)


@pytest.mark.parametrize(("how", "code"), [("--detach", 0), ("--yes", 1)])
def test_a_resume_that_is_not_followed_ends_well_once_it_is_submitted(
    how: str,
    code: int,
    recorded: journal.Journal,
    monkeypatch: pytest.MonkeyPatch,
    orch: RunOrch,
) -> None:
    """The run is still lost then: its new driver has not come."""
    lost = replace(recorded.run(), state="lost")
    monkeypatch.setattr(orchestrator, "resume", lambda *_, **__: lost)
    assert orch("resume", "it", how).returncode == code
