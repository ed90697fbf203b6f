"""The description of the network: what follows from it, and what it has to agree with."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from math import prod
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.network import attention, mlp
from orchestrator.network.decoder import _MODEL_KEYS, BLOCK_INPUT, _patterns, decoder, split_sizes
from orchestrator.network.mesh_axes import (
    AXES,
    GROUPS,
    ICI_AXES,
    LOGICAL_AXES,
    MODEL_OVER_DCN,
    in_use,
)
from orchestrator.network.published import published_weights
from orchestrator.network.rematerialization import POLICIES, policy, remat_of, text_of
from orchestrator.planning import flops
from orchestrator.planning.calibrated import layout_of
from orchestrator.planning.collectives import Exchange, exchanges
from orchestrator.planning.fastest_ways import _all_policies
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model
from orchestrator.values.plan import Plan
from orchestrator.values.spec import MeshRequest, Precision, TensorTreatments
from tests.census import count_collectives
from tests.trainer_plans import TINY, few, plan_of
from trainers.contract import load
from trainers.mesh import abstract_mesh_of

TREES: list[dict[str, Any]] = [{}, {"gated": False}, {"tied": True}]


def model_of(**changes: Any) -> Model:
    sizes = {"layers": 3, "d_model": 64, "d_ff": 96, "heads": 8, "kv_heads": 2, "head_dim": 16}
    return Model(name="m", vocab=128, **sizes | changes)


@pytest.mark.parametrize("changes", TREES, ids=str)
def test_parameters_are_the_sum_of_the_weights(changes: dict[str, Any]) -> None:
    """Blocks count once for each layer, a tied table once."""
    network = decoder(model_of(**changes))
    blocks = network.layers * sum(weight.elements for weight in network.blocks[0].weights)
    ends = sum(weight.elements for weight in (*network.tables, *network.norm.weights))
    assert network.parameters == blocks + ends


PATTERNS: dict[str, list[tuple[int, int, int]]] = {
    "a": [(0, 1, 1)],
    "aaaa": [(0, 1, 4)],
    "abab": [(0, 2, 2)],
    "ababa": [(0, 2, 2), (4, 1, 1)],
    "aaabaaabaa": [(0, 4, 2), (8, 1, 2)],
    "aaabbbbb": [(0, 1, 3), (3, 1, 5)],
    "abcbcbc": [(0, 1, 1), (1, 2, 3)],
    "abc": [(0, 1, 1), (1, 1, 1), (2, 1, 1)],
}


@pytest.mark.parametrize("row", PATTERNS)
def test_layers_are_repeated_patterns(row: str) -> None:
    """Each pattern goes as far as it can, with the fewest layers in it."""
    assert [(each.start, each.step, len(each)) for each in _patterns(row)] == PATTERNS[row]


def test_stacks_hold_every_layer_once() -> None:
    """In the pattern that the model says, and under names of their own."""
    model = model_of(layers=8, window=16, window_pattern="LLG")
    network = decoder(model)
    kinds = {layer: stack.block.kind for stack in network.stacks for layer in stack.layers}
    assert [kinds[layer] for layer in range(8)] == ["local", "local", "global"] * 2 + ["local"] * 2
    assert [segment.repeats for segment in network.segments] == [2, 2]
    assert [stack.name for stack in network.stacks] == [f"layers_{i}" for i in range(4)]
    assert dict(network.kinds) == dict(zip(network.blocks, (6, 2), strict=True))
    assert [stack.name for stack in decoder(model_of()).stacks] == ["layers"]


LATENT = {
    "kv_heads": 8,
    "latent": LatentDimensions(query_rank=24, kv_rank=32, nope_dim=12, rope_dim=4, value_dim=20),
}


def test_latent_attention_has_its_weights() -> None:
    """As the paper counts them; the stream's matmuls make the latents and the turned key."""
    [block] = decoder(model_of(**LATENT)).blocks
    sizes = {matmul.weight.name: matmul.weight.elements for matmul in block.attention.matmuls}
    assert sizes == {
        "query_down": 64 * 24, "kv_down": 64 * 32, "key_rope": 64 * 4, "query": 24 * 8 * 16,
        "key": 32 * 8 * 12, "value": 32 * 8 * 20, "output": 8 * 20 * 64,
    }  # fmt: skip
    assert (block.attention.queries.width, block.attention.result.width) == (8 * 16, 8 * 20)
    assert block.attention.entering_width == 24 + 32 + 4
    direct = replace(LATENT["latent"], query_rank=None)  # type: ignore[type-var]
    [block] = decoder(model_of(**LATENT | {"latent": direct})).blocks
    assert block.attention.entering_width == 64 + 32 + 4
    assert [matmul.weight.name for matmul in block.attention.parallel[0]] == ["kv_down", "key_rope"]


