"""The description of the network: what follows from it, and what it has to agree with."""

from dataclasses import fields
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.network import attention, mlp
from orchestrator.network.decoder import BLOCK_INPUT, MODEL_KEYS, decoder, published_names
from orchestrator.network.mesh_axes import (
    AXES,
    GROUPS,
    ICI_AXES,
    LOGICAL_AXES,
    MESH_AXES,
    SHARED_OVER_DCN,
)
from orchestrator.network.rematerialization import POLICIES
from orchestrator.plan.calibrated import layout_of
from orchestrator.plan.collectives import exchanges
from orchestrator.types.spec import MeshRequest, Model
from tests.trainer_plans import plan_of

TREES: list[dict[str, Any]] = [{}, {"gated": False}, {"tied": True}]


def model_of(**changes: Any) -> Model:
    sizes = {"layers": 3, "d_model": 64, "d_ff": 96, "heads": 8, "kv_heads": 2, "head_dim": 16}
    return Model(name="m", vocab=128, **sizes | changes)


@pytest.mark.parametrize("changes", TREES, ids=str)
def test_parameters_are_the_sum_of_the_weights(changes: dict[str, Any]) -> None:
    """Blocks count once for each layer, a tied table once."""
    network = decoder(model_of(**changes))
    blocks = network.layers * sum(weight.elements for weight in network.block.weights)
    ends = sum(weight.elements for weight in (*network.tables, network.norm))
    assert network.parameters == blocks + ends


def test_every_logical_axis_of_the_network_is_in_the_table() -> None:
    """So is every key of a model that a mesh has to divide."""
    block = decoder(model_of()).block
    axes = {dimension.axis for weight in block.weights for dimension in weight.dimensions}
    axes |= {dimension.axis for tensor in block.tensors for dimension in tensor.dimensions}
    assert axes <= LOGICAL_AXES.keys()
    assert {tensor.positions for tensor in block.tensors} <= LOGICAL_AXES.keys()
    split = {axis for axis in axes if LOGICAL_AXES[axis]}
    assert split | {"vocab"} == MODEL_KEYS.keys()


def test_mesh_axes_are_those_that_a_spec_may_request() -> None:
    """Every axis has its key, but `pods`; each splits something or holds replicas."""
    assert tuple(field.name for field in fields(MeshRequest)) == (*ICI_AXES, *SHARED_OVER_DCN)
    assert {axis for axes in LOGICAL_AXES.values() for axis in axes} == set(AXES)


@pytest.mark.parametrize("axes", GROUPS.values(), ids=GROUPS)
def test_the_axes_of_a_group_are_neighbours(axes: tuple[str, ...]) -> None:
    """So that a group is one span on every torus axis."""
    first = AXES.index(axes[0])
    assert AXES[first : first + len(axes)] == axes


def test_mesh_axes_exchange_what_they_declare() -> None:
    """Over each axis run the collectives of its declaration, and no others."""
    mesh: dict[str, Any] = dict.fromkeys(AXES, 2) | {"tensor": 4}
    plan = plan_of(**mesh, sequences=64)
    sent = exchanges(layout_of(plan, catalog.chip(plan.chip)))
    for axis in MESH_AXES:
        lines = {one.line for one in sent if axis.name in one.axes}
        assert lines == set(axis.exchanges), axis.name


@pytest.mark.parametrize("gated", [True, False])
def test_policies_name_the_tensors_of_the_block(gated: bool) -> None:
    """`none` keeps them all; no policy names another, and none recomputes the block's input."""
    tensors = {tensor.name for tensor in decoder(model_of(gated=gated)).block.tensors}
    known = {BLOCK_INPUT, *attention.TENSORS, *mlp.TENSORS}
    assert tensors <= POLICIES["none"].keep
    for policy in POLICIES.values():
        assert policy.keep | policy.offload <= known
        assert not policy.keep & policy.offload
        assert not policy.recomputes(BLOCK_INPUT)


def test_weights_have_the_names_of_published_checkpoints() -> None:
    """Those of LlamaForCausalLM."""
    names = set(published_names(decoder(model_of())).values())
    layer = "model.layers.{layer}."
    assert names == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        f"{layer}input_layernorm.weight",
        f"{layer}post_attention_layernorm.weight",
        *(f"{layer}self_attn.{one}_proj.weight" for one in "qkvo"),
        *(f"{layer}mlp.{one}_proj.weight" for one in ("gate", "up", "down")),
    }
