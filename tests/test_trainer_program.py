"""Trainer llama's program as the compiler leaves it: what crosses pods, what is computed again."""

import math
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import jax
import numpy as np
import pytest

from orchestrator.errors import SpecError
from orchestrator.network.attention import EXCHANGE
from orchestrator.network.rematerialization import POLICIES, text_of
from orchestrator.planning.kernels import MOST_KEYS, TILE
from orchestrator.values.model import MixtureOfExperts
from orchestrator.values.plan import LineKind, Plan
from orchestrator.values.spec import DataSource, Optimizer, Precision, Remat, TensorTreatments
from tests.trainer_plans import FP32, TINY, but_slow, plan_of
from tests.trainer_steps import QUICK_COMPILE
from trainers import llama, mlp
from trainers.contract import build
from trainers.mesh import abstract_mesh_of

COLLECTIVE = re.compile(
    r"= (\(?[^()]*\)?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)"
    r"(?:-start)?\((.*)"
)
DTYPE_BYTES = {"f32": 4, "bf16": 2, "s32": 4}
SCALAR_BYTES = 4096


def compiled_text(plan: Plan) -> str:
    program = build(llama, plan, jax.devices()[: plan.devices])
    return program.lowered().compile(QUICK_COMPILE).as_text() or ""


def groups_of(operands: str) -> list[list[int]]:
    """The devices that a collective joins, group by group: listed, paired, or counted."""
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", operands):
        return [[int(n) for n in pair.split(",")] for pair in pairs[1].strip("{").split("},{")]
    if listed := re.search(r"replica_groups=\{(\{.*?\})\}", operands):
        return [[int(n) for n in group.split(",")] for group in listed[1].strip("{}").split("},{")]
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", operands)
    assert counted, operands
    rows, width = int(counted[1]), int(counted[2])
    ids = np.arange(rows * width).reshape([int(n) for n in counted[3].split(",")])
    if counted[4]:
        ids = ids.transpose([int(n) for n in counted[4].split(",")])
    return [list(map(int, row)) for row in ids.reshape(rows, width)]


