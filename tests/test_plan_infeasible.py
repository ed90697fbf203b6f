"""Specs without a plan: the reasons, the arithmetic, and the suggestions."""

import re
from dataclasses import replace
from functools import partial

import pytest

from orchestrator.errors import SpecError
from orchestrator.planning.infeasible import Infeasible, factored
from orchestrator.planning.planner import make_plan
from orchestrator.reading.load import load
from orchestrator.run.specs import plans
from orchestrator.values.spec import MeshRequest, Spec
from tests.conftest import ROOT
from tests.example_specs import TINY, spec_of

ON_16 = partial(spec_of, TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=1)


def infeasible(spec: Spec) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        make_plan(spec)
    assert caught.value.exit_code == 2
    return caught.value


def codes(error: Infeasible) -> list[str]:
    return [reason.code for reason in error.reasons]


def overrides(error: Infeasible) -> list[tuple[str, ...]]:
    return [suggestion.overrides for suggestion in error.suggestions()]


def test_a_batch_that_no_mesh_divides_is_explained_with_its_arithmetic() -> None:
    """1,024 sequences do not divide 4 x 8,960 chips; 980, 1,120 and a smaller slice do."""
    error = infeasible(spec_of(tolerance=0.0))
    assert codes(error) == ["slice_factors", "batch_not_divisible"]
    assert error.reasons[0].figures["devices"] == 8960
    assert error.reasons[1].figures["divisor"] == 140
    below, above, smaller = error.suggestions()[:3]
    assert below.overrides == ("experiment.batch.sequences=980",)
    assert below.batch_change == pytest.approx(-0.043, abs=1e-3)
    assert above.overrides == ("experiment.batch.sequences=1120",)
    assert (smaller.overrides, smaller.chips) == (("resources.topology=16x16x16",), 16384)


def test_the_text_has_the_arithmetic_and_the_options() -> None:
    """Sizes as products of primes, and overrides as they are typed, on lines of their own."""
    error = infeasible(spec_of(tolerance=0.0))
    text = str(error)
    assert "8,960 devices a pod = 2^8 x 5 x 7" in text
    assert re.search(r"heads +64 = 2\^6", text)
    assert "  --set experiment.batch.sequences=980\n" in error.full_text()


@pytest.mark.parametrize("sequences", [980, 1120])
def test_a_suggested_batch_has_a_plan(sequences: int) -> None:
    """The suggested batches are realizable without a tolerance."""
    plan = make_plan(spec_of(sequences=sequences, tolerance=0.0))
    assert plan.batch.sequences == sequences


def test_a_suggested_slice_has_a_plan() -> None:
    """The suggested topology has a plan for the requested batch."""
    plan = make_plan(spec_of(tolerance=0.0, topology="16x16x16"))
    assert plan.batch.sequences == 1024


def test_a_mesh_that_breaks_a_rule_is_named_with_it() -> None:
    """tensor 16 on 8 heads: which dimension it does not divide, and a mesh that works."""
    error = infeasible(ON_16(mesh=MeshRequest(tensor=16, sequence=1)))
    broken = [
        reason.figures for reason in error.reasons if reason.code == "dimension_not_divisible"
    ]
    assert {"name": "heads", "total": 8, "ways": "tensor"} in broken
    assert ("resources.mesh=auto",) in overrides(error)


def test_a_size_that_the_search_undercuts_is_not_suggested() -> None:
    """Tensor 4 and 2 are nearest to 3, and slower on the same chips than what is chosen."""
    spec = partial(spec_of, topology="8x8x16", pods=1)
    searched, *others = infeasible(spec(mesh=MeshRequest(tensor=3))).suggestions()
    assert not [each for each in others if each.chips == searched.chips]
    for ways in (4, 2):
        near = make_plan(spec(mesh=MeshRequest(tensor=ways))).forecast
        assert near.days.likeliest > searched.days.likeliest
    assert searched.overrides == ("resources.mesh=auto",)
    assert (searched.mesh["data"], searched.mesh["fsdp"]) == (1, 1024)


