"""Trainer llama: the numbers. Loss and gradients are those of a plain reference, on any mesh."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from orchestrator.network.rematerialization import POLICIES, text_of
from orchestrator.planning import kernels
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, RopeScaling
from orchestrator.values.plan import Plan
from orchestrator.values.spec import DataSource, Optimizer, Precision, Remat, TensorTreatments
from tests import trainer_reference
from tests.trainer_plans import TINY, but_slow, few, plan_of
from tests.trainer_steps import (
    QUICK_COMPILE,
    StepOutcome,
    expected,
    initial_state,
    largest_difference,
    plan_showing_gradients,
    random_parameters,
    random_tokens,
    reference,
    take_step,
)
from trainers import llama
from trainers.contract import build, place

LOSS_TOLERANCE = 1e-5  # relative, in float32
GRADIENT_TOLERANCE = 1e-5  # of a leaf's largest value, in float32; about 2e-6 was measured
KIND_TOLERANCE = 5e-5  # where norms and caps round more; about 2e-5 was measured on one device

ALONE: list[dict[str, Any]] = [
    {},
    {"pods": 4},
    {"fsdp_dcn": 4},
    {"data": 4},
    {"data": 3, "sequences": 12},
    {"fsdp": 4},
    {"sequence": 4},
    {"tensor": 4},
    {"tensor": 8},  # twice the kv heads: each stands on two chips
]
MIXTURES: list[dict[str, Any]] = [
    {"pods": 2, "data": 2, "fsdp": 2, "sequence": 2},
    {"pods": 2, "data": 2, "fsdp": 2, "tensor": 2},
    {"pods": 2, "data": 2, "sequence": 2, "tensor": 2},
    {"pods": 2, "fsdp": 2, "sequence": 2, "tensor": 2},
    {"data": 2, "fsdp": 2, "sequence": 2, "tensor": 2},
    {"pods": 4, "sequence": 2, "tensor": 2},
    {"fsdp_dcn": 2, "sequence_dcn": 2, "sequence": 2, "tensor": 2},
    {"pods": 2, "fsdp_dcn": 2, "data": 2, "fsdp": 2},
    {"fsdp_dcn": 2, "data": 2, "tensor": 4},
    {"fsdp_dcn": 2, "tensor": 8},
    {"fsdp": 4, "tensor": 4},
    {"sequence": 4, "tensor": 4},
    {"pods": 2, "tensor": 8},
    {"sequence": 2, "tensor": 8},
    {"pods": 2, "data": 3, "tensor": 2, "sequences": 12},
]


def named(mesh: dict[str, Any]) -> str:
    return "-".join(f"{axis}{size}" for axis, size in mesh.items()) or "single"


def check_against_reference(plan: Plan, tolerance: float = GRADIENT_TOLERANCE) -> StepOutcome:
    """Loss, gradients and their norm are the reference's."""
    plan = plan_showing_gradients(plan)
    taken, (loss, gradients) = take_step(plan), expected(plan)
    found = sum(taken.metrics.get(name, 0.0) for name in ("loss", "z_loss", "router_loss"))
    assert found == pytest.approx(loss, rel=LOSS_TOLERANCE)
    assert largest_difference(taken.gradients, gradients) < tolerance
    squares = sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradients))
    assert taken.metrics["grad_norm"] == pytest.approx(np.sqrt(squares), rel=tolerance)
    return taken


# The mixtures have all axes, too, and one of them copied kv heads.
@pytest.mark.parametrize(
    "mesh", but_slow(ALONE, [mesh for mesh in ALONE if mesh and "sequences" not in mesh]), ids=named
)
def test_each_axis_alone_gives_the_reference(mesh: dict[str, Any]) -> None:
    """Whatever one axis splits, loss and gradients are those of a single device."""
    check_against_reference(plan_of(**mesh))


# Copied kv heads over pods, and per-layer reductions of these axes, have tests of their own.
@pytest.mark.parametrize(
    "mesh", but_slow(MIXTURES, [m for n, m in enumerate(MIXTURES) if n not in (0, 6, 9)]), ids=named
)
def test_mixtures_of_axes_give_the_reference(mesh: dict[str, Any]) -> None:
    """Axes do not disturb one another."""
    check_against_reference(plan_of(**mesh))


