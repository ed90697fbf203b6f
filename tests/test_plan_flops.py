"""Parameters, model FLOPs and MFU, against the figures of "How To Scale Your Model", Part 6."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator import catalog
from orchestrator.network.decoder import decoder
from orchestrator.plan import flops
from orchestrator.plan.calibrated import layout_of
from orchestrator.plan.kernel_constants import ATTENTION_BLOCK
from orchestrator.types.model import Model
from tests.trainer_plans import plan_of


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_parameters_are_exact(name: str, exact: int) -> None:
    """The counts of the released checkpoints, to the last one."""
    assert flops.parameters(catalog.model(name)) == exact


def test_the_book_counts_70b_the_same_way() -> None:
    """FFW 56.3e9, attention 12e9, vocabulary 2.1e9, and 4.2e11 FLOPs a token."""
    model = catalog.model("llama3-70b")
    network = decoder(model)
    [block] = network.blocks
    assert network.layers * block.mlp.matrix_elements == pytest.approx(56.3e9, rel=1e-2)
    assert network.layers * block.attention.matrix_elements == pytest.approx(12e9, rel=1e-2)
    assert network.table_parameters == pytest.approx(2.1e9, rel=1e-2)
    assert flops.simple_flops_per_token(model) == pytest.approx(4.2e11, rel=1e-2)


def test_a_tied_model_has_one_table_and_unembeds_all_the_same() -> None:
    """Tying saves parameters, and no matmul."""
    model = catalog.model("llama-1b")
    assert model.tied
    network = decoder(model)
    assert network.table_parameters == model.d_model * model.vocab
    layers = model.layers * network.blocks[0].matrix_elements
    assert network.matmul_parameters == layers + model.d_model * model.vocab


def test_mfu_counts_causal_attention_once() -> None:
    """Half of the full 12 L N H S: at 8,192 positions 8B spends 14 % more than its matmuls."""
    model = catalog.model("llama3-8b")
    counted = flops.model_flops_per_token(model, 8192)
    matmuls = 6 * decoder(model).matmul_parameters
    assert counted - matmuls == 6 * model.layers * model.heads * model.head_dim * 8192
    assert counted / matmuls == pytest.approx(1.143, abs=1e-3)


@pytest.mark.parametrize("window", [1, 3, 100, 1024, 2047, 2048, 5000])
def test_windows_count_what_queries_see(window: int) -> None:
    """Counted pair by pair; the kernel's blocks likewise. A query sees half of its own position."""
    length, size = 2048, ATTENTION_BLOCK
    query, key = np.indices((length, length))
    seen = (key <= query) & (query - key < window)
    pairs = seen.sum() / length
    assert flops.seen_positions(length, window) == pytest.approx(pairs, abs=0.5)
    model = replace(catalog.model("llama3-8b"), window=window)
    blocks = seen.reshape(length // size, size, length // size, size).any(axis=(1, 3))
    plan = plan_of(replace(model, layers=1), length=length)
    layout = layout_of(plan, catalog.chip(plan.chip))
    [block] = layout.network.blocks
    computed = flops.computed_positions(layout, block.attention)
    assert computed == blocks.sum() * size * size / length


def test_a_pattern_counts_each_kind_of_layer() -> None:
    """Five layers with a window and one without: attention of five windows and one half square."""
    model = replace(catalog.model("llama3-8b"), layers=6, window=512, window_pattern="LLLLLG")
    width = model.heads * model.head_dim
    seen = 5 * (512 - 512 * 512 / (2 * 8192)) + 8192 / 2
    assert flops.attention_flops_per_token(model, 8192) == 4 * seen * width


def test_mfu_of_a_published_run() -> None:
    """Llama 3.1 70B on 64 tpu7x chips: 12.2 s a step is stated as 1,207 TFLOP/s a chip."""
    model = catalog.model("llama3-70b")
    step_flops = 2_097_152 * flops.model_flops_per_token(model, 8192)
    assert step_flops / 12.2 / 64 == pytest.approx(1207.05e12, rel=0.01)
    peak = catalog.chip("tpu7x").peak_flops_per_s["bf16"].value
    assert flops.mfu(step_flops, 12.2, 64, peak) == pytest.approx(0.523, abs=5e-3)


@pytest.mark.parametrize(("norm", "heads"), [("none", 0), ("head", 12), ("heads", 12)])
def test_queries_and_keys_before_their_norm_are_made_again(norm: Any, heads: int) -> None:
    """What is kept is what the norm makes; its backward pass needs what came in: the products of 8
    query heads and 4 key heads, in two layers. Values are kept as they are.
    """
    model = Model(
        name="m", layers=2, d_model=64, d_ff=128, heads=8, kv_heads=4, head_dim=16, vocab=256,
        qk_norm=norm,
    )  # fmt: skip
    layout = layout_of(plan_of(model, sequences=2, length=32, remat="none"), catalog.chip("v5e"))
    again = flops.matmul_flops(layout, 2 * 64 * heads * 16)
    assert flops.blocks_recompute_flops(layout) == again
