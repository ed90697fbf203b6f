"""The operations that are timed: one device's part of each, and the amount of work in it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from orchestrator.types.chip_profile import Benchmark, Operation
from trainers.llama.attention import attention
from trainers.llama.model import DTYPES

GROUP = "group"  # the mesh axis of a collective
WIDTH = 256
MATMULS = 3  # forward, and backward for the input and for the weight
ATTENTION_PASSES = 9 / 2  # forward and backward, in forward passes, as the ledger counts
ELEMENTWISE_TOUCHES = 3 * 4  # two inputs and a result; forward, again, and twice as much backward
SMALL = 1e-3


@dataclass(frozen=True)
class Work:
    """A function from an array tree to one of the same shapes, its start, and its amount."""

    body: Callable[[Any], Any]
    start: Any
    amount: float


def work(benchmark: Benchmark, amount: float) -> Work:
    """About that amount of a benchmark's operation for each device."""
    return OPERATIONS[benchmark.operation](benchmark, amount)


def array(benchmark: Benchmark, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, DTYPES[benchmark.dtype])


def item_bytes(benchmark: Benchmark) -> int:
    return DTYPES[benchmark.dtype].dtype.itemsize


def matmul(benchmark: Benchmark, amount: float) -> Work:
    """A product and its backward pass: each multiplies in an order of its own."""
    size = max(16, round((amount / 2 / MATMULS) ** (1 / 3) / 16) * 16)

    def body(tree: Any) -> Any:
        x, weight = tree
        y = x @ weight
        return y @ weight.T, x.T @ y

    square = array(benchmark, size, size)
    return Work(body, (square, square), 2.0 * MATMULS * size**3)


def attend(benchmark: Benchmark, amount: float) -> Work:
    """The trainer's attention of one sequence with many heads, forward and backward."""
    length, head_dim = benchmark.length, benchmark.head_dim
    heads = round(amount / head_flops(benchmark))
    kernel = attention(jax.devices()[0].platform, DTYPES[benchmark.dtype], length, 1)

    def body(tree: Any) -> Any:
        y, backward = jax.vjp(kernel, *tree)
        return jax.tree.map(lambda x, dx: x + SMALL * dx, tree, backward(y))

    start = (array(benchmark, 1, length, heads, head_dim),) * 3
    return Work(body, start, heads * head_flops(benchmark))


def head_flops(benchmark: Benchmark) -> float:
    """FLOPs of one head's attention over one sequence."""
    return 4 * ATTENTION_PASSES * benchmark.head_dim * benchmark.length**2


def elementwise(benchmark: Benchmark, amount: float) -> Work:
    """A gated activation forward, again and backward, as under rematerialization."""
    touched = ELEMENTWISE_TOUCHES * item_bytes(benchmark) * WIDTH
    rows = max(1, int(amount / touched))
    gated = jax.checkpoint(lambda gate, up: jax.nn.silu(gate) * up)

    def body(tree: Any) -> Any:
        y, backward = jax.vjp(gated, *tree)
        return jax.tree.map(lambda x, dx: x + SMALL * (dx + y), tree, backward(y))

    row = array(benchmark, rows, WIDTH)
    return Work(body, (row, row), float(rows * touched))


def copy(benchmark: Benchmark, amount: float) -> Work:
    """Every number read and written."""
    numbers = int(amount / 2 / item_bytes(benchmark))
    half = DTYPES[benchmark.dtype](0.5)
    return Work(
        lambda x: x * half, array(benchmark, numbers), 2.0 * numbers * item_bytes(benchmark)
    )


def all_gather(benchmark: Benchmark, amount: float) -> Work:
    part = numbers_of(benchmark, amount) // benchmark.group
    return collective(
        benchmark, part, lambda x: jax.lax.all_gather(x, GROUP, tiled=True)[-part:], benchmark.group
    )


def reduce_scatter(benchmark: Benchmark, amount: float) -> Work:
    def body(x: jax.Array) -> jax.Array:
        part = jax.lax.psum_scatter(x, GROUP, tiled=True) / benchmark.group
        return jax.lax.dynamic_update_slice_in_dim(x, part, 0, 0)

    return collective(benchmark, numbers_of(benchmark, amount), body)


def all_reduce(benchmark: Benchmark, amount: float) -> Work:
    numbers = numbers_of(benchmark, amount)
    return collective(benchmark, numbers, lambda x: jax.lax.psum(x, GROUP) / benchmark.group)


def permute(benchmark: Benchmark, amount: float) -> Work:
    ring = [(device, (device + 1) % benchmark.group) for device in range(benchmark.group)]
    numbers = numbers_of(benchmark, amount)
    return collective(benchmark, numbers, lambda x: jax.lax.ppermute(x, GROUP, ring))


def numbers_of(benchmark: Benchmark, amount: float) -> int:
    """Numbers in so many bytes: at least one for each device of the group."""
    return max(int(amount) // item_bytes(benchmark) // benchmark.group, 1) * benchmark.group


def collective(
    benchmark: Benchmark, numbers: int, body: Callable[[jax.Array], jax.Array], times: int = 1
) -> Work:
    """`numbers` on each device; `times` as many count as the amount."""
    amount = float(times * numbers * item_bytes(benchmark))
    return Work(body, array(benchmark, numbers), amount)


OPERATIONS: dict[Operation, Callable[[Benchmark, float], Work]] = {
    "matmul": matmul,
    "attention": attend,
    "elementwise": elementwise,
    "copy": copy,
    "all-gather": all_gather,
    "reduce-scatter": reduce_scatter,
    "all-reduce": all_reduce,
    "permute": permute,
}
