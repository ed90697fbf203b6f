"""Ceilings: the pieces of a step that a device does alone, as the trainer writes them. Knows JAX.

Each takes about the amount of work that it is asked for, and says how much it took.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from orchestrator.types.chip_profile import Kernel, KernelBenchmark, KernelTime
from trainers.llama.attention import attention
from trainers.llama.loss import token_loss
from trainers.llama.model import DTYPES, inner, rotated
from trainers.microbenchmarks.timing import Body, Probe, Timed, in_rounds, probe

AXES = ("devices", "tensor", "copies")  # the loss speaks of the last two
WIDTH = 256
LOSS_WIDTH = 16  # so narrow that its products hardly count
HEADS = 4
LEARNING_RATE = 1e-3
SMALL = 1e-3


@dataclass(frozen=True)
class TimedKernel:
    """What one device does once, what it starts with, and how much that is."""

    body: Body
    start: Any
    amount: float


def times(
    wishes: Iterable[KernelBenchmark], devices: Sequence[jax.Device], tell: Callable[[], None]
) -> list[KernelTime]:
    """All wishes: each is made ready, which is told, and then they are run in rounds."""
    probes, become = [], []
    for wish in wishes:
        one, time = ready(wish, devices)
        probes.append(one)
        become.append(time)
        tell()
    return [time(found) for time, found in zip(become, in_rounds(probes), strict=True)]


def ready(
    wish: KernelBenchmark, devices: Sequence[jax.Device]
) -> tuple[Probe, Callable[[Timed], KernelTime]]:
    """The kernel on the first so many of the devices, and what becomes of its seconds."""
    piece = PIECES[wish.kernel](wish)
    mesh = Mesh(np.array(list(devices)[: wish.devices]).reshape(-1, 1, 1), AXES)

    def time(found: Timed) -> KernelTime:
        return KernelTime(**(vars(wish) | vars(found) | {"amount": piece.amount}))

    return probe(mesh, piece.body, piece.start), time


def shaped(wish: KernelBenchmark, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, DTYPES[wish.dtype])


def multiply(wish: KernelBenchmark, *, backward: bool) -> TimedKernel:
    """A product, and with its backward pass those of the input and of the weight.

    Each has its own order of dimensions, for which a library may have another kernel.
    """
    products = 3 if backward else 1
    size = max(16, round((wish.amount / 2 / products) ** (1 / 3) / 16) * 16)

    def body(tree: Any) -> Any:
        x, weight = tree
        y = x @ weight
        return (y @ weight.T, x.T @ y) if backward else (y, weight)

    square = shaped(wish, size, size)
    return TimedKernel(body, (square, square), 2.0 * products * size**3)


def copy(wish: KernelBenchmark) -> TimedKernel:
    """Every number read and written."""
    width = DTYPES[wish.dtype].dtype.itemsize
    count = int(wish.amount / (2 * width))
    return TimedKernel(
        lambda x: x * DTYPES[wish.dtype](0.5), shaped(wish, count), 2.0 * width * count
    )


def pointwise(
    wish: KernelBenchmark, work: Callable[[jax.Array], jax.Array], factor: int = 1
) -> TimedKernel:
    """Forward, forward again and backward, as rematerialization has it. `factor` inputs a result"""
    rows = max(1, int(wish.amount / WIDTH))
    again = jax.checkpoint(work)

    def body(x: jax.Array) -> jax.Array:
        y, backward = jax.vjp(again, x)
        (dx,) = backward(y)
        return x + SMALL * dx.astype(x.dtype) + SMALL * y[..., :1]

    return TimedKernel(body, shaped(wish, rows, factor * WIDTH), float(rows * WIDTH))


def norm(wish: KernelBenchmark) -> TimedKernel:
    def normed(x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)).astype(x.dtype)

    return pointwise(wish, normed)


def gate(wish: KernelBenchmark) -> TimedKernel:
    return pointwise(wish, lambda x: inner(x, gated=True), factor=2)


def rotary(wish: KernelBenchmark) -> TimedKernel:
    def turned(x: jax.Array) -> jax.Array:
        heads = x.reshape(1, -1, HEADS, WIDTH // HEADS)
        angles = jnp.arange(heads.shape[1])[:, None] * jnp.ones(WIDTH // HEADS // 2)
        return rotated(heads, angles).reshape(x.shape)

    return pointwise(wish, turned)


def logits(wish: KernelBenchmark) -> TimedKernel:
    words = max(64, isqrt(int(wish.amount)))
    tokens = max(1, int(wish.amount / words))

    def body(tree: Any) -> Any:
        x, table = tree
        targets = jnp.zeros(tokens, jnp.int32)
        _, backward = jax.vjp(lambda x, table: token_loss(x, table, targets, 0.0), x, table)
        ones = jax.tree.map(
            jnp.ones_like, jax.eval_shape(lambda: token_loss(x, table, targets, 0.0))
        )
        dx, d_table = backward(ones)
        return x + dx, table + d_table

    start = shaped(wish, tokens, LOSS_WIDTH), shaped(wish, words, LOSS_WIDTH)
    return TimedKernel(body, start, float(tokens * words))


def update(wish: KernelBenchmark) -> TimedKernel:
    """AdamW, with the clipping before it."""
    count = int(wish.amount)
    adamw = optax.adamw(LEARNING_RATE)
    leaf = shaped(wish, count)

    def body(tree: Any) -> Any:
        weights, moments = tree
        gradient = weights * SMALL
        size = jnp.sqrt(jnp.sum(gradient**2))
        gradient = gradient * jnp.minimum(1.0, 1 / jnp.maximum(size, 1e-30))
        first, second = moments
        state = (optax.ScaleByAdamState(jnp.int32(1), first, second), *adamw.init(weights)[1:])
        changes, after = adamw.update(gradient, state, weights)
        return optax.apply_updates(weights, changes), (after[0].mu, after[0].nu)

    return TimedKernel(body, (leaf, (leaf, leaf)), float(count))


def attend(wish: KernelBenchmark, *, backward: bool) -> TimedKernel:
    length = max(16, min(512, isqrt(int(wish.amount / HEADS))))
    sequences = max(1, int(wish.amount / (HEADS * length**2)))
    kernel = attention(jax.devices()[0].platform, DTYPES[wish.dtype], length, 1)

    def body(tree: Any) -> Any:
        q, k, v = tree
        if not backward:
            return q + SMALL * kernel(q, k, v), k, v
        y, back = jax.vjp(kernel, q, k, v)
        dq, dk, dv = back(y)
        return q + SMALL * dq, k + SMALL * dk, v + SMALL * dv

    heads = shaped(wish, sequences, length, HEADS, wish.head_dim)
    return TimedKernel(body, (heads,) * 3, float(sequences * HEADS * length**2))


PIECES: dict[Kernel, Callable[[KernelBenchmark], TimedKernel]] = {
    "matmul forward": lambda wish: multiply(wish, backward=False),
    "matmul": lambda wish: multiply(wish, backward=True),
    "copy": copy,
    "norm": norm,
    "gate": gate,
    "rotary": rotary,
    "logits": logits,
    "update": update,
    "attention forward": lambda wish: attend(wish, backward=False),
    "attention": lambda wish: attend(wish, backward=True),
}
