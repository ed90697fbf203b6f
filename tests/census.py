"""The collectives of a traced step, counted: kind, type, axes and bytes of each, with loops."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

KINDS = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "ppermute": "permute",
    "psum": "all-reduce",
    "reduce_scatter": "reduce-scatter",
}
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "int32": "int32"}
# kind, type, axes, bytes that a device puts in
Counted = tuple[str, str, tuple[str, ...], float]


def count_collectives(jaxpr: Any) -> Counter[Counted]:
    """Every collective of a jaxpr and of what it calls."""
    found: Counter[Counted] = Counter()
    for equation, times in equations(jaxpr, 1):
        if equation.primitive.name in KINDS:
            named = equation.params.get("axis_name") or equation.params.get("axes")
            axes = (named,) if isinstance(named, str) else tuple(named)
            for operand in equation.invars:
                size = float(operand.aval.size * operand.aval.dtype.itemsize)
                dtype = DTYPES[operand.aval.dtype.name]
                found[KINDS[equation.primitive.name], dtype, axes, size] += times
    return found


def equations(jaxpr: Any, times: int) -> Iterator[tuple[Any, int]]:
    """Each equation, and how often it runs."""
    for equation in jaxpr.eqns:
        yield equation, times
        inside = times * (equation.params["length"] if equation.primitive.name == "scan" else 1)
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from equations(inner, inside)
