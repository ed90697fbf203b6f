"""Microbenchmarks: times operations and steps of a trainer on the devices at hand. Knows JAX."""

import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp

from orchestrator.network.description import Scores
from orchestrator.planning import flops
from orchestrator.planning.calibrated import Measurements, Operation, Timing
from orchestrator.planning.layout import activation_type
from orchestrator.processes import end_with_parent
from orchestrator.values import codec
from orchestrator.values.codec import DType, MatmulType
from orchestrator.values.plan import Plan
from trainers.contract import build, load, place
from trainers.data.batches import Synthetic
from trainers.llama.attention_kernels import attention
from trainers.llama.parameters import DTYPES
from trainers.loop import share_compiled_programs
from trainers.multihost import barrier

_ROUNDS = 9


def _in_rounds(
    operation: Operation, dtype: MatmulType, runs: Mapping[float, Callable[[], float]]
) -> Timing:
    """Time every amount once in each round, so that other programs disturb few runs of each."""
    rounds = [[run() for run in runs.values()] for _ in range(_ROUNDS)]
    quartiles = [statistics.quantiles(seconds, n=4) for seconds in zip(*rounds, strict=True)]
    return Timing(
        operation=operation,
        dtype=dtype,
        points=tuple((amount, q[1]) for amount, q in zip(runs, quartiles, strict=True)),
        spread=max((high - low) / median for low, median, high in quartiles),
    )


# Operations of one device, timed in sizes that grow until a run takes long

_OPERATIONS: tuple[tuple[Operation, int], ...] = (
    ("matmul", 0),
    ("copy", 0),
    ("attention", 64),
    ("attention", 128),
)
# The smallest and the largest amount, in FLOPs or bytes.
_AMOUNTS: dict[Operation, tuple[float, float]] = {
    "matmul": (1e8, 5e12),
    "copy": (1e6, 1e9),
    "attention": (1e9, 1e12),
}
_GROWTH = 8
_LONG_S = 0.2  # no run takes longer, but for the smallest amount
_RUN_S = 0.02  # a run repeats its work until it takes about this long
_MOST_REPEATS = 2000
_LENGTH = 2048  # of attention
_MATMULS = 3  # forward, and backward for the input and for the weight
_ATTENTION_PASSES = 9 / 2  # forward and backward, in forward passes, as the ledger counts
_SMALL = 1e-3

_Body = Callable[[Any], Any]  # of arrays: the same shapes again
_Work = tuple[_Body, tuple[jax.Array, ...], float]  # a body, what it begins with, and its amount


def _timed(operation: Operation, dtype: MatmulType, head_dim: int = 0) -> Timing:
    """Time an operation at each size, on the first device."""
    amount, most = _AMOUNTS[operation]
    runs: dict[float, Callable[[], float]] = {}
    with jax.default_device(jax.local_devices()[0]):
        while amount <= most:
            body, start, done = operation_work(operation, DTYPES[dtype], head_dim, amount)
            runs[done] = repeated(body, start)
            amount = _GROWTH * amount if _GROWTH * runs[done]() < _LONG_S else 2 * most
        return replace(_in_rounds(operation, dtype, runs), head_dim=head_dim)


def repeated(body: _Body, start: tuple[jax.Array, ...]) -> Callable[[], float]:
    """Return a function that does the body often enough, and returns the seconds of one time."""

    def repeat(count: jax.Array, arrays: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, before: body(before), arrays)

    executable = jax.jit(repeat).lower(jnp.int32(0), start).compile()

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(executable(jnp.int32(count), start))
        return (time.perf_counter() - begin) / count

    seconds(1)
    count = int(min(max(_RUN_S / max(seconds(2), 1e-7), 1), _MOST_REPEATS))
    return lambda: seconds(count)


