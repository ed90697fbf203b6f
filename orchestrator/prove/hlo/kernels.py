"""Prove room: FLOPs of Pallas kernels, which no compiler counts: one stated formula for each.

Splash attention visits blocks of queries x keys and skips those that no query of theirs may see.
A visited block is computed whole, its masked half too. With H the head dimension, for each visited
pair of a query and a key, and each head:

    forward   4 H    scores, and values weighted by them
    dq        6 H    scores again, their gradient, the queries' gradient
    dkv       8 H    scores again, their gradient, the keys' and the values' gradients
    dkv      10 H    where it makes the queries' gradient too, beside them

The mask is causal. Queries are one of S / T shards in zigzag order: of 2 S / T chunks, shard i
holds chunks i and 2 S / T - 1 - i. The count is the mean over shards.
"""

import re
from math import prod

from orchestrator.prove.hlo.program import Computation, Instruction

KERNEL = re.compile(r"/splash_(?:mha|mqa)_(fwd|dq|dkv)\w*/pallas_call")
PER_PAIR = {"fwd": 4, "dq": 6, "dkv": 8}
FUSED_PER_PAIR = 10
BLOCKS = {"fwd": ("block_q", "block_kv"), "dq": ("block_q_dq", "block_kv_dq")}
BLOCKS |= {"dkv": ("block_q_dkv", "block_kv_dkv")}
QUERIES, KEYS = 0, 1  # among the operands that are no whole numbers, as the mask's tables are


def is_kernel(instruction: Instruction) -> bool:
    is_call = instruction.opcode == "custom-call"
    return is_call and instruction.quoted("custom_call_target") == "tpu_custom_call"


def name(kernel: Instruction) -> str:
    """`splash fwd`; for a kernel without a formula, its own name."""
    found = KERNEL.search(kernel.op_name)
    return f"splash {found[1]}" if found else kernel.name.rsplit(".", 1)[0]


def flops(where: Computation, kernel: Instruction) -> float | None:
    """FLOPs of one call; None where there is no formula for it."""
    found = KERNEL.search(kernel.op_name)
    if not found:
        return None
    part = found[1]
    operands = [where.instructions[operand].arrays[0] for operand in kernel.operands]
    tensors = [array.dimensions for array in operands if array.dtype.startswith(("bf", "f"))]
    *heads, queries, head = tensors[QUERIES]
    keys = tensors[KEYS][-2]
    pairs = visited(keys, keys // queries, *(_block(kernel, key) for key in BLOCKS[part]))
    # Queries' gradients by blocks of keys, to be added up later: one dimension more.
    fused = any(len(array.dimensions) > len(tensors[QUERIES]) for array in kernel.arrays)
    return prod(heads) * pairs * head * (FUSED_PER_PAIR if fused else PER_PAIR[part])


def visited(length: int, ways: int, query_block: int, key_block: int) -> float:
    """Pairs of a query and a key in the blocks that a shard visits, mean over the shards."""
    chunk = length // (2 * ways) if ways > 1 else length
    total = 0
    for shard in range(ways):
        chunks = (shard, 2 * ways - 1 - shard) if ways > 1 else (0,)
        positions = [at for index in chunks for at in range(index * chunk, (index + 1) * chunk)]
        for start in range(0, len(positions), query_block):
            last = max(positions[start : start + query_block])
            total += (last // key_block + 1) * key_block * query_block
    return total / ways


def _block(kernel: Instruction, key: str) -> int:
    return int(_setting(kernel, key))


def _setting(kernel: Instruction, key: str) -> str:
    """A setting of the kernel, as it notes them for profilers."""
    found = re.search(rf'\\?"{key}\\?": (\w+)', kernel.rest)
    if not found:
        raise ValueError(f"{kernel.name} does not say its {key}")
    return found[1]