def test_latent_attention_costs_what_its_widths_cost() -> None:
    """Scores along queries, values along theirs; the backward kernel 3 and 2 times."""
    plan = plan_of(model_of(**LATENT), length=512)
    layout = layout_of(plan, catalog.chip(plan.chip))
    queries, values = 8 * 16, 8 * 20
    assert flops.attention_flops_per_token(plan.model, 512) == 3 * 512 * (queries + values)
    pairs = 3 * layout.step_tokens * 512  # blocks as long as sequences are computed whole
    assert flops.attention_forward_flops(layout) == 2 * pairs * (queries + values)
    assert flops.attention_backward_flops(layout) == 2 * pairs * (3 * queries + 2 * values)


@pytest.mark.parametrize("changes", [{}, LATENT], ids=["grouped", "latent"])
def test_every_logical_axis_of_the_network_is_in_the_table(changes: dict[str, Any]) -> None:
    """So is every key of a model that a mesh has to divide."""
    [block] = decoder(model_of(**changes)).blocks
    axes = {dimension.axis for weight in block.weights for dimension in weight.dimensions}
    axes |= {dimension.axis for tensor in block.tensors for dimension in tensor.dimensions}
    assert axes <= LOGICAL_AXES.keys()
    assert {tensor.positions for tensor in block.tensors} <= LOGICAL_AXES.keys()
    split = {axis for axis in axes if LOGICAL_AXES[axis]}
    latents = {"query_rank", "kv_rank"} if changes else set()
    assert split | {"vocab", "kv_heads"} == _MODEL_KEYS.keys() | latents
    assert split <= {axis for axis, *_ in split_sizes(model_of(**changes))}


def test_mesh_axes_are_those_that_a_spec_may_request() -> None:
    """Every axis has its key, but `pods`; each splits something or holds replicas."""
    keys = {field.name for field in fields(MeshRequest)}
    assert (
        keys
        == {*ICI_AXES, *MODEL_OVER_DCN, "pipeline_chunks"}
        == {*AXES, "pipeline_chunks"} - {"pods"}
    )
    assert {axis for axes in LOGICAL_AXES.values() for axis in axes} == set(AXES)


@pytest.mark.parametrize("axes", GROUPS.values(), ids=GROUPS)
def test_the_axes_of_a_group_are_neighbours(axes: tuple[str, ...]) -> None:
    """So that a group is one span on every torus axis."""
    first = AXES.index(axes[0])
    assert AXES[first : first + len(axes)] == axes


@pytest.mark.parametrize("gated", [True, False])
def test_policies_name_the_tensors_of_the_block(gated: bool) -> None:
    """`none` keeps them all; no policy names another, and none recomputes the block's input."""
    tensors = {tensor.name for tensor in decoder(model_of(gated=gated)).tensors}
    known = {BLOCK_INPUT, *attention.TENSORS, *mlp.TENSORS}
    assert tensors <= POLICIES["none"].keep
    for remat_policy in POLICIES.values():
        assert remat_policy.keep | remat_policy.offload <= known
        assert not remat_policy.keep & remat_policy.offload
        assert not remat_policy.recomputes(BLOCK_INPUT)


