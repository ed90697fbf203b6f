"""Every suggestion of a refusal: pasted, it plans, with the figures that it states."""

import json
import time
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import orchestrator as api
from orchestrator import catalog
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.nearest_specs import rentable
from orchestrator.planning.planner import line_cut, make_plan
from orchestrator.show.plan_screen import plan_screen
from orchestrator.values.spec import MeshRequest, Spec
from tests.conftest import ROOT, RunOrch
from tests.example_specs import spec_of

BASE = ROOT / "specs" / "llama3_70b_4pod.yaml"
MODELS = ("llama3-8b", "llama3-70b", "llama3-405b")
SLICES = (
    ("v5e", "1x1"), ("v5e", "16x16"), ("v6e", "2x4"), ("v6e", "16x16"), ("v5p", "2x2x1"),
    ("v5p", "4x4x12"), ("v5p", "16x20x28"), ("v4", "4x4x4"), ("tpu7x", "2x2x1"), ("h100", "1"),
    ("h100", "8"), ("b200", "8"),
)  # fmt: skip
BATCHES = ((1, 1024, 4096), (3, 1000, 4096), (64, 100, 8192), (2, 7, 131_072))
ALL = list(product(MODELS, SLICES, BATCHES))


def overrides(
    model: str, chip: str, topology: str, pods: int, sequences: int, length: int, *more: str
) -> list[str]:
    return [
        f"experiment.model={model}", f"resources.chip={chip}", f"resources.topology={topology}",
        f"resources.pods={pods}", f"experiment.batch.sequences={sequences}",
        f"experiment.batch.length={length}", "experiment.batch.tolerance=0%", *more,
    ]  # fmt: skip


def refusal(spec: Spec) -> Infeasible | None:
    """Why a spec has no plan; None where it has one."""
    try:
        make_plan(spec)
    except Infeasible as error:
        return error
    return None


def test_other_chips_compute_in_the_type_of_the_spec() -> None:
    """An fp8 run that does not fit is told of chips that have a peak in fp8, and of no other."""
    asked = overrides(
        "llama3-405b", "tpu7x", "2x2x1", 1, 8, 4096, "experiment.precision.compute=fp8"
    )
    refused = refusal(api.load(BASE, asked))
    assert refused is not None
    chips = {suggestion.chip for suggestion in refused.suggestions()}
    assert chips
    assert all("fp8" in catalog.chip(chip).peak_flops_per_s for chip in chips)


def check_pasted(asked: list[str]) -> bool:
    """Each suggestion, after the overrides that were typed, has the plan that it states.

    False where the spec has a plan, and there is nothing to suggest.
    """
    refused = refusal(api.load(BASE, asked))
    if refused is None:
        return False
    assert refused.suggestions()
    assert len({suggestion.overrides for suggestion in refused.suggestions()}) == len(
        refused.suggestions()
    )
    for suggestion in refused.suggestions():
        plan = api.plan(BASE, [*asked, *suggestion.overrides])
        forecast = plan.forecast
        assert (suggestion.chip, suggestion.chips, suggestion.pods) == (
            plan.chip,
            plan.chips,
            plan.pods,
        )
        assert (suggestion.sequences, suggestion.remat) == (plan.batch.sequences, plan.remat)
        assert suggestion.mesh.items() <= plan.mesh.items()
        assert suggestion.memory_bytes_per_device == forecast.memory_bytes_per_device
        assert suggestion.memory_bytes_per_device <= suggestion.hbm_bytes_per_device
        assert (suggestion.step_s, suggestion.mfu) == (forecast.step_s, forecast.mfu)
        assert (suggestion.days, suggestion.dollars) == (forecast.days, forecast.dollars)
    return True


@pytest.mark.parametrize(("model", "slices", "batch"), ALL[::13], ids=str)
def test_every_suggestion_can_be_pasted(
    model: str, slices: tuple[str, str], batch: tuple[int, int, int]
) -> None:
    """A part of all models, slices and batches."""
    check_pasted(overrides(model, *slices, *batch))


@pytest.mark.slow
def test_every_suggestion_for_all_of_them_can_be_pasted() -> None:
    """All models, slices and batches; most have no plan."""
    refused = [check_pasted(overrides(model, *slices, *batch)) for model, slices, batch in ALL]
    assert sum(refused) > len(ALL) / 2


def at_most(count: int, *, the_same: bool = False) -> settings:
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(
        max_examples=count, deadline=None, suppress_health_check=quiet, derandomize=the_same
    )


