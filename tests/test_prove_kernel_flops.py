"""FLOPs of Pallas kernels: the formulas against the mask itself."""

import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as mask_info

from orchestrator.proving.hlo import flops
from orchestrator.proving.hlo.program import Computation, HloProgram, program_of
from trainers.llama import attention_kernels
from trainers.llama.attention_kernels import _ZigzagMask

LENGTH, HEADS, HEAD = 1024, 4, 128
QUERIES, KEYS = 128, 256
OPERANDS = "%places, %own_blocks, %q, %k, %v, /*index=5*/%positions"
TARGET = 'custom_call_target="tpu_custom_call"'
METADATA = r'frontend_attributes={kernel_metadata={"xprof_metadata":"{%s}"}}'


def brute_force(ways: int, window: int | None) -> float:
    """Pairs in all blocks in which some query of a shard sees some key, mean over shards."""
    shards = attention_kernels.order(LENGTH, ways).reshape(ways, -1)
    away = shards[:, :, None] - np.arange(LENGTH)
    sees = (away >= 0) & (away < (window or LENGTH))
    blocks = sees.reshape(ways, -1, QUERIES, LENGTH // KEYS, KEYS).any((2, 4))
    return float(blocks.sum()) * QUERIES * KEYS / ways


def table(name: str, ways: int, window: int | None, copies: int) -> tuple[tuple[int, ...], str]:
    """The sizes of the table of blocks that the kernel gets for all shards, and its numbers: as the
    masks of all heads are alike, once, or so many `copies` of it.
    """
    mask = masks.MultiHeadMask([_ZigzagMask(LENGTH, ways, window)] * HEADS)
    process = mask_info.process_mask_dkv if "dkv" in name else mask_info.process_mask
    info, _ = process(mask, (QUERIES, KEYS), head_shards=1, q_seq_shards=ways)
    blocks = np.tile(np.asarray(info.block_mask), (copies, 1, 1))
    return blocks.shape, str(blocks.tolist()).replace("[", "{ ").replace("]", " }")


def kernel(
    name: str,
    results: str,
    settings: dict[str, int],
    ways: int = 1,
    window: int | None = None,
    made: str = "",
    head_ways: int = 1,
) -> tuple[HloProgram, Computation]:
    """A computation that ends in a kernel of a shard's queries: its part of the table is cut out of
    a constant, or of what is `made` otherwise.

    The mask's tables come first among the operands, as in the real kernels.
    """
    noted = ", ".join(rf"\"{key}\": {value}" for key, value in settings.items())
    op = f"jit(_step)/while/body/jit(_splash_attention)/{name}/pallas_call"
    rest = f'{METADATA % noted}, metadata={{op_name="{op}"}}'
    sizes, values = table(name, ways, window, HEADS if head_ways > 1 else 1)
    heads, rows, columns = sizes
    whole = f"s8[{heads},{rows},{columns}]"
    part = f"s8[{heads // head_ways},{rows // ways},{columns}]"
    shard, own = LENGTH // ways, HEADS // head_ways
    text = f"""HloModule m, num_partitions=1

%cut (table: {whole}, at: s32[]) -> {part} {{
  %table = {whole} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = {part} dynamic-slice(%table, %at, %at, %zero), dynamic_slice_sizes={{{part}}}
}}

ENTRY %main (device: s32[]) -> f32[] {{
  %device = s32[] parameter(0)
  %blocks = {whole} {made or f"constant({values})"}
  %own_blocks = {part} fusion(%blocks, %device), kind=kLoop, calls=%cut
  %places = {part} parameter(1)
  %q = bf16[3,{own},{shard},128] parameter(2)
  %k = bf16[3,2,1024,128] parameter(3)
  %v = bf16[3,2,1024,128] parameter(4)
  %positions = s32[{shard},128] parameter(5)
  ROOT %splash.1 = ({results}) custom-call({OPERANDS}), {TARGET}, {rest}
}}
"""
    program = program_of(text)
    return program, program.entry


FORWARD = "bf16[3,4,512,128], f32[3,4,512]"
BACKWARD = "bf16[3,2,1024,128], bf16[3,2,1024,128]"
FUSED = f"bf16[3,2,4,512,128], {BACKWARD}"
BLOCKS = {"block_q": QUERIES, "block_kv": KEYS}
DQ_BLOCKS = {"block_q_dq": QUERIES, "block_kv_dq": KEYS}
DKV_BLOCKS = {"block_q_dkv": QUERIES, "block_kv_dkv": KEYS}


@pytest.mark.parametrize("window", [None, 100, 257, 700])
@pytest.mark.parametrize("ways", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "results", "settings", "per_pair"),
    [
        ("splash_mha_fwd_residuals", FORWARD, BLOCKS, 4),
        ("splash_mha_fwd", FORWARD, BLOCKS, 4),
        ("splash_mha_dq_no_residuals", FORWARD, DQ_BLOCKS, 6),
        ("splash_mha_dkv_no_residuals", BACKWARD, DKV_BLOCKS, 8),
        ("splash_mha_dkv_no_residuals", FUSED, DKV_BLOCKS, 10),
    ],
)
def test_each_part_of_splash_attention_counts_what_its_mask_leaves(
    name: str,
    results: str,
    settings: dict[str, int],
    per_pair: int,
    ways: int,
    window: int | None,
) -> None:
    """Query heads and sequences x head dimension x visited pairs x FLOPs of a pair: with a window
    and without, for a sequence in one piece and for shards in zigzag order.
    """
    program, where = kernel(name, results, settings, ways, window)
    assert flops.is_kernel(where.root)
    found = flops.kernel_flops(program, where, where.root)
    assert found == 3 * HEADS * HEAD * brute_force(ways, window) * per_pair


