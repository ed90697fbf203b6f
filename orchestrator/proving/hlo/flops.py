"""FLOPs of one kernel of a compiled program: no compiler counts them, so each has a formula.

Splash attention takes blocks of queries x keys. Its second operand is a table of the blocks that it
visits, which the mask made: 0 for a block that none of its queries may see, and a column for each
place of its grid. The table is a constant of the program, also where a device takes its own part of
it: then the count is the mean over devices. A visited block is computed whole, with its masked
part. With H the width of a head of queries and V that of values, for each pair of a query and a key
in visited blocks, and each head:

    forward   2 H + 2 V    scores, and values weighted by them
    dq        4 H + 2 V    scores again, their gradient, the queries' gradient
    dkv       4 H + 4 V    scores again, their gradient, the keys' and the values' gradients
    dkv       6 H + 4 V    where it makes the queries' gradient too

cuDNN's attention, on GPUs, has one backward kernel, `6 H + 4 V`. Which blocks it skips nobody says:
the pairs counted are those that the mask lets see each other.
"""

import re
from math import prod

from orchestrator.network.attention import EXCHANGE
from orchestrator.proving.compiled import GROUPED_MATMUL
from orchestrator.proving.hlo.dataflow import Dataflow, HloValue
from orchestrator.proving.hlo.program import Computation, HloProgram, Instruction

_OPCODES = frozenset({"dot", "convolution"})
_WINDOW = re.compile(r"(\w+)=([\d_x\-]+)")
MULTIPLY_AND_ADD = 2


def is_product(instruction: Instruction) -> bool:
    """Whether it multiplies matrices; a matrix that only exchanges numbers multiplies nothing."""
    return instruction.opcode in _OPCODES and EXCHANGE not in instruction.op_name


def product_flops(where: Computation, product: Instruction) -> int:
    if product.opcode == "dot":  # 2 x output x contracted
        [output], [factor] = product.arrays, where.operand(product, 0).arrays
        contracted = re.findall(r"\d+", product.braced("lhs_contracting_dims"))
        multiplied = prod(factor.dimensions[int(number)] for number in contracted)
        return MULTIPLY_AND_ADD * output.elements * multiplied
    # 2 x output features x batch x input features x pairs of output and window that meet.
    left, kernel, out = product.attribute("dim_labels").replace("->", "_").split("_")
    sizes = {
        "left": dict(zip(left, where.operand(product, 0).arrays[0].dimensions, strict=True)),
        "kernel": dict(zip(kernel, where.operand(product, 1).arrays[0].dimensions, strict=True)),
        "out": dict(zip(out, product.arrays[0].dimensions, strict=True)),
    }
    # `{size=4x1 pad=3_3x0_0}` as the values of each spatial dimension.
    window = {key: value.split("x") for key, value in _WINDOW.findall(product.braced("window"))}
    spatial = [label for label in out if label.isdigit()]
    pairs = prod(
        _pairs(sizes, label, {key: values[int(label)] for key, values in window.items()})
        for label in spatial
    )
    batch, features = sizes["out"]["b"], sizes["out"]["f"]
    return MULTIPLY_AND_ADD * batch * features * sizes["kernel"]["i"] * pairs


def _pairs(sizes: dict[str, dict[str, int]], label: str, window: dict[str, str]) -> int:
    """Pairs of a place in the output and a place in the window that meet a real input."""
    low = int(window.get("pad", "0_0").split("_")[0])
    stride, spread, holes = (
        int(window.get(key, "1")) for key in ("stride", "rhs_dilate", "lhs_dilate")
    )
    reach = (sizes["left"][label] - 1) * holes
    return sum(
        1
        for place in range(sizes["out"][label])
        for tap in range(sizes["kernel"][label])
        if 0 <= (at := place * stride + tap * spread - low) <= reach and at % holes == 0
    )


_KERNEL = re.compile(r"/splash_(?:mha|mqa)_(fwd|dq|dkv)\w*/pallas_call")
_PER_PAIR = {"fwd": (2, 2), "dq": (4, 2), "dkv": (4, 4)}  # of each number of a query, of a value
_FUSED_PER_PAIR = 6, 4
_METADATA = "ragged-dot-metadata"  # which rows a grouped matmul visits for which expert
_GROUPED = re.compile(r"ragged-dot-none|jit\(t?gmm\)")
_BLOCKS = {"fwd": ("block_q", "block_kv"), "dq": ("block_q_dq", "block_kv_dq")}
_BLOCKS |= {"dkv": ("block_q_dkv", "block_kv_dkv")}
_VISITED_BLOCKS = 1  # the operand with the table
# Tokamax's kernel has first what each block of its grid is, or how many it visits.
_TOKAMAX_BLOCKS = 0
_SEQUENCE_MINOR = 2  # a layout of queries, keys or values
# Among the operands of floats; those of whole numbers are the mask's tables.
_QUERIES, _VALUES = 0, 2
_PARTS = frozenset({"dynamic-slice"})  # a device's own part of a table
# cuDNN's kernels, by name and factors. Their text has the shape of the scores and the mask.
_CUDNN = {
    "__cudnn$fmhaSoftmax": ("cuDNN attention forward", _PER_PAIR["fwd"]),
    "__cudnn$fmhaSoftmaxBackward": ("cuDNN attention backward", _FUSED_PER_PAIR),
}
_SCORES = re.compile(r'"intermediate_tensor_shape":\s*\{[^}]*?"dimensions":\s*\[([^\]]*)\]')
_MASK = re.compile(r'"mask_type":\s*"(\w+)"')
_SLIDING = re.compile(r'"sliding_window_length":\s*"?(\d+)')


