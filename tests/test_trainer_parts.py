"""Trainer llama's parts, each by itself: order of positions, collective matmuls, kernels, start."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from orchestrator.errors import SpecError
from orchestrator.network.description import Scores
from orchestrator.values.spec import Optimizer
from tests.trainer_plans import TINY, plan_of
from tests.trainer_steps import QUICK_COMPILE, largest_difference
from trainers import llama
from trainers.contract import build
from trainers.llama import attention_kernels, ring
from trainers.llama.attention_kernels import _cudnn, _splash, _ZigzagMask, attention, blockwise
from trainers.llama.collectives import MESH, TENSOR, all_gather, reduce_scatter
from trainers.llama.optimizer import learning_rate
from trainers.llama.step import _arrange

Tree = Any


def run_on_axis(
    body: Callable[..., Any], axis: str, ways: int, specs: tuple[P, ...], out: Any
) -> Callable[..., Any]:
    """A body run on so many devices along one axis of the trainer's mesh."""
    shape = [ways if name == axis else 1 for name in MESH]
    mesh = Mesh(np.array(jax.devices()[:ways]).reshape(shape), MESH)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    return jax.jit(mapped, compiler_options=QUICK_COMPILE)


# --- the order of positions


@given(ways=st.integers(1, 16), chunk=st.integers(1, 8))
@settings(max_examples=40)
def test_zigzag_is_an_order_with_even_causal_work(ways: int, chunk: int) -> None:
    """Every position stands once, and every shard's queries see as many keys as any other's."""
    length = 2 * ways * chunk
    order = attention_kernels.order(length, ways)
    assert sorted(order) == list(range(length))
    assert len({int(shard.sum()) for shard in order.reshape(ways, -1)}) == 1


def test_zigzag_of_four_shards() -> None:
    """Shard i holds chunks i and 7 - i."""
    assert attention_kernels.order(8, 4).tolist() == [0, 7, 1, 6, 2, 5, 3, 4]


@pytest.mark.parametrize("ways", [1, 2, 3, 4])
def test_gathered_positions_are_in_natural_order(ways: int) -> None:
    """What was split in zigzag order comes back as it was."""
    natural = jnp.arange(2 * 24 * 3).reshape(2, 24, 3)
    spec = P(None, "sequence")
    gather = run_on_axis(
        partial(attention_kernels.gather, ways=ways), "sequence", ways, (spec,), P()
    )
    assert (gather(natural[:, attention_kernels.order(24, ways)]) == natural).all()


def test_words_are_arranged_with_the_words_that_follow() -> None:
    """Each row keeps its place; inputs and targets lie in the same zigzag order."""
    program = build(llama, plan_of(sequence=2, length=8), jax.devices()[:2])
    arranged = program.arrange(np.arange(18).reshape(2, 9))
    places = [0, 1, 6, 7, 2, 3, 4, 5]
    assert arranged["inputs"].tolist() == [places, [9 + place for place in places]]
    assert (arranged["targets"] == arranged["inputs"] + 1).all()


def test_words_are_arranged_with_their_documents() -> None:
    """A separator is the last word of its document, and no word comes after it."""
    row = np.array([[5, 3, 6, 7, 3, 3, 8, 9, 1]])
    arranged = _arrange(1, 3, row)
    assert arranged["inputs"].tolist() == [[5, 3, 6, 7, 3, 3, 8, 9]]
    assert arranged["targets"].tolist() == [[3, -1, 7, 3, -1, -1, 9, 1]]
    assert arranged["documents"].tolist() == [[0, 0, 1, 1, 1, 2, 3, 3]]
    places = attention_kernels.order(8, 2)
    apart = _arrange(2, 3, row)
    assert all((apart[name] == arranged[name][:, places]).all() for name in arranged)


# --- what travels


@pytest.mark.parametrize("ways", [1, 2, 3, 4, 5, 8])
def test_all_gather_matmul_is_gather_then_matmul(ways: int) -> None:
    """The ring gives the plain form's values and gradients, for odd and even numbers of chips."""

    def by_ring(x: jax.Array, weight: jax.Array, dy: jax.Array) -> Tree:
        y, back = jax.vjp(lambda *a: ring.in_order(ring.all_gather_matmul(*a, False)), x, weight)
        return y, *back(dy)

    def plainly(x: jax.Array, weight: jax.Array, dy: jax.Array) -> Tree:
        y, back = jax.vjp(lambda x, weight: all_gather(x, TENSOR, 1) @ weight, x, weight)
        return y, *back(dy)

    check_same(by_ring, plainly, ways, sizes=((2, 3, 5), (5, 7), (2, 3 * ways, 7)))


