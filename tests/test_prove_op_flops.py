"""FLOPs of Pallas kernels: the formulas against the mask itself."""

import numpy as np
import pytest

from orchestrator.prove.hlo import op_flops
from orchestrator.prove.hlo.program import Computation, program_of
from trainers.llama import zigzag

OPERANDS = "%mask, %blocks, %q, %k, %v, /*index=5*/%positions"
TARGET = 'custom_call_target="tpu_custom_call"'
METADATA = r'frontend_attributes={kernel_metadata={"xprof_metadata":"{%s}"}}'


def brute_force(length: int, ways: int, query_block: int, key_block: int) -> float:
    """Pairs in all blocks in which some query of a shard sees some key, mean over shards."""
    shards = zigzag.order(length, ways).reshape(ways, -1)
    sees = shards[:, :, None] >= np.arange(length)
    blocks = sees.reshape(ways, -1, query_block, length // key_block, key_block).any((2, 4))
    return float(blocks.sum()) * query_block * key_block / ways


@pytest.mark.parametrize("ways", [1, 2, 4, 8])
@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (16, 64), (32, 16), (8, 128)])
def test_visited_blocks_are_those_that_the_mask_leaves(ways: int, queries: int, keys: int) -> None:
    """For a sequence in one piece and in shards in zigzag order, blocks large and small."""
    found = op_flops.visited_pairs(256, ways, queries, keys)
    assert found == brute_force(256, ways, queries, keys)


def test_small_blocks_come_to_half_of_all_pairs() -> None:
    """What is computed tends to the causal half from above."""
    half = 1024 * 1024 / 2
    shares = [op_flops.visited_pairs(1024, 1, block, block) / half for block in (512, 128, 8)]
    assert shares == [1.5, 1.125, 1 + 8 / 1024]


def kernel(name: str, results: str, settings: dict[str, int]) -> Computation:
    """A computation that ends in a kernel of 4 query heads and 2 kv heads, half of 1,024 queries.

    The mask's tables come first among the operands, as in the real kernels.
    """
    noted = ", ".join(rf"\"{key}\": {value}" for key, value in settings.items())
    op = f"jit(_step)/while/body/jit(_splash_attention)/{name}/pallas_call"
    rest = f'{METADATA % noted}, metadata={{op_name="{op}"}}'
    text = f"""HloModule m, num_partitions=1

ENTRY %main () -> f32[] {{
  %mask = s8[1,1,2] parameter(0)
  %blocks = s8[1,1,2] parameter(1)
  %q = bf16[3,4,512,128] parameter(2)
  %k = bf16[3,2,1024,128] parameter(3)
  %v = bf16[3,2,1024,128] parameter(4)
  %positions = s32[512,128] parameter(5)
  ROOT %splash.1 = ({results}) custom-call({OPERANDS}), {TARGET}, {rest}
}}
"""
    return program_of(text).entry


FORWARD = "bf16[3,4,512,128], f32[3,4,512]"
BACKWARD = "bf16[3,2,1024,128], bf16[3,2,1024,128]"
FUSED = f"bf16[3,2,4,512,128], {BACKWARD}"
BLOCKS = {"block_q_dkv": 256, "block_kv_dkv": 512}


@pytest.mark.parametrize(
    ("name", "results", "settings", "per_pair"),
    [
        ("splash_mha_fwd_residuals", FORWARD, {"block_q": 256, "block_kv": 512}, 4),
        ("splash_mha_fwd", FORWARD, {"block_q": 256, "block_kv": 512}, 4),
        ("splash_mha_dq_no_residuals", FORWARD, {"block_q_dq": 256, "block_kv_dq": 512}, 6),
        ("splash_mha_dkv_no_residuals", BACKWARD, BLOCKS, 8),
        ("splash_mha_dkv_no_residuals", FUSED, BLOCKS, 10),
    ],
)
def test_each_part_of_splash_attention_has_its_formula(
    name: str, results: str, settings: dict[str, int], per_pair: int
) -> None:
    """Query heads and sequences x head dimension x visited pairs x FLOPs of a pair."""
    where = kernel(name, results, settings)
    assert op_flops.is_kernel(where.root)
    pairs = brute_force(1024, 2, 256, 512)
    assert op_flops.kernel_flops(where, where.root) == 3 * 4 * 128 * pairs * per_pair


def test_a_kernel_without_a_formula_is_no_number() -> None:
    """It is named instead."""
    where = kernel("megablox_gmm", FORWARD, {})
    assert op_flops.kernel_flops(where, where.root) is None
    assert op_flops.kernel_name(where.root) == "splash"


def test_a_kernel_that_hides_its_blocks_is_an_error() -> None:
    """No block size is made up."""
    where = kernel("splash_mha_fwd", FORWARD, {"block_q": 256})
    with pytest.raises(ValueError, match="block_kv"):
        op_flops.kernel_flops(where, where.root)
