"""FLOPs of one matrix product of a compiled program.

The TPU compiler writes every matrix product as a convolution. Its window slides over padding where
two dimensions are multiplied, so only places inside the input count.
"""

import re
from math import prod

from orchestrator.network.rotary import EXCHANGE
from orchestrator.prove.hlo.program import Computation, Instruction

OPCODES = frozenset({"dot", "convolution"})
WINDOW = re.compile(r"(\w+)=([\d_x\-]+)")
MULTIPLY_AND_ADD = 2


def is_product(instruction: Instruction) -> bool:
    """Whether it multiplies matrices; a matrix that only exchanges numbers multiplies nothing."""
    return instruction.opcode in OPCODES and EXCHANGE not in instruction.op_name


def product_flops(where: Computation, product: Instruction) -> int:
    """FLOPs of one `dot` or `convolution`."""
    return _dot_flops(where, product) if product.opcode == "dot" else _window_flops(where, product)


def _dot_flops(where: Computation, product: Instruction) -> int:
    """2 x output x contracted."""
    [out], [left] = product.arrays, where.operand(product, 0).arrays
    contracted = re.findall(r"\d+", product.braced("lhs_contracting_dims"))
    return MULTIPLY_AND_ADD * out.elements * prod(left.dimensions[int(i)] for i in contracted)


def _window_flops(where: Computation, product: Instruction) -> int:
    """2 x output features x batch x input features x pairs of output and window that meet."""
    left, kernel, out = product.attribute("dim_labels").replace("->", "_").split("_")
    sizes = {
        "left": dict(zip(left, where.operand(product, 0).arrays[0].dimensions, strict=True)),
        "kernel": dict(zip(kernel, where.operand(product, 1).arrays[0].dimensions, strict=True)),
        "out": dict(zip(out, product.arrays[0].dimensions, strict=True)),
    }
    window = _window(product)
    spatial = [label for label in out if label.isdigit()]
    pairs = prod(
        _pairs(sizes, label, {key: values[int(label)] for key, values in window.items()})
        for label in spatial
    )
    batch, features = sizes["out"]["b"], sizes["out"]["f"]
    return MULTIPLY_AND_ADD * batch * features * sizes["kernel"]["i"] * pairs


def _window(product: Instruction) -> dict[str, list[str]]:
    """`{size=4x1 pad=3_3x0_0}` as the values of each spatial dimension."""
    return {key: value.split("x") for key, value in WINDOW.findall(product.braced("window"))}


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