YARN = RopeScaling(kind="yarn", factor=8.0, original_length=64, beta_fast=4.0)
BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
GEMMA_4: dict[str, Any] = {
    "window": 9, "window_pattern": "LG", "norm_placement": "both", "qk_norm": "head",
    "value_norm": True, "attention_scale": 1.0, "logit_cap": 3.0, "activation": "gelu",
    "tied": True, "embedding_scale": True, "rope_theta": 100.0, "local_rope_theta": 50.0,
    "global_head_dim": 16, "global_kv_heads": 2, "global_rotary_share": 0.25,
    "keys_as_values": True, "layer_scale": True,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "tied": {"tied": True},
    "ungated": {"gated": False},
    "one kv head": {"kv_heads": 1},
    "gemma 2": {
        "window": 9, "window_pattern": "LG", "norm_placement": "both",
        "norm_offset": True, "attention_cap": 5.0, "logit_cap": 3.0, "activation": "gelu",
        "tied": True, "embedding_scale": True, "attention_scale": 0.3,
    },
    "gemma 3": {
        "window": 9, "window_pattern": "LG", "norm_placement": "both",
        "norm_offset": True, "qk_norm": "head", "activation": "gelu", "tied": True,
        "embedding_scale": True, "local_rope_theta": 100.0,
        "rope_scaling": RopeScaling(kind="linear", factor=8.0),
    },
    "olmo 2": {"kv_heads": 8, "norm_placement": "after", "qk_norm": "heads"},
    "sinks and biases": {
        "window": 9, "window_pattern": "LG", "sinks": True, "rope_theta": 100.0,
        "rope_scaling": YARN, **BIASES,
    },
    "gemma 4": GEMMA_4,
    "gpt 3": {
        "learned_positions": 64, "norm": "layer", "gated": False,
        "tied": True, **BIASES,
    },
    "gemma 4 with experts": GEMMA_4 | {
        "keys_as_values": False,
        "moe": MixtureOfExperts(experts=4, top_k=2, d_ff=32, with_mlp=True, balance_loss=0.01),
    },
    "layer norm and biases": {
        "norm": "layer", "qk_norm": "head", "activation": "relu2", "gated": False,
        "rotary_share": 0.5, **BIASES,
    },
}  # fmt: skip


# GPT 3 is tied, too, and has more that is its own; copied kv heads are tried with sinks and biases.
@pytest.mark.parametrize("kind", but_slow(KINDS, set(KINDS) - {"gpt 3", "olmo 2"}))
def test_every_kind_of_model_gives_the_reference(kind: str) -> None:
    """Each kind of block and of its parts, on a mixture of axes."""
    model = replace(TINY, **KINDS[kind])
    check_against_reference(plan_of(model, fsdp=2, sequence=2, tensor=2), KIND_TOLERANCE)


def test_weights_of_copied_kv_heads_give_the_reference() -> None:
    """Norms and biases of kv heads are copied with them."""
    model = replace(TINY, **(KINDS["sinks and biases"] | KINDS["olmo 2"] | {"kv_heads": 4}))
    plan = plan_of(model, pods=2, tensor=8, gradient_reduction="per_layer")
    check_against_reference(plan, KIND_TOLERANCE)