@pytest.mark.parametrize("ways", [1, 2, 3, 4, 5, 8])
def test_scattered_matmul_is_matmul_then_scatter(ways: int) -> None:
    """So does the ring that adds up."""

    def by_ring(x: jax.Array, weight: jax.Array, dy: jax.Array) -> Tree:
        y, back = jax.vjp(
            lambda x, w: ring.matmul_reduce_scatter(ring.in_arrival_order(x), w, False), x, weight
        )
        return y, *back(dy)

    def plainly(x: jax.Array, weight: jax.Array, dy: jax.Array) -> Tree:
        y, back = jax.vjp(lambda x, weight: reduce_scatter(x @ weight.T, TENSOR, 1), x, weight)
        return y, *back(dy)

    check_same(by_ring, plainly, ways, sizes=((2, 3 * ways, 7), (5, 7), (2, 3, 5)))


def check_same(
    one: Callable[..., Tree], other: Callable[..., Tree], ways: int, sizes: tuple[Any, ...]
) -> None:
    """Two bodies of three arrays give the same on every chip; each chip has arrays of its own."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((ways * n, *rest), np.float32) for n, *rest in sizes]
    found, right = (
        run_on_axis(body, "tensor", ways, (P("tensor"),) * 3, P("tensor"))(*arrays)
        for body in (one, other)
    )
    assert largest_difference(found, right) < 1e-6


@pytest.mark.parametrize("ways", [2, 3])
def test_sum_and_gather_are_each_others_gradient(ways: int) -> None:
    """Summed shards gathered are the sum; and so backward."""

    def body(x: jax.Array) -> Tree:
        total, back = jax.vjp(lambda x: all_gather(reduce_scatter(x, "data", 1), "data", 1), x)
        return total, *back(x)

    x = np.random.default_rng(0).standard_normal((ways, 2 * ways), np.float32)
    total, gradient = run_on_axis(body, "data", ways, (P("data"),), P("data"))(x)
    everywhere = np.broadcast_to(x.sum(0), x.shape)
    assert np.allclose(total, everywhere, atol=1e-6)
    assert np.allclose(gradient, everywhere, atol=1e-6)


# --- attention


def queries_keys_values(heads: int, kv_heads: int, length: int, size: int) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    shapes = [(2, length, n, size) for n in (heads, kv_heads, kv_heads, heads)]
    return [random.standard_normal(shape, np.float32) for shape in shapes]


def differentiated(attend: Any, ways: int, sinks: Any = None) -> Callable[..., Tree]:
    """Attention of zigzag shards, and its gradients for a given gradient of the result."""

    def body(q: jax.Array, k: jax.Array, v: jax.Array, dy: jax.Array) -> Tree:
        def whole_sequences(q: jax.Array, k: jax.Array, v: jax.Array, sinks: Any) -> jax.Array:
            return jnp.asarray(
                attend(
                    q,
                    attention_kernels.gather(k, ways),
                    attention_kernels.gather(v, ways),
                    sinks,
                    None,
                )
            )

        out, back = jax.vjp(whole_sequences, q, k, v, sinks)
        *gradients, of_sinks = back(dy)
        return [out, *gradients, *([] if sinks is None else [of_sinks[None, None]])]

    spec = P(None, "sequence")
    return run_on_axis(body, "sequence", ways, (spec,) * 4, spec)


@pytest.mark.parametrize(
    ("ways", "window", "cap", "has_sinks"),
    [
        pytest.param(ways, *kind, marks=() if ways == quick else pytest.mark.slow)
        for quick, kind in (
            (1, (None, None, False)),
            (2, (70, None, False)),
            (1, (None, 2.0, False)),
            (2, (200, None, True)),
        )
        for ways in (1, 2)
    ],
)
def test_splash_is_blockwise_attention(
    ways: int, window: int | None, cap: float | None, has_sinks: bool
) -> None:
    """The TPU's kernel, interpreted, with the mask of each shard: values and gradients."""
    length, sinks = 512, jnp.array([0.5, -1.0, 2.0, 0.0]) if has_sinks else None
    places = attention_kernels.order(length, ways)
    inputs = [x[:, places] for x in queries_keys_values(4, 2, length, 128)]
    kind = Scores(scale=0.1, cap=cap, window=window)
    found = differentiated(_splash(length, ways, kind, interpret=True), ways, sinks)(*inputs)
    plain = attention("cpu", jnp.dtype("float32"), length, ways, kind)
    right = differentiated(plain, ways, sinks)(*inputs)
    assert largest_difference(found, right) < 1e-5


