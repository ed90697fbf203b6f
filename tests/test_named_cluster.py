"""Runs on a named cluster as a person starts them: real Ray, on the emulated nodes of the manifest
that `orch export ray` writes.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from orchestrator import journal
from orchestrator.interop.kubernetes import manifests
from orchestrator.launch.ray.local_cluster import PrivateCluster, private_cluster
from orchestrator.planning.planner import make_plan
from orchestrator.values.run import Run
from tests.clusters import descendants, eventually
from tests.conftest import ROOT
from tests.example_specs import TINY, spec_of
from tests.kuberay import hosts_of

BIN = Path(sys.executable).parent
TINY_TWO_PODS = "specs/tiny_2pod.yaml"
LIMIT_S = 300  # on a machine that does other work too
CANARY = "canary-d41d8cd98f00b204"


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that somebody else started, and what a person must know to use it."""

    address: str
    environment: dict[str, str]
    folder: Path

    def orch(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command about it to its end."""
        return subprocess.run(
            [BIN / "orch", *arguments], cwd=ROOT, env=self.environment | environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def submit(self, storage: Path, *more: str) -> tuple[str, ...]:
        """The command that submits a tiny run to it."""
        stored = ("--set", f"run.storage={storage}", "--set", "run.secrets=[HF_TOKEN]")
        return ("submit", TINY_TWO_PODS, "--no-prove", "--address", self.address, *stored, *more)


@contextmanager
def standing(topology: str, pods: int, chip: str = "v5p") -> Iterator[RunningCluster]:
    """A named cluster of so many slices, whose hosts have a secret in their shell."""
    spec = spec_of(TINY, chip=chip, topology=topology, pods=pods, sequences=64 * pods, length=64)
    plan = make_plan(spec)
    [manifest] = manifests("ray", spec, plan, {})
    with pytest.MonkeyPatch.context() as shell:
        shell.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
        shell.setenv("HF_TOKEN", CANARY)
        with private_cluster(hosts_of(manifest), plan.devices_per_host, "sleep 100000") as cluster:
            token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(cluster.folder / "token")}
            yield RunningCluster(address_of(cluster), {**os.environ, **token}, cluster.folder)


def address_of(cluster: PrivateCluster) -> str:
    """Where it takes jobs, once it does."""
    address = ""
    while True:
        event = cluster.next_event(LIMIT_S)
        assert event, "the cluster does not come up"
        assert event.error is None, event.error
        address = event.address or address
        if event.job == "RUNNING":
            return address


@pytest.fixture(scope="module")
def four() -> Iterator[RunningCluster]:
    """Four slices of one host."""
    with standing("2x2x1", 4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two() -> Iterator[RunningCluster]:
    """Two slices of two hosts."""
    with standing("2x2x2", 2) as cluster:
        yield cluster


def only_run(storage: Path) -> Run:
    [recorded] = journal.list_journals(storage)
    return recorded.run()


V5P = ("--set", "resources.chip=v5p", "--set", "resources.topology=2x2x1")
TWO_HOSTS = ("--set", "resources.chip=v5p", "--set", "resources.topology=2x2x2")


def test_what_a_cluster_cannot_serve_is_refused_with_all_that_is_missing(
    two: RunningCluster, tmp_path: Path
) -> None:
    """Slices requested, present and free, and secrets by name; no run is made, nothing is taken."""
    more = ("--set", "resources.pods=6", "--set", "experiment.batch.sequences=48")
    secrets = ("--set", "run.secrets=[HF_TOKEN, NO_SUCH_TOKEN]")
    done = two.orch(*two.submit(tmp_path, *TWO_HOSTS, *more, *secrets, "--yes"))
    assert done.returncode == 1, done.stderr
    assert "it lacks 4 slices of v5p 2x2x2: 6 of v5p 2x2x2 requested" in done.stderr
    assert "NO_SUCH_TOKEN is not in the environment of 5 of 5 hosts" in done.stderr
    code = two.folder.glob("ray/session_2*/runtime_resources*/working_dir_files/*/orchestrator")
    assert len(list(code)) == 5, "each host unpacks the code for itself"
    assert "HF_TOKEN is not" not in done.stderr.replace("NO_SUCH_TOKEN is not", "")
    assert list(tmp_path.iterdir()) == []


def test_without_its_token_a_cluster_refuses(two: RunningCluster, tmp_path: Path) -> None:
    """The message names the variables to set, and no run is made."""
    done = two.orch(*two.submit(tmp_path, *TWO_HOSTS, "--yes"), RAY_AUTH_MODE="disabled")
    assert done.returncode == 1
    assert "it asks for a token: set RAY_AUTH_MODE=token" in done.stderr
    assert list(tmp_path.iterdir()) == []


THREE = (*V5P, "--set", "resources.pods=3", "--set", "experiment.batch.sequences=48")


@pytest.mark.chaos
def test_runs_outlive_their_terminals_and_take_slices_in_turn(
    four: RunningCluster, tmp_path: Path
) -> None:
    """Two runs want three slices of four. The first goes on when its `orch` is killed; the second,
    submitted meanwhile, says what it waits for, and begins when somebody cancels the first.
    RAY_ADDRESS, which names another cluster, is not used; secrets stand in no file of either run,
    and in no log of the cluster.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    elsewhere = four.environment | {"RAY_ADDRESS": "127.0.0.1:1", "HF_TOKEN": CANARY}
    command = [str(BIN / "orch"), *four.submit(first, *THREE, "--yes", "--steps", "100000")]
    with subprocess.Popen(command, cwd=ROOT, env=elsewhere, stdout=subprocess.DEVNULL) as following:
        eventually(lambda: journal.list_journals(first) and only_run(first).steps_done, LIMIT_S)
        following.kill()
    done = only_run(first).steps_done
    detached = four.orch(*four.submit(second, *THREE, "--yes", "--detach", "--steps", "3"))
    assert detached.returncode == 0, detached.stderr
    assert (
        "3 of v5p 2x2x1 requested, 4 present, 1 free: the run waits for 2 more" in detached.stdout
    )
    eventually(lambda: only_run(second).state == "pending", LIMIT_S)
    assert only_run(second).detail == "3 slices of v5p 2x2x1 requested, 4 whole, 1 free"
    assert only_run(first).steps_done > done
    assert four.orch("cancel", only_run(first).journal).returncode == 0
    eventually(lambda: only_run(second).ended_at_s, LIMIT_S)
    one, other = only_run(first), only_run(second)
    assert (one.state, one.rehearsal) == ("cancelled", False)
    assert (other.state, other.steps_done, len(other.attempts)) == ("succeeded", 3, 1), other.detail
    assert one.ended_at_s
    assert other.attempts[0].started_at_s > one.ended_at_s - 10
    assert (Path(one.journal) / "documents" / "code.zip").is_file()
    token = (four.folder / "token").read_text()
    files = [*files_below(tmp_path), *files_below(four.folder / "ray")]
    assert len(files) > 20
    assert [path for path in files if holds(path, CANARY) or holds(path, token)] == []


@pytest.mark.chaos
def test_a_cancelled_run_goes_on_with_fewer_pods(four: RunningCluster, tmp_path: Path) -> None:
    """Resumed on the cluster that its journal names, in the code that it was submitted with."""
    submit = four.submit(tmp_path, *THREE, "--yes", "--detach", "--steps", "3000", "--key", "it")
    assert four.orch(*submit).returncode == 0
    eventually(lambda: only_run(tmp_path).steps_done > 3, LIMIT_S)
    again = four.orch(*submit)
    assert (again.returncode, "run it already exists" in again.stdout) == (0, True), again.stderr
    assert four.orch("cancel", str(tmp_path / "it")).returncode == 0
    eventually(lambda: only_run(tmp_path).ended_at_s, LIMIT_S)
    stopped = only_run(tmp_path)
    assert (stopped.state, len(stopped.attempts)) == ("cancelled", 1)
    done = four.orch("resume", str(tmp_path / "it"), "--pods", "2", "--yes", "--detach", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "it"
    eventually(lambda: only_run(tmp_path).steps_done > stopped.steps_done + 3, LIMIT_S)
    assert four.orch("cancel", str(tmp_path / "it"), "--now").returncode == 0
    eventually(lambda: only_run(tmp_path).ended_at_s, LIMIT_S)
    first, second = only_run(tmp_path).attempts
    assert (first.pods, second.pods) == (3, 2)
    assert second.restored_steps == stopped.steps_done


@pytest.mark.chaos
def test_a_resume_ends_a_driver_that_is_stopped(four: RunningCluster, tmp_path: Path) -> None:
    """With the process that holds its slices. The run then has all its slices again."""
    submit = four.submit(tmp_path, *THREE, "--yes", "--detach", "--steps", "3000", "--key", "it")
    assert four.orch(*submit).returncode == 0
    eventually(lambda: only_run(tmp_path).steps_done > 3, LIMIT_S)
    driver = only_run(tmp_path).driver
    assert driver
    old = [driver.pid, *descendants(driver.pid)]
    for pid in old:
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: only_run(tmp_path).state == "lost", LIMIT_S)
    done = four.orch("resume", str(tmp_path / "it"), "--yes", "--detach")
    assert done.returncode == 0, done.stderr
    eventually(lambda: not any(map(lives, old)), LIMIT_S)
    eventually(lambda: len(only_run(tmp_path).attempts) == 2, LIMIT_S)
    before = only_run(tmp_path).attempts[0].steps_done
    eventually(lambda: only_run(tmp_path).steps_done > before + 3, LIMIT_S)
    assert [attempt.pods for attempt in only_run(tmp_path).attempts] == [3, 3]
    assert four.orch("cancel", str(tmp_path / "it"), "--now").returncode == 0
    eventually(lambda: only_run(tmp_path).ended_at_s, LIMIT_S)


def lives(pid: int) -> bool:
    """Whether a process is there. Zombies are not."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def holds(path: Path, text: str) -> bool:
    return text.encode() in path.read_bytes()


STUDY = f"""\
name: two
study:
  base: {ROOT}/{TINY_TWO_PODS}
  scaling: weak
  vary: {{resources.pods: [1, 2]}}
"""


@pytest.mark.chaos
def test_trials_of_a_study_follow_each_other(four: RunningCluster, tmp_path: Path) -> None:
    """First the cost of all trials is shown, and nothing starts. Then each trial is a real run, one
    after another. Submitted again, nothing is left to do. A study without a length is refused.
    """
    path, storage = tmp_path / "two.yaml", tmp_path / "runs"
    path.write_text(STUDY)
    _, _, *words = four.submit(storage, *V5P)
    endless = four.orch("submit", str(path), *words, "--yes")
    assert (endless.returncode, "needs --steps" in endless.stderr) == (2, True)
    unattended = four.orch("submit", str(path), *words, "--steps", "3")
    assert (unattended.returncode, "needs --yes" in unattended.stderr) == (2, True)
    dry = four.orch("submit", str(path), *words, "--steps", "3", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "8 v5p chips at most, 2 runs, 6 steps, " in dry.stdout
    assert not storage.exists() or list(storage.iterdir()) == []
    done = four.orch("submit", str(path), *words, "--steps", "3", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    [study] = journal.list_studies(storage)
    runs = study.status().runs
    assert [(run.state, run.steps_done, run.pods, run.rehearsal) for run in runs] == [
        ("succeeded", 3, 1, False), ("succeeded", 3, 2, False),
    ]  # fmt: skip
    assert runs[0].ended_at_s is not None
    assert runs[1].submitted_at_s > runs[0].ended_at_s
    again = four.orch("submit", str(path), *words, "--steps", "3", "--yes")
    assert (again.returncode, again.stdout.count("done before: ")) == (0, 2)


@pytest.mark.slow
def test_slices_of_two_hosts_are_followed_to_the_end(two: RunningCluster, tmp_path: Path) -> None:
    """Four processes on two slices: every step, a trace of two of them, exit code 0."""
    steps = ("--yes", "--steps", "4", "--profile", "1:3")
    done = two.orch(*two.submit(tmp_path, *TWO_HOSTS, *steps))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of v5p 2x2x2 requested, 2 present, 2 free" in done.stdout
    run = only_run(tmp_path)
    assert (run.state, run.steps_done) == ("succeeded", 4)
    assert len(list(Path(run.journal).glob("attempts/001/logs/rank-*.log"))) == 4
    assert list(Path(run.journal).glob("profile/**/*.xplane.pb"))


@pytest.mark.slow
def test_nodes_of_gpus_are_followed_to_the_end(tmp_path: Path) -> None:
    """Two NVLink domains of two nodes, on which four processes train. Another type is refused."""
    others = ("--set", "resources.chip=h100", "--set", "resources.topology=8")
    own = ("--set", "resources.chip=gb200", "--set", "resources.topology=8")
    with standing("8", 2, chip="gb200") as cluster:
        refused = cluster.orch(*cluster.submit(tmp_path, *others, "--yes"))
        assert refused.returncode == 1
        assert "2 of h100 8 requested, 0 present, 0 free; it has 2 of GB200-8" in refused.stderr
        done = cluster.orch(*cluster.submit(tmp_path, *own, "--yes", "--steps", "3"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of gb200 8 requested, 2 present, 2 free" in done.stdout
    run = only_run(tmp_path)
    assert (run.state, run.steps_done) == ("succeeded", 3)
    [attempt] = run.attempts
    assert [name.rpartition("-")[0] for name in attempt.slices] == ["asked-0", "asked-1"]
    beats = Path(run.journal) / "attempts/001/heartbeats"
    ranks = [json.loads((beats / f"rank-{n}").read_text())["slice_name"] for n in range(4)]
    assert ranks == [name for name in attempt.slices for _ in range(2)]
