"""The difference of two plans: keys, lines of their ledgers, figures."""

import json
from dataclasses import replace
from math import isclose

import pytest

from orchestrator.formatting import signed_points
from orchestrator.planning.diff_plans import PlanDiff, diff_plans
from orchestrator.planning.planner import make_plan
from orchestrator.show import plan_diff_screen as render
from orchestrator.show import plan_diff_screen as verdict
from orchestrator.values.spec import Spec, TensorTreatments
from tests.conftest import RunOrch
from tests.example_specs import TINY, spec_of

ONE_POD, FOUR_PODS = "specs/llama3_70b_1pod.yaml", "specs/llama3_70b_4pod.yaml"


def tiny(**changes: object) -> Spec:
    """A spec that is planned at once."""
    fields = {"sequences": 64, "length": 64, "chip": "v5e", "topology": "2x2", "pods": 2} | changes
    spec = spec_of(TINY, **fields)  # type: ignore[arg-type]
    return replace(spec, resources=replace(spec.resources, goodput=1.0))


def diff_of(first: Spec, second: Spec) -> PlanDiff:
    """The difference between the plans of two specs."""
    return diff_plans((first, second), (make_plan(first), make_plan(second)))


@pytest.mark.parametrize("unit", ["memory", "time"])
def test_the_lines_of_each_side_add_up_to_its_forecast(unit: str) -> None:
    """No line of either ledger is lost or counted twice."""
    specs = (tiny(), tiny(pods=4, chip="v5p", topology="2x2x1"))
    diff = diff_of(*specs)
    for side, spec in zip(("first", "second"), specs, strict=True):
        forecast = make_plan(spec).forecast
        if unit == "time":
            seconds = [getattr(line, side) or 0.0 for line in diff.time]
            assert isclose(sum(seconds), forecast.step_s.unoverlapped)
            continue
        for phase in forecast.memory:
            lines = [line for line in diff.memory if line.part == phase.name]
            values = {line.name: getattr(line, side) or 0.0 for line in lines}
            assert values.pop("sum") == phase.bytes
            assert isclose(sum(values.values()), phase.bytes)


def test_requested_and_decided_keys_are_listed_apart() -> None:
    """Pods are requested; the plan decides the chips and how the batch is split."""
    diff = diff_of(tiny(), tiny(pods=4))
    requested = {pair.key: (pair.first, pair.second) for pair in diff.requested}
    decided = {pair.key: (pair.first, pair.second) for pair in diff.decided}
    assert requested == {"resources.pods": (2, 4)}
    assert decided["chips"] == (8, 16)
    assert decided["mesh.pods"] == (2, 4)
    assert not requested.keys() & decided.keys()


def test_policies_are_compared_tensor_by_tensor() -> None:
    """Where both are mappings, only what is treated otherwise is listed."""
    first = TensorTreatments(block_input="offload", query="keep")
    diff = diff_of(tiny(remat=first), tiny(remat=replace(first, query="offload")))
    assert [(decision.key, decision.first, decision.second) for decision in diff.requested] == [
        ("experiment.remat.query", "keep", "offload")
    ]
    assert [(decision.key, decision.first, decision.second) for decision in diff.decided] == [
        ("remat.query", "keep", "offload")
    ]


def test_a_plan_does_not_differ_from_itself() -> None:
    """No key, line or figure differs, and the screen says that both are one plan."""
    diff = diff_of(tiny(), tiny())
    assert (diff.requested, diff.decided) == ((), ())
    assert all(line.first == line.second for line in (*diff.memory, *diff.time))
    assert all(pair.first == pair.second for pair in diff.figures)
    assert "Both are one plan; its figures are the same" in render.plan_diff_screen(diff, "x")