ASKED = st.builds(
    lambda model, chip_slice, pods, sequences, length, more: overrides(
        model, *chip_slice, pods, sequences, length, *more
    ),
    st.sampled_from(MODELS),
    st.sampled_from(SLICES),
    st.integers(1, 20),
    st.integers(1, 3000),
    st.sampled_from([1024, 4096, 6000, 32_768]),
    st.sampled_from([
        (), ("resources.mesh.tensor=3",), ("resources.mesh.fsdp_dcn=3",),
        ("resources.mesh.fsdp=16", "experiment.remat=none"),
        ("experiment.precision.optimizer=bf16",), ("resources.dollars_per_chip_hour=1.5",),
        ("experiment.batch.tolerance=2%", "experiment.remat=offload_input"),
        ("experiment.tokens=10M",),
    ]),
)  # fmt: skip


# Another batch is not enough: on slices that divide it, memory lacks.
WITHOUT_MEMORY = overrides(
    "llama3-405b", "v5e", "16x16", 1, 3, 6000, "experiment.precision.optimizer=bf16"
)


@at_most(8, the_same=True)
@given(ASKED)
@example(WITHOUT_MEMORY)
def test_suggestions_for_any_spec_can_be_pasted(asked: list[str]) -> None:
    """Any pods, batch, length, mesh, policy, price and tokens."""
    try:
        api.load(BASE, asked)
    except api.OrchError:
        assume(False)  # fewer tokens than a batch
    assume(check_pasted(asked))


@pytest.mark.fuzz
@at_most(1000)
@given(ASKED)
def test_suggestions_for_very_many_specs_can_be_pasted(asked: list[str]) -> None:
    """The same, a thousand times."""
    try:
        api.load(BASE, asked)
    except api.OrchError:
        assume(False)
    assume(check_pasted(asked))


@pytest.mark.parametrize(
    ("model", "chip", "topology"),
    [("llama3-70b", "v5p", "2x2x1"), ("llama3-8b", "v6e", "1x1"), ("llama3-405b", "v5p", "4x4x4")],
)
def test_the_larger_slice_is_the_smallest_that_works(model: str, chip: str, topology: str) -> None:
    """No smaller one has a plan, each planned."""
    on = partial(spec_of, model, sequences=64, chip=chip, pods=1, tolerance=0.0)
    refused = refusal(on(topology=topology))
    assert refused
    (larger,) = (
        suggestion
        for suggestion in refused.suggestions()
        if "resources.topology" in str(suggestion.overrides) and suggestion.chip == chip
    )
    smaller = [
        place
        for place in rentable(catalog.chip(chip), catalog.model(model))
        if place.chips < larger.chips
    ]
    assert smaller
    for place in smaller:
        with pytest.raises(Infeasible):
            make_plan(on(topology=str(place)))


def test_the_pods_on_either_side_are_the_nearest() -> None:
    """1,024 sequences on three slices: two and four divide them."""
    refused = refusal(spec_of("llama3-8b", chip="v5e", topology="16x16", pods=3, tolerance=0.0))
    assert refused
    pods = [
        suggestion.pods
        for suggestion in refused.suggestions()
        if [key.partition("=")[0] for key in suggestion.overrides] == ["resources.pods"]
    ]
    assert pods == [2, 4]


def test_a_domain_of_gpus_is_named_as_the_limit() -> None:
    """70B on 64 nodes of 8 H100, a copy in each: four must share one; larger chips are offered."""
    alone = MeshRequest(fsdp_dcn=1, pipeline=1, pipeline_dcn=1, sequence_dcn=1)
    spec = spec_of("llama3-70b", chip="h100", topology="8", pods=64, mesh=alone)
    refused = refusal(spec)
    assert refused
    assert [reason.code for reason in refused.reasons] == ["memory", "largest_domain"]
    assert refused.reasons[1].figures == {"chip": "h100", "most": 8}
    assert str(refused).startswith("a slice of h100 is one NVLink domain, of 8 GPUs at most: ")
    first, *others = refused.suggestions()
    assert first.overrides == ("resources.mesh.fsdp_dcn=4",)
    assert {suggestion.chips for suggestion in refused.suggestions()} == {512}
    assert {other.chip for other in others} <= set(catalog.chips()) - {"h100"}


def test_a_model_beyond_every_chip_is_refused_with_both_sizes() -> None:
    """A thousand trillion parameters."""
    sizes = "layers: 10000, d_model: 65536, d_ff: 1048576, heads: 512, kv_heads: 512, head_dim: 128"
    asked = [f"experiment.model={{{sizes}, vocab: 131072}}"]
    refused = refusal(api.load(BASE, asked))
    assert refused
    assert not refused.suggestions()
    reason = refused.all_reasons()[-1]
    assert reason.code == "beyond_all_chips"
    figures = reason.figures
    assert float(figures["needed_bytes"]) > float(figures["usable_bytes"])