def test_a_faster_batch_nearby_is_suggested_too() -> None:
    """1,026 is next to 1,024 on three slices, and undercuts 1,017; 1,008 is farther, and faster."""
    spec = partial(spec_of, topology="16x16x24", pods=3, tolerance=0.0)
    every = infeasible(spec()).suggestions()
    batches = [
        suggestion
        for suggestion in every
        if suggestion.overrides[0].startswith("experiment.batch.sequences")
    ]
    assert [batch.sequences for batch in batches] == [1026, 1008]
    assert max(batches, key=lambda suggestion: suggestion.mfu.expected or 0) is batches[1]
    for suggestion in batches:
        assert suggestion.mfu == make_plan(spec(sequences=suggestion.sequences)).forecast.mfu


def test_experts_of_a_dense_model_are_refused_as_that() -> None:
    """The reason shows the axis between slices, and no suggestion twice."""
    spec = spec_of(TINY, sequences=16, length=64, chip="v5e", topology="2x2", pods=2,
                   mesh=MeshRequest(expert_dcn=2))  # fmt: skip
    error = infeasible(spec)
    assert codes(error) == ["requested_mesh", "no_mixture"]
    assert "mesh expert_dcn 2" in str(error)
    assert not any("experiment.batch.sequences=16" in each for each in overrides(error))


def test_an_axis_that_does_not_divide_a_pod_is_said_to_have_to() -> None:
    error = infeasible(ON_16(mesh=MeshRequest(fsdp=3)))
    assert "fsdp 3: 3 devices, which do not divide the 16 in a pod of 4x4" in str(error)


def test_a_mesh_of_another_size_than_the_pod_is_named_with_both_sizes() -> None:
    """The product of the axes against the devices there are."""
    error = infeasible(ON_16(mesh=MeshRequest(data=2, fsdp=2, sequence=1, tensor=2)))
    (size,) = (reason.figures for reason in error.reasons if reason.code == "mesh_size")
    assert (size["ways"], size["devices"], size["topology"]) == (8, 16, "4x4")


def test_a_model_that_does_not_fit_is_named_with_the_memory_it_needs() -> None:
    """405B on 16 and on 256 v5e chips: the least any plan needs; a pod has no more than 256."""
    spec = partial(spec_of, "llama3-405b", sequences=16, chip="v5e", pods=1)
    error = infeasible(spec(topology="4x4"))
    assert codes(error) == ["memory", "largest_slice"]
    assert error.reasons[0].figures["usable_bytes"] == 15.75 * 2**30
    assert float(error.reasons[0].figures["needed_bytes"]) > 15.75 * 2**30


def test_how_many_times_the_chips_is_said_where_a_slice_has_them() -> None:
    """8B on one v5e chip: the ratio of both figures, not rounded up."""
    error = infeasible(spec_of("llama3-8b", sequences=16, chip="v5e", topology="1x1", pods=1))
    assert codes(error) == ["memory", "more_chips_needed"]
    needed, usable = (
        float(error.reasons[0].figures[f"{key}_bytes"]) for key in ("needed", "usable")
    )
    assert error.reasons[1].figures["times"] == pytest.approx(needed / usable)


@pytest.mark.parametrize(
    ("model", "chip", "topology", "pods", "sequences", "stages", "microbatches"),
    [("llama-tiny", "h200", "8", 3, 1, 3, 1), ("llama3-8b", "gb200", "36", 3, 8, 27, 8)],
)
def test_too_few_sequences_for_the_only_pipelines_are_no_lack_of_memory(
    model: str, chip: str, topology: str, pods: int, sequences: int, stages: int, microbatches: int
) -> None:
    """Three nodes and one sequence: a pipeline of three with one microbatch. GPUs are suggested."""
    error = infeasible(
        spec_of(model, chip=chip, topology=topology, pods=pods, sequences=sequences, tolerance=0.0)
    )
    assert codes(error) == ["microbatch_groups"]
    figures = error.reasons[0].figures
    assert (figures["stages"], figures["microbatches"]) == (stages, microbatches)
    assert {each.chip for each in error.suggestions()} == {chip}
    assert "inf" not in error.full_text()


def test_what_no_policy_holds_is_said_with_the_memory_it_takes() -> None:
    """Rows of a million positions on a100, whose hosts are unknown: HBM is what lacks."""
    spec = spec_of(
        "qwen3-32b", chip="a100", topology="4", pods=100, sequences=32, length=2**20, tolerance=0.1
    )
    error = infeasible(spec)
    assert codes(error)[0] == "memory"
    figures = error.reasons[0].figures
    assert float(figures["usable_bytes"]) < float(figures["needed_bytes"]) < 1e12