def test_another_price_changes_dollars_and_nothing_else() -> None:
    """The same program on the same chips is one plan, whatever it costs."""
    first = tiny()
    dear = replace(first, resources=replace(first.resources, dollars_per_chip_hour=99.0))
    diff = diff_of(first, dear)
    changed = {pair.key for pair in diff.figures if pair.first != pair.second}
    of_dollars = {f"dollars.{at}" for at in ("lower", "low", "expected", "high", "unoverlapped")}
    assert changed == of_dollars | {"dollars_per_chip_hour"}
    assert diff.plans[0].digest == diff.plans[1].digest
    assert "its figures differ" in render.plan_diff_screen(diff, "x")


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (1, 1, "same"),
        (0, 2, "new"),
        (2, 0, "gone"),
        (4, 3, "-25.0 %"),
        (1, 1.001, "+0.1 %"),
        (1, 0.9999, "0.0 %"),
        (1, 3, "x 3"),
    ],
)
def test_a_change_is_a_percentage_or_a_multiple(first: float, second: float, text: str) -> None:
    """Percent while it is small, a multiple when it is not."""
    assert verdict._change(first, second) == text


def test_a_short_training_is_in_a_unit_that_shows_digits() -> None:
    """Days of a tiny one would need an exponent."""
    spec = tiny()
    short = replace(spec, experiment=replace(spec.experiment, tokens=10**6))
    screen = render.plan_diff_screen(diff_of(short, tiny()), "x")
    rows = [row for row in screen.splitlines() if row.startswith("    all tokens")]
    assert len(rows) == 3
    assert all(" ms  " in row or " s  " in row for row in rows)


def test_points_that_round_to_zero_have_no_sign() -> None:
    """A change too small to show is neither a gain nor a loss."""
    assert signed_points(-0.00004) == "0.0 points"
    assert signed_points(-0.02) == "-2.0 points"


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        (2.0, "half the time"), (2.7, "37 % of the time"), (1.1, "9.1 % less time"),
        (1.0, "the same time"), (0.9, "11.1 % more time"), (0.5, "2 times as long"),
    ],
)  # fmt: skip
def test_a_ratio_of_speeds_is_said_as_time(speed: float, text: str) -> None:
    assert verdict._time(speed) == text


def test_without_runs_of_a_chip_the_verdict_compares_bounds() -> None:
    """Without an estimate, the lower bounds are compared, and shown alone."""
    diff = diff_of(tiny(), tiny(pods=4))
    assert "less time and costs 1.7 times as much" in verdict._verdict(diff)
    without_estimate = replace(
        diff, figures=tuple(p for p in diff.figures if "expected" not in p.key)
    )
    first, second = verdict._figure(without_estimate, "days.lower")
    assert verdict._time(first / second) in verdict._verdict(without_estimate)
    assert "at best" in verdict._verdict(without_estimate)
    shown = render.plan_diff_screen(without_estimate, "x")
    figures = shown[shown.index("\n  figures") :]
    assert "unoverlapped" not in figures


def test_the_command_compares_two_files(orch: RunOrch) -> None:
    """The verdict compares tokens and money; --json has both plans by their digests."""
    done = orch("plan", ONE_POD, FOUR_PODS)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    _, first, *_, last = done.stdout.split("\n\n")
    labels = [line[2:12].strip() for line in first.splitlines()[1:6]]
    assert labels == ["fits", "time", "cost", "MFU", "bound by"]
    verdict, _, next_command = last.replace("\n", " ").strip().rpartition(" Next: ")
    assert verdict.startswith("The second takes 44 % of the time and costs 1.8 times as much.")
    assert verdict.endswith("It is bound by ici tensor, not matmul.")
    assert next_command == f"orch plan {FOUR_PODS}"
    printed = json.loads(orch("plan", ONE_POD, FOUR_PODS, "--json").stdout)
    alone = [json.loads(orch("plan", path, "--json").stdout) for path in (ONE_POD, FOUR_PODS)]
    assert [plan["digest"] for plan in printed["plans"]] == [plan["digest"] for plan in alone]


def test_overrides_change_the_second_alone(orch: RunOrch) -> None:
    """So one file can be compared with itself; alternatives are for one spec alone."""
    tiny_spec = "specs/tiny_2pod.yaml"
    done = orch("plan", tiny_spec, tiny_spec, "--set", "resources.pods=4", "--json")
    first, second = json.loads(done.stdout)["plans"]
    assert (first["overrides"], second["overrides"]) == ([], ["resources.pods=4"])
    refused = orch("plan", tiny_spec, tiny_spec, "--alternatives", "2")
    assert refused.returncode == 2
    assert "the plan of one spec" in refused.stderr