def crossing(text: str, plan: Plan) -> list[tuple[str, int]]:
    """What crosses pods: each operand of each such collective, as its kind and bytes."""
    per_pod = plan.devices_per_slice
    found = []
    for shapes, kind, operands in COLLECTIVE.findall(text):
        if any(len({device // per_pod for device in group}) > 1 for group in groups_of(operands)):
            for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
                elements = math.prod(int(n) for n in sizes.split(",") if n)
                found.append((kind, DTYPE_BYTES[dtype] * elements))
    return found


def gradient_bytes(plan: Plan, dtype_bytes: int) -> list[int]:
    """1/data of what is reduced as one, cut along tiles: a layer's leaves, or each leaf alone."""
    program = build(llama, plan, jax.devices()[: plan.devices])
    ways = plan.mesh["data"]

    def elements(leaf: jax.ShapeDtypeStruct) -> int:
        assert leaf.sharding is not None
        return math.prod(leaf.sharding.shard_shape(leaf.shape))

    sizes = jax.tree.map(elements, program.state["parameters"])
    if plan.gradient_reduction == "per_layer" and ways > 1:
        sizes["layers"] = sum(jax.tree.leaves(sizes["layers"])) // plan.model.layers
    elif plan.gradient_reduction == "per_layer":
        sizes["layers"] = [size // plan.model.layers for size in sizes["layers"].values()]
    quantum = ways * math.prod(TILE)
    shares = [
        size if ways == 1 else math.ceil(size / quantum) * math.prod(TILE)
        for size in jax.tree.leaves(sizes)
    ]
    return [int(share * dtype_bytes) for share in shares]


MESHES: dict[str, dict[str, Any]] = {
    "hierarchical": {"pods": 2, "data": 2, "fsdp": 2, "tensor": 2},
    "four pods": {"pods": 4, "sequence": 2, "tensor": 2},
    "microbatches": {"pods": 2, "data": 2, "fsdp": 2, "microbatches": 2},
    "copied kv heads": {"pods": 2, "tensor": 8},
}


@pytest.mark.parametrize("name", but_slow(MESHES, ["four pods"]))
def test_each_gradient_crosses_pods_once_and_scalars_beside_them(name: str) -> None:
    """After accumulation 1/data of every leaf crosses, all-reduced; else some scalars, no more."""
    plan = plan_of(**MESHES[name])
    found = crossing(compiled_text(plan), plan)
    assert {kind for kind, _ in found} == {"all-reduce"}
    expected = Counter(gradient_bytes(plan, 4))
    scalars = Counter(size for _, size in found) - expected
    assert not expected - Counter(size for _, size in found)
    assert 0 < sum(scalars.elements()) <= SCALAR_BYTES
    assert sum(scalars.values()) == 1


@pytest.mark.parametrize("name", but_slow(["hierarchical", "four pods"], ["four pods"]))
def test_layer_by_layer_each_gradient_crosses_pods_once(name: str) -> None:
    """In the loop over layers one layer's leaves cross, all of them once; after it the others."""
    plan = plan_of(gradient_reduction="per_layer", **MESHES[name])
    sizes = Counter(size for _, size in crossing(compiled_text(plan), plan))
    expected = Counter(gradient_bytes(plan, 4))
    assert not expected - sizes
    assert sum((sizes - expected).elements()) <= SCALAR_BYTES


def test_gradients_travel_in_the_type_that_was_asked() -> None:
    """With bf16 gradients half the bytes cross, though accumulation and compute are fp32."""
    types = Precision(parameters="fp32", compute="fp32", gradients="bf16", optimizer="fp32")
    plan = plan_of(precision=types, **MESHES["hierarchical"])
    program = build(llama, plan, jax.devices()[: plan.devices])
    text = program.lowered().as_text("hlo")
    sizes = Counter(size for _, size in crossing(text, plan))
    assert not Counter(gradient_bytes(plan, 2)) - sizes


def test_one_device_exchanges_nothing() -> None:
    """Without others there is no collective, not even among oneself."""
    assert COLLECTIVE.findall(compiled_text(plan_of())) == []


NAMED = re.compile(
    r"= .*? (dot|custom-call|ragged-dot|all-reduce|all-gather|reduce-scatter|collective-permute"
    r"|all-to-all)(?:-start)?\(.*op_name=\"([^\"]*)\""
)
EXPERTS = replace(TINY, moe=MixtureOfExperts(experts=4, top_k=2, d_ff=32))
DENSE_LINES = {
    "matmul",
    "attention",
    "unembedding",
    "elementwise",
    "optimizer_update",
    "activation_gather",
    "activation_scatter",
    "weight_gather",
    "gradient_scatter",
    "kv_gather",
    "kv_scatter",
    "gradient_reduction",
}
LINES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "dense": ({"data": 2, "fsdp": 2, "sequence": 2, "tensor": 2}, DENSE_LINES),
    "experts": (
        {"model": EXPERTS, "expert": 2, "fsdp": 2, "tensor": 2},
        DENSE_LINES - {"kv_gather", "kv_scatter"} | {"expert_gather", "expert_scatter"},
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_each_operation_names_its_line_of_the_ledger(name: str) -> None:
    """Every product, kernel and collective does, except sums of metrics."""
    mesh, expected = LINES[name]
    found = set()
    for opcode, op_name in NAMED.findall(compiled_text(plan_of(**mesh))):
        kinds = [word for word in re.findall(r"\w+", op_name) if word in get_args(LineKind)]
        assert kinds or (opcode == "all-reduce" and op_name.endswith("psum")), op_name
        found.update(kinds[-1:])
    assert found == expected


@pytest.mark.parametrize("trainer", [llama, mlp])
def test_plans_that_differ_in_the_learning_rate_have_one_program(trainer: Any) -> None:
    """The rate is an input of the step, so a study over rates compiles it once."""
    texts = set()
    for how in (
        Optimizer(peak_lr=1e-2, warmup_steps=2, decay="cosine"),
        Optimizer(peak_lr=3e-4, warmup_steps=5, decay="linear", end_lr=1e-5),
    ):
        plan = plan_of(optimizer=how, fsdp=2)
        program = trainer.program(plan, abstract_mesh_of(plan))
        traced = program.step.trace(program.state, program.batch, *program.rate(0))
        texts.add(traced.lower(lowering_platforms=("cpu",)).as_text())
    assert len(texts) == 1


# Matmuls that a layer's backward pass makes again: q, k and v 1 each, scores and values 2, output
# 1, gate and up 1 each. Without `mid` kept, its sum needs `output` again.
AGAIN = {
    "none": 0,
    "keep_qkv": 2,
    "offload_qkv": 2,
    "keep_attention": 6,
    "keep_mlp": 6,
    "full": 8,
    "offload_input": 8,
}


# Parallel matmuls are products of their own where `tensor` is 1.
AGAIN_BY_TENSOR = {
    TensorTreatments(query="keep", value="offload"): 6,
    TensorTreatments(query="keep", key="keep", value="offload"): 5,
    TensorTreatments(block_input="offload", attention="offload", mlp_input="keep"): 5,
    TensorTreatments(gate="offload"): 7,
    TensorTreatments(block_input="offload", gate="offload", up="keep"): 6,
}


@cache
def traced(remat: Remat) -> Any:
    """The step of one device with two blocks of keys."""
    plan = plan_of(remat=remat, sequences=1, length=2 * MOST_KEYS)
    program = build(llama, plan, jax.devices()[:1])
    return program.step.trace(program.state, program.batch, *program.rate(0))


@cache
def matmuls(remat: Remat) -> int:
    """Matmuls in the program's text, where loops over layers and over blocks of keys stand once."""
    lines = traced(remat).lower().compile(QUICK_COMPILE).as_text().splitlines()
    return sum(" dot(" in line and EXCHANGE not in line for line in lines)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_makes_again_what_it_does_not_keep(policy: str) -> None:
    """Kept tensors are not computed twice, attention's log-sum-exp among them."""
    assert matmuls(policy) - matmuls("none") == AGAIN[policy]


@pytest.mark.parametrize("remat", AGAIN_BY_TENSOR, ids=text_of)
def test_a_mapping_makes_again_what_it_does_not_keep(remat: TensorTreatments) -> None:
    """Tensor by tensor, in HBM or on the host."""
    assert matmuls(remat) - matmuls("none") == AGAIN_BY_TENSOR[remat]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_offloads_what_it_says(policy: str) -> None:
    """Tensors go to the host under the policies that say so and under no other."""
    offloads = POLICIES[policy].needs_host
    assert ("MemorySpace.Host" in str(traced(policy).jaxpr)) == offloads


def test_a_type_that_can_be_planned_only_is_refused() -> None:
    """The refusal says what the trainer multiplies in."""
    plan = plan_of(precision=replace(FP32, compute="int8"))
    with pytest.raises(SpecError, match="multiplies in fp32 or bf16 or fp8"):
        llama.program(plan, abstract_mesh_of(plan))


TPU_KERNELS: dict[str, tuple[dict[str, Any], DataSource]] = {
    "windows and caps": (
        {"layers": 4, "window": 256, "window_pattern": "LG", "attention_cap": 50.0}, DataSource()
    ),
    "sinks": ({"sinks": True, "window": 256}, DataSource()),
    "documents": ({}, DataSource(separator=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", TPU_KERNELS)
def test_every_kind_of_attention_is_lowered_for_tpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel takes windows, caps, sinks and documents, in shards of a sequence."""
    changes, data = TPU_KERNELS[name]
    model = replace(TINY, head_dim=128, **changes)
    bf16 = Precision(parameters="fp32", compute="bf16", gradients="bf16", optimizer="fp32")
    plan = replace(plan_of(model, length=1024, fsdp=2, sequence=2, precision=bf16), data=data)
    monkeypatch.setattr("trainers.llama.collectives.platform", lambda _: "tpu")
    program = llama.program(plan, abstract_mesh_of(plan))
    traced = program.step.trace(program.state, program.batch, *program.rate(0))
    assert "tpu_custom_call" in traced.lower(lowering_platforms=("tpu",)).as_text()
