"""Mixtures of experts: their description, and what follows from it in plans."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Mixture
from orchestrator.network.mlp import expert_rows
from orchestrator.planning import flops
from orchestrator.planning.calibrated import layout_of
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.layout import Training
from orchestrator.planning.memory import phases
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.reading.load import load
from orchestrator.reading.problems import SpecProblems
from orchestrator.values.model import MixtureOfExperts, Model
from orchestrator.values.spec import MeshRequest
from tests.trainer_plans import plan_of

DENSE = Model(name="m", layers=6, d_model=64, d_ff=256, heads=8, kv_heads=2, head_dim=16, vocab=128)
MOE = MixtureOfExperts(experts=16, top_k=4, d_ff=96)


def model_of(**changes: Any) -> Model:
    return replace(DENSE, moe=replace(MOE, **changes))


def layout_for(model: Model, **changes: Any) -> Training:
    plan = plan_of(model, **changes)
    return layout_of(plan, catalog.chip(plan.chip))


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("mixtral-8x7b", 46.70e9, 12.88e9), ("mixtral-8x22b", 140.6e9, 39.2e9)],
)
def test_parameters_are_those_that_are_published(name: str, total: float, active: float) -> None:
    """In total, and those that a token uses."""
    model = catalog.model(name)
    assert flops.parameters(model) == pytest.approx(total, rel=1e-3)
    assert flops.active_parameters(model) == pytest.approx(active, rel=2e-3)


@pytest.mark.parametrize(
    ("changes", "mixtures"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"dense_layers": 2}, [2, 3, 4, 5]),
        ({"every": 2}, [1, 3, 5]),
        ({"dense_layers": 1, "every": 2}, [2, 4]),
    ],
    ids=str,
)
def test_layers_with_experts(changes: dict[str, int], mixtures: list[int]) -> None:
    """Dense layers come first, or in between."""
    network = decoder(model_of(**changes))
    of_stacks = {
        layer
        for stack in network.stacks
        for layer in stack.layers
        if isinstance(stack.block.mlp, Mixture)
    }
    assert sorted(of_stacks) == mixtures
    assert network.layers == DENSE.layers


def test_a_token_uses_its_own_experts_and_the_shared_ones() -> None:
    """The model's FLOPs count these alone."""
    model = model_of(shared_experts=2)
    expert = 3 * 64 * 96
    dense = decoder(DENSE).parameters - 6 * 3 * 64 * 256 + 6 * 64 * 16  # with the routers
    assert flops.parameters(model) == dense + 6 * (16 + 2) * expert
    assert flops.active_parameters(model) == dense + 6 * (4 + 2) * expert
    more = flops.model_flops_per_token(model, 32) - flops.model_flops_per_token(model_of(), 32)
    assert more == 6 * 6 * 2 * expert


def test_experts_cost_what_their_tokens_cost() -> None:
    """Compute is that of a dense model of the active width; weights are those of all experts."""
    mixture, dense = layout_for(model_of()), layout_for(replace(DENSE, d_ff=4 * 96))
    router = flops.matmul_flops(mixture, 6 * 64 * 16)
    assert flops.blocks_forward_flops(mixture) == flops.blocks_forward_flops(dense) + router
    assert mixture.layer_elements - dense.layer_elements == 6 * (3 * 64 * 96 * 12 + 64 * 16)
    # 15 tiles that two experts share: of 128 rows in two products, of 128 at least in the third.
    shared = 15 * 3 * 128 * 2 * (6 * 3 * 64 * 96)
    assert flops.expert_padding_flops(mixture) == pytest.approx(shared)
    assert flops.expert_padding_flops(dense) == 0


def test_capacity_costs_its_empty_rows() -> None:
    """Rows of experts beyond the choices are multiplied like others, on a line of their own."""
    limited = model_of(capacity_factor=1.5)
    assert limited.moe is not None
    assert expert_rows(limited.moe, 32) == 12  # 1.5 x 32 x 4 / 16
    layout, dropless = layout_for(limited), layout_for(model_of())
    routed = flops.matmul_flops(layout, 6 * 4 * 3 * 64 * 96)
    assert flops.expert_padding_flops(layout) == pytest.approx(3 * 0.5 * routed)
    assert flops.blocks_forward_flops(layout) == flops.blocks_forward_flops(dropless)
    rows = [
        next(line.inputs["rows"] for phase in phases(priced) for line in phase.lines
             if line.kind == "routed_rows")
        for priced in (layout, dropless)
    ]  # fmt: skip
    assert rows[0] == pytest.approx(1.5 * rows[1])


def test_repeated_matmuls_have_the_same_rows() -> None:
    """What the backward pass repeats it repeats with empty rows, and with those of the busiest."""
    even, limited, uneven = (
        layout_for(model_of(**changes), expert=2, fsdp=2)
        for changes in ({"imbalance": 1.0}, {"capacity_factor": 1.5}, {"imbalance": 1.5})
    )
    again = flops.matmul_flops(even, 6 * 4 * 2 * 64 * 96)  # gate and up of four experts
    for priced in (limited, uneven):
        more = flops.blocks_recompute_flops(priced) - flops.blocks_recompute_flops(even)
        assert more == pytest.approx(0.5 * again)


