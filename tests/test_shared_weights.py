"""Weights shared between slices, on request or as the search of GPUs chooses: planned, trained."""

from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.drive.driver import _select, _SliceRequest
from orchestrator.launch.backend import Slice
from orchestrator.network.decoder import decoder
from orchestrator.network.mesh_axes import DCN_AXES, sizes
from orchestrator.planning.calibrated import layout_of
from orchestrator.planning.contenders import make_contenders
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.planner import make_plan, plan_on
from orchestrator.planning.ranking import _ranked_s_per_token
from orchestrator.planning.rehearsal import rehearse
from orchestrator.planning.step_work import step_work
from orchestrator.values.plan import Plan
from orchestrator.values.spec import MeshRequest, Pods, Spec
from tests.example_specs import spec_of
from tests.spec_texts import MINIMAL, problems_of, write
from tests.trainer_plans import plan_of
from tests.trainer_steps import trained
from trainers import llama

SHARED = MeshRequest(fsdp=256, fsdp_dcn=2)


def two_slices(mesh: MeshRequest | None = SHARED, pods: int = 2, model: str = "llama3-70b") -> Spec:
    """v6e-256 slices with a sequence a chip."""
    return spec_of(
        model, chip="v6e", topology="16x16", pods=pods, sequences=256 * pods, length=8192,
        remat="offload_input", mesh=mesh,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Plan:
    return make_plan(two_slices())


@pytest.fixture(scope="module")
def copied() -> Plan:
    """The same with a copy of the weights in each slice."""
    return make_plan(two_slices(MeshRequest(fsdp=256)))


def memory_of(plan: Plan, kind: str) -> float:
    return sum(line.value for line in plan.forecast.memory[0].lines if line.kind == kind)


def over_dcn(plan: Plan) -> dict[tuple[str, str], float]:
    """Bytes between slices by kind of line and collective."""
    sent: dict[tuple[str, str], float] = {}
    for line in plan.forecast.time:
        if line.collective and line.collective.link == "dcn":
            key = line.kind, line.collective.kind
            sent[key] = sent.get(key, 0.0) + line.collective.bytes_per_step
    return sent


def test_weights_are_shared_on_request_alone(copied: Plan) -> None:
    """A free search gives each slice its own copy, whatever that costs."""
    for plan in (copied, make_plan(two_slices(mesh=None)), make_plan(spec_of())):
        assert plan.mesh["pods"] == plan.pods
        assert plan.mesh["fsdp_dcn"] == 1


def test_405b_fits_two_slices_that_share_its_weights() -> None:
    """As published, and not with a copy in each slice."""
    assert make_plan(two_slices(model="llama3-405b")).forecast.fits
    with pytest.raises(Infeasible) as caught:
        make_plan(two_slices(MeshRequest(fsdp=256), model="llama3-405b"))
    assert caught.value.reasons[0].code == "memory"


def test_shared_weights_halve_what_a_device_stores(shared: Plan, copied: Plan) -> None:
    """Parameters and moments; activations stay as they are."""
    assert shared.mesh == {**copied.mesh, "pods": 1, "fsdp_dcn": 2}
    assert shared.pods == 2
    for kind in ("parameters", "optimizer_state", "compute_copy"):
        assert memory_of(shared, kind) == pytest.approx(memory_of(copied, kind) / 2, rel=0.01)
    assert memory_of(shared, "working_activations") == memory_of(copied, "working_activations")


def test_the_ledger_has_what_crosses_the_network(shared: Plan, copied: Plan) -> None:
    """Each chip fetches the other half of its part of all weights twice, and scatters it once."""
    network = decoder(shared.model)
    blocks = network.matrix_parameters
    part = 2 * (2 * blocks + network.table_parameters) / 256 / 2  # bf16, of 256 chips, the half
    scatter = 2 * (blocks + network.table_parameters) / 256 / 2
    norms = 2 * 2 * network.vector_parameters / 2
    assert over_dcn(shared) == {
        ("weight_gather", "all-gather"): pytest.approx(part),
        ("gradient_scatter", "reduce-scatter"): pytest.approx(scatter),
        ("gradient_reduction", "all-reduce"): pytest.approx(norms),
    }
    assert over_dcn(copied).keys() == {("gradient_reduction", "all-reduce")}
    [rate] = {group.bytes_per_s for group in shared.groups.values() if group.link == "dcn"}
    assert shared.forecast.step_s.lower >= sum(over_dcn(shared).values()) / rate


def test_slices_that_share_weights_wait_in_each_layer(shared: Plan) -> None:
    """They exchange weights in every microbatch, where others reduce gradients once a step."""
    layout = layout_of(shared, catalog.chip("v6e"))
    accumulating = replace(layout, microbatches=2)
    assert step_work(layout, []).reductions == shared.model.layers
    assert step_work(accumulating, []).reductions == 2 * shared.model.layers
    copied = replace(accumulating, mesh={**layout.mesh, "pods": 2, "fsdp_dcn": 1})
    assert step_work(copied, []).reductions == 1


def test_part_of_the_slices_may_share_weights() -> None:
    """Of four slices two share each copy; gradients cross between the copies."""
    plan = make_plan(two_slices(SHARED, pods=4))
    assert (plan.mesh["pods"], plan.mesh["fsdp_dcn"], plan.pods) == (2, 2, 4)
    axes = {line.collective.axes for line in plan.forecast.time if line.collective}
    assert {("pods",), ("fsdp_dcn",)} <= axes
    assert [(axis.name, axis.size) for axis in plan.axes if axis.link == "dcn"] == [
        ("pods", 2),
        ("fsdp_dcn", 2),
    ]


@pytest.mark.parametrize(("pods", "ways"), [("4", 3), ("{min: 1, max: 2}", 2), ("2", 4), ("1", 2)])
def test_a_spec_shares_weights_in_equal_groups(pods: str, ways: int, tmp_path: Path) -> None:
    """The number divides the pods, and the fewest pods that the run may go on with."""
    more = f"4x4x4,\n  pods: {pods},\n  mesh: {{fsdp_dcn: {ways}}}}}"
    [problem] = problems_of(write(tmp_path, MINIMAL.replace("4x4x4}", more)))
    assert problem.code == "pods-not-divisible"
    assert problem.key == "resources.mesh.fsdp_dcn"
    assert problem.place is not None


def test_fewer_slices_that_cannot_share_have_no_plan(shared: Plan) -> None:
    """Three slices are no groups of two, and the suggestion drops the sharing."""
    with pytest.raises(Infeasible) as caught:
        make_plan(replace(two_slices(), resources=replace(
            two_slices().resources, pods=Pods(min=3, max=3))))  # fmt: skip
    [reason] = caught.value.reasons
    assert reason.code == "pods_not_divisible"
    assert reason.figures == {"pods": 3, "axis": "fsdp_dcn", "ways": 2}
    with pytest.raises(Infeasible):
        plan_on(two_slices(), shared, 1)
    assert plan_on(two_slices(pods=4), make_plan(two_slices(pods=4)), 2).mesh == shared.mesh


def test_a_width_that_sharing_does_not_divide_is_refused() -> None:
    """A d_model of 8,192 is not divisible by 256 x 64."""
    mesh = MeshRequest(fsdp=256, fsdp_dcn=64)
    with pytest.raises(Infeasible) as caught:
        make_plan(spec_of("llama3-70b", chip="v6e", topology="16x16", pods=64,
                          sequences=16_384, mesh=mesh))  # fmt: skip
    codes = {reason.code: reason.figures for reason in caught.value.reasons}
    assert codes["dimension_not_divisible"]["name"] == "d_model"
    assert "fsdp_dcn" in str(codes["dimension_not_divisible"]["ways"])


def test_a_run_goes_on_with_whole_groups_of_slices() -> None:
    """Of three slices that are left it takes two."""
    request = _SliceRequest(
        pods=Pods(min=2, max=4), kind="v6e", started=True, private=True, sharing=2
    )
    free = [Slice(name=name, hosts=1, size=1, free=True) for name in "abc"]
    assert _select(free, request, "bcd", 0.0) == ("b", "c")
    assert _select(free[:1], replace(request, private=False), "abcd", 1e6) == ()


def test_a_rehearsal_shares_weights_too(shared: Plan) -> None:
    """Its emulated slices exchange what the plan's slices do."""
    small = rehearse(two_slices(), shared).plan
    assert (small.mesh["pods"], small.mesh["fsdp_dcn"]) == (1, 2)
    assert over_dcn(small).keys() == over_dcn(shared).keys()


# --- trained


def losses_of(folder: Path, plan: Plan, steps: int) -> tuple[int, list[float]]:
    """The steps that were done before, and the losses of those that follow."""
    outcome, emitted = trained(llama, plan, folder, steps)
    return outcome.startup.steps_done, [step.loss for step in emitted]


@pytest.mark.slow
def test_a_run_is_resumed_with_and_without_sharing(tmp_path: Path) -> None:
    """Three steps on one device, three where slices share weights, three where they do not."""
    _, straight = losses_of(tmp_path / "straight", plan_of(), 9)
    meshes: list[dict[str, Any]] = [
        {},
        {"fsdp_dcn": 2, "fsdp": 2, "tensor": 2},
        {"pods": 2, "fsdp": 2},
    ]
    losses: list[float] = []
    for done, mesh in enumerate(meshes):
        before, more = losses_of(tmp_path / "run", plan_of(**mesh), 3 * (done + 1))
        assert before == 3 * done
        losses += more
    assert losses == pytest.approx(straight, rel=1e-5)


def nodes(model: str, pods: int, sequences: int, mesh: MeshRequest | None = None) -> Spec:
    """Nodes of eight H100."""
    return spec_of(
        model, chip="h100", topology="8", pods=pods, sequences=sequences, length=8192, mesh=mesh
    )


def test_the_search_chooses_how_many_domains_of_gpus_share_weights() -> None:
    """Of all numbers of domains, the plan that the ranking puts first."""
    spec = nodes("llama3-70b", 32, 256)
    chosen = make_plan(spec)
    pinned = []
    for shared in (1, 2, 4, 8, 16, 32):
        mesh = MeshRequest(fsdp_dcn=shared)
        with suppress(Infeasible):
            pinned.append(make_plan(nodes("llama3-70b", 32, 256, mesh)))
    best = min(pinned, key=_ranked_s_per_token)
    assert chosen.mesh == best.mesh
    assert chosen.mesh["fsdp_dcn"] > 1
    assert chosen.spec_digest == make_plan(replace(spec, name="other")).spec_digest
    assert make_contenders(spec, 3)[0].plan.mesh == chosen.mesh


def test_a_small_model_keeps_a_copy_in_each_domain() -> None:
    assert make_plan(nodes("llama3-8b", 4, 128)).mesh["fsdp_dcn"] == 1


def test_16384_gpus_are_planned() -> None:
    plan = make_plan(nodes("llama3-405b", 2048, 2048))
    assert plan.devices == 16_384
    assert prod(sizes(plan.mesh, DCN_AXES).values()) == 2048
    assert plan.forecast.fits


def test_a_model_that_no_sharing_fits_is_refused() -> None:
    with pytest.raises(Infeasible):
        make_plan(nodes("llama3-405b", 2, 16))
