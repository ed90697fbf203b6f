"""The journal of a study: one per request, and its trials are named before they start."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import (
    ForeignRun,
    JournalUnreadable,
    OtherVersion,
    RunIsLive,
    SpecError,
    UnknownName,
)
from orchestrator.journal.listing import StudyJournal, StudyRequest
from orchestrator.journal.run_journal import Journal, noted_tracking
from orchestrator.run.runs import remove
from orchestrator.values import codec
from orchestrator.values.run import TrackedRun
from orchestrator.values.study import Study, Trial, TrialStart
from tests.conftest import ROOT, RunOrch
from tests.journals import ME, claimed_run, reason, run_request, tiny_spec

STUDY = Study(
    name="pods",
    scaling="strong",
    vary=("resources.pods",),
    repeats=1,
    after_failure="stop",
    trials=tuple(
        Trial(number=pods, settings={"resources.pods": str(pods)}, spec=tiny_spec(pods))
        for pods in (1, 2)
    ),
)


def opened_study(storage: Path, study: Study = STUDY, steps: int = 20) -> StudyJournal:
    """The journal of the study."""
    documents = {"study.yaml": b"study: {}\n"}
    return journal.open_study(storage, StudyRequest(study=study, steps=steps), documents)


def test_the_same_request_opens_the_same_journal(tmp_path: Path) -> None:
    first, again = opened_study(tmp_path), opened_study(tmp_path)
    assert first == again
    assert first.submission().study == STUDY
    assert (first.documents / "study.yaml").read_bytes() == b"study: {}\n"
    assert opened_study(tmp_path, replace(STUDY, scaling="weak")) != first
    assert opened_study(tmp_path, steps=21) != first
    assert len(journal.list_studies(tmp_path)) == 3


def test_a_study_is_not_listed_as_a_run(tmp_path: Path) -> None:
    opened_study(tmp_path)
    claimed_run(tmp_path, key="a-run")
    assert [run.run for run in journal.list_runs(tmp_path)[0]] == ["a-run"]
    assert [study.key for study in journal.list_studies(tmp_path)] == [opened_study(tmp_path).key]


def test_trials_are_named_before_they_start(tmp_path: Path) -> None:
    """Each repeat has its own name, and another when it starts again."""
    study = opened_study(tmp_path)
    names = [
        journal.start_trial(study, trial, repeat).run
        for trial, repeat in ((1, 1), (1, 2), (2, 1), (1, 1))
    ]
    assert [name.removeprefix(f"{study.key}-") for name in names] == [
        "trial-1.1", "trial-1.2", "trial-2.1", "trial-1.1.2",
    ]  # fmt: skip
    assert [start.run for start in study.trial_starts()] == names
    assert study.trial_run(study.trial_starts()[0]) is None


def test_no_trial_starts_while_a_run_of_the_study_is_live(tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    entry = journal.start_trial(study, 1, 1)
    writer = claimed_run(tmp_path, key=entry.run, study=study.key)
    with pytest.raises(RunIsLive, match=r"trial-1\.1 is starting"):
        journal.start_trial(study, 2, 1)
    writer.end_run("failed", reason("it was made to"))
    assert journal.start_trial(study, 2, 1).trial == 2


@pytest.mark.parametrize(("age_s", "refused"), [(1.0, True), (10_000.0, False)])
def test_a_trial_that_another_process_starts_blocks_for_a_while(
    tmp_path: Path, age_s: float, refused: bool
) -> None:
    study = opened_study(tmp_path)
    entry = TrialStart(at_s=1_000.0, trial=1, repeat=1, run="elsewhere", by=ME)
    (study.trials / "000001.json").write_bytes(codec.to_json(entry))

    def clock() -> float:
        return 1_000.0 + age_s

    if refused:
        with pytest.raises(RunIsLive, match="process 7 on here is starting"):
            journal.start_trial(study, 2, 1, clock)
    else:
        assert journal.start_trial(study, 2, 1, clock).trial == 2


def test_a_process_that_died_before_its_run_does_not_block(tmp_path: Path) -> None:
    begin = f"from tests.test_journal_studies import opened_study; from pathlib import Path; \
from orchestrator import journal; journal.start_trial(opened_study(Path({str(tmp_path)!r})), 1, 1)"
    subprocess.run([sys.executable, "-c", begin], cwd=ROOT, check=True)
    study = opened_study(tmp_path)
    assert len(study.trial_starts()) == 1
    assert journal.start_trial(study, 1, 1).run.endswith("trial-1.1.2")


def test_a_trial_start_that_loses_a_race_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.journal import events  # noqa: PLC0415

    study, append = opened_study(tmp_path), events.append
    other = TrialStart(at_s=0.0, trial=1, repeat=1, run="other", by=ME)

    def late(folder: Path, number: int, content: bytes) -> None:
        monkeypatch.setattr(events, "append", append)
        append(folder, number, codec.to_json(other))
        append(folder, number, content)

    monkeypatch.setattr(events, "append", late)
    assert journal.start_trial(study, 1, 1).run.endswith("trial-1.1.2")
    assert next(start.run for start in study.trial_starts()) == "other"


def test_the_first_tracked_run_of_a_study_stays(tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    assert noted_tracking(study.path) is None
    first = TrackedRun(tracker="mlflow", uri="sqlite:////x", run_id="1")
    assert journal.track(study, first) == first
    assert journal.track(study, replace(first, run_id="2")) == first
    assert noted_tracking(study.path) == first


def test_a_run_names_its_study(tmp_path: Path) -> None:
    writer = journal.create_run(tmp_path, run_request(study="pods-study-1"), "it")
    assert writer.run().study == "pods-study-1"
    assert claimed_run(tmp_path, key="alone").run().study is None


def test_a_run_or_a_study_is_found(tmp_path: Path) -> None:
    """By key, by its beginning, or by path; an unknown key lists both."""
    study = opened_study(tmp_path)
    trial = journal.start_trial(study, 1, 1).run
    claimed_run(tmp_path, key=trial, study=study.key)
    claimed_run(tmp_path, key="plain")
    assert journal.find_run_or_study(tmp_path, study.key) == study
    assert journal.find_run_or_study(tmp_path, study.key[:-2]) == study
    assert journal.find_run_or_study(tmp_path, str(study.path)) == study
    assert journal.find_run_or_study(tmp_path, trial).key == trial
    assert journal.find_run_or_study(tmp_path, "pla").key == "plain"
    with pytest.raises(UnknownName, match=f"begins with 'x'; known: {study.key}, "):
        journal.find_run_or_study(tmp_path, "x")


def test_a_damaged_study_is_an_error(tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    text = study.submission_path.read_text(encoding="utf-8")
    study.submission_path.write_text(
        text.replace('"schema": 3,\n  "steps"', '"schema": 9,\n  "steps"')
    )
    with pytest.raises(OtherVersion) as met:
        study.submission()
    assert (met.value.written, met.value.read) == (9, 3)
    digest = StudyRequest(study=STUDY, steps=20).digest
    study.submission_path.write_text(text.replace(digest, "0" * 64))
    with pytest.raises(SpecError, match="is another study"):
        opened_study(tmp_path)
    study.submission_path.write_text("{}")
    with pytest.raises(JournalUnreadable, match="is not a StudySubmission"):
        study.submission()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("given", ["study", "run"])
def test_a_study_of_another_user_is_not_removed(tmp_path: Path, given: str) -> None:
    """Nor is one with a run of another user: nothing of it is removed then."""
    study = opened_study(tmp_path)
    start = journal.start_trial(study, 1, 1)
    trial = claimed_run(tmp_path, key=start.run, study=study.key)
    trial.end_run("failed")
    os.chown(study.path if given == "study" else trial.journal.path, 65534, 65534)
    with pytest.raises(ForeignRun):
        remove(study.key, tmp_path)
    assert study.path.exists()
    assert trial.journal.path.exists()


def test_a_study_does_not_own_the_runs_that_it_names(tmp_path: Path) -> None:
    """Another user may have written it: a run says itself which study it is of, and stays."""
    run = claimed_run(tmp_path, key="precious")
    run.end_run("failed", reason("it was made to"))
    study = opened_study(tmp_path)
    named = ["precious", "..", "a\0b", "\ud800", ""]
    for number, name in enumerate(named, start=1):
        text = codec.to_json(TrialStart(at_s=0.0, trial=1, repeat=1, run="NAME", by=ME))
        text = text.replace(b'"NAME"', json.dumps(name).encode())
        (study.trials / f"{number:06d}.json").write_bytes(text)
    assert study.status().runs == ()
    assert journal.find_runs(tmp_path, study.key) == []
    journal.remove_study(study)
    assert [found.key for found in journal.list_journals(tmp_path)] == ["precious"]


def test_a_list_reads_each_run_once(
    tmp_path: Path, orch: RunOrch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a study, which were read three times."""
    study = opened_study(tmp_path)
    start = journal.start_trial(study, 1, 1)
    journal.create_run(tmp_path, run_request(study=study.key), start.run)
    read, run = list[str](), Journal.run

    def counted(self: Journal, *arguments: object) -> object:
        read.append(self.key)
        return run(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "run", counted)
    shown = orch("runs", "--storage", str(tmp_path)).stdout
    assert start.run in shown
    assert study.key in shown
    assert read == [start.run]