def test_fewer_rows_than_choices_compute_less() -> None:
    """Choices that are dropped are not computed; MFU counts them."""
    scarce, dropless = (layout_for(model_of(capacity_factor=f)) for f in (0.5, 1.0))
    assert flops.blocks_forward_flops(scarce) < flops.blocks_forward_flops(dropless)
    assert flops.model_flops_per_token(scarce.model, 32) == flops.model_flops_per_token(
        dropless.model, 32
    )


def test_imbalance_is_work_beyond_the_mean() -> None:
    """Where experts lie apart and none is dropped; it is no work of the model."""
    apart = {"expert": 2, "fsdp": 2}
    uneven, even = (layout_for(model_of(imbalance=imbalance), **apart) for imbalance in (1.5, 1.0))
    routed = flops.matmul_flops(even, 6 * 4 * 3 * 64 * 96)
    assert flops.expert_imbalance_flops(uneven) == pytest.approx(0.5 * 3 * routed)
    assert flops.expert_imbalance_flops(even) == 0
    together = layout_for(model_of(imbalance=1.5), fsdp=4)
    assert flops.expert_imbalance_flops(together) == 0
    dropping = model_of(imbalance=1.5, capacity_factor=1.25)
    assert flops.expert_imbalance_flops(layout_for(dropping, **apart)) == 0
    assert flops.model_flops_per_token(uneven.model, 32) == flops.model_flops_per_token(
        even.model, 32
    )


SPEC = """
name: mixture
experiment:
  model: {{layers: 6, d_model: 64, d_ff: 256, heads: 8, kv_heads: 2, head_dim: 16, vocab: 128,
          moe: {moe}}}
  tokens: 10M
  batch: {{sequences: 64, length: 128}}
resources: {{chip: v5e, topology: 2x2{mesh}}}
"""


def written(folder: Path, moe: str, mesh: str = "") -> Path:
    file = folder / "spec.yaml"
    file.write_text(SPEC.format(moe=moe, mesh=mesh))
    return file


@pytest.mark.parametrize(
    ("moe", "key", "code"),
    [
        ("{experts: 4, top_k: 8}", "top_k", "more-chosen"),
        ("{experts: 8, top_k: 2, groups: 3}", "groups", "groups-not-divisible"),
        ("{experts: 8, top_k: 2, groups: 4, top_groups: 5}", "top_groups", "more-chosen"),
        ("{experts: 8, top_k: 3, groups: 4, top_groups: 1}", "top_k", "more-chosen"),
        ("{experts: 8, top_k: 2, dense_layers: 6}", "dense_layers", "no-mixture"),
        ("{experts: 8}", "top_k", "missing-key"),
        ("{experts: 8, top_k: 2, router: relu}", "router", "illegal-value"),
    ],
)
def test_wrong_mixtures_are_refused(tmp_path: Path, moe: str, key: str, code: str) -> None:
    """By the key and the code of the problem."""
    with pytest.raises(SpecProblems) as caught:
        load(written(tmp_path, moe))
    found = [(problem.key, problem.code) for problem in caught.value.problems]
    assert found == [(f"experiment.model.moe.{key}", code)]


def test_a_capacity_needs_whole_sequences(tmp_path: Path) -> None:
    """Rows are counted for each sequence, so no axis may split its positions."""
    spec = load(written(tmp_path, "{experts: 8, top_k: 2, capacity_factor: 1.25}"))
    mesh = replace(spec.resources, mesh=MeshRequest(sequence=2))
    with pytest.raises(Infeasible) as caught:
        make_plan(replace(spec, resources=mesh))
    assert "sequences_not_whole" in [reason.code for reason in caught.value.reasons]
    assert make_plan(spec).mesh["sequence"] == 1


def test_a_rehearsal_has_fewer_and_smaller_experts(tmp_path: Path) -> None:
    """A token goes to as many of them."""
    moe = (
        "{experts: 256, top_k: 8, d_ff: 2048, groups: 8, top_groups: 4, dense_layers: 1,"
        " shared_experts: 1, capacity_factor: 1.25}"
    )
    spec = load(written(tmp_path, moe), ("resources.chip=v5p", "resources.topology=4x4x8"))
    wide = replace(spec.experiment.model, d_model=2048, layers=20, heads=16, head_dim=128)
    spec = replace(spec, experiment=replace(spec.experiment, model=wide))
    small = rehearse(spec, make_plan(spec)).plan.model
    assert small.moe is not None
    assert (small.moe.experts, small.moe.top_k, small.moe.d_ff) == (16, 8, 128)
    assert (small.moe.dense_layers, small.moe.shared_experts, small.layers) == (1, 1, 4)
