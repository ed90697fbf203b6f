"""The measured scaling of a study, and how its trials are rehearsed."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator import journal, tracking
from orchestrator.cli import orch as command
from orchestrator.cli.endings import as_typed
from orchestrator.errors import SpecError
from orchestrator.evidence.studies import _explain_gaps, _make_scaling_report, read_trial_runs
from orchestrator.formatting import percent
from orchestrator.journal.listing import StudyRequest
from orchestrator.journal.run_journal import Journal
from orchestrator.planning.planner import make_plan
from orchestrator.run import submit as submit_module
from orchestrator.run.progress import Tracked
from orchestrator.show import study_screens
from orchestrator.show.pages import _scaling_page
from orchestrator.tracking.mlflow.metrics import of_study
from orchestrator.values.plan import Plan
from orchestrator.values.run import EndState
from orchestrator.values.study import ScalingReport
from tests.conftest import RunOrch
from tests.journals import Clock, reason, tiny_spec
from tests.reports import finish, finished_run, finished_study, timed
from tests.test_page import read
from tests.test_render import too_wide
from tests.test_study import study_of

BASE_S = 0.5


def scaling_report(
    storage: Path, step_s: Callable[[Plan, int], float], **changes: Any
) -> ScalingReport:
    """The report of a study over one, two and four pods, twice each."""
    recorded = finished_study(storage, study_of(1, 2, 4, repeats=2), step_s, **changes)
    return _make_scaling_report(
        recorded.key, recorded.submission().study, read_trial_runs(recorded)
    )


# --- measured scaling


def test_measured_efficiency_is_relative_to_the_smallest_trial(tmp_path: Path) -> None:
    report = scaling_report(tmp_path, lambda _, repeat: BASE_S * repeat)
    stored = [trial.measured.efficiency for trial in report.trials if trial.measured]
    assert [isclose(one.median, of) for one, of in zip(stored, (1, 1 / 2, 1 / 4), strict=True)]
    # Repeats of 0.5 and 1 s: rates of 2 and 1, a median of 1.5.
    assert [isclose(interval.high / interval.low, 2) for interval in stored] == [True] * 3
    assert isclose(stored[1].high, 1 / 2 * 2 / 1.5)
    assert all(trial.done == 2 for trial in report.trials)


def test_predicted_efficiency_is_relative_to_the_smallest_measured_trial(tmp_path: Path) -> None:
    report = scaling_report(tmp_path, lambda plan, _: plan.forecast.step_s.likeliest * 3)
    _, rows = study_screens.scaling_table(report)
    for pods, one, row in zip((1, 2, 4), report.trials, rows, strict=True):
        assert one.predicted
        assert one.predicted.plan_digest == make_plan(tiny_spec(pods)).digest
        assert one.measured
        assert one.predicted.efficiency.expected
        assert isclose(one.measured.efficiency.median, one.predicted.efficiency.expected)
        assert row[-2:] == (percent(one.predicted.efficiency.expected), "3 x")


def test_the_line_that_explains_the_gaps_is_named(tmp_path: Path) -> None:

    def slowed(plan: Plan, _: int) -> float:
        return plan.forecast.step_s.likeliest + 4 * waited_s(plan)

    report = scaling_report(tmp_path, slowed)
    first = report.explanations[0]
    assert (first.line, first.resource) == ("waiting for slices", "")
    assert isclose(first.times, 4)
    assert first.share > 0.999
    text = study_screens.gap_explanation(report.explanations)
    assert "Adding 4 times waiting for slices to the forecast would explain 100.0 %" in text


def waited_s(plan: Plan) -> float:
    """What pods are expected to wait for each other."""
    lines = plan.forecast.expected_time
    return sum(line.value for line in lines if line.name == "waiting for slices")


def test_without_an_expected_step_a_line_of_the_roofline_explains() -> None:
    plans = [make_plan(tiny_spec(pods)) for pods in (1, 2, 4)]
    bare = [replace(plan, forecast=replace(plan.forecast, expected_time=())) for plan in plans]
    across = [sum(x.value for x in plan.forecast.time if x.resource == "pods") for plan in bare]
    explanations = _explain_gaps([(one, 4 * s) for one, s in zip(bare, across, strict=True)])
    assert (explanations[0].line, explanations[0].resource) == ("pods", "pods")
    assert isclose(explanations[0].times, 4)
    assert "4 times pods (dcn pods)" in study_screens.gap_explanation(explanations)


def test_no_line_explains_where_none_fits() -> None:
    plans = [make_plan(tiny_spec(pods)) for pods in (1, 2, 4)]
    assert _explain_gaps([(plans[0], 1.0)]) == ()
    assert _explain_gaps([(plan, -1.0) for plan in plans]) == ()
    assert "No ledger line" in study_screens.gap_explanation(())


def test_rehearsed_trials_are_not_compared_with_chips(tmp_path: Path) -> None:
    full = make_plan(tiny_spec(4))
    report = scaling_report(tmp_path, lambda *_: 0.5, rehearsal=True, rehearses=full)
    assert report.rehearsal
    assert report.explanations == ()
    assert all(trial.not_compared and trial.expected_s is None for trial in report.trials)
    text = study_screens.study_report_screen(report, "next")
    assert "emulated pods share this machine's cores" in text
    rows = [line for line in text.splitlines() if " 2 / 2 " in line]
    assert [row.split()[-2:] for row in rows] == [["-", "-"]] * 3


def test_screens_of_a_measured_study_fit_a_terminal(orch: RunOrch, tmp_path: Path) -> None:
    scaling_report(tmp_path, lambda plan, repeat: BASE_S * repeat * plan.pods**0.3)
    [found] = journal.list_studies(tmp_path)
    for name in ("status", "report"):
        shown = orch(name, found.key, "--storage", str(tmp_path))
        assert shown.returncode == 0, shown.stderr
        assert too_wide(shown.stdout) == []


def test_unfinished_runs_are_listed(tmp_path: Path) -> None:
    study = study_of(1, 2, 4)
    recorded = journal.open_study(tmp_path, StudyRequest(study=study, steps=6), {})
    started = journal.start_trial(recorded, 2, 1)
    taken = [taken.step for taken in timed(0.0, range(6), 0.5)]
    finished_run(tmp_path, started.run, plan=make_plan(tiny_spec(2)), steps=taken)
    failed = journal.start_trial(recorded, 3, 1)
    writer = journal.claim_run(
        journal.create_run(tmp_path, replace_plan(tiny_spec(4)), failed.run).journal
    )
    writer.end_run("failed", reason("it was made to"))
    report = _make_scaling_report(recorded.key, study, read_trial_runs(recorded))
    assert [trial.done for trial in report.trials] == [0, 1, 0]
    assert report.trials[1].measured
    assert report.trials[1].measured.efficiency.median == 1.0
    assert report.trials[2].unfinished == {failed.run: "failed"}
    text = study_screens.study_report_screen(report, "next")
    assert f"warning: {failed.run} is failed" in text
    assert "one trial is measured; efficiency needs another" in text
    empty = _make_scaling_report("x", study, [])
    assert "nothing is measured yet" in study_screens.study_report_screen(empty, "next")
    read(_scaling_page(empty, {}))


def replace_plan(spec: object) -> journal.RunRequest:
    """What a run of the spec starts from."""
    return journal.RunRequest(spec=spec, plan=make_plan(spec), steps=6)  # type: ignore[arg-type]


# --- the page


def test_a_study_has_a_page(orch: RunOrch, tmp_path: Path) -> None:
    recorded = finished_study(tmp_path, study_of(1, 2, 4), lambda *_: 0.5, steps=4)
    done = orch("report", recorded.key, "--storage", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:-1] == ["", f"wrote {recorded.path / 'report.html'}"]
    text = (recorded.path / "report.html").read_text(encoding="utf-8")
    page = read(text)
    assert page.asked == []
    assert 'class="curve ideal"' in text
    assert text.count('class="dot measured"') == 2 * 3
    shown = "".join(page.text)
    assert "Scaling efficiency is 25.0 % on 16 chips" in shown
    assert "Efficiency is tokens per second and chip over" in shown  # as the column is called there
    result = json.loads(orch("report", recorded.key, "--storage", str(tmp_path), "--json").stdout)
    assert [trial["chips"] for trial in result["trials"]] == [4, 8, 16]


# --- running the trials

STUDY = """\
name: two
study:
  base: ../base.yaml
  scaling: weak
  vary: {resources.pods: [1, 2]}
  after_failure: AFTER
