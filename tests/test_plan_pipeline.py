"""Pipelines and meshes over nodes in the ledger and in the search, against numbers by hand."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

import orchestrator as orch
from orchestrator.network.mesh_axes import MODEL_OVER_DCN, named_sizes
from orchestrator.planning.collectives import exchanges
from orchestrator.planning.feasibility import pinned_sizes
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.planner import make_plan
from orchestrator.planning.search import Choice, layout_of_choice, search_request
from orchestrator.planning.time import step_time, time_lines
from orchestrator.show.charts import roofline
from orchestrator.values.plan import Plan
from orchestrator.values.spec import MeshRequest, Spec
from tests.example_specs import spec_of

HERD = {"pods": 1024, "sequences": 2048, "length": 8192, "chip": "h100", "topology": "8"}
LAYER = 2 * 16384**2 + 2 * 16384 * 1024 + 3 * 16384 * 53248


def herd(**changes: Any) -> Spec:
    mesh = MeshRequest(tensor=8, pipeline_dcn=16, fsdp_dcn=64, pipeline_chunks=8)
    return spec_of("llama3-405b", **{**HERD, "mesh": mesh, **changes})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(herd())


def lines_of(plan: Plan, *names: str) -> dict[str, float]:
    found = {line.name: line.value for line in plan.forecast.time}
    return {name: found[name] for name in names}


def bytes_of(plan: Plan) -> dict[str, float]:
    lines = [line for line in plan.forecast.time if "bytes" in line.inputs]
    return {line.name: line.inputs["bytes"] for line in lines}


def test_layers_lie_in_places_of_the_stages(plan: Plan) -> None:
    """126 layers in 16 stages of 8 chunks: 128 places, two of them empty."""
    pipeline = plan.pipeline
    assert pipeline is not None
    assert (pipeline.stages, pipeline.chunks, pipeline.microbatches) == (16, 8, 32)
    assert (pipeline.layers_per_chunk, pipeline.empty_layers) == (1, 2)
    assert plan.gradient_reduction == "at_end"


def test_empty_places_take_as_long_as_others() -> None:
    """126 layers on 4 stages are 32 places each, and 128 layers would be as many."""
    spec = herd(mesh=MeshRequest(tensor=8, pipeline_dcn=4, fsdp_dcn=256, pipeline_chunks=4))
    whole = replace(spec.experiment.model, layers=128)
    more = replace(spec, experiment=replace(spec.experiment, model=whole))
    name = "matmuls"
    times = [lines_of(make_plan(each), name)[name] for each in (spec, more)]
    assert times[0] == times[1]


def test_the_bubble_is_the_share_of_stages_over_passes(plan: Plan) -> None:
    """(p - 1) / (m v) of what passes do: 15 / (32 x 8). The unembedding is done once by all."""
    names = "matmuls", "attention", "copied kv heads", "recompute", "attention recompute"
    known = {line.name: line.value for line in plan.forecast.time}
    passes = sum(known.get(name, 0.0) for name in names)
    assert known["bubble of matmuls"] == pytest.approx(passes * 15 / 256)


def test_what_stages_send(plan: Plan) -> None:
    """A tick sends b S D / Y in bf16 each way, in m v + p - 1 ticks; words and losses are summed
    over 16 stages four times a microbatch, and in p ticks that have none.
    """
    own = 8192 * 16384 * 2 / 8
    ticks = 32 * 8 + 15
    sent = bytes_of(plan)
    assert sent["to next stage over dcn"] == 2 * ticks * own
    assert sent["words and losses over dcn"] == pytest.approx((4 * 32 + 16) * 2 * own * 15 / 16)
    times = lines_of(plan, "to next stage over dcn")
    assert times["to next stage over dcn"] == pytest.approx(2 * ticks * own / 50e9)


def test_matrices_are_gathered_once(plan: Plan) -> None:
    """A stage's matrices and its part of both tables, once from 64 nodes and once back."""
    assert plan.pipeline is not None
    assert plan.pipeline.weight_gather == "per_step"
    whole = (8 * LAYER + 2 * 16384 * 128256 / 16) / 8
    sent = bytes_of(plan)
    gathered = sent["weight gather over dcn"] + sent["table gather over dcn"]
    assert gathered == pytest.approx(2 * whole * 63 / 64, rel=1e-6)
    scattered = sent["gradient scatter over dcn"] + sent["table gradient scatter over dcn"]
    wire = {"fp32": 4, "bf16": 2}[plan.precision.gradients]
    assert scattered == pytest.approx(wire * whole * 63 / 64, rel=1e-6)


