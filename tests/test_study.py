"""A study: its file, its trials, and their predicted scaling."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from orchestrator import reading
from orchestrator.evidence.studies import _forecast_scaling, _series_of
from orchestrator.planning.planner import make_plan
from orchestrator.reading.load_study import load_study
from orchestrator.reading.problems import SpecProblems
from orchestrator.reading.schema import study_schema
from orchestrator.show import study_screens as render
from orchestrator.show.pages import write_forecast
from orchestrator.values.study import Study, Trial
from tests.conftest import ROOT, HoldGolden, RunOrch
from tests.journals import tiny_spec
from tests.spec_texts import MINIMAL

STUDIES = sorted((ROOT / "specs/studies").glob("*.yaml"))
MODELINE = "# yaml-language-server: $schema="
PODS = "experiment.batch.sequences"


def loaded(folder: Path, text: str, *overrides: str, base: str = MINIMAL) -> Study:
    """The study of a text whose base lies beside it as base.yaml."""
    (folder / "base.yaml").write_text(base, encoding="utf-8")
    (folder / "study.yaml").write_text(text, encoding="utf-8")
    return load_study(folder / "study.yaml", overrides)


def refused(folder: Path, text: str) -> str:
    """What is wrong with it, without the folder."""
    with pytest.raises(SpecProblems) as caught:
        loaded(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


# --- the file


def test_every_combination_is_a_trial(tmp_path: Path) -> None:
    """In the order of the file, the last key varying fastest."""
    text = (
        "name: grid\n"
        "study:\n  base: base.yaml\n"
        "  vary: {resources.pods: [1, 2], experiment.remat: [full, none]}\n"
        "  repeats: 3\n  after_failure: go on\n"
    )
    study = loaded(tmp_path, text, "experiment.seed=7")
    assert (study.name, study.scaling, study.repeats, study.after_failure) == (
        "grid", "strong", 3, "go on",
    )  # fmt: skip
    points = [(t.spec.resources.pods.max, t.spec.experiment.remat) for t in study.trials]
    assert points == [(1, "full"), (1, "none"), (2, "full"), (2, "none")]
    assert study.trials[3].settings == {"resources.pods": "2", "experiment.remat": "none"}
    assert [trial.number for trial in study.trials] == [1, 2, 3, 4]
    overrides = ("experiment.seed=7", "resources.pods=2", "experiment.remat=none")
    assert study.trials[3].spec == reading.load(tmp_path / "base.yaml", overrides)


def test_keys_have_defaults(tmp_path: Path) -> None:
    study = loaded(tmp_path, "study: {base: base.yaml, vary: {resources.pods: [1]}}\n")
    assert (study.scaling, study.repeats, study.after_failure) == ("strong", 1, "stop")
    assert study.name == "small-strong"


def test_a_mapping_may_vary(tmp_path: Path) -> None:
    text = "study: {base: base.yaml, vary: {resources.mesh: [auto, {tensor: 4}]}}\n"
    study = loaded(tmp_path, text)
    assert [trial.spec.resources.mesh.tensor for trial in study.trials] == [None, 4]
    assert study.trials[1].settings == {"resources.mesh": "{tensor: 4}"}


def test_in_weak_scaling_the_batch_grows_with_the_pods(tmp_path: Path) -> None:
    base = MINIMAL.replace("topology: 4x4x4", "topology: 4x4x4, pods: 4")
    text = "study: {base: base.yaml, scaling: weak, vary: {resources.pods: [1, 2, 8]}}\n"
    study = loaded(tmp_path, text, base=base)
    assert [t.spec.experiment.batch.sequences for t in study.trials] == [128, 256, 1_024]
    assert study.trials[0].settings[PODS] == "128"
    assert {str(_series_of(study, trial)) for trial in study.trials} == {"{}"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("form", "study: {base: b.yaml, scaling: week, repeats: 0, vary: {resources.pods: 2}}\n"),
        ("keys", "study: {vary: {resources.pod: [1], name: [a]}, bas: base.yaml}\nexperiment: 2\n"),
        ("values", ("study:\n  base: base.yaml\n  vary:\n    resources.pods: [1, x]\n"
                   "    resources.pod: [2]\n    resources.mesh: [{tensr: 2}]\n")),
        ("twice", "study: {base: base.yaml, vary: {resources.pods: [1, 2, 1]}}\n"),
        ("no_base", "study: {base: bass.yaml, vary: {resources.pods: [1]}}\n"),
        ("no_vary", "study: {base: base.yaml}\n"),
        ("empty_vary", "study: {base: base.yaml, vary: {}}\n"),
        ("weak_alone", "study: {base: base.yaml, scaling: weak, vary: {experiment.seed: [1]}}\n"),
        ("weak_batch", ("study: {base: base.yaml, scaling: weak, vary: {resources.pods: [1, 2],"
                       " experiment.batch.sequences: [8]}}\n")),
        ("weak_pods", "study: {base: base.yaml, scaling: weak, vary: {resources.pods: [1, x]}}\n"),
        ("all_at_once", ("study:\n  base: base.yaml\n  scaling: weak\n  repeat: 2\n  vary:\n"
                        "    resources.podz: [1, 2]\n    experiment.batch.length: [4096, 8k]\n")),
        ("weak_values", ("study:\n  base: base.yaml\n  scaling: weak\n  vary:\n"
                        "    resources.pods: [1, {min: 1, max: 2}]\n"
                        "    experiment.batch.length: [4096, 8k]\n    experiment.seed: [-1]\n")),
        ("weak_and_values", ("study:\n  base: base.yaml\n  scaling: weak\n  vary:\n"
                            "    experiment.batch.sequences: [8, x]\n")),
        ("too_many", "study: {base: base.yaml, vary: {experiment.seed: ["
                     + ", ".join(map(str, range(40)))
                     + "], resources.pods: [" + ", ".join(map(str, range(1, 41))) + "]}}\n"),
    ],
)  # fmt: skip
def test_a_bad_study_is_reported_at_its_place(
    name: str, text: str, tmp_path: Path, golden: HoldGolden
) -> None:
    golden(f"study_{name}.txt", refused(tmp_path, text) + "\n")


def test_a_batch_that_no_pod_divides_is_an_error(tmp_path: Path) -> None:
    base = MINIMAL.replace("topology: 4x4x4", "topology: 4x4x4, pods: 3")
    text = "study: {base: base.yaml, scaling: weak, vary: {resources.pods: [3, 4]}}\n"
    with pytest.raises(SpecProblems, match=r"study.yaml:1:68: .*512 sequences on 3 pods are"):
        loaded(tmp_path, text, base=base)


@pytest.mark.parametrize("key", ["resources.pods", "resources.pods.max"])
def test_a_key_that_varies_cannot_be_set(key: str, tmp_path: Path) -> None:
    text = "study: {base: base.yaml, vary: {resources.pods: [1, 2]}}\n"
    base = MINIMAL.replace("topology: 4x4x4", "topology: 4x4x4, pods: {min: 1, max: 4}")
    with pytest.raises(SpecProblems) as caught:
        loaded(tmp_path, text, f"{key}=2", base=base)
    [problem] = caught.value.problems
    assert (problem.file, problem.key) == ("--set", key)
    assert problem.message == "is varied, must be left to the study"
    assert loaded(tmp_path, text, "resources.mesh.tensor=2").trials


def test_a_fault_of_a_varied_value_is_reported_once(tmp_path: Path) -> None:
    base = MINIMAL.replace("15T", "soon")
    with pytest.raises(SpecProblems) as caught:
        loaded(tmp_path, "study: {base: base.yaml, vary: {resources.pods: [1, 2]}}\n", base=base)
    assert [(Path(problem.file).name, problem.key) for problem in caught.value.problems] == [
        ("base.yaml", "experiment.tokens")
    ]


def test_a_study_given_for_a_spec_is_one_problem(orch: RunOrch) -> None:
    done = orch("explain", "specs/studies/tiny_weak.yaml")
    assert done.returncode == 2
    assert "specs/studies/tiny_weak.yaml:11:1: study: makes it a study" in done.stderr
    assert "hint: orch plan, orch submit" in done.stderr
    assert "is missing" not in done.stderr


def test_the_json_schema_of_studies_is_valid(orch: RunOrch) -> None:
    Draft202012Validator.check_schema(study_schema())
    assert json.loads(orch("schema", "--study").stdout) == study_schema()
    assert all(reading.is_study(path) for path in STUDIES)
    assert not reading.is_study(ROOT / "specs/tiny_2pod.yaml")
    assert not reading.is_study(ROOT / "specs/no-such.yaml")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_shipped_study_begins_with_a_comment(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    opening = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    assert (path.parent / opening[0].removeprefix(MODELINE)).is_file()
    text = "\n".join(opening[1:])
    assert re.search(rf"\borch plan {re.escape(str(path.relative_to(ROOT)))}", text)
    assert re.search(r"(?i)\bexpect", text)
    assert load_study(path).trials


# --- predicted scaling


def study_of(*pods: int, **changes: object) -> Study:
    """A study of the tiny spec over pods."""
    trials = tuple(
        Trial(number=n, settings={"resources.pods": str(p)}, spec=tiny_spec(p))
        for n, p in enumerate(pods, start=1)
    )
    fields = {"name": "pods", "scaling": "strong", "vary": ("resources.pods",), "repeats": 1}
    fields |= {"after_failure": "stop", "trials": trials}
    return Study(**fields | changes)  # type: ignore[arg-type]


def test_efficiency_is_relative_to_the_smallest_trial() -> None:
    study = study_of(4, 1, 2)
    plans = {trial.number: make_plan(trial.spec) for trial in study.trials}
    trials = [trial.planned for trial in _forecast_scaling(study, plans).trials]
    assert trials[1]
    assert (trials[1].efficiency.lower, trials[1].efficiency.unoverlapped) == (1.0, 1.0)
    for one, plan in zip(trials, plans.values(), strict=True):
        assert one
        for at in ("lower", "unoverlapped"):
            rate = getattr(plan.forecast.tokens_per_s, at) / plan.chips
            least = getattr(plans[2].forecast.tokens_per_s, at) / plans[2].chips
            assert getattr(one.efficiency, at) == rate / least


def test_predicted_scaling_is_drawn(tmp_path: Path) -> None:
    """Every trial with a plan is a dot in both plots; a study without one has only the table."""
    study = study_of(1, 2, 4)
    plans = {trial.number: make_plan(trial.spec) for trial in study.trials}
    page = write_forecast(_forecast_scaling(study, plans), tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert text.count("<circle") == 2 * 3
    assert text.count("<polygon") == 1  # the interval of the speed
    assert "<title>expected: 8, " in text
    refused = write_forecast(_forecast_scaling(study, dict.fromkeys(plans, "no")), page)
    text = refused.read_text(encoding="utf-8")
    assert "<circle" not in text
    assert "no plan for trial 1, 2, 3: no" in text


def test_other_keys_make_another_series() -> None:
    seeds = [replace(tiny_spec(p), name=f"s{p}") for p in (1, 2, 1, 2)]
    trials = tuple(
        Trial(
            number=n,
            settings={"resources.pods": str(one.resources.pods.max), "experiment.remat": remat},
            spec=one,
        )
        for n, (one, remat) in enumerate(
            zip(seeds, ("full", "full", "none", "none"), strict=True), 1
        )
    )
    study = study_of(trials=trials, vary=("resources.pods", "experiment.remat"))
    plans = {trial.number: make_plan(trial.spec) for trial in trials}
    forecast = _forecast_scaling(study, plans).trials
    assert [point.series["experiment.remat"] for point in forecast] == [
        "full",
        "full",
        "none",
        "none",
    ]
    assert [point.planned.efficiency.lower == 1.0 for point in forecast if point.planned] == [
        True, False, True, False,
    ]  # fmt: skip
    last = " ".join(
        render.forecast_screen(_forecast_scaling(study, plans)).rpartition("Study: ")[2].split()
    )
    assert last.startswith("scaling efficiency is between ")
    assert "on 8 chips (remat full)" in last
    assert "on 8 chips (remat none)" in last


def test_the_summary_names_the_best_and_the_worst_series() -> None:
    planned = [
        (chips, fraction, f"{fraction:.0%}", {"experiment.remat": remat})
        for chips, fraction, remat in [
            (8, 1, "a"), (64, 0.9, "a"), (8, 1, "b"), (32, 0.5, "b"), (8, 1, "c"), (16, 0.7, "c"),
        ]
    ]  # fmt: skip
    keys = ["resources.pods", "experiment.remat"]
    text = render._scaling_efficiency(planned, keys, "chips")
    ends = "between 50% on 32 chips (remat b) and 90% on 64 chips (remat a)"
    assert text == f"scaling efficiency is {ends}"
    alone = render._scaling_efficiency(planned[:2], keys, "chips")
    assert alone == "scaling efficiency is 90% on 64 chips"


def test_a_trial_without_a_plan_has_its_error() -> None:
    study = study_of(1, 2, 4)
    plans = {n: make_plan(study.trials[n - 1].spec) for n in (2, 3)} | {1: "no room\n  for it"}
    forecast = _forecast_scaling(study, plans)
    assert forecast.trials[0].infeasible == "no room\n  for it"
    assert forecast.trials[1].planned
    assert forecast.trials[1].planned.efficiency.lower == 1.0
    text = render.forecast_screen(forecast)
    assert "no plan" in text
    assert "warning: no plan for trial 1: no room\n  for it" in text
    assert text.splitlines()[2].strip().startswith("Study: 1 of 3 trials have no plan, scaling")


def test_the_predicted_scaling_is_one_table(golden: HoldGolden) -> None:
    study = load_study(ROOT / "specs/studies/llama3_70b_pods.yaml")
    plans = {trial.number: make_plan(trial.spec) for trial in study.trials}
    text = render.forecast_screen(_forecast_scaling(study, plans), "orch submit study.yaml")
    golden("study_70b_pods.txt", text)
    assert max(map(len, text.splitlines())) <= 80


def test_orch_plan_plans_a_study(orch: RunOrch) -> None:
    """An infeasible trial is shown, and the exit code is 2."""
    path = "specs/studies/tiny_weak.yaml"
    done = orch("plan", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"Next: orch submit {path}"
    output = json.loads(orch("plan", path, "--json").stdout)
    assert [trial["planned"]["pods"] for trial in output["trials"]] == [1, 2, 4]
    assert [trial["planned"]["sequences"] for trial in output["trials"]] == [16, 32, 64]
    bad = orch(
        "plan", path, "--set", "experiment.model.heads=7", "--set", "resources.mesh={tensor: 3}"
    )
    assert bad.returncode == 2
    assert orch("plan", path, "--alternatives", "2").returncode == 2
