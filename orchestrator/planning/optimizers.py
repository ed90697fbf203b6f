"""The state of an optimizer for each parameter, and the cost of its update without memory traffic.

AdamW holds two moments of every parameter. Adafactor holds second moments of rows and columns
(arXiv 1804.04235): a matrix has one row for each position of its gathered dimension. Muon holds one
moment of the matrices of layers, and two of all else, as AdamW does.
"""

from math import prod

import numpy as np

from orchestrator.network.description import Weight
from orchestrator.network.mesh_axes import GATHERED_AXES, PARAMETER_AXES
from orchestrator.network.mlp import EXPERTS
from orchestrator.planning.layout import MOMENT_BYTES, Number, Training

# fp32 reads of each gradient: Adafactor needs its means before it can scale it.
GRADIENT_READS = {"adamw": 1, "adafactor": 2, "muon": 1}
_FACTORED_BYTES = 4  # means of rows and columns are fp32
# Muon makes a matrix orthogonal by five steps of Newton and Schulz (kellerjordan.github.io/posts/
# muon), each of three products: X X', its square, and that times X.
_STEPS, _LARGE_PRODUCTS, _SQUARE_PRODUCTS = 5, 2, 1
ORTHOGONAL_BYTES = 2  # in bf16


def other_moments(layout: Training) -> tuple[float, Number]:
    """The bytes and the count of a device's moments that not every parameter has as many of."""
    if layout.optimizer.name == "adafactor":
        return _FACTORED_BYTES, _factored_elements(layout)
    if layout.optimizer.name == "muon":
        others = layout.stored_parameter_elements - layout.stored_layer_elements
        return MOMENT_BYTES[layout.precision.optimizer], others
    return 0, 0


def _factored_elements(layout: Training) -> Number:
    """Means of a device's rows and columns, and whole moments of its vectors."""
    blocks = layout.over_layers(
        lambda block: sum(_factored(layout, one.weight) for one in block.matmuls)
    )
    tables = sum(_factored(layout, table) for table in layout.network.tables)
    return blocks + tables + layout.vector_elements


def _factored(layout: Training, weight: Weight) -> Number:
    """Those of one matrix, or of as many as there are experts."""
    sizes = {one.axis: layout.stored_size(one) for one in weight.dimensions}
    experts = sizes.pop(EXPERTS, 1)
    rows = prod(size for axis, size in sizes.items() if axis in GATHERED_AXES)
    columns = prod(size for axis, size in sizes.items() if axis not in GATHERED_AXES)
    return experts * (rows + columns)


def orthogonalization_flops(layout: Training) -> Number:
    """FLOPs of one device: each matrix is whole on one of the devices that share a copy."""
    if layout.optimizer.name != "muon":
        return 0.0
    devices = layout.devices_along(PARAMETER_AXES)
    return sum(
        np.ceil(layers * _experts(matmul.weight) / devices) * _of_matrix(matmul.weight)
        for block, layers in layout.network.kinds
        for matmul in block.matmuls
    )


def _experts(weight: Weight) -> int:
    """Matrices that lie side by side in a weight."""
    return prod(one.size for one in weight.dimensions if one.axis == EXPERTS)


def _of_matrix(weight: Weight) -> float:
    """FLOPs to make one matrix orthogonal, along its shorter side."""
    rows = prod(one.size for one in weight.dimensions if one.axis in GATHERED_AXES)
    columns = weight.elements // rows // _experts(weight)
    short, long = sorted((rows, columns))
    return 2.0 * _STEPS * (_LARGE_PRODUCTS * short**2 * long + _SQUARE_PRODUCTS * short**3)