def test_a_stage_holds_what_the_trainer_keeps(plan: Plan) -> None:
    """Its matrices in bf16, fp32 sums of their gradients, and activations of v p + p - 1 passes."""
    phase = max(plan.forecast.memory, key=lambda each: each.bytes)
    held = {line.name: line for line in phase.lines}
    whole = (8 * LAYER + 2 * 16384 * 128256 / 16) / 8
    assert held["matrices of the stage"].value == pytest.approx(2 * whole)
    assert held["gradient sums of the stage"].value == pytest.approx(4 * whole)
    assert held["kept activations"].inputs["layers"] == pytest.approx(8 * 16 + 15)


@pytest.mark.parametrize(
    ("stages", "chunks", "microbatches", "passes"),
    # What the trainer's schedule needs: counted there for every tick.
    [(2, 1, 8, 3), (4, 1, 8, 7), (4, 1, 3, 4), (8, 1, 32, 15), (2, 2, 8, 5), (4, 8, 4, 33),
     (16, 8, 32, 143), (16, 4, 16, 65)],
)  # fmt: skip
def test_passes_in_flight(stages: int, chunks: int, microbatches: int, passes: int) -> None:
    request = search_request(spec_of("llama3-8b", chip="h100", topology="8", pods=stages))
    choice = Choice(
        ((1, 1, 1, 1, 1, 8),), 64, microbatches, "full", (1, stages, 1, 1, 1), chunks, 1
    )
    layout = layout_of_choice(request, choice)
    assert float(layout.chunks_in_flight) * chunks == pytest.approx(passes)


def test_both_parts_of_an_axis_are_two_phases() -> None:
    """Keys and values in 8 parts, 2 in each node: a device's own part first, between nodes."""
    mesh = MeshRequest(tensor=4, sequence=2, sequence_dcn=4)
    spec = spec_of(
        "llama3-8b", chip="h100", topology="8", pods=4, sequences=8, length=65536, mesh=mesh,
        remat="full",
    )  # fmt: skip
    plan = make_plan(spec)
    sent = bytes_of(plan)
    # K and V of whole sequences in bf16, of 8 / 4 heads; forward and again; all layers.
    whole = 32 * 2 * 8 * 65536 * 2 * 128 * 2 * 2
    assert sent["kv gather"] == pytest.approx(whole * (1 - 1 / 2))
    assert sent["kv gather over dcn"] == pytest.approx(whole / 2 * (1 - 1 / 4))


def test_experts_over_nodes() -> None:
    """Rows for experts of other nodes cross the network, those for the node's stay in it."""
    mesh = MeshRequest(expert=4, expert_dcn=2, tensor=2)
    spec = spec_of(
        "mixtral-8x7b", chip="h100", topology="8", pods=2, sequences=64, length=4096, mesh=mesh,
        remat="full",
    )  # fmt: skip
    assert spec.experiment.model.moe
    moe = replace(spec.experiment.model.moe, capacity_factor=1.25)
    spec = replace(
        spec, experiment=replace(spec.experiment, model=replace(spec.experiment.model, moe=moe))
    )
    plan = make_plan(spec)
    sent = bytes_of(plan)
    across, inside = sent["tokens to experts over dcn"], sent["tokens to experts"]
    assert across / inside == pytest.approx((1 / 2) / (3 / 4 / 2))
    assert plan.mesh["expert_dcn"] == 2


def test_the_search_finds_the_layout_of_the_herd() -> None:
    """Of all meshes over 1,024 and 2,048 nodes, the one that its authors chose."""
    for pods, replicas in ((1024, 64), (2048, 128)):
        plan = make_plan(herd(pods=pods, mesh=MeshRequest()))
        found = {axis: size for axis, size in plan.mesh.items() if size > 1 and axis != "pods"}
        assert found.pop("fsdp_dcn") * plan.mesh["pods"] == replicas
        assert found == {"pipeline_dcn": 16, "tensor": 8}


def test_a_pinned_mesh_is_found_again() -> None:
    spec = spec_of("llama3-70b", chip="h100", topology="8", pods=16, sequences=256, length=8192)
    plan = make_plan(spec)
    chunks = plan.pipeline.chunks if plan.pipeline else 1
    sizes = pinned_sizes(spec.experiment.model, plan.mesh, chunks, switched=True)
    pinned = replace(spec, resources=replace(spec.resources, mesh=MeshRequest(**sizes)))
    assert make_plan(pinned).mesh == plan.mesh
    assert prod(plan.mesh[axis] for axis in MODEL_OVER_DCN if axis in plan.mesh) <= 16