@pytest.mark.parametrize("head_ways", [2, 4])
def test_a_device_with_some_of_the_heads_has_their_part_of_the_table(head_ways: int) -> None:
    """The table is split by heads: each of these still visits all blocks of its mask."""
    program, where = kernel("splash_mha_fwd", FORWARD, BLOCKS, window=100, head_ways=head_ways)
    found = flops.kernel_flops(program, where, where.root)
    assert found == 3 * HEADS / head_ways * HEAD * brute_force(1, 100) * 4


def test_a_kernel_without_a_formula_is_no_number() -> None:
    """It is named instead."""
    program, where = kernel("megablox_gmm", FORWARD, {})
    assert flops.kernel_flops(program, where, where.root) is None
    assert flops.kernel_name(where.root) == "splash"


@pytest.mark.parametrize("made", ["constant({...})", "parameter(6)"])
def test_a_mask_that_is_not_known_before_the_run_is_no_number(made: str) -> None:
    """No block is made up."""
    program, where = kernel("splash_mha_fwd", FORWARD, BLOCKS, made=made)
    assert flops.kernel_flops(program, where, where.root) is None
    assert flops.kernel_name(where.root) == "splash fwd"


def test_a_kernel_that_hides_its_blocks_is_an_error() -> None:
    """No block size is made up."""
    program, where = kernel("splash_mha_fwd", FORWARD, {"block_q": QUERIES})
    with pytest.raises(ValueError, match="block_kv"):
        flops.kernel_flops(program, where, where.root)


TOKAMAX = """HloModule m, num_partitions=1

ENTRY %main (q: bf16[3,4,128,1024], k: bf16[3,2,128,1024], v: bf16[3,2,1024,128]) -> f32[] {
  %blocks = FIRST
  %rows = s8[10] constant({0, 1, 1, 2, 2, 2, 3, 3, 3, 3})
  %q = bf16[3,4,128,1024] parameter(0)
  %k = bf16[3,2,128,1024] parameter(1)
  %v = bf16[3,2,1024,128] parameter(2)
  ROOT %splash.1 = (RESULTS) custom-call(%blocks, OTHERS%q, %k, %v), TARGET, NOTED
}
"""


@pytest.mark.parametrize(
    ("name", "first", "others", "results", "key", "per_pair"),
    [
        ("fwd", "s32[] constant(10)", "%rows, ", FORWARD, "block_q", 4),
        ("dkv", "s8[16] constant({1,2,2,2,0,1,2,2,0,0,1,2,0,0,0,1})", "", FUSED, "block_q_dkv", 10),
    ],
)
def test_tokamax_lists_its_blocks_and_has_positions_last(
    name: str, first: str, others: str, results: str, key: str, per_pair: int
) -> None:
    """Ten of sixteen blocks of 256 x 256, forward by their number, backward by what each is.
    Queries and keys have positions as the minor dimension, values have not.
    """
    sizes = {key: 256, key.replace("_q", "_kv"): 256, "q_layout": 2, "v_layout": 1}
    noted = ", ".join(rf"\"{key}\": {value}" for key, value in sizes.items())
    op = f'metadata={{op_name="jit(step)/splash_mha_{name}_segmented/pallas_call"}}'
    text = TOKAMAX.replace("FIRST", first).replace("RESULTS", results).replace("OTHERS", others)
    text = text.replace("TARGET", TARGET).replace("NOTED", f"{METADATA % noted}, {op}")
    program = program_of(text)
    found = flops.kernel_flops(program, program.entry, program.entry.root)
    assert found == 3 * HEADS * HEAD * 10 * 256 * 256 * per_pair