def test_a_policy_is_a_name_or_a_mapping_of_all_tensors() -> None:
    """A mapping that is a named policy has its name; every other is written tensor by tensor."""
    tensors = [tensor.name for tensor in decoder(model_of(**LATENT)).tensors]
    assert sorted(tensors) == sorted(asdict(TensorTreatments()))
    for name, one in POLICIES.items():
        assert remat_of(one) == name
        mapping = {tensor: one.treatment(tensor) for tensor in tensors}
        assert policy(TensorTreatments(**mapping)) == one  # type: ignore[arg-type]
    mixed = TensorTreatments(block_input="offload", query="keep", up="offload")
    assert remat_of(policy(mixed)) == mixed
    assert text_of(mixed) == "{block_input: offload, query: keep, up: offload}"


def test_the_search_goes_through_every_policy_but_mirror_images() -> None:
    """Queries, keys and values alike, gate and up in one order: 2 x 3 x 3 x 3 x 6 policies."""
    found = _all_policies(model_of(), offloads=True)
    assert len(found) == len(set(found)) == 324
    assert set(POLICIES.values()) <= set(found)
    assert all(
        remat_policy.treatment("query") == remat_policy.treatment("value") for remat_policy in found
    )
    ungated = _all_policies(model_of(gated=False), offloads=True)
    assert set(POLICIES.values()) <= set(ungated)
    assert len(ungated) == 162
    latent = _all_policies(model_of(**LATENT), offloads=True)
    assert len(latent) == len(set(latent)) == 3 * 324
    assert set(POLICIES.values()) <= set(latent)
    without_host = _all_policies(model_of(), offloads=False)
    assert len(without_host) == 24
    assert not any(remat_policy.needs_host for remat_policy in without_host)


def test_a_ring_repeats_parallel_matmuls_as_one() -> None:
    """Only the missing columns are multiplied again, but for those that `tensor` sends round."""
    for tensor, repeated in ((1, 64 * 96), (4, 2 * 64 * 96 / 4)):
        plan = plan_of(model_of(), tensor=tensor, remat=TensorTreatments(up="offload"))
        layout = layout_of(plan, catalog.chip(plan.chip))
        assert layout.repeated_elements(layout.network.blocks[0].mlp.inputs) == repeated


def test_weights_have_the_names_of_published_checkpoints() -> None:
    """Those of LlamaForCausalLM."""
    names = {weight.name for weight in published_weights(decoder(model_of()), "llama")}
    layer = "model.layers.{layer}."
    assert names == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        f"{layer}input_layernorm.weight",
        f"{layer}post_attention_layernorm.weight",
        *(f"{layer}self_attn.{part}_proj.weight" for part in "qkvo"),
        *(f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    }


# --- the trainer sends what the ledger counts