"""
BASE = """\
name: tiny
experiment: {model: llama-tiny, tokens: 1M, batch: {sequences: 16, length: 128}}
resources: {chip: v5e, topology: 2x2}
run: {storage: STORAGE}
"""


class Rehearsals:
    """Stands for the clusters of rehearsals: each run ends as the test says, with a journal."""

    def __init__(self, *states: EndState) -> None:
        self.states, self.runs = list(states), []  # type: ignore[var-annotated]

    def drive(self, recorded: Journal, plan: Plan, *_: object) -> None:
        """Stand for the driver of a run that ends so."""
        assert (recorded.paths.documents / "spec.yaml").read_bytes().startswith(b"name: tiny\n")
        submission = recorded.state().submitted.submission
        assert Path(submission.folder, "base.yaml").exists()  # where its relative paths begin
        self.runs.append(recorded.key)
        state = self.states.pop(0)
        if state == "succeeded":
            taken = [taken_step.step for taken_step in timed(0.0, range(submission.steps), 0.5)]
            finish(recorded, plan, taken, Clock(time.time()))
        else:
            journal.claim_run(recorded).end_run(state)


@pytest.fixture
def submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, list[str]]]:
    """Submit the study of two trials, whose runs end in these states: exit code, output, runs."""

    def submit(
        *states: EndState, after: str = "stop", more: tuple[str, ...] = ()
    ) -> tuple[int, str, list[str]]:
        (tmp_path / "base.yaml").write_text(BASE.replace("STORAGE", str(tmp_path / "runs")))
        (tmp_path / "studies").mkdir(exist_ok=True)
        (tmp_path / "studies" / "study.yaml").write_text(STUDY.replace("AFTER", after))
        stand_in = Rehearsals(*states)
        monkeypatch.setattr(submit_module, "drive", stand_in.drive)
        monkeypatch.setattr(tracking, "begin", lambda *_: None)
        monkeypatch.setattr(
            submit_module, "tracked_at_end", lambda _: Tracked(tracker="mlflow", place="nowhere")
        )
        asked = ["submit", str(tmp_path / "studies" / "study.yaml"), "--no-prove", "--no-calibrate"]
        done = CliRunner().invoke(command, [*asked, "--steps", "4", *more])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output, [key.rpartition("-trial-")[2] for key in stand_in.runs]

    return submit


def test_trials_run_one_after_another(submitted: Callable[..., tuple[int, str, list[str]]]) -> None:
    code, text, runs = submitted("succeeded", "succeeded")
    assert (code, runs) == (0, ["1.1", "2.1"])
    assert "two: a rehearsal of 2 runs" in text
    assert "trial 2 of 2: resources.pods=2 experiment.batch.sequences=32" in text
    assert "Study: scaling efficiency is 100.0 % on 8 emulated chips." in text
    assert "Next: orch report two-study-" in text


def test_a_successful_trial_is_not_run_again(
    submitted: Callable[..., tuple[int, str, list[str]]],
) -> None:
    code, text, runs = submitted("succeeded", "failed")
    assert "trial-2.1 is failed" in text
    assert (code, runs) == (1, ["1.1", "2.1"])
    assert f"Next: {as_typed()}\n" in text
    code, text, runs = submitted("succeeded")
    assert (code, runs) == (0, ["2.1.2"])
    assert "is failed" not in text
    assert "trial-1.1\n" in text.split("done before: ")[1]
    assert submitted()[2] == []


def test_a_study_may_continue_after_a_failure(
    submitted: Callable[..., tuple[int, str, list[str]]],
) -> None:
    code, text, runs = submitted("failed", "succeeded", after="go on")
    assert (code, runs) == (1, ["1.1", "2.1"])
    assert "trial-1.1 is failed" in text


def test_an_interrupted_trial_ends_the_study(
    submitted: Callable[..., tuple[int, str, list[str]]],
) -> None:
    code, _, runs = submitted("cancelled", after="go on")
    assert (code, runs) == (130, ["1.1"])


def test_dry_run_starts_nothing(
    submitted: Callable[..., tuple[int, str, list[str]]], tmp_path: Path
) -> None:
    code, text, runs = submitted(more=("--dry-run",))
    assert (code, runs) == (0, [])
    assert "EFFICIENCY" in text
    assert "Nothing was submitted: --dry-run." in text
    assert not (tmp_path / "runs").exists()


def test_detach_is_refused(
    submitted: Callable[..., tuple[int, str, list[str]]],
) -> None:
    with pytest.raises(SpecError, match="--detach is for one run"):
        submitted(more=("--detach",))


def test_mlflow_has_three_lines_over_pods(tmp_path: Path) -> None:
    """Measured, expected and roofline at each number of pods; of a rehearsal the measured alone."""
    report = scaling_report(tmp_path, lambda *_: 0.5)
    points = {(point.name, point.step): point.value for point in of_study(report, 9.0)}
    trials = [trial for trial in report.trials if trial.measured and trial.predicted]
    for trial, pods in zip(trials, (1, 2, 4), strict=True):
        assert trial.measured
        assert trial.predicted
        assert trial.measured.mfu
        assert points["scaling/measured", pods] == trial.measured.mfu.median
        assert points["scaling/expected", pods] == trial.predicted.mfu.expected
        assert points["scaling/roofline", pods] == trial.predicted.mfu.lower
        rate = trial.measured.tokens_per_s_per_chip.median
        assert points["speed/measured", pods] == rate * trial.chips
    alone = replace(report, trials=tuple(replace(t, not_compared="cpu_rehearsal") for t in trials))
    names = {point.name for point in of_study(alone, 9.0)}
    assert names == {"scaling/measured", "speed/measured"}


def test_mlflow_gets_a_trial_with_its_last_repeat(tmp_path: Path) -> None:
    """It would draw the medians of before and after as two points at one number of pods."""
    report = scaling_report(tmp_path, lambda *_: 0.5)
    first, *others = report.trials
    for unfinished, steps in (
        ({}, {2, 4}),
        ({"1.2": "running"}, {2, 4}),
        ({"1.2": "failed"}, {1, 2, 4}),
    ):
        begun = replace(first, done=report.repeats - 1, unfinished=unfinished)
        points = of_study(replace(report, trials=(begun, *others)), 9.0)
        assert {point.step for point in points} == steps
