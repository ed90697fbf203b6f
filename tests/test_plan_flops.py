"""Parameters, model FLOPs and MFU, against the figures of "How To Scale Your Model", Part 6."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator import catalog
from orchestrator.network.decoder import decoder
from orchestrator.planning import flops
from orchestrator.planning.calibrated import layout_of
from orchestrator.planning.kernels import attention_block, head_bytes, partial_sums
from orchestrator.values.model import Model
from orchestrator.values.spec import Precision
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
    assert network.layers * sum(m.weight.elements for m in block.mlp.matmuls) == pytest.approx(
        56.3e9, rel=1e-2
    )
    assert network.layers * sum(
        m.weight.elements for m in block.attention.matmuls
    ) == pytest.approx(12e9, rel=1e-2)
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
    length, size = 2048, int(attention_block(2048, 1, window, 256))
    query, key = np.indices((length, length))
    seen = (key <= query) & (query - key < window)
    pairs = seen.sum() / length
    assert flops._seen_positions(length, window) == pytest.approx(pairs, abs=0.5)
    model = replace(catalog.model("llama3-8b"), window=window)
    blocks = seen.reshape(length // size, size, length // size, size).any(axis=(1, 3))
    plan = plan_of(replace(model, layers=1), length=length)
    layout = layout_of(plan, catalog.chip(plan.chip))
    [block] = layout.network.blocks
    computed = flops.forward_positions(layout, block.attention)
    assert computed == blocks.sum() * size * size / length


@pytest.mark.parametrize(
    ("length", "ways", "window", "head", "block"),
    [
        (8192, 1, None, 256, 1024),
        (8192, 1, None, 512, 1024),
        (8192, 1, None, 1024, 512),  # 256 numbers in fp32: a larger block does not fit
        (512, 1, None, 256, 512),
        (8192, 4, None, 256, 1024),  # half of a device's positions are in one piece
        (8192, 8, None, 256, 512),
        (6144, 1, None, 256, 1024),
        (768, 2, None, 256, 384),  # a piece of 192 has no block: all of a device's positions do
        (640, 1, None, 256, 640),
        (8192, 1, 1024, 256, 512),  # of a larger block more would be outside the window
        (8192, 1, 4096, 256, 1024),
        (1024, 1, 1024, 256, 1024),  # all is inside
        (96, 1, None, 256, 0),
        (768, 8, None, 256, 0),
    ],
)
def test_blocks_divide_what_a_device_has_in_one_piece(
    length: int, ways: int, window: int | None, head: int, block: int
) -> None:
    """Alone and among others: a search asks for many meshes at once."""
    assert attention_block(length, ways, window, head) == block
    assert attention_block(length, np.array([1, ways]), window, head)[-1] == block


@pytest.mark.parametrize(
    ("widths", "compute", "bytes_of_head"),
    [((64, 64), 2, 256), ((128, 128), 4, 512), ((192, 128), 2, 512), ((256, 256), 2, 512)],
)
def test_heads_take_whole_lanes_of_the_fast_memory(
    widths: tuple[int, int], compute: int, bytes_of_head: int
) -> None:
    assert head_bytes(widths, compute) == bytes_of_head


@pytest.mark.parametrize(
    ("length", "block", "window", "head", "sums"),
    [
        (1024, 1024, None, 256, 1),
        (4096, 1024, None, 256, 4),
        (8192, 1024, None, 256, 4),  # twice the keys at a time
        (8192, 1024, None, 512, 8),  # but where heads are wide
        (8192, 1024, 8192, 256, 4),
        (16384, 1024, None, 256, 8),
        (32768, 1024, None, 256, 0),  # 16 gradients of each query would be too many
        (7168, 1024, None, 256, 7),
        (4096, 512, None, 256, 8),
        (8192, 512, None, 1024, 0),
        (8192, 1024, 4096, 256, 0),
        (64, 0, None, 256, 0),
    ],
)
def test_one_backward_kernel_is_for_few_blocks_and_no_window(
    length: int, block: int, window: int | None, head: int, sums: int
) -> None:
    """Each block of keys writes a gradient of all queries."""
    assert partial_sums(length, block, window, head) == sums


@pytest.mark.parametrize(
    ("queries", "keys", "window"),
    [
        *((queries, keys, None) for queries, keys in ((1024, 512), (512, 512), (512, 1024))),
        *((1024, 512, window) for window in (1, 700, 1024, 2500)),
    ],
)
def test_blocks_of_queries_and_keys_may_differ(queries: int, keys: int, window: int | None) -> None:
    """Counted block by block."""
    length = 3072
    behind = np.arange(length, dtype=np.int16)[:, None] - np.arange(length, dtype=np.int16)
    seen = (behind >= 0) & (behind < (window or length))
    parts = length // queries, queries, length // keys, keys
    visited = seen.reshape(parts).any(axis=(1, 3)).sum()
    model = replace(catalog.model("llama3-8b"), window=window, layers=1)
    layout = layout_of(plan_of(model, length=length), catalog.chip("v5p"))
    [block] = layout.network.blocks
    computed = flops._computed_positions(layout, block.attention, queries, keys)
    assert computed == pytest.approx(visited * queries * keys / length)


@pytest.mark.parametrize(
    ("length", "window", "backward"),
    [
        (4096, None, 2.5),
        (8192, None, 2.5 * (8192 + 2048) / (8192 + 1024)),
        (65536, None, 3.5),
        (8192, 512, 3.5),
    ],
)
def test_a_backward_pass_in_one_kernel_makes_scores_once(
    length: int, window: int | None, backward: float
) -> None:
    """Five products for two; in two kernels seven. More keys at a time waste more."""
    model = replace(catalog.model("llama3-8b"), window=window, layers=1)
    plan = plan_of(model, length=length, precision=Precision())
    layout = layout_of(plan, catalog.chip("v5p"))
    found = flops.attention_backward_flops(layout) / flops.attention_forward_flops(layout)
    assert found == pytest.approx(backward)


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