def is_kernel(instruction: Instruction) -> bool:
    return _target(instruction) in {"tpu_custom_call", *_CUDNN}


def _target(instruction: Instruction) -> str:
    is_call = instruction.opcode == "custom-call"
    return instruction.quoted("custom_call_target") if is_call else ""


def kernel_name(kernel: Instruction) -> str:
    """`splash fwd`; for a kernel without a formula, its own name."""
    if cudnn := _CUDNN.get(_target(kernel)):
        return cudnn[0]
    splash = _KERNEL.search(kernel.op_name)
    if _GROUPED.search(kernel.op_name):
        return GROUPED_MATMUL
    return f"splash {splash[1]}" if splash else kernel.name.rsplit(".", 1)[0]


def kernel_flops(program: HloProgram, where: Computation, kernel: Instruction) -> float | None:
    """Return the FLOPs of one call, or None without a formula or a table to count by."""
    if cudnn := _CUDNN.get(_target(kernel)):
        return _cudnn_flops(where, kernel, cudnn[1])
    splash = _KERNEL.search(kernel.op_name)
    if _METADATA in kernel.op_name:
        return 0.0
    if _GROUPED.search(kernel.op_name):
        # A grouped matmul: 2 x rows x d_in x d_out, by whole tiles of rows. One of its three arrays
        # of floats holds the weights of all experts; the others have the rows. Its table of visits
        # has one for each tile, and one for each expert that may begin within a tile.
        read = [where.instructions[operand].arrays[0] for operand in kernel.operands]
        tensors = [
            array.dimensions for array in (*read, *kernel.arrays) if not array.dtype.startswith("s")
        ]
        [(experts, *edges)] = [sizes for sizes in tensors if len(sizes) == 3]
        rows = max(sizes[0] for sizes in tensors if len(sizes) == 2)
        visits = max(array.elements for array in read if array.dtype.startswith("s"))
        tile = rows / (visits - experts + 1)
        return MULTIPLY_AND_ADD * (rows + (experts - 1) * tile) * prod(edges)
    return _splash_flops(program, where, kernel, splash[1]) if splash else None


def _cudnn_flops(
    where: Computation, kernel: Instruction, per_pair: tuple[int, int]
) -> float | None:
    """Sequences x heads x pairs that see each other x FLOPs of a pair."""
    scores, mask = _SCORES.search(kernel.rest), _MASK.search(kernel.rest)
    if not scores or not mask or mask[1] not in {"CAUSAL", "NO_MASK"}:
        return None
    batch, heads, queries, keys = map(int, re.findall(r"\d+", scores[1]))
    sliding = _SLIDING.search(kernel.rest)
    pairs = queries * keys
    if mask[1] == "CAUSAL":  # the last `seen` keys, or all of those before
        seen = min(int(sliding[1]) if sliding else 0, queries) or queries
        pairs = seen * (seen + 1) // 2 + (queries - seen) * seen
    of_query, of_value = per_pair
    head, value = (where.operand(kernel, place).arrays[0].dimensions[-1] for place in (0, 2))
    return batch * heads * pairs * (of_query * head + of_value * value)


def _splash_flops(
    program: HloProgram, where: Computation, kernel: Instruction, part: str
) -> float | None:
    """Splash attention: sequences and heads x visited pairs x FLOPs of a pair."""
    # The blocks that a head visits on a device, mean over heads and devices. They are unknown where
    # the program makes the table as it runs, or its text leaves the table out.
    first = where.operand(kernel, _TOKAMAX_BLOCKS).arrays[0]
    flow, of_tokamax = Dataflow(program), len(first.dimensions) <= 1
    place = _TOKAMAX_BLOCKS if of_tokamax else _VISITED_BLOCKS
    table = HloValue(where.name, kernel.operands[place])
    [whole, *others] = map(flow.instruction, flow.origins(table, also=_PARTS))
    if others or whole.opcode != "constant" or "..." in whole.arguments:
        return None
    own_part = flow.array(table)  # of some queries, of some heads, or of both
    kinds = [int(kind) for kind in re.findall(r"\d+", whole.arguments)]
    if of_tokamax:  # how many blocks it visits, or what each block of its grid is
        blocks = float(sum(kind > 0 for kind in kinds) if own_part.dimensions else kinds[0])
    else:
        of_head = own_part.elements / own_part.dimensions[0]
        blocks = sum(kind > 0 for kind in kinds) / whole.arrays[0].elements * of_head
    block_pairs = 1
    for key in _BLOCKS[part]:
        size = _setting(kernel, key)
        if size is None:
            raise ValueError(f"{kernel.name} does not give its {key}")
        block_pairs *= size
    operands = [where.operand(kernel, place).arrays[0] for place in range(len(kernel.operands))]
    tensors = [array.dimensions for array in operands if array.dtype.startswith(("bf", "f"))]
    queries, values = tensors[_QUERIES], tensors[_VALUES]
    head = queries[-2 if _setting(kernel, "q_layout") == _SEQUENCE_MINOR else -1]
    of_values = values[-2 if _setting(kernel, "v_layout") == _SEQUENCE_MINOR else -1]
    pairs = blocks * block_pairs
    # The queries' gradients by blocks of keys, to be added up later, have one dimension more.
    fused = any(len(array.dimensions) > len(queries) for array in kernel.arrays)
    of_query, of_value = _FUSED_PER_PAIR if fused else _PER_PAIR[part]
    return prod(queries[:-2]) * pairs * (of_query * head + of_value * of_values)


def _setting(kernel: Instruction, key: str) -> int | None:
    """Return a setting of the kernel, as it notes them for profilers."""
    found = re.search(rf'\\?"{key}\\?": (\d+)', kernel.rest)
    return int(found[1]) if found else None