LATENT = LatentDimensions(query_rank=16, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=16)
LATENT_TINY = replace(TINY, kv_heads=8, head_dim=12, latent=LATENT)
LATENT_KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "every head on a chip of its own": (
        LATENT_TINY, {"data": 2, "tensor": 8, "remat": "none"}
    ),
    "alone": (LATENT_TINY, {}),
    "queries from the stream": (
        replace(LATENT_TINY, latent=replace(LATENT, query_rank=None), rope_scaling=YARN,
                attention_scale=0.4, rope_theta=100.0),
        {"pods": 2, "tensor": 2, "gradient_reduction": "per_layer"},
    ),
    "a window and sinks": (
        replace(LATENT_TINY, window=9, window_pattern="LG", sinks=True, norm_placement="both"),
        {"pods": 2, "fsdp": 2, "sequence": 2, "tensor": 2,
         "remat": TensorTreatments(latent="keep")},
    ),
    "over slices": (
        LATENT_TINY,
        {"fsdp_dcn": 2, "fsdp": 2, "tensor": 2, "microbatches": 2, "remat": "keep_qkv"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", but_slow(LATENT_KINDS, set(LATENT_KINDS) - {"a window and sinks"}))
def test_latent_attention_gives_the_reference(kind: str) -> None:
    """Latents, keys with a shared part and narrower values, over each kind of axis."""
    model, mesh = LATENT_KINDS[kind]
    check_against_reference(plan_of(model, **mesh), KIND_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [*ALONE, *MIXTURES], ids=named)
def test_latent_attention_gives_the_reference_on_every_mesh(mesh: dict[str, Any]) -> None:
    """Every axis alone and mixed."""
    check_against_reference(plan_of(LATENT_TINY, **mesh), KIND_TOLERANCE)


WINDOWS: dict[str, dict[str, Any]] = {
    "every layer": {"layers": 2, "window": 5},
    "a pattern and a rest": {"layers": 8, "window": 7, "window_pattern": "LLG"},
    "longer than sequences": {"layers": 2, "window": 4096, "window_pattern": "GL"},
}


@pytest.mark.parametrize("name", few(WINDOWS))
def test_windows_and_patterns_of_layers_give_the_reference(name: str) -> None:
    """A window hides early positions, in the layers that the pattern names."""
    model = replace(TINY, **WINDOWS[name])
    check_against_reference(
        plan_of(model, data=2, sequence=2, tensor=2, gradient_reduction="per_layer")
    )


@pytest.mark.parametrize(
    "mesh",
    but_slow([{}, {"pods": 2, "sequence": 2, "tensor": 2, "microbatches": 2}], [{}]),
    ids=str,
)
def test_documents_in_a_row_give_the_reference(mesh: dict[str, Any]) -> None:
    """Tokens see their own document alone, and its end predicts nothing; the mean is over the
    predicted tokens of all chips.
    """
    one_document = plan_of(replace(TINY, vocab=16), **mesh)
    taken = check_against_reference(replace(one_document, data=DataSource(separator=3)))
    assert taken.metrics["loss"] != pytest.approx(expected(one_document)[0], rel=1e-3)


PADDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two ways": ({"vocab": 131}, {"tensor": 2}),  # 256 rows on two chips
    "chips without a word": ({"vocab": 67}, {"fsdp": 2, "sequence": 2, "tensor": 4}),
    "copied kv heads": ({"vocab": 67}, {"pods": 2, "tensor": 8}),
    "tied": ({"vocab": 131, "tied": True}, {"fsdp_dcn": 2, "fsdp": 2, "tensor": 2}),
}


@pytest.mark.parametrize("name", but_slow(PADDED, set(PADDED) - {"chips without a word"}))
def test_a_padded_vocabulary_gives_the_reference(name: str) -> None:
    """Rows that no word has change neither loss nor gradients, and stay zero. The penalty on the
    log-sum-exp is in the gradients, too; the metrics show it apart.
    """
    sizes, mesh = PADDED[name]
    taken = check_against_reference(
        plan_of(replace(TINY, **sizes), **mesh, optimizer=Optimizer(z_loss=0.01))
    )
    assert taken.metrics["z_loss"] > 0.05


@pytest.mark.parametrize("microbatches", but_slow([2, 4], [2]))
def test_microbatches_give_the_reference(microbatches: int) -> None:
    """Accumulated gradients are those of the whole batch."""
    check_against_reference(plan_of(pods=2, fsdp=2, tensor=2, microbatches=microbatches))


@pytest.mark.parametrize(
    "mesh",
    but_slow(
        [
            {"pods": 2, "data": 2, "fsdp": 2},
            {"pods": 2, "sequence": 2, "tensor": 4},
            {"pods": 2, "fsdp_dcn": 2, "data": 2, "fsdp": 2},
            {"fsdp_dcn": 2, "data": 2, "tensor": 4},
        ],
        [
            {"pods": 2, "data": 2, "fsdp": 2},
            {"pods": 2, "sequence": 2, "tensor": 4},
            {"fsdp_dcn": 2, "data": 2, "tensor": 4},
        ],
    ),
    ids=named,
)
def test_reducing_layer_by_layer_gives_the_reference(mesh: dict[str, Any]) -> None:
    """When gradients are reduced does not change them."""
    check_against_reference(plan_of(gradient_reduction="per_layer", **mesh))


MIXED = TensorTreatments(
    block_input="offload", query="keep", key="offload", attention="offload", up="offload"
)


@pytest.mark.parametrize("remat", few([MIXED, *POLICIES]), ids=text_of)
def test_every_remat_policy_gives_the_reference(remat: Remat) -> None:
    """What is kept, recomputed or offloaded does not change the numbers."""
    check_against_reference(plan_of(remat=remat, fsdp=2, sequence=2, tensor=2))


def test_a_vocabulary_in_many_chunks_gives_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss may see a few tokens at a time; here 4 of 128."""
    monkeypatch.setattr(kernels, "_LOSS_CHUNK_BYTES", 4 * 4 * TINY.vocab // 2)
    check_against_reference(plan_of(data=4, tensor=2, loss_chunk_tokens=1))


@pytest.mark.parametrize(
    "mesh",
    but_slow(
        [{"fsdp": 4}, {"fsdp": 2, "sequence": 2, "pods": 2, "gradient_reduction": "per_layer"}],
        [{"fsdp": 4}],
    ),
    ids=named,
)
def test_a_table_summed_in_each_chunk_gives_the_reference(
    monkeypatch: pytest.MonkeyPatch, mesh: dict[str, Any]
) -> None:
    """Each chunk of 16 tokens sums the gradient of 600 words in four parts."""
    model = replace(TINY, vocab=600)
    monkeypatch.setattr(kernels, "_LOSS_CHUNK_BYTES", 16 * 4 * model.vocab)
    check_against_reference(plan_of(model, loss_chunk_tokens=1, loss_gradient="per_chunk", **mesh))


def test_keys_in_many_blocks_give_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention may see a few keys at a time; here 8 of 32."""
    monkeypatch.setattr("trainers.llama.attention_kernels.MOST_KEYS", 8)
    check_against_reference(plan_of(sequence=2))


def test_low_precision_stays_near_the_reference() -> None:
    """With bf16 in compute and on the wire, about three digits of the gradients remain."""
    plan = plan_showing_gradients(
        plan_of(precision=Precision(), pods=2, fsdp=2, sequence=2, tensor=2)
    )
    taken, (loss, gradients) = take_step(plan), expected(plan)
    assert taken.metrics["loss"] == pytest.approx(loss, rel=5e-3)
    assert 1e-4 < largest_difference(taken.gradients, gradients) < 5e-2


def test_three_steps_follow_adamw_by_hand() -> None:
    """Clipping, warm-up, both moments and the decay of matrices alone, on a mixture of axes."""
    how = Optimizer(peak_lr=1e-2, warmup_steps=4, clip_norm=0.5, weight_decay=0.3)
    plan = plan_of(pods=2, data=2, fsdp=2, tensor=2, optimizer=how)
    program = build(llama, plan, jax.devices())
    right = random_parameters(program)
    state, moments = initial_state(program, right), (jax.tree.map(np.zeros_like, right),) * 2
    tokens = random_tokens(plan)
    batch = place(program, lambda start, stop: tokens[start:stop])
    compiled = program.lowered().compile(QUICK_COMPILE)
    differentiate = reference(TINY)
    for step in range(1, 4):
        gradients = jax.tree.map(np.asarray, differentiate(right, tokens)[1])
        rate = how.peak_lr * step / 4
        right, moments, size = trainer_reference.adamw(right, gradients, moments, step, rate, how)
        state, metrics = compiled(state, batch, *program.rate(step - 1))
        assert float(metrics["grad_norm"]) == pytest.approx(size, rel=1e-4)
        assert float(metrics["learning_rate"]) == pytest.approx(rate)
        assert int(state["step"]) == step
    assert size > how.clip_norm
    assert largest_difference(jax.tree.map(np.asarray, state["parameters"]), right) < 1e-4