DEEPSEEK = ROOT / "specs" / "deepseek_v3_tpu7x.yaml"
MANY = [
    (BASE, overrides("llama3-405b", "tpu7x", "16x24x24", 1, 1024, 4096)),
    (BASE, overrides("llama3-8b", "v5p", "16x20x28", 1, 1024, 4096)),
    (DEEPSEEK, ["resources.topology=2x2x1"]),
    (DEEPSEEK, ["resources.topology=4x4x4"]),
    (DEEPSEEK, ["resources.chip=v5e", "resources.topology=16x16"]),
    (BASE, overrides("llama3-8b", "v6e", "1x1", 1, 1024, 4096)),
    (BASE, overrides("llama3-405b", "v6e", "16x16", 1, 1024, 4096)),
]


# Those of DeepSeek on other slices take seconds each.
@pytest.mark.parametrize(
    ("base", "asked"),
    [
        pytest.param(*one, id=str(number), marks=pytest.mark.slow if number in (2, 3) else ())
        for number, one in enumerate(MANY)
    ],
)
def test_a_refusal_is_quick_and_suggests_what_is_worth_its_price(
    base: Path, asked: list[str]
) -> None:
    """With its suggestions 2 to 5 s of a quiet processor, where it took up to 100 once; none is
    undercut on the same chips, none costs more than three times the cheapest but on as many chips
    of the kind that was asked for.
    """
    spec, start = api.load(base, asked), time.process_time()
    refused = refusal(spec)
    assert refused
    suggestions = refused.suggestions()
    assert time.process_time() - start < 20
    assert suggestions
    priced = [
        (suggestion, suggestion.dollars.likeliest, suggestion.days.likeliest)
        for suggestion in suggestions
        if suggestion.dollars
    ]
    cheapest = min(dollars for _, dollars, _ in priced)
    for one, dollars, days in priced:
        asked_for = spec.resources.chip, spec.resources.pods.max
        assert dollars <= 3 * cheapest or (one.chip, one.pods) == asked_for
        for other, fewer_dollars, fewer_days in priced:
            is_cheaper = fewer_dollars < dollars and fewer_days < days
            if (other.chip, other.chips) == (one.chip, one.chips) and is_cheaper:
                assert abs(other.batch_change) > abs(one.batch_change)


def test_json_has_reasons_and_suggestions(orch: RunOrch) -> None:
    """On stdout, with the message on stderr and exit code 2."""
    alone = "resources.mesh={fsdp_dcn: 1, pipeline: 1, pipeline_dcn: 1, sequence_dcn: 1}"
    asked = overrides("llama3-70b", "h100", "8", 64, 1024, 4096, alone)
    options = [part for override in asked for part in ("--set", override)]
    done = orch("plan", str(BASE), *options, "--json")
    assert done.returncode == 2
    value = json.loads(done.stdout)
    assert [reason["code"] for reason in value["reasons"]] == ["memory", "largest_domain"]
    first = value["suggestions"][0]
    stated = {"chips", "step_s", "days", "dollars", "memory_bytes_per_device"}
    assert stated <= first["leads_to"].keys()
    pasted = [part for override in first["overrides"] for part in ("--set", override)]
    assert orch("plan", str(BASE), *options, *pasted).returncode == 0


# --- the change that cuts the costliest line


def test_the_change_that_cuts_a_line_has_been_planned() -> None:
    """Its overrides lead to that plan; the line and the run are shorter with it."""
    path = ROOT / "specs/llama3_8b_v6e_2slice.yaml"
    spec = api.load(path)
    plan = make_plan(spec)
    found = line_cut(spec, plan)
    assert found
    line, share, overrides, other = found
    pasted = api.plan(path, overrides)
    assert (other.mesh, other.forecast) == (pasted.mesh, pasted.forecast)
    assert other.forecast.days.likeliest < 0.99 * plan.forecast.days.likeliest
    [left_s] = [each.value for each in other.forecast.expected_time if each.kind == line.kind]
    per_token = left_s / line.value * plan.batch.tokens / other.batch.tokens
    assert share == pytest.approx(1 - per_token)
    # Longer lines are cut by none of the changes.
    assert line == max(
        (each for each in plan.forecast.expected_time if each.value <= line.value),
        key=lambda each: each.value,
    )
    text = plan_screen(plan, None, cut=found)
    assert f"--set {overrides[0]} it takes" in " ".join(text.split())


def test_where_no_change_ends_the_run_earlier_none_is_named() -> None:
    """On one chip there is nothing to exchange, and a larger batch changes nothing."""
    spec = spec_of("llama3-8b", chip="v5p", topology="4x4x4", sequences=4096, length=8192)
    assert line_cut(spec, make_plan(spec)) is None