def test_a_pipeline_is_no_part_of_other_plans() -> None:
    plan = make_plan(spec_of("llama3-8b", chip="v5e", topology="4x4", pods=2, sequences=64))
    assert plan.pipeline is None
    assert not {"pipeline", "pipeline_dcn"} & plan.mesh.keys()
    assert named_sizes(plan.mesh) == plan.mesh


def test_the_lower_bound_has_the_bubble_of_matmuls(plan: Plan) -> None:
    spec = herd()
    request = search_request(spec)
    choice = Choice(((1, 1, 1, 1, 1, 8),), 2048, 32, plan.remat, (1, 16, 1, 1, 64), 8, 1)
    layout = layout_of_choice(request, choice)
    lines = time_lines(layout)
    busy = step_time(layout, lines).busy_s["mxu"]
    assert plan.forecast.step_s.lower >= float(busy)
    assert sum(float(line.value) for line in lines if line.kind == "pipeline_bubble") > 0
    assert {each.line for each in exchanges(layout)} >= {"stage_exchange"}


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        ("llama3-8b", {"pipeline": 64}, "which has 32"),
        ("deepseek-v3", {"pipeline": 2}, "this model does not"),
        ("llama3-8b", {"pipeline": 2, "pipeline_dcn": 4}, "not divisible by pipeline_dcn 4"),
    ],
)
def test_refusals_name_the_reason(model: str, changes: dict[str, int], reason: str) -> None:
    spec = spec_of(
        model, chip="v5p", topology="4x4x4", pods=2, sequences=256, length=4096,
        mesh=MeshRequest(**changes),
    )  # fmt: skip
    with pytest.raises(Infeasible, match=reason):
        make_plan(spec)


def test_few_microbatches_are_warned_of() -> None:
    mesh = MeshRequest(pipeline=4, pipeline_chunks=1)
    spec = spec_of(
        "llama3-8b", chip="v5p", topology="2x2x4", pods=1, sequences=16, length=4096, mesh=mesh
    )
    plan = make_plan(spec)
    [warning] = [each for each in plan.warnings if each.code == "pipeline_bubble"]
    assert plan.pipeline is not None
    assert warning.figures["share"] == 3 / plan.pipeline.microbatches
    assert "experiment.batch.sequences" in warning.text


@pytest.mark.parametrize("name", ["8k", "16k", "128k"])
def test_jobs_of_the_herd_fit(name: str) -> None:
    plan = orch.plan(f"specs/llama3_405b_herd_{name}.yaml")
    assert plan.forecast.fits
    assert plan.pipeline is not None
    assert (plan.pipeline.stages, plan.mesh["tensor"]) == (16, 8)


def test_the_herd_is_expected_to_run_as_it_did() -> None:
    """No constant learns from its runs: 430 and 400 TFLOP/s, with attention under the mask."""
    rates = {}
    for name, measured in (("8k", 430e12), ("16k", 400e12)):
        plan = orch.plan(f"specs/llama3_405b_herd_{name}.yaml")
        expected_s = plan.forecast.step_s.expected
        assert expected_s is not None
        rates[name] = plan.forecast.model_flops_per_step / expected_s / plan.devices
        assert rates[name] == pytest.approx(measured, rel=0.05)
    assert rates["16k"] / rates["8k"] == pytest.approx(400 / 430, abs=0.015)


def test_the_bubble_has_no_place_below_the_roofs(plan: Plan) -> None:
    """It is time of the matrix units without FLOPs: the chart leaves it out of a step's work."""
    work = sum(line.inputs["flops"] for line in plan.forecast.time if "flops" in line.inputs)
    [bound] = [curve for curve in roofline(plan, None).curves if curve.name == "lower bound"]
    height = max(height for _, height in bound.points)
    assert height == pytest.approx(work / plan.forecast.step_s.lower)


@pytest.mark.parametrize(("gpus", "warned"), [(72, True), (64, False)])
def test_a_domain_with_an_odd_factor_is_warned_about(gpus: int, warned: bool) -> None:
    """Of 72 GPUs the 9 becomes stages or copies; on 64 the same model takes less time a token."""
    sizes = [f"resources.topology={gpus}", "resources.pods=2", "experiment.batch.sequences=128"]
    plan = orch.plan("specs/llama3_8b_1slice.yaml", ["resources.chip=gb200", *sizes])
    [*notes] = [note for note in plan.warnings if note.code == "odd_domain"]
    assert [note.figures["fewer"] for note in notes] == [64] * warned
