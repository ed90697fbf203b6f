"""A study of one, two and four pods, rehearsed on real clusters with MLflow and a browser."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.journal.listing import StudyJournal
from orchestrator.journal.run_journal import noted_tracking
from orchestrator.values.run import Run
from tests.browser import MISSING, browser, chromium
from tests.clusters import eventually
from tests.conftest import ROOT
from tests.records import rows
from tests.test_page import read
from tests.test_ui import drawn, shown

pytestmark = pytest.mark.chaos

STEPS = 12
STUDY = f"""\
name: three
study:
  base: {ROOT}/specs/tiny_2pod.yaml
  scaling: weak
  vary: {{resources.pods: [1, 2, 4]}}
"""
SUBMITTED_S = 1200


@dataclass(frozen=True)
class Submitted:
    """How each of three submissions of the study ended, and what it said: interrupted in the second
    trial; the same command again; and once more when all is done.
    """

    study: StudyJournal
    codes: list[int]
    said: list[str]

    @property
    def storage(self) -> Path:
        return self.study.storage

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.study.status().runs


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    """The study, submitted until all is done."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "three.yaml").write_text(STUDY)
    storage = folder / "runs"
    codes, said = [], []
    for interrupted in (True, False, False):
        with submitting(storage) as process:
            if interrupted:
                eventually(partial(is_under_way, storage, 2, process), SUBMITTED_S)
                process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=SUBMITTED_S)
        codes.append(process.returncode)
        said.append(text)
    [study] = journal.list_studies(storage)
    return Submitted(study, codes, said)


def submitting(storage: Path) -> subprocess.Popen[str]:
    """`orch submit` of the study."""
    command = [str(Path(sys.executable).with_name("orch")), "submit"]
    command += [str(storage.parent / "three.yaml"), "--no-prove", "--steps", str(STEPS)]
    command += ["--set", f"run.storage={storage}"]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def is_under_way(storage: Path, number: int, process: subprocess.Popen[str]) -> bool:
    """Whether the newest run of a trial has done a step, and not yet all; or nothing more comes."""
    if process.poll() is not None:
        return True
    for study in journal.list_studies(storage):
        started = [start for start in study.trial_starts() if start.trial == number]
        run = study.trial_run(started[-1]) if started else None
        return run is not None and 1 <= run.steps_done < STEPS
    return False


def test_a_study_is_interrupted_continued_and_finished(done: Submitted) -> None:
    first, second, third = done.said
    assert done.codes == [130, 0, 0], "\n".join(done.said)
    assert first.splitlines()[-1].startswith("Next: orch submit ")
    assert f"done before: {done.study.key}-trial-1.1\n" in second
    states = {run.run.rpartition("-trial-")[2]: run.state for run in done.runs}
    assert states == {
        "1.1": "succeeded", "2.1": "cancelled", "2.1.2": "succeeded", "3.1": "succeeded",
    }  # fmt: skip
    assert third.count("done before: ") == 3
    assert " % on 16 emulated chips." in third


def test_mlflow_has_the_whole_study_when_the_command_ends(done: Submitted) -> None:
    stored = rows(done.storage, "SELECT name, status FROM runs ORDER BY name")
    wanted = {"succeeded": "FINISHED", "cancelled": "KILLED"}
    runs = [(run.run, wanted[run.state]) for run in done.runs]
    assert stored == sorted([(done.study.key, "FINISHED"), *runs])
    tracking = noted_tracking(done.study.path)
    assert tracking is not None
    children = "SELECT COUNT(*) FROM tags WHERE key = 'mlflow.parentRunId' AND value = ?"
    assert rows(done.storage, children, tracking.run_id) == [(4,)]
    pods = "SELECT value FROM latest_metrics WHERE key = 'plan/pods' ORDER BY 1"
    assert rows(done.storage, pods) == [(1.0,), (2.0,), (2.0,), (4.0,)]


def test_the_page_of_a_study_is_written(done: Submitted) -> None:
    command = [str(Path(sys.executable).with_name("orch")), "report", done.study.key]
    subprocess.run([*command, "--storage", str(done.storage)], cwd=ROOT, check=True)
    text = (done.study.path / "report.html").read_text(encoding="utf-8")
    page = read(text)
    assert page.asked == []
    assert text.count('class="dot measured"') == 2 * 3
    assert "Gaps between measured and predicted" in "".join(page.text)
    assert len(text.encode()) < 2_000_000
    assert "cancelled" not in "".join(page.text)


@pytest.mark.skipif(chromium() is None, reason=MISSING)
def test_the_views_of_a_study_have_data(done: Submitted) -> None:
    with shown(done.storage) as (process, links), browser() as chrome:
        for name, page in drawn(chrome, links):
            page.picture(Path(os.environ.get("PICTURES", done.storage)) / f"study {name}.png")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
