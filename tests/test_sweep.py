"""A sweep: its file, its cost, and the losses of its trials."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator import journal
from orchestrator.errors import LossNotFinite
from orchestrator.evidence.studies import (
    _loss_figures,
    _Losses,
    _make_sweep_report,
    _trial_losses,
    forecast_of,
    read_trial_runs,
    report_of_study,
)
from orchestrator.journal.listing import StudyJournal, StudyRequest, is_settled
from orchestrator.planning.planner import make_plan
from orchestrator.reading.load_study import load_study
from orchestrator.reading.problems import SpecProblems
from orchestrator.show.study_screens import _ranked, forecast_screen, study_report_screen
from orchestrator.tracking.mlflow.metrics import of_study
from orchestrator.values.run import Attempt
from orchestrator.values.study import Study, SweepForecast, SweepReport, Trial
from tests.conftest import ROOT, RunOrch
from tests.journals import tiny_spec
from tests.reports import finished_run, finished_study, timed
from tests.test_study import loaded

LR = "experiment.optimizer.peak_lr"
TINY = "specs/studies/tiny_sweep.yaml"
RATES = ("1e-3", "3e-3", "1e-2", "3e-2", "1e-4")


# --- the file


@pytest.mark.parametrize(
    ("keys", "kind", "scaling"),
    [
        ("vary: {experiment.optimizer.peak_lr: [1e-3, 3e-3]}", "sweep", None),
        ("vary: {resources.pods: [1, 2]}", "scaling", "strong"),
        ("vary: {resources.topology: [4x4x4, 4x4x8], experiment.seed: [1]}", "scaling", "strong"),
        ("kind: sweep, vary: {resources.pods: [1, 2]}", "sweep", None),
        ("scaling: weak, vary: {resources.pods: [1, 2]}", "scaling", "weak"),
    ],
)
def test_the_keys_that_vary_say_what_a_study_compares(
    keys: str, kind: str, scaling: str | None, tmp_path: Path
) -> None:
    study = loaded(tmp_path, f"study: {{base: base.yaml, {keys}}}\n")
    assert (study.kind, study.scaling) == (kind, scaling)
    assert study.name == f"small-{scaling or kind}"


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ("vary: {experiment.seed: {uniform: [1, 9]}}", "vary-values",
         "study.vary.experiment.seed"),
        ("draws: 3, vary: {experiment.seed: [1]}", "removed-key", "study.draws"),
        ("seed: 3, vary: {experiment.seed: [1]}", "removed-key", "study.seed"),
        ("stop: {every: 5}, vary: {experiment.seed: [1]}", "removed-key", "study.stop"),
        ("kind: sweep, scaling: weak, vary: {resources.pods: [1, 2]}", "of-scaling",
         "study.scaling"),
        ("scaling: strong, vary: {experiment.seed: [1, 2]}", "scaling-without-size",
         "study.scaling"),
    ],
)  # fmt: skip
def test_a_bad_sweep_is_refused_at_its_key(keys: str, code: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(SpecProblems) as caught:
        loaded(tmp_path, f"study: {{base: base.yaml, {keys}}}\n")
    assert (code, key) in [(problem.code, problem.key) for problem in caught.value.problems]


# --- what it costs


def sweep_of(*rates: str, steps: int = 40) -> Study:
    """A sweep of the tiny spec over learning rates."""
    tiny = tiny_spec()
    tiny = replace(tiny, run=replace(tiny.run, steps=steps))
    trials = tuple(
        Trial(number=number, settings={LR: rate}, spec=with_rate(tiny, float(rate)))
        for number, rate in enumerate(rates, start=1)
    )
    return Study(
        name="rates", scaling=None, vary=(LR,), repeats=1, after_failure="stop", trials=trials,
    )  # fmt: skip


def with_rate(spec, rate: float):  # type: ignore[no-untyped-def]
    optimizer = replace(spec.experiment.optimizer, peak_lr=rate)
    return replace(spec, experiment=replace(spec.experiment, optimizer=optimizer))


def test_a_sweep_costs_the_sum_of_its_trials() -> None:
    study = replace(sweep_of("1e-3", "3e-3", steps=100), repeats=2)
    plans = {trial.number: make_plan(trial.spec) for trial in study.trials}
    forecast = forecast_of(study, plans)
    assert isinstance(forecast, SweepForecast)
    plan = plans[1]
    share = 100 / plan.total_steps
    for name in ("lower", "unoverlapped", "expected"):
        each = getattr(plan.forecast.days, name)
        assert getattr(forecast.days, name) == pytest.approx(4 * share * each)
        dollars = getattr(plan.forecast.dollars, name)
        assert getattr(forecast.dollars, name) == pytest.approx(4 * share * dollars)
    assert [trial.planned.steps for trial in forecast.trials if trial.planned] == [100, 100]


def test_a_trial_without_a_plan_costs_nothing() -> None:
    study = sweep_of("1e-3", "3e-3")
    forecast = forecast_of(study, {1: make_plan(study.trials[0].spec), 2: "no room"})
    assert isinstance(forecast, SweepForecast)
    assert forecast.trials[0].planned
    assert forecast.days == forecast.trials[0].planned.days
    nothing = forecast_of(study, {1: "no room", 2: "no room"})
    assert isinstance(nothing, SweepForecast)
    assert (nothing.days, nothing.dollars) == (None, None)
    assert "2 of 2 trials have no plan" in forecast_screen(nothing)


def test_orch_plan_shows_what_a_sweep_costs(orch: RunOrch) -> None:
    found = json.loads(orch("plan", TINY, "--json").stdout)
    assert (found["kind"], len(found["trials"])) == ("sweep", 5)
    each = [trial["planned"]["dollars"]["expected"] for trial in found["trials"]]
    assert found["dollars"]["expected"] == pytest.approx(sum(each))
    text = orch("plan", TINY).stdout
    assert "scaling" not in text
    assert "efficiency" not in text.lower()


# --- its losses


def losses(*values: float) -> _Losses:
    return np.arange(len(values)), np.array(values, float)


def flat(level: float, steps: int = 40) -> list[float]:
    """A trial that begins at 10 and is at one level from then on."""
    return [10.0, *[level] * (steps - 1)]


def test_the_loss_of_a_trial_is_the_mean_of_its_last_tenth() -> None:
    found = losses(*range(40))
    last, curve = _loss_figures(found, 40)
    assert last == np.mean([36, 37, 38, 39])
    assert curve[-1] == (40, 39.0)
    assert _loss_figures(losses(*range(10)), 40)[0] == np.mean([6, 7, 8, 9])
    assert len(_loss_figures(losses(*range(1000)), 1000)[1]) == 100
    assert _loss_figures(losses(), 40) == (None, ())


# --- in the journal


def swept(storage: Path, study: Study, levels: Sequence[Sequence[float]]) -> StudyJournal:
    """A sweep whose trials ran to their ends with these losses."""
    recorded = journal.open_study(storage, StudyRequest(study=study, steps=40), {})
    for trial, values in zip(study.trials, levels, strict=False):
        started = journal.start_trial(recorded, trial.number, 1)
        taken = [taken_step.step for taken_step in timed(0.0, range(len(values)), 0.5)]
        steps = [replace(one, loss=loss) for one, loss in zip(taken, values, strict=True)]
        finished_run(
            storage, started.run, plan=make_plan(trial.spec), steps=steps, spec=trial.spec,
            study=recorded.key,
        )  # fmt: skip
    return recorded


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> StudyJournal:
    study = sweep_of(*RATES)
    levels = [flat(level) for level in (5.0, 4.0, 6.0, 8.0, 3.0)]
    return swept(tmp_path_factory.mktemp("sweep"), study, levels)


def test_the_best_trial_is_the_lowest_loss_of_those_that_ended(done: StudyJournal) -> None:
    report = report_of_study(done)
    assert isinstance(report, SweepReport)
    assert report.best == 5
    by_number = {trial.number: trial for trial in report.trials}
    assert (done.status().done, done.status().kind) == (5, "sweep")
    assert (by_number[4].steps_done, by_number[5].steps_done) == (40, 40)
    assert [by_number[n].loss for n in (1, 2, 3, 4, 5)] == [5.0, 4.0, 6.0, 8.0, 3.0]
    text = study_report_screen(report, "")
    assert f"best is trial 5 with {LR.rpartition('.')[2]} 1e-4" in " ".join(text.split())
    assert "scaling" not in text
    assert "efficiency" not in text.lower()


def test_a_sweep_whose_plans_are_damaged_has_a_page(tmp_path: Path, orch: RunOrch) -> None:
    """Its trials count as if they had not begun."""
    damaged = swept(tmp_path, sweep_of("1e-3"), [flat(5.0)])
    for plan in tmp_path.glob("*/plans/*.json"):
        plan.write_text("{}")
    done = orch("report", damaged.key, "--storage", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (damaged.path / "report.html").exists()


def test_a_trial_that_did_not_do_all_its_steps_is_never_the_best(done: StudyJournal) -> None:
    """Not even where its last loss is the lowest."""
    known = {**_trial_losses(done), 1: losses(*flat(1, 20))}
    study, runs = done.submission().study, read_trial_runs(done)
    report = _make_sweep_report(done.key, study, runs, known)
    assert (report.best, report.trials[0].loss) == (5, 1.0)
    assert [trial.steps_done for trial in report.trials] == [20, 40, 40, 40, 40]
    assert [trial.number for trial in _ranked(report)] == [5, 2, 3, 4, 1]


def test_a_loss_that_is_not_finite_ends_a_trial_of_a_sweep(done: StudyJournal) -> None:
    """It would be so again. Any other error fails the study."""
    study, run = done.submission().study, done.status().runs[0]
    error = f"{LossNotFinite.__name__}: step 7: loss is nan"
    attempt = Attempt(
        number=1, plan_digest="", pods=1, slices=(), started_at_s=0.0, error=error, steps_done=6
    )
    failed = replace(run, state="failed", attempts=(attempt,), steps_done=6)
    assert is_settled(study, run)
    assert is_settled(study, failed)
    assert not is_settled(study, replace(failed, state="running"))
    other = replace(failed, attempts=(replace(attempt, error="OSError: gone"),))
    assert not is_settled(study, other)
    assert not is_settled(replace(study, scaling="strong"), failed)


def test_the_page_and_json_of_a_sweep(orch: RunOrch, done: StudyJournal, tmp_path: Path) -> None:
    at = ("--storage", str(done.storage))
    found = json.loads(orch("report", done.key, *at, "--json").stdout)
    assert (found["kind"], found["best"]) == ("sweep", 5)
    page = tmp_path / "page.html"
    assert orch("report", done.key, *at, "-o", str(page)).returncode == 0
    text = page.read_text()
    assert "peak_lr 1e-\N{WORD JOINER}4" in text
    assert text.count("<polyline") == 5
    assert text.count('class="swatch" aria-hidden="true"><circle') == 2  # best, others
    assert "scaling" not in text.partition("<body>")[2].lower()
    shown = orch("status", done.key, *at).stdout
    assert "sweep" in shown.splitlines()[0]
    assert "scaling" not in shown


def test_mlflow_has_the_loss_of_each_trial(done: StudyJournal) -> None:
    points = of_study(report_of_study(done), 9.0)
    assert {(point.name, point.step, point.value) for point in points} == {
        ("sweep/loss", 1, 5.0), ("sweep/loss", 2, 4.0), ("sweep/loss", 3, 6.0),
        ("sweep/loss", 4, 8.0), ("sweep/loss", 5, 3.0),
    }  # fmt: skip


def test_orch_compare_takes_a_sweep(orch: RunOrch, done: StudyJournal) -> None:
    at = ("--storage", str(done.storage))
    found = json.loads(orch("compare", done.key, *at, "--json").stdout)
    assert [trial["last_loss"] for trial in found] == [5.0, 4.0, 6.0, 8.0, 3.0]
    assert [trial["settings"] for trial in found] == [{LR: rate} for rate in RATES]
    text = orch("compare", done.key, *at).stdout
    best = "trial-5.1 (peak_lr 1e-4) ends with the lowest loss, 3.000"
    assert best in " ".join(text.split())
    head, first = (line.split() for line in text.splitlines()[7:9])
    assert (head[1:3], first[1:3]) == (["PEAK_LR", "LOSS"], [RATES[0], "5.000"])


def test_losses_of_different_models_are_not_compared(orch: RunOrch, tmp_path: Path) -> None:
    """Settings are columns, and the verdict says why no loss is one."""
    study = sweep_of("1", "2")
    trials = []
    for trial in study.trials:
        experiment = trial.spec.experiment
        model = replace(experiment.model, layers=2 * trial.number, name=f"m{trial.number}")
        spec = replace(trial.spec, experiment=replace(experiment, model=model))
        trials.append(replace(trial, spec=spec))
    done = finished_study(tmp_path, replace(study, trials=tuple(trials)), lambda *_: 0.5)
    text = orch("compare", done.key, "--storage", str(tmp_path)).stdout
    assert "Losses of different models (m1, m2) are not compared." in " ".join(text.split())
    assert "lowest loss" not in text
    assert " LOSS " not in text.partition("where the time went")[0]
    assert " PEAK_LR " in text


def test_a_planned_sweep_is_drawn(orch: RunOrch, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = orch("plan", TINY, "--html", str(page))
    assert f"wrote {page}" in done.stdout
    assert page.read_text().count('<svg class="bar"') == 5


def test_the_shipped_sweep_is_one() -> None:
    study = load_study(ROOT / TINY)
    assert (study.kind, len(study.trials)) == ("sweep", 5)