def operation_work(operation: Operation, dtype: Any, head_dim: int, amount: float) -> _Work:
    if operation == "matmul":
        # A product and its backward pass: each multiplies in an order of its own.
        size = round((amount / 2 / _MATMULS) ** (1 / 3) / 16) * 16
        square = jnp.full((size, size), _SMALL, dtype)

        def body(arrays: Any) -> Any:
            x, weight = arrays
            y = x @ weight
            return y @ weight.T, x.T @ y

        return body, (square, square), 2.0 * _MATMULS * size**3
    if operation == "attention":
        # The trainer's attention of one sequence with many heads, forward and backward.
        head_flops = 4 * _ATTENTION_PASSES * head_dim * _LENGTH**2
        heads = max(1, round(amount / head_flops))
        scores = Scores(scale=head_dim**-0.5)
        kernel = attention(jax.local_devices()[0].platform, dtype, _LENGTH, 1, scores)
        tensor = jnp.full((1, _LENGTH, heads, head_dim), _SMALL, dtype)

        def attend(arrays: Any) -> Any:
            y, backward = jax.vjp(lambda q, k, v: kernel(q, k, v, None, None), *arrays)
            return jax.tree.map(lambda x, dx: x + _SMALL * dx, arrays, backward(y))

        return attend, (tensor,) * 3, heads * head_flops
    # Every number is read and written.
    numbers = jnp.full(int(amount / 2 / dtype.dtype.itemsize), _SMALL, dtype)
    return lambda arrays: (arrays[0] * dtype(0.5),), (numbers,), 2.0 * numbers.nbytes


# The step of a plan's trainer, timed with fewer layers than the plan has


def _depths(plan: Plan) -> tuple[int, ...]:
    return 1, max(2, plan.model.layers * 3 // 4)


def _compiled_step(plan: Plan) -> Callable[[], float]:
    """Return a function that does a step of a plan and returns its seconds; the first is done."""
    program = build(load(plan.trainer), plan, jax.devices())
    step = program.lowered().compile()
    barrier(f"a step of {plan.model.layers} layers is compiled")
    state = jax.block_until_ready(program.init(plan.seed))
    data = Synthetic(plan.model.vocab, plan.batch.length, plan.seed)
    batch = place(program, lambda start, stop: data.batch(0, range(start, stop)))
    rate = program.rate(plan.first_step)

    def seconds() -> float:
        nonlocal state
        begin = time.perf_counter()
        state, metrics = step(state, batch, *rate)
        jax.block_until_ready((state, metrics))
        return time.perf_counter() - begin

    seconds()
    return seconds


def main() -> None:
    """Time one device's operations, or a plan's step; exit without waiting for JAX's threads."""
    end_with_parent(lambda: os._exit(1))
    status, (result, *how) = 1, sys.argv[1:]
    try:
        if how:
            timings = tuple(_rehearsal_timings(*how))
        else:
            timings = tuple(
                _timed(operation, dtype, head_dim)
                for operation, head_dim in _OPERATIONS
                for dtype in get_args(DType)
            )
        if jax.process_index() == 0:
            device = jax.local_devices()[0]
            kind = device.device_kind
            measured = Measurements(platform=device.platform, device_kind=kind, timings=timings)
            Path(result).write_bytes(codec.to_json(measured))
        barrier("the machine is measured")
        status = 0
    except Exception:  # noqa: BLE001  the parent shows its last lines
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _rehearsal_timings(path: str, address: str, process: str) -> Iterator[Timing]:
    """A large matmul on all cores, only in the first process; the step in all together."""
    plan = codec.from_json(Path(path).read_bytes(), Plan)
    load(plan.trainer)  # what is no trainer is refused before anything is timed
    share_compiled_programs()
    if plan.hosts > 1:
        jax.distributed.initialize(
            address, plan.hosts, int(process), coordinator_bind_address=address
        )
    if process == "0":
        yield _timed("matmul", activation_type(plan.precision))
    barrier("matmuls are measured")
    # Time the step at each depth.
    runs: dict[float, Callable[[], float]] = {}
    for layers in _depths(plan):
        model = replace(plan.model, layers=layers)
        model = replace(model, parameters=flops.parameters(model))
        runs[float(layers)] = _compiled_step(replace(plan, model=model))
    yield _in_rounds("step", plan.precision.compute, runs)


if __name__ == "__main__":
    main()
