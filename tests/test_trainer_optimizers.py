"""Trainer llama: Adafactor gives the same on every mesh, and what optax gives for a matrix."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest

from orchestrator.errors import SpecError
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Optimizer, Precision
from tests.trainer_plans import TINY, plan_of
from tests.trainer_steps import (
    QUICK_COMPILE,
    expected,
    initial_state,
    largest_difference,
    random_parameters,
    random_tokens,
    without_padding,
)
from trainers import llama
from trainers.contract import build, place
from trainers.mesh import abstract_mesh_of

ADAFACTOR = Optimizer(
    name="adafactor", peak_lr=0.1, warmup_steps=0, decay="constant", clip_norm=0.0, weight_decay=0.0
)
ONE_LAYER = replace(TINY, layers=1)
Tree = Any


def after_steps(plan: Plan, steps: int) -> Tree:
    """The parameters after steps on random words."""
    program = build(llama, plan, jax.devices()[: plan.devices])
    state = initial_state(program, random_parameters(program))
    tokens = random_tokens(plan)
    batch = place(program, lambda start, stop: tokens[start:stop])
    compiled = program.lowered().compile(QUICK_COMPILE)
    for number in range(steps):
        state, _metrics = compiled(state, batch, *program.rate(number))
    return without_padding(program, state["parameters"])


MESHES: list[Any] = [
    {"fsdp": 2, "sequence": 2, "tensor": 2},
    pytest.param({"pods": 2, "tensor": 8}, marks=pytest.mark.slow),  # kv heads are copied
    pytest.param({"fsdp_dcn": 2, "fsdp": 2, "data": 2}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_adafactor_is_the_same_on_every_mesh(mesh: dict[str, Any]) -> None:
    """Means go over the shards of all chips, and a padded vocabulary counts in none."""
    how = replace(ADAFACTOR, weight_decay=0.1)
    model = replace(ONE_LAYER, vocab=67)
    alone = after_steps(plan_of(model, optimizer=how), 2)
    assert largest_difference(after_steps(plan_of(model, optimizer=how, **mesh), 2), alone) < 1e-5


NARROW_FIRST = Precision(first_moment="bf16")


def test_the_first_moment_alone_is_stored_in_its_own_type() -> None:
    plan = plan_of(ONE_LAYER, precision=NARROW_FIRST)
    state = llama.program(plan, abstract_mesh_of(plan)).state["optimizer"]
    for name, dtype in (("mu", "bfloat16"), ("nu", "float32")):
        leaves = jax.tree.leaves(optax.tree.get(state, name))
        assert {leaf.dtype.name for leaf in leaves} == {dtype}


@pytest.mark.slow
def test_a_narrow_first_moment_trains_as_a_wide_one() -> None:
    """But for its rounding, once a step."""
    how = Optimizer(warmup_steps=0, decay="constant")
    wide = after_steps(plan_of(ONE_LAYER, optimizer=how), 2)
    narrow = after_steps(plan_of(ONE_LAYER, optimizer=how, precision=NARROW_FIRST), 2)
    assert 0 < largest_difference(narrow, wide) < 1e-2


def test_a_matrix_follows_optax() -> None:
    """Its first step: matrices of the MLP have two dimensions, as optax factors them."""
    plan = plan_of(ONE_LAYER, optimizer=ADAFACTOR)
    found, (_, gradients) = after_steps(plan, 1), expected(plan)
    start = random_parameters(llama.program(plan, abstract_mesh_of(plan)))
    right = optax.adafactor(
        ADAFACTOR.peak_lr, min_dim_size_to_factor=1, multiply_by_parameter_scale=True
    )
    for name in ("gate", "up", "down", "mlp_norm"):
        before, gradient = start["layers"][name][0], np.asarray(gradients["layers"][name][0])
        change, _state = right.update(gradient, right.init(before), before)
        assert np.allclose(found["layers"][name][0], before + change, atol=1e-5), name


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": Optimizer(name="muon")}, {"precision": Precision(optimizer="int8")}],
    ids=["muon", "8-bit moments"],
)
def test_what_can_only_be_planned_is_refused(changes: dict[str, Any]) -> None:
    """Before anything is compiled."""
    plan = plan_of(ONE_LAYER, **changes)
    with pytest.raises(SpecError, match="can be planned, not trained"):
        llama.program(plan, abstract_mesh_of(plan))
