"""Single matrix products compiled by the real TPU compiler: run as a script, prints JSON.

    python -m tests.single_products CHIP ...    one line for each: cycles of a product of each shape

The environment must be the compiler's own, so tests start it as a process of its own.
"""

import json
import re
import sys
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator import catalog

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
SHAPES = ((8192, 8192, 8192), (4096, 8192, 28672))  # rows, contracted, columns


def cycles(chip: str, shape: tuple[int, int, int]) -> int:
    """What the compiler estimates for one bf16 product on one device."""
    names, slices = catalog.chip(chip).libtpu, catalog.chip(chip).slices
    assert names is not None
    topology = "x".join(map(str, next(shape for shape in slices.listed if prod(shape) == 4)))
    options = {"chip_config_name": names.chip_config} if names.chip_config else {}
    described = topologies.get_topology_desc(f"{names.topology}:{topology}", "tpu", **options)
    alone = NamedSharding(Mesh(np.array(described.devices[:1]), ("one",)), P())
    rows, inner, columns = shape
    operands: list[Any] = [
        jax.ShapeDtypeStruct(size, jnp.bfloat16, sharding=alone)
        for size in ((rows, inner), (inner, columns))
    ]
    text = jax.jit(jnp.matmul).lower(*operands).compile().as_text() or ""
    return sum(map(int, CYCLES.findall(text[text.index("ENTRY") :])))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps({"chip": name, "cycles": [cycles(name, shape) for shape in SHAPES]}))