@pytest.mark.parametrize("topology", ["4x4x4", "8x8x8"])
def test_a_model_that_nothing_divides_needs_other_chips_not_more(topology: str) -> None:
    """Sizes of odd factors: 64 devices hold it whole, and so do 512."""
    sizes = "layers: 32, d_model: 4097, d_ff: 14337, heads: 31, kv_heads: 31, head_dim: 128"
    asked = [f"experiment.model={{{sizes}, vocab: 128257}}", f"resources.topology={topology}"]
    error = infeasible(load(ROOT / "specs" / "llama3_8b_1slice.yaml", asked))
    assert codes(error) == ["memory", "model_not_divisible", "slice_factors"]
    assert error.reasons[1].figures["ways"] == 1
    assert error.suggestions()
    assert "v5p" not in {each.chip for each in error.suggestions()}


def test_no_plans_cannot_be_asked_for() -> None:
    """It once said that a host lacks memory."""
    with pytest.raises(SpecError, match="count is 0"):
        plans(spec_of(TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=1), 0)


def test_a_policy_that_does_not_fit_leads_to_one_that_does() -> None:
    """Where only the requested policy does not fit, the search finds another."""
    spec = spec_of(
        "llama3-8b", sequences=16, length=16384, chip="v5e", topology="4x4", pods=1,
        mesh=MeshRequest(fsdp=16),
    )  # fmt: skip
    request = replace(spec, experiment=replace(spec.experiment, remat="none"))
    assert ("experiment.remat=auto",) in overrides(infeasible(request))


def test_a_host_that_is_too_small_is_named_with_the_memory_it_needs() -> None:
    """HBM would hold the plan; what it offloads is more than hosts of the chip have."""
    spec = spec_of(
        "llama3-70b", sequences=128, length=131_072, chip="v5p", topology="4x4x8", pods=1,
        remat="offload_input", mesh=MeshRequest(fsdp=128),
    )  # fmt: skip
    error = infeasible(spec)
    [reason] = error.reasons
    assert reason.code == "host_memory"
    assert reason.figures["needed_bytes"] == 80 * 131_072 * 8192 * 2
    assert reason.figures["usable_bytes"] == 112e9
    assert "160.00 GiB per chip" in str(error)


def test_a_batch_is_split_until_the_host_holds_it() -> None:
    """70B with 16 sequences of 8,192 a chip offloads 172 GB at once; a v5p chip's host has 112."""
    spec = spec_of(
        "llama3-70b", sequences=2048, length=8192, chip="v5p", topology="4x4x8", pods=1,
        tolerance=0.0, remat="offload_input", mesh=MeshRequest(fsdp=128),
    )  # fmt: skip
    plan = make_plan(spec)
    at_once = plan.forecast.host_memory_bytes_per_chip
    assert plan.batch.microbatches * at_once == 80 * 16 * 8192 * 8192 * 2
    assert plan.batch.microbatches == 2
    assert at_once < 112e9


@pytest.mark.parametrize(
    ("number", "text"), [(8960, "2^8 x 5 x 7"), (1, "1"), (13, "13"), (128256, "2^8 x 3 x 167")]
)
def test_numbers_are_written_as_products_of_primes(number: int, text: str) -> None:
    """Primes with their powers."""
    assert factored(number) == text


def test_microbatches_that_do_not_divide_the_batch_are_named() -> None:
    """512 sequences are no multiple of 3 for each replica; any number of microbatches is."""
    spec = spec_of("llama3-8b", chip="v5p", topology="4x4x4", pods=1, sequences=512, tolerance=0.0)
    batch = replace(spec.experiment.batch, microbatches=3)
    error = infeasible(replace(spec, experiment=replace(spec.experiment, batch=batch)))
    [reason] = [reason for reason in error.reasons if reason.code == "batch_not_divisible"]
    assert (reason.figures["microbatches"], reason.figures["divisor"]) == (3, 3)
    found = [override for several in overrides(error) for override in several]
    assert "experiment.batch.microbatches=auto" in found  # other batches are slower
