"""From a run to its serving: the plan of its model on its own chips, and the line of its report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import orchestrator as orch_api
from orchestrator import journal
from orchestrator.errors import SpecError
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.reading.load import load
from orchestrator.serving.planner import NotServed, make_serving_plan, serving_of
from orchestrator.show.pages import page_of, write_report
from orchestrator.values.plan import Plan
from orchestrator.values.serving import LengthShare
from tests.conftest import ROOT, RunOrch
from tests.journals import run_request, tiny_plan
from tests.reports import finished_run, timed
from tests.test_serving import tpot

PLAN = tiny_plan()


def run_of(storage: Path, plan: Plan, **changes: object) -> None:
    """A run of that plan that succeeded, under the key `it`."""
    finished_run(
        storage, "it", plan=plan, steps=[x.step for x in timed(0, range(3), 0.5)], **changes
    )


def test_a_run_is_served_as_its_written_spec_is(orch: RunOrch, tmp_path: Path) -> None:
    """The defaults are those that the documents state."""
    plan = make_plan(load(ROOT / "specs" / "llama3_8b_1slice.yaml"))
    run_of(tmp_path / "runs", plan)
    written = tmp_path / "serve.yaml"
    written.write_text(
        "name: llama3-8b-1slice\nserve: {model: llama3-8b, prompt: 1024, output: 256}\n"
        "resources: {chip: v5p, topology: 4x4x4}\n"
    )
    made = orch_api.plan_serving_of("it", tmp_path / "runs")
    assert made == replace(orch_api.plan_serving(written), name=plan.name)
    words = ("plan", "it", "--serve", "--storage", str(tmp_path / "runs"))
    done = orch(*words, "--json", "--set", "serve.weights=int8", "--set", "serve.prompt=2048")
    assert done.returncode == 0, done.stderr
    changed = orch_api.plan_serving(written, ("serve.weights=int8", "serve.prompt=2048"))
    shown = json.loads(done.stdout)
    assert shown["serve"]["weights"] == "int8"
    assert shown["forecast"]["tpot_s"]["expected"] == tpot(changed).expected
    refused = orch(*words, "--by", "30d")
    assert refused.returncode == 2
    assert "--by goes with" in refused.stderr
    assert "--storage goes with --serve" in orch(*words[:2], *words[3:]).stderr


def test_a_rehearsal_is_served_as_what_it_rehearses(tmp_path: Path) -> None:
    spec = load(ROOT / "specs" / "llama3_8b_1slice.yaml")
    plan = make_plan(spec)
    small = rehearse(spec, plan)
    run_of(tmp_path, small.plan, spec=small.spec, rehearsal=True, rehearses=plan)
    made = orch_api.plan_serving_of("it", tmp_path)
    assert (made.serve.model.name, made.topology) == ("llama3-8b", plan.topology)
    assert made.parameters == plan.model.parameters != small.plan.model.parameters


def test_prices_shapes_and_positions_are_those_of_the_run() -> None:
    priced = replace(PLAN, forecast=replace(PLAN.forecast, dollars_per_chip_hour=7.0))
    short = replace(priced, model=replace(PLAN.model, learned_positions=100))
    spec = serving_of(short)
    assert spec.resources.dollars_per_chip_hour == 7.0
    assert spec.serve.prompt == (LengthShare(tokens=80, share=1.0),)
    assert spec.serve.output == (LengthShare(tokens=20, share=1.0),)
    assert make_serving_plan(serving_of(PLAN)).parameters == PLAN.model.parameters
    with pytest.raises(SpecError, match="write a serving spec"):
        serving_of(replace(PLAN, ledger_describes_trainer=False))


def test_the_report_of_a_finished_run_ends_with_its_serving(orch: RunOrch, tmp_path: Path) -> None:
    """On the terminal with the folder of the runs, on the page without."""
    run_of(tmp_path, PLAN)
    done = orch("report", "it", "--storage", str(tmp_path))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split("\n\n")[-2].split())
    cost = orch_api.plan_serving_of("it", tmp_path).forecast.output_tokens_per_s_chip.expected
    assert text.startswith("To serve tiny on one v5e 2x2: <$0.01 per million output tokens at ")
    assert f"{cost / 1000:.0f}K tokens/s a chip" in text
    assert text.endswith(f"a chip: orch plan it --storage {tmp_path} --serve")
    page = (tmp_path / "it" / "report.html").read_text()
    assert page.rstrip().count("a chip (<code>orch plan it --serve</code>).</p>") == 1


def test_a_run_that_goes_on_or_does_not_fit_has_no_such_line(tmp_path: Path) -> None:
    """The command says why, with a way out that is planned."""
    plan = make_plan(load(ROOT / "specs" / "llama3_70b_1slice.yaml"))
    run_of(tmp_path, replace(plan, chip="v5e", topology="2x4"))  # as if on many small slices
    assert write_report("it", tmp_path).serving is None
    with pytest.raises(NotServed, match=r"Nearest that is served: --set serve\.weights=int8"):
        orch_api.plan_serving_of("it", tmp_path)
    eased = ("serve.weights=int8", "serve.kv_cache=int8")
    assert orch_api.plan_serving_of("it", tmp_path, eased).serve.weights == "int8"
    begun = journal.create_run(tmp_path, run_request(), "begun").journal
    assert page_of(begun, None)[2] is None
