"""What commands print with `--json` is what the published schemas say: each key, and no other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import orchestrator as api
from orchestrator.evidence.score.evaluate import goodput_scores, recovery_scores
from orchestrator.proving.compare import diff_proofs
from orchestrator.proving.verdict import prove, save_program
from orchestrator.run.exports import _OUTPUTS, _output_schema
from orchestrator.values import codec
from orchestrator.values.run import ExportedWeights, Finding, HealthReport, LogLine, SyncResult
from tests.conftest import ROOT, RunOrch
from tests.journals import step, tiny_plan
from tests.profiles import chip_profile
from tests.proofs import recorded
from tests.reports import finished_run, finished_study
from tests.test_study import study_of
from tests.test_sweep import sweep_of, swept

TINY = ROOT / "specs" / "tiny_2pod.yaml"


def faults(name: str, value: object) -> list[str]:
    """What the schema says against the JSON of a value."""
    printed = json.loads(codec.to_pretty_json(value))
    return [
        f"{'.'.join(map(str, error.path))}: {error.message}"
        for error in Draft202012Validator(_output_schema(name)).iter_errors(printed)
    ]


def keys_of(schema: object) -> set[str]:
    """The keywords of a schema, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(keys_of, schema))
    if not isinstance(schema, dict):
        return set()
    inner = [value for key, value in schema.items() if key not in ("properties", "$defs")]
    named = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    return {*schema}.union(*map(keys_of, [*inner, *named]))


@pytest.mark.parametrize("name", _OUTPUTS)
def test_a_schema_is_one_of_json_schema_and_says_all_keys(name: str) -> None:
    schema = json.loads(api.schema(name))
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:orch:output:{name}"
    sections = [schema, *schema["$defs"].values()]
    objects = [section for section in sections if "properties" in section]
    assert all(item["required"] == [*item["properties"]] for item in objects)
    assert not any(item["additionalProperties"] for item in objects)
    assert keys_of(schema).isdisjoint({"notation", "computed", "default", "examples"})


def test_help_and_docs_name_every_schema(orch: RunOrch) -> None:
    shown = re.sub(r"-\n +", "-", orch("schema", "--help").stdout)  # lines may end at a hyphen
    words = re.sub("[,.]", "", shown).split()
    page = (ROOT / "docs" / "ci.md").read_text()
    for name in _OUTPUTS:
        assert name in words
        assert f"| `orch schema {name}` |" in page


def test_a_schema_refuses_another_key_and_a_missing_one() -> None:
    printed = json.loads(codec.to_pretty_json(api.plan(TINY)))
    validator = Draft202012Validator(_output_schema("plan"))
    for changed in (printed | {"another": 1}, {k: v for k, v in printed.items() if k != "mesh"}):
        assert not validator.is_valid(changed)


@pytest.mark.parametrize("stem", ["tiny_2pod", "own_sources"])
def test_a_plan_is_as_its_schema_says(stem: str, orch: RunOrch) -> None:
    """Also what the spec leaves to defaults is printed."""
    done = orch("plan", f"specs/{stem}.yaml", "--json")
    printed = json.loads(done.stdout)
    assert not [*Draft202012Validator(_output_schema("plan")).iter_errors(printed)]
    assert printed["optimizer"]["beta2"] == 0.95


def test_plans_side_by_side_and_offers_are_as_their_schemas_say() -> None:
    other = api.load(TINY, ["resources.pods=4", "experiment.remat=none"])
    assert not faults("plan-diff", api.diff(TINY, other))
    assert not faults("offers", api.offers(TINY, by="30d", chips="v5e"))


def test_a_plan_has_the_odds_of_its_deadline(orch: RunOrch) -> None:
    done = orch("plan", "specs/tiny_2pod.yaml", "--set", "run.deadline=30d", "--json")
    printed = json.loads(done.stdout)
    assert not [*Draft202012Validator(_output_schema("plan")).iter_errors(printed)]
    assert printed["deadline"]["days"] == 30


def test_forecasts_of_studies_and_explanations_are_as_their_schemas_say() -> None:
    studies = ROOT / "specs" / "studies"
    assert not faults("scaling", api.study(studies / "tiny_weak.yaml"))
    assert not faults("sweep", api.study(studies / "tiny_sweep.yaml"))
    assert not faults("explanation", api.explain(TINY))


def test_studies_are_as_their_schemas_say(tmp_path: Path) -> None:
    scaled = finished_study(tmp_path, study_of(1, 2), lambda _, repeat: 0.5 * repeat)
    assert not faults("study-status", api.status(scaled.key, tmp_path))
    assert not faults("scaling-report", api.report(scaled.key, tmp_path))
    sweep = swept(tmp_path, sweep_of("1e-3", "3e-3"), [[2.0] * 40, [1.0] * 40])
    assert not faults("sweep-report", api.report(sweep.key, tmp_path))


def test_what_machines_and_trackers_say_is_as_the_schemas_say(tmp_path: Path) -> None:
    finished_run(tmp_path, "done", plan=tiny_plan(), steps=[step(0)])
    assert not faults("run-health", api.doctor_run("done", tmp_path))
    assert not faults("profile", chip_profile())
    finding = Finding(name="python", health="good", detail="3.13")
    assert not faults("health", HealthReport(findings=(finding,)))
    weights = ExportedWeights(
        folder="out", model="a", architecture="b", step=1, dtype="bf16", parameters=1, files=1
    )
    assert not faults("weights", weights)
    assert not faults("log-line", LogLine(attempt=1, rank=None, line="text"))
    assert not faults(
        "sync", SyncResult(run="a", destination=None, run_id=None, recorded=None, problem="b")
    )


def test_a_proof_is_as_its_schema_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for peak in (None, 1e12):
        asked, plan, entry = recorded(peak=peak)
        save_program(plan, entry)
        proof = prove(asked, plan).proof
        assert not faults("proof", proof)
        assert not faults("proof-diff", diff_proofs(proof, proof))


def test_runs_are_as_their_schemas_say(tmp_path: Path) -> None:
    finished_run(tmp_path, "done", plan=tiny_plan(), steps=[step(index) for index in range(8)])
    assert not [fault for run in api.runs(tmp_path) for fault in faults("run", run)]
    assert not faults("status", api.status("done", tmp_path))
    assert not faults("report", api.report("done", tmp_path))


def test_a_score_is_as_its_schema_says() -> None:
    """Also with the parts that the project's own runs alone have."""
    score = replace(api.score(ROOT / "tests" / "unseen_runs.csv"), goodput=goodput_scores())
    assert not faults("score", replace(score, recoveries=recovery_scores()))


def test_the_command_prints_a_schema(orch: RunOrch) -> None:
    assert json.loads(orch("schema", "plan").stdout) == _output_schema("plan")
    assert json.loads(orch("schema").stdout)["$id"].startswith("urn:orch:schema:spec")
    wrong = orch("schema", "plans")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "plan-diff" in wrong.stderr