@pytest.mark.parametrize("ways", [1, 2])
def test_splash_keeps_documents_apart_as_blockwise_does(ways: int) -> None:
    """Values and gradients, for documents that end anywhere."""
    length = 512
    places = attention_kernels.order(length, ways)
    numbers = np.cumsum(np.random.default_rng(2).random((2, length)) < 0.02, axis=1)
    inputs = [x[:, places] for x in queries_keys_values(4, 2, length, 128)]
    kind = Scores(scale=0.1)
    spec = P(None, "sequence")

    def differentiated(attend: Any) -> Tree:
        def body(documents: jax.Array, *arrays: jax.Array) -> Tree:
            *qkv, dy = arrays
            theirs = attention_kernels.gather(documents, ways)

            def whole(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
                gathered = attention_kernels.gather(k, ways), attention_kernels.gather(v, ways)
                return jnp.asarray(attend(q, *gathered, None, (documents, theirs)))

            out, back = jax.vjp(whole, *qkv)
            return out, *back(dy)

        run = run_on_axis(body, "sequence", ways, (spec,) * 5, spec)
        return run(np.int32(numbers[:, places]), *inputs)

    found = differentiated(_splash(length, ways, kind, interpret=True))
    right = differentiated(attention("cpu", jnp.dtype("float32"), length, ways, kind))
    assert largest_difference(found, right) < 1e-5


def test_blockwise_rounds_as_its_inputs_do() -> None:
    """In bf16 the result is bf16, and as near as bf16 is."""
    wide = queries_keys_values(2, 1, 64, 16)[:3]
    how: Any = jnp.arange(64), None, None, Scores(scale=0.25)
    right = blockwise(*wide, *how)
    narrow = blockwise(*(jnp.bfloat16(x) for x in wide), *how)
    assert narrow.dtype == jnp.bfloat16
    assert 1e-4 < largest_difference(np.float32(narrow), right) < 2e-2


@pytest.mark.parametrize("ways", [1, 2, 4])
def test_the_mask_of_splash_is_the_order_of_positions(ways: int) -> None:
    """Row j of the mask is the query at place j: it sees the keys that are not later."""
    order = attention_kernels.order(16, ways)
    mask = _ZigzagMask(16, ways)[0:16, 0:16]
    assert (mask == (np.arange(16) <= order[:, None])).all()
    assert (_ZigzagMask(16, ways)[4:8, 8:12] == mask[4:8, 8:12]).all()


def test_each_platform_has_its_kernel() -> None:
    """cuDNN on NVIDIA for whole sequences in bf16; splash takes 128 positions at a time."""
    narrow, wide = jnp.dtype("bfloat16"), jnp.dtype("float32")
    for compute, ways, is_cudnn in ((narrow, 1, True), (narrow, 2, False), (wide, 1, False)):
        kernel: Any = attention("gpu", compute, 4096, ways, Scores(scale=0.1))
        assert (getattr(kernel, "func", None) is _cudnn) == is_cudnn
    with pytest.raises(SpecError, match="96 a chip"):
        attention("tpu", narrow, 768, 8, Scores(scale=0.1))


# --- optimizer and start


@pytest.mark.parametrize(("decay", "middle", "end"), [
    ("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1.0, 1.0),
])  # fmt: skip
def test_the_learning_rate_warms_up_and_decays(decay: Any, middle: float, end: float) -> None:
    """The first of ten warm-up steps has a tenth of the peak; the last step has the end's rate."""
    how = Optimizer(peak_lr=1.0, end_lr=0.1, warmup_steps=10, decay=decay)
    rate = learning_rate(plan_of(optimizer=how))
    assert [float(rate(step)) for step in (0, 9, 54, 99)] == pytest.approx([0.1, 1.0, middle, end])


def test_the_start_is_the_same_on_every_mesh() -> None:
    """Parameters depend on the seed alone; matrices are as large as their inputs ask."""
    meshes: list[dict[str, Any]] = [{}, {"pods": 2, "fsdp": 2, "sequence": 2, "tensor": 2}]
    programs = [build(llama, p, jax.devices()[: p.devices]) for p in (plan_of(**m) for m in meshes)]
    one, other = (jax.tree.map(np.asarray, p.init(3)["parameters"]) for p in programs)
    assert largest_difference(one, other) < 1e-6
    assert largest_difference(programs[0].init(4)["parameters"], one) > 0.1
    assert one["layers"]["query"].std() == pytest.approx(TINY.d_model**-0.5, rel=0.05)
    assert (one["norm"] == 1).all()
