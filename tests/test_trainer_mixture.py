"""Trainer llama with mixtures of experts: the numbers are those of a plain reference."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from orchestrator.values.model import MixtureOfExperts
from tests.test_trainer_numbers import ALONE, MIXTURES, check_against_reference, named
from tests.trainer_plans import TINY, but_slow, plan_of
from tests.trainer_steps import random_parameters, take_step
from trainers import llama
from trainers.llama.collectives import MESH
from trainers.llama.mixture import Routed, _collect, _spread, router_metrics
from trainers.mesh import abstract_mesh_of

MOE = MixtureOfExperts(experts=8, top_k=2, d_ff=24, balance_loss=0.1, z_loss=0.01)
# Of each kind of router, of rows and of layers, on a mesh that splits what it can.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dropless": (
        {"shared_experts": 1, "normalized": False},
        {"fsdp": 2, "sequence": 2, "tensor": 2, "remat": "offload_input"},
    ),
    "capacity": (
        {"capacity_factor": 1.0, "dense_layers": 1},
        {"pods": 2, "fsdp": 2, "tensor": 2, "microbatches": 2},
    ),
    "sigmoid": (
        {"router": "sigmoid", "scale": 2.5, "groups": 4, "top_groups": 2},
        {"pods": 2, "data": 2, "tensor": 2, "gradient_reduction": "per_layer"},
    ),
    "experts apart": (
        {"shared_experts": 1, "capacity_factor": 1.25},
        {"expert_dcn": 2, "expert": 2, "fsdp": 2, "microbatches": 2},
    ),
    "experts apart, dropless": (
        {"dense_layers": 1, "biases": True, "router_bias": True},
        {"pods": 2, "expert": 2, "tensor": 2},
    ),
    "biases with a capacity": (
        {"biases": True, "router_bias": True, "capacity_factor": 1.0},
        {"pods": 2, "expert": 2, "tensor": 2, "gradient_reduction": "per_layer"},
    ),
    "scores as they are": ({"normalized": False, "groups": 2}, {"fsdp_dcn": 2, "fsdp": 2}),
}


APART: list[dict[str, Any]] = [
    {"expert": 8},
    {"expert": 4, "sequence": 2, "tensor": 2},
    {"pods": 2, "data": 2, "expert": 2, "fsdp": 2},
    {"fsdp_dcn": 2, "expert": 2, "fsdp": 2, "tensor": 2},
    {"expert_dcn": 2, "expert": 2, "sequence_dcn": 2, "sequence": 2},
    {"expert": 2, "tensor": 8},
]


def check(changes: dict[str, Any], mesh: dict[str, Any]) -> dict[str, float]:
    plan = plan_of(replace(TINY, moe=replace(MOE, **changes)), **mesh)
    return check_against_reference(plan).metrics


# What these do, others do too: a capacity, biases, shared experts, rows of which none is dropped.
_SLOW = ("dropless", "capacity", "biases with a capacity", "scores as they are")


@pytest.mark.parametrize("kind", but_slow(KINDS, _SLOW))
def test_every_kind_of_mixture_gives_the_reference(kind: str) -> None:
    """Forward and gradients; each expert's load, and the choices that are dropped."""
    changes, mesh = KINDS[kind]
    metrics = check(changes, mesh)
    load = [metrics[f"expert_load/{e}"] for e in range(8)]
    assert sum(load) == pytest.approx(8)
    assert metrics["busiest_expert"] >= max(load) > 1
    assert (metrics["dropped_share"] > 0) == ("capacity_factor" in changes)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [*ALONE, *MIXTURES, *APART], ids=named)
def test_every_mesh_gives_the_reference(mesh: dict[str, Any]) -> None:
    """Without capacity everywhere; with it where no axis splits sequences."""
    check({"shared_experts": 1}, mesh)
    if "sequence" not in mesh:
        check({"capacity_factor": 0.75}, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["offload_input", "keep_mlp", "none"])
def test_remat_policies_give_the_reference(remat: str) -> None:
    """What is kept, recomputed or offloaded does not change the numbers."""
    check({"shared_experts": 1}, {"fsdp": 2, "tensor": 2, "remat": remat})


def test_a_balance_bias_moves_against_the_load() -> None:
    """By the same step for each expert; neither clipping nor the gradients' norm knows of it."""
    moe = replace(MOE, router="sigmoid", balance_bias=0.01, z_loss=0.0, balance_loss=0.0)
    plan = plan_of(replace(TINY, layers=1, moe=moe), pods=2, fsdp=2, tensor=2)
    before = random_parameters(llama.program(plan, abstract_mesh_of(plan)))
    taken = take_step(plan)
    moved = taken.parameters["layers"]["balance_bias"] - before["layers"]["balance_bias"]
    load = np.array([taken.metrics[f"expert_load/{e}"] for e in range(8)])
    assert np.allclose(moved[0], -0.01 * np.sign(load - 1), atol=1e-6)
    assert not taken.gradients["layers"]["balance_bias"].any()


def test_complete_rows_are_gathered_without_a_pass_for_the_missing() -> None:
    """Both ways give the same rows and gradients; only the one for missing rows fills them."""
    x, places = jnp.arange(12.0).reshape(6, 2), jnp.array([4, 0, 5, 1, 3, 2])
    uses = jnp.argsort(places)[:, None]

    def of(complete: bool) -> Any:
        def there_and_back(x: jax.Array) -> jax.Array:
            rows = _spread(complete, x, places, uses)
            return (_collect(complete, rows**2, places, uses) * x).sum()

        return jax.value_and_grad(there_and_back)

    assert jax.tree.all(jax.tree.map(np.array_equal, of(True)(x), of(False)(x)))
    fills = ["FILL_OR_DROP" in str(jax.make_jaxpr(of(is_even))(x)) for is_even in (True, False)]
    assert fills == [False, True]


def test_more_choices_than_an_integer_of_32_bits_counts() -> None:
    """33M tokens with 8 choices in each of 94 layers: even loads are one."""
    tokens, layers = 2**25, 94
    plan = plan_of(replace(TINY, layers=layers, moe=replace(MOE, top_k=8)))
    plan = replace(plan, batch=replace(plan.batch, tokens=tokens))
    load = jnp.full((layers, 8), float(tokens))
    routed = Routed(jnp.zeros(layers), load, jnp.zeros(layers))
    mesh = Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(MESH)), MESH)
    metrics = jax.shard_map(
        partial(router_metrics, plan), mesh=mesh, in_specs=PartitionSpec(),
        out_specs=PartitionSpec(), check_vma=False,
    )(routed)  # fmt: skip
    assert [float(metrics[f"expert_load/{e}"]) for e in range(8)] == pytest.approx([1] * 8)
    assert float(metrics["busiest_expert"]) == pytest.approx(1)
