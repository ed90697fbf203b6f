"""A study on a named cluster: what it asks for first, and how its trials follow each other.

The cluster is a fake; `tests/test_named_cluster.py` has a real one.
"""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator import journal, tracking
from orchestrator.cli import orch as command
from orchestrator.errors import OrchError, SpecError
from orchestrator.journal.ownership import RunRequest, Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.run import cluster as clusters
from orchestrator.run import studies
from orchestrator.run import submit as submitting
from orchestrator.run.progress import Notice, Progress, Tracked
from orchestrator.values.plan import Plan
from orchestrator.values.run import Run
from tests.journals import Clock, reason
from tests.reports import finish, timed

STUDY = "name: two\nstudy: {base: base.yaml, scaling: weak, vary: {resources.pods: [1, 2]}}\n"
BASE = """\
name: tiny
experiment: {model: llama-tiny, tokens: 1M, batch: {sequences: 16, length: 128}}
resources: {chip: v5e, topology: 2x2}
run: {storage: STORAGE}
"""


class Cluster:
    """Takes runs and does them at once; nobody follows from the run of that number on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, left_at: int = 0) -> None:
        self.folder, self.left_at = folder, left_at
        self.seen: list[int] = []
        self.taken: list[str] = []
        (folder / "base.yaml").write_text(BASE.replace("STORAGE", str(folder / "runs")))
        (folder / "two.yaml").write_text(STUDY)
        for module in (submitting, studies):
            monkeypatch.setattr(module, "check_cluster", self.check)
        monkeypatch.setattr(submitting, "start_driver", self.start)
        monkeypatch.setattr(submitting, "follow", self.follow)
        for name in ("begin", "in_background"):
            monkeypatch.setattr(tracking, name, lambda *_: None)
        monkeypatch.setattr(
            submitting, "tracked_at_end", lambda _: Tracked(tracker="mlflow", place="nowhere")
        )

    def check(
        self, run: RunRequest, named: str, _: Path, __: Progress, runs: list[tuple[Plan, int]]
    ) -> tuple[str, Notice]:
        self.seen.append(run.plan.pods)
        return "jobs", Notice(
            "cluster ready", address=named, slices="2 free", hosts=2, versions={}, storage="there",
            runs=tuple(runs),
        )  # fmt: skip

    def start(self, jobs: str, recorded: Journal, *_: object) -> str:
        run = recorded.run()
        assert (jobs, recorded.proof(run.plan_digest)) == ("jobs", None)
        assert run.environment["cluster"] == "there:1"
        self.taken.append(run.run.rpartition("-trial-")[2])
        steps = [taken.step for taken in timed(0.0, range(run.steps), 0.5)]
        finish(recorded, recorded.plan(run.plan_digest), steps, Clock(time.time()))
        return run.run

    def follow(self, recorded: Journal, *_: object) -> Run | None:
        return None if len(self.taken) == self.left_at else recorded.run()

    def submit(self, *more: str) -> tuple[int, str]:
        """Submit the study to it: exit code, and what was said."""
        asked = ["submit", str(self.folder / "two.yaml"), "--address", "there:1", "--no-prove"]
        done = CliRunner().invoke(command, [*asked, "--code", "installed", *more])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output


def test_a_study_on_a_cluster_asks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster must have the most pods; chips, time and dollars are totals."""
    cluster = Cluster(tmp_path, monkeypatch)
    code, text = cluster.submit("--steps", "4", "--dry-run")
    assert (code, cluster.seen, cluster.taken) == (0, [2], [])
    assert "two: 2 runs, one after another, on the cluster there:1" in text
    assert "at most 8 v5e chips, 2 runs, 8 steps, less than 1 s" in text
    assert "Nothing was submitted: --dry-run." in text
    assert not (tmp_path / "runs").exists()
    with pytest.raises(SpecError, match="needs --yes where nobody can be asked"):
        cluster.submit("--steps", "4")


def test_trials_run_one_after_another_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    code, text = cluster.submit("--steps", "4", "--yes")
    assert (code, cluster.taken) == (0, ["1.1", "2.1"])
    assert "scaling efficiency is 100.0 % on 8 chips" in text
    [study] = journal.list_studies(tmp_path / "runs")
    assert not study.submission().rehearsal
    assert [run.rehearsal for run in study.status().runs] == [False, False]
    code, text = cluster.submit("--steps", "4", "--yes")
    assert (code, len(cluster.taken), text.count("done before: ")) == (0, 2, 2)
    rehearsed = journal.StudyRequest(study=study.submission().study, steps=4)
    assert rehearsed.journal_in(study.storage) != study
    assert replace(rehearsed, rehearsal=False).journal_in(study.storage) == study


def test_an_interrupt_starts_no_other_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, left_at=1)
    code, text = cluster.submit("--steps", "4", "--yes")
    assert (code, cluster.taken) == (130, ["1.1"])
    assert "-trial-1.1 continues without this command; orch cancel " in text


def test_a_live_trial_is_followed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Writer] = []
    followed: list[object] = []

    class Slow(Cluster):
        """Its first run goes on, until somebody follows it for the second time."""

        def start(self, jobs: str, recorded: Journal, *_: object) -> str:
            if left:
                return super().start(jobs, recorded)
            self.taken.append(recorded.key.rpartition("-trial-")[2])
            left.append(journal.claim_run(recorded))
            return clusters.job_name(recorded.run(), 1)

        def follow(self, recorded: Journal, *how: object) -> Run | None:
            followed.append(how[:2])
            if len(followed) == 2:
                left[0].end_run("failed", reason("out of luck"))
            return None if len(followed) == 1 else recorded.run()

    cluster = Slow(tmp_path, monkeypatch)
    (tmp_path / "two.yaml").write_text(STUDY.replace("study: {", "study: {after_failure: go on, "))
    assert cluster.submit("--steps", "4", "--yes")[0] == 130
    code, text = cluster.submit("--steps", "4", "--yes")
    assert "-trial-1.1 is still running; following it again\n" in text
    assert (code, cluster.taken, followed[0] == followed[1]) == (1, ["1.1", "2.1"], True)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--yes",), "needs --steps, or run.steps in its base"),
        (("--yes", "--steps", "4", "--detach"), "--detach is for one run"),
        (
            ("--yes", "--steps", "4", "--devices-per-pod", "4"),
            "--devices-per-pod is for rehearsals",
        ),
    ],
)
def test_options_that_a_study_cannot_have_are_refused(
    more: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    with pytest.raises(OrchError, match=expected):
        cluster.submit(*more)
    assert cluster.taken == []
