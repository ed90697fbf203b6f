"""What one device does alone, timed in sizes that grow until a run takes long."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import jax
import jax.numpy as jnp

from orchestrator.network.description import Scores
from orchestrator.types.chip_profile import Operation, Timing
from orchestrator.types.spec_fields import DType, MatmulType
from trainers.llama.attention import attention
from trainers.llama.runtime import DTYPES
from trainers.microbenchmarks.rounds import in_rounds

OPERATIONS: tuple[tuple[Operation, int], ...] = (
    ("matmul", 0),
    ("copy", 0),
    ("attention", 64),
    ("attention", 128),
)
# The smallest and the largest amount, in FLOPs or bytes.
AMOUNTS: dict[Operation, tuple[float, float]] = {
    "matmul": (1e8, 5e12),
    "copy": (1e6, 1e9),
    "attention": (1e9, 1e12),
}
GROWTH = 8
LONG_S = 0.2  # no run takes longer, but for the smallest amount
RUN_S = 0.02  # a run repeats its work until it takes about this long
MOST_REPEATS = 2000
LENGTH = 2048  # of attention
MATMULS = 3  # forward, and backward for the input and for the weight
ATTENTION_PASSES = 9 / 2  # forward and backward, in forward passes, as the ledger counts
SMALL = 1e-3

Body = Callable[[Any], Any]  # of arrays: the same shapes again
Work = tuple[Body, tuple[jax.Array, ...], float]  # a body, what it begins with, and its amount


def device_timings() -> Iterator[Timing]:
    """All operations in all types, on the first device."""
    for operation, head_dim in OPERATIONS:
        for dtype in get_args(DType):
            yield timed(operation, dtype, head_dim)


def timed(operation: Operation, dtype: MatmulType, head_dim: int = 0) -> Timing:
    """An operation at each size."""
    amount, most = AMOUNTS[operation]
    runs: dict[float, Callable[[], float]] = {}
    with jax.default_device(jax.local_devices()[0]):
        while amount <= most:
            body, start, done = work(operation, DTYPES[dtype], head_dim, amount)
            runs[done] = compiled(body, start)
            amount = GROWTH * amount if GROWTH * runs[done]() < LONG_S else 2 * most
        return replace(in_rounds(operation, dtype, runs), head_dim=head_dim)


def compiled(body: Body, start: tuple[jax.Array, ...]) -> Callable[[], float]:
    """What does the body often enough to be timed, and returns the seconds of once."""

    def repeat(count: jax.Array, arrays: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, before: body(before), arrays)

    executable = jax.jit(repeat).lower(jnp.int32(0), start).compile()

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(executable(jnp.int32(count), start))
        return (time.perf_counter() - begin) / count

    seconds(1)
    count = int(min(max(RUN_S / max(seconds(2), 1e-7), 1), MOST_REPEATS))
    return lambda: seconds(count)


def work(operation: Operation, dtype: Any, head_dim: int, amount: float) -> Work:
    if operation == "matmul":
        return matmul(dtype, amount)
    return copy(dtype, amount) if operation == "copy" else attend(dtype, head_dim, amount)


def matmul(dtype: Any, amount: float) -> Work:
    """A product and its backward pass: each multiplies in an order of its own."""
    size = round((amount / 2 / MATMULS) ** (1 / 3) / 16) * 16
    square = jnp.full((size, size), SMALL, dtype)

    def body(arrays: Any) -> Any:
        x, weight = arrays
        y = x @ weight
        return y @ weight.T, x.T @ y

    return body, (square, square), 2.0 * MATMULS * size**3


def copy(dtype: Any, amount: float) -> Work:
    """Every number read and written."""
    numbers = jnp.full(int(amount / 2 / dtype.dtype.itemsize), SMALL, dtype)
    return lambda arrays: (arrays[0] * dtype(0.5),), (numbers,), 2.0 * numbers.nbytes


def attend(dtype: Any, head_dim: int, amount: float) -> Work:
    """The trainer's attention of one sequence with many heads, forward and backward."""
    head_flops = 4 * ATTENTION_PASSES * head_dim * LENGTH**2
    heads = max(1, round(amount / head_flops))
    scores = Scores(scale=head_dim**-0.5)
    kernel = attention(jax.local_devices()[0].platform, dtype, LENGTH, 1, scores)
    tensor = jnp.full((1, LENGTH, heads, head_dim), SMALL, dtype)

    def body(arrays: Any) -> Any:
        y, backward = jax.vjp(lambda q, k, v: kernel(q, k, v, None, None), *arrays)
        return jax.tree.map(lambda x, dx: x + SMALL * dx, arrays, backward(y))

    return body, (tensor,) * 3, heads * head_flops