SHAPES: list[dict[str, Any]] = [
    {"pods": 2, "fsdp": 2, "tensor": 2, "gradient_reduction": "per_layer"},
    {"pods": 2, "data": 2, "sequence": 2, "gradient_reduction": "per_layer"},
    {"pods": 2, "data": 2, "sequence": 2, "microbatches": 2},
    {"tensor": 8, "microbatches": 2, "remat": "none"},
    {"fsdp": 4, "tensor": 4, "remat": "keep_mlp"},
    {"fsdp_dcn": 2, "fsdp": 2, "tensor": 2},
]
MIXTURES: list[dict[str, Any]] = [
    {},
    {"capacity_factor": 1.25},
    {"shared_experts": 1, "dense_layers": 1},
    {"biases": True, "router_bias": True},
]
SHARED_EXPERTS: dict[str, Any] = {
    "expert": 4, "fsdp": 2, "data": 2, "gradient_reduction": "per_layer"
}  # fmt: skip
# The vectors of norms, biases and sinks: split over `tensor`, copied with kv heads, or neither.
VECTORS: dict[str, Any] = {
    "norm_placement": "both", "norm": "layer", "qk_norm": "heads", "sinks": True,
    "qkv_bias": True, "output_bias": True, "mlp_bias": True, "window": 8, "window_pattern": "LG",
}  # fmt: skip
BF16 = Precision(parameters="fp32", compute="bf16", gradients="bf16", optimizer="fp32")
# What a device sends in a call, of the bytes that it puts in, over so many ways.
SENT: dict[str, Callable[[int], float]] = {
    "all-gather": lambda ways: ways - 1,
    "reduce-scatter": lambda ways: (ways - 1) / ways,
    "all-to-all": lambda ways: (ways - 1) / ways,
    "all-reduce": lambda ways: 2 * (ways - 1) / ways,
    "permute": lambda _: 1,
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_byte_of_the_traced_step_is_in_the_ledger(shape: dict[str, Any]) -> None:
    """Over each group of axes; what the ledger leaves out are a few numbers in fp32."""
    check_bytes(plan_of(precision=BF16, **shape))


@pytest.mark.parametrize("changes", MIXTURES, ids=str)
def test_every_byte_of_a_mixture_is_in_the_ledger(changes: dict[str, Any]) -> None:
    """Weights of all experts, gradients of routers over `tensor`, and tokens over `expert`."""
    moe = MixtureOfExperts(**{"experts": 8, "top_k": 2, "d_ff": 64} | changes)
    for shape in (SHAPES[0], SHARED_EXPERTS):
        check_bytes(plan_of(replace(TINY, moe=moe), precision=BF16, **shape))


@pytest.mark.parametrize(
    ("shape", "query_rank"),
    [
        (SHAPES[0], 16), (SHAPES[3], None), (SHAPES[5], 16),
        *(pytest.param(SHAPES[shape], rank, marks=pytest.mark.slow)
          for shape, rank in ((0, None), (3, 16), (5, None))),
    ],
    ids=str,
)  # fmt: skip
def test_every_byte_of_latents_is_in_the_ledger(
    shape: dict[str, Any], query_rank: int | None
) -> None:
    """Latents in place of the stream, the turned key, and gradients of what makes them."""
    latent = LatentDimensions(
        query_rank=query_rank, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=16
    )
    model = replace(TINY, kv_heads=8, head_dim=12, latent=latent)
    check_bytes(plan_of(model, precision=BF16, **shape))


@pytest.mark.parametrize("shape", few(SHAPES), ids=str)
def test_every_byte_of_vectors_is_in_the_ledger(shape: dict[str, Any]) -> None:
    """Gradients of biases are reduced over the devices that repeat them."""
    check_bytes(plan_of(replace(TINY, **VECTORS), precision=BF16, **shape))


def check_bytes(plan: Plan) -> None:
    layout = layout_of(plan, catalog.chip(plan.chip))
    counted: defaultdict[tuple[str, ...], float] = defaultdict(float)
    ways: dict[tuple[str, ...], int] = {}
    for exchange in exchanges(layout):
        if exchange.moved_bytes:
            axes = traced_axes(plan, exchange)
            counted[axes] += float(exchange.moved_bytes)
            ways[axes] = int(exchange.ways)
    program = load("llama").program(plan, abstract_mesh_of(plan))
    traced: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for (kind, dtype, over, size), calls in count_collectives(
        program.step.trace(program.state, program.batch, *program.rate(0)).jaxpr.jaxpr
    ).items():
        axes = in_use(over, plan.mesh)
        # Vectors of kv heads are copied as the heads are; the ledger names the other axes alone.
        of_vector = len(axes) > 1 and axes[-1] == "copies" and "tensor" not in axes
        named = axes[:-1] if of_vector else axes
        if dtype == "bf16" and (moved := SENT[kind](ways.get(named, 1))):
            traced[named] += calls * size * moved
    assert traced == counted


def traced_axes(plan: Plan, one: Exchange) -> tuple[str, ...]:
    """The axes as the trainer names them, which splits `tensor` where kv heads are copied."""
    axes = in_use(one.axes, plan.mesh)
    if axes[-1] != "tensor":
        return axes
    whole = one.ways == prod(plan.mesh[axis] for axis in axes)
    return (*axes, "copies") if whole else ("copies",)
