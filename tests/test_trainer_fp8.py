"""Trainer llama in fp8: what multiplies in which type, and that it learns as in bf16."""

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from orchestrator.errors import SpecError
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Optimizer, Precision
from tests.trainer_plans import TINY, pipelined, plan_of
from tests.trainer_steps import (
    QUICK_COMPILE,
    initial_state,
    plan_showing_gradients,
    take_step,
)
from trainers import llama
from trainers.contract import build, place
from trainers.llama import collectives, products
from trainers.llama.products import FORWARD, GRADIENT
from trainers.llama.ring import all_gather_matmul, matmul_reduce_scatter
from trainers.mesh import abstract_mesh_of

FP8 = Precision(parameters="fp32", compute="fp8", gradients="bf16", optimizer="fp32")
CAPACITY = MixtureOfExperts(experts=4, top_k=2, d_ff=32, capacity_factor=1.5, shared_experts=1)
MATMULS = 7  # of a block: q, k, v, output, gate, up, down


def dots(jaxpr: Any) -> list[tuple[Any, Any]]:
    """The types of both factors of every product, also in loops and calls."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(tuple(factor.aval.dtype for factor in equation.invars))
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                found += dots(inner)
    return found


def is_narrow(pair: tuple[Any, Any]) -> bool:
    return all(jnp.dtype(dtype) in {jnp.dtype(FORWARD), jnp.dtype(GRADIENT)} for dtype in pair)


def types_of(plan: Plan) -> list[tuple[Any, Any]]:
    program = llama.program(plan, abstract_mesh_of(plan))
    return dots(program.step.trace(program.state, program.batch, *program.rate(0)).jaxpr.jaxpr)


def test_blocks_multiply_in_e4m3_and_their_gradients_in_e5m2() -> None:
    """Each matmul of a block once forward, and twice with a gradient; the head stays in bf16."""
    found = types_of(plan_of(precision=FP8, remat="none"))
    narrow = [pair for pair in found if is_narrow(pair)]
    assert narrow.count((FORWARD, FORWARD)) == MATMULS
    assert sum({*pair} == {jnp.dtype(FORWARD), jnp.dtype(GRADIENT)} for pair in narrow) == (
        2 * MATMULS
    )
    assert len(narrow) == 3 * MATMULS
    assert (jnp.bfloat16, jnp.bfloat16) in found


LATENT = LatentDimensions(query_rank=16, kv_rank=24, nope_dim=8, rope_dim=4, value_dim=8)
# A block's matmuls, and the model: q, k, v, output; gate, up and down of experts and of what every
# token goes to; latents of queries and of keys and values, and the turning part of keys.
KINDS = {
    "experts": (4 + 3 + 3, replace(TINY, moe=CAPACITY)),
    "latents": (4 + 3 + 3, replace(TINY, kv_heads=8, head_dim=12, latent=LATENT)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_matmuls_of_other_blocks_are_narrow(kind: str) -> None:
    """All but the router."""
    matmuls, model = KINDS[kind]
    found = types_of(plan_of(model, precision=FP8, remat="none"))
    assert sum(is_narrow(pair) for pair in found) == 3 * matmuls
    in_bf16 = types_of(plan_of(model, precision=replace(FP8, compute="bf16"), remat="none"))
    assert len(found) == len(in_bf16)
    assert not any(map(is_narrow, in_bf16))


def test_a_mixture_that_drops_nothing_is_refused() -> None:
    """There is no kernel for groups of any size: nothing is multiplied in bf16 in silence."""
    plan = plan_of(replace(TINY, moe=MixtureOfExperts(experts=4, top_k=2)), precision=FP8)
    with pytest.raises(SpecError, match="capacity_factor"):
        llama.program(plan, abstract_mesh_of(plan))


@pytest.mark.parametrize("kind", [FORWARD, GRADIENT])
@pytest.mark.parametrize("power", [-50, -3, 0, 40])
def test_a_scale_rounds_nothing(kind: Any, power: int) -> None:
    """Numbers that the type has come back to the last bit, however large they are together."""
    numbers = np.array(
        [[1.0, -1.25, 0.5, 3.5], [0.0, 2.0**-6, 1.75, -3.0]], np.float32
    ) * np.float32(2.0**power)
    found = products.factor(jnp.asarray(numbers), kind)
    assert found.unit is not None
    assert found.values.dtype == kind
    assert (np.float32(found.values) * np.float32(found.unit) == numbers).all()
    largest = np.abs(np.float32(found.values)).max()
    most = {FORWARD: 448.0, GRADIENT: 57344.0}[kind]
    assert most / 8 < largest <= most


def test_nothing_and_what_is_no_number() -> None:
    """Zeros stay zeros, and an overflow is seen."""
    assert not np.float32(products.factor(jnp.zeros((2, 2)), FORWARD).values).any()
    for bad in (np.inf, np.nan):
        found = products.factor(jnp.asarray([1.0, bad]), GRADIENT)
        assert np.isnan(np.asarray(found.values, np.float32)[1])


@pytest.mark.parametrize("experts", [0, 3])
def test_a_product_and_its_gradients_are_near_those_in_fp32(experts: int) -> None:
    """Within what rounding to three bits, and of gradients to two, leaves of random numbers."""
    keys = jax.random.split(jax.random.key(0), 3)
    more = (experts,) * bool(experts)
    shapes = (*more, 64, 48), (*more, 48, 32), (*more, 64, 32)
    x, weight, gradient = map(jax.random.normal, keys, shapes)

    def both(narrow: bool) -> list[np.ndarray]:
        y, back = jax.vjp(lambda *of: products.matmul(*of, narrow=narrow), x, weight)
        return [np.asarray(each) for each in (y, *back(gradient))]

    for found, exact, most in zip(both(True), both(False), (0.05, 0.08, 0.08), strict=True):
        off = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        assert most / 4 < off < most


def test_a_ring_multiplies_what_one_chip_does() -> None:
    """Whatever piece of a tensor a chip has when it scales it, its numbers round alike."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, up, down, gradient = (
        jax.random.normal(key, shape)
        for key, shape in zip(keys, [(2, 16, 32), (32, 64), (32, 64), (2, 16, 32)], strict=True)
    )
    positions, columns = P(None, collectives.TENSOR), P(None, collectives.TENSOR)

    def both(x: jax.Array, up: jax.Array, down: jax.Array, gradient: jax.Array) -> Any:
        def run(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
            return matmul_reduce_scatter(all_gather_matmul(x, up, True), down, True)

        y, back = jax.vjp(run, x, up, down)
        return y, back(gradient)

    made = []
    for ways in (1, 4):
        sizes = [ways if axis == "tensor" else 1 for axis in collectives.MESH]
        mesh = Mesh(np.array(jax.devices()[:ways]).reshape(sizes), collectives.MESH)
        sharded = jax.shard_map(
            both, mesh=mesh, in_specs=(positions, columns, columns, positions),
            out_specs=(positions, (positions, columns, columns)), check_vma=False,
        )  # fmt: skip
        made.append(jax.tree.leaves(jax.jit(sharded)(x, up, down, gradient)))
    for alone, in_ring in zip(*made, strict=True):
        np.testing.assert_allclose(in_ring, alone, atol=1e-4 * np.abs(alone).max())


MESHES: dict[str, Plan] = {
    "all axes": plan_of(fsdp=2, sequence=2, tensor=2, microbatches=2),
    "a long ring": plan_of(tensor=8, pods=2, gradient_reduction="per_layer"),
    "a pipeline": pipelined(replace(TINY, layers=4), pipeline=2, fsdp=2, chunks=2),
    "experts": plan_of(replace(TINY, moe=CAPACITY), expert=2, fsdp=2, tensor=2),
    "latents": plan_of(KINDS["latents"][1], fsdp=2, sequence=2, tensor=2),
}


def apart(found: Any, expected: Any) -> float:
    """The norm of the difference of all gradients together, over that of the gradients."""
    flat, same = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (found, expected)
    )
    return float(np.linalg.norm(flat - same) / np.linalg.norm(same))


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_meshes_multiply_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a mesh are as near to those in fp32 as gradients of one device are.

    They are not the same: a number near the middle of two fp8 values may go either way, and what
    it moves makes more of them do so. What two meshes differ by is rounding, without a bias.
    """
    monkeypatch.setattr("trainers.llama.parameters.activation_type", lambda _: "fp32")
    precision = replace(FP8, gradients="fp32")
    split = plan_showing_gradients(replace(MESHES[name], precision=precision))
    model = Model(**{field.name: getattr(split.model, field.name) for field in fields(Model)})

    def alone(compute: Any) -> Any:
        plan = plan_of(model, precision=replace(precision, compute=compute))
        return take_step(plan_showing_gradients(plan))

    found, expected, exact = take_step(split), alone("fp8"), alone("fp32")
    assert found.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=2e-4)
    rounding = apart(expected.gradients, exact.gradients)
    assert apart(found.gradients, exact.gradients) == pytest.approx(rounding, rel=0.2)
    assert apart(found.gradients, expected.gradients) < 1.5 * rounding


@pytest.mark.slow
def test_it_learns_as_in_bf16() -> None:
    """Losses of 200 steps, ten by ten, are within 1 % of those in bf16."""
    random = np.random.default_rng(0)
    followers = random.integers(0, TINY.vocab, (TINY.vocab, 4))
    words = np.empty((200, 8, 33), np.int64)
    words[..., 0] = random.integers(0, TINY.vocab, words.shape[:2])
    for place_of_word in range(1, words.shape[2]):
        which = random.integers(0, 4, words.shape[:2])
        words[..., place_of_word] = followers[words[..., place_of_word - 1], which]

    def losses(compute: Any) -> Any:
        precision = replace(FP8, compute=compute)
        optimizer = Optimizer(peak_lr=3e-3, warmup_steps=20, decay="constant")
        plan = plan_of(replace(TINY, layers=1), sequences=8, precision=precision,
                       optimizer=optimizer)  # fmt: skip
        program = build(llama, plan, jax.devices()[:1])
        start = jax.tree.map(np.asarray, program.init(0)["parameters"])
        state, found = initial_state(program, start), []
        step = program.lowered().compile(QUICK_COMPILE)
        for number, rows in enumerate(words):
            batch = place(program, lambda first, end: rows[first:end])  # noqa: B023
            state, metrics = step(state, batch, *program.rate(number))
            found.append(metrics["loss"])
        return np.asarray(found, np.float32).reshape(20, 10).mean(axis=1)

    in_bf16, in_fp8 = losses("bf16"), losses("fp8")
    assert in_bf16[-1] < in_bf16[0] / 2
    assert (np.abs(in_fp8 / in_bf16 - 1) < 0.01).all()
