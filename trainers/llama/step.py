"""The step, one `shard_map` manual over all mesh axes, and its Program."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator.errors import SpecError
from orchestrator.network.decoder import decoder
from orchestrator.network.mesh_axes import ways
from orchestrator.network.published import published_weights
from orchestrator.planning import flops
from orchestrator.planning.feasibility import check_experts
from orchestrator.values.codec import TRAINED
from orchestrator.values.plan import Plan
from trainers.contract import Program
from trainers.llama import attention_kernels, collectives, optimizer, parameters, pipeline
from trainers.llama.collectives import BATCH, MESH, SEQUENCE, all_reduce, line
from trainers.llama.layers import Runtime
from trainers.llama.loss import NO_WORD, Loss
from trainers.llama.mixture import Routed, grouped_on, router_metrics
from trainers.llama.model import batch_loss
from trainers.llama.parameters import DTYPES

_TRAINED = ("adamw", "adafactor")  # optimizers
_Tree = Any
_Batch = dict[str, jax.Array]
_Sums = tuple[Loss, Routed | None]
_TOKENS = P(BATCH, SEQUENCE)  # of every batch leaf [sequences, length]
# Initialization runs once. To optimize its program takes four times as long as to run it.
_ONCE = {"xla_backend_optimization_level": "0"}


def program(plan: Plan, mesh: Mesh | AbstractMesh) -> Program:
    mesh = collectives.with_copies(mesh, plan.model.kv_heads)
    # Refuse types and optimizers that can be planned only.
    types = plan.precision
    for key, value, known, join, does in (
        ("optimizer.name", plan.optimizer.name, _TRAINED, " and ", "has"),
        ("precision.optimizer", types.optimizer, tuple(DTYPES), " or ", "has moments in"),
        ("precision.compute", types.compute, TRAINED, " or ", "multiplies in"),
    ):
        if value not in known:
            raise SpecError(
                f"experiment.{key} {value} can be planned, not trained: trainer {plan.trainer}"
                f" {does} {join.join(known)}"
            )
    check_experts(plan.model, types.compute)
    pipeline.check(plan)
    start = partial(_start, plan)
    shapes = jax.eval_shape(start, 0)
    specs = {
        "step": P(),
        "parameters": parameters.shardings(plan),
        "optimizer": optimizer.state_shardings(plan, shapes["optimizer"]),
    }
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    shape = (plan.batch.sequences, plan.batch.length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(mesh, _TOKENS))
    leaves = ("inputs", "targets", *(() if plan.data.separator is None else ("documents",)))

    def on_each_chip(body: Callable[..., Any], more: tuple[P, ...], out: Any) -> Callable[..., Any]:
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(specs, _TOKENS, *more),
            out_specs=out,
            axis_names=set(MESH),
            check_vma=False,  # every reduction is written out, none is inferred
        )

    runtime, replicated = _runtime_of(plan, mesh), NamedSharding(mesh, P())
    evaluated = replace(runtime, some_predict_nothing=True)
    return Program(
        plan=plan,
        mesh=mesh,
        state=state,
        batch=dict.fromkeys(leaves, tokens),
        arrange=partial(_arrange, ways(plan.mesh, "length"), plan.data.separator),
        init=jax.jit(start, out_shardings=shardings, compiler_options=_ONCE),
        step=jax.jit(
            on_each_chip(partial(_train_step, runtime), (P(),), (specs, P())),
            donate_argnums=0,
            out_shardings=(shardings, replicated),
        ),
        learning_rate=optimizer.learning_rate(plan),
        evaluate=jax.jit(
            on_each_chip(partial(_evaluate, evaluated), (), P()), out_shardings=replicated
        ),
        published=partial(published_weights, decoder(plan.model)),
        table_rows={table.name: table.dimensions[0].size for table in decoder(plan.model).tables},
        layers={stack.name: len(stack.layers) for stack in decoder(plan.model).stacks},
        model_flops_per_step=flops.model_flops_per_step(plan.model, plan.batch),
    )


def _runtime_of(plan: Plan, mesh: Mesh | AbstractMesh) -> Runtime:
    compute, platform = parameters.compute_type(plan.precision), collectives.platform(mesh)
    kernels = {
        block.attention.scores: attention_kernels.attention(
            platform, compute, plan.batch.length, ways(plan.mesh, "length"), block.attention.scores
        )
        for block in decoder(plan.model).blocks
    }
    return Runtime(plan, kernels, grouped_on(platform), on_gpu=platform == "gpu")


def _arrange(ways: int, separator: int | None, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return each word and the next, in zigzag order; with a separator also each word's document,
    and no next word after it. Below zero, ~token is read, and not predicted.
    """
    places = attention_kernels.order(tokens.shape[1] - 1, ways)
    words = tokens.astype(np.int32)
    inputs = np.where(words < 0, ~words, words)[:, :-1]
    leaves = {"inputs": inputs, "targets": np.maximum(words[:, 1:], NO_WORD)}
    if separator is not None:
        ends = inputs == separator
        leaves["targets"] = np.where(ends, NO_WORD, leaves["targets"])
        leaves["documents"] = (np.cumsum(ends, axis=1) - ends).astype(np.int32)
    return {name: leaf[:, places] for name, leaf in leaves.items()}


def _start(plan: Plan, seed: jax.Array) -> dict[str, _Tree]:
    types = plan.precision
    weights = parameters.start(plan, DTYPES[types.parameters], seed)
    moments = optimizer.start(plan, weights, DTYPES[types.optimizer])
    return {"step": jnp.int32(0), "parameters": weights, "optimizer": moments}


def _train_step(
    runtime: Runtime, state: dict[str, _Tree], batch: _Batch, rate: jax.Array
) -> tuple[dict[str, _Tree], dict[str, jax.Array]]:
    """The step of one chip, with its shards of state and batch [rows, S/s]."""
    plan = runtime.training
    # Tokens of the whole batch that are predicted: all, except the first of a document.
    tokens: jax.Array | int = plan.batch.tokens
    if plan.data.separator is not None:
        own = jnp.sum(batch["targets"] != NO_WORD, dtype=jnp.int32)
        tokens = all_reduce(own, (*BATCH, *SEQUENCE)).astype(jnp.float32)
    (loss, routed), gradients = _accumulate_gradients(runtime, state["parameters"], batch, tokens)
    if plan.gradient_reduction == "at_end":
        wire = DTYPES[plan.precision.gradients]
        specs = parameters.shardings(plan)
        gradients = jax.tree.map(
            lambda g, spec: collectives.reduce_gradients([g], (spec,), wire)[0], gradients, specs
        )
    _, entropy, penalty = all_reduce(jnp.stack(loss), MESH) / tokens
    with line("optimizer_update"):
        weights, moments, norm = optimizer.update(
            plan, state["parameters"], gradients, state["optimizer"], rate
        )
    metrics = {
        "loss": entropy,
        "z_loss": penalty,
        "grad_norm": norm,
        "learning_rate": rate,
        **(router_metrics(plan, routed) if routed else {}),
    }
    state = {"step": state["step"] + 1, "parameters": weights, "optimizer": moments}
    return state, metrics


def _evaluate(runtime: Runtime, state: dict[str, _Tree], batch: _Batch) -> dict[str, jax.Array]:
    """Return the cross-entropy of a batch, summed over its predicted tokens, and their number."""
    # Microbatches follow one another as in a step; nothing stays for a backward pass.
    cut = _microbatches(runtime.training, batch)

    def step(total: jax.Array, micro: _Batch) -> tuple[jax.Array, None]:
        loss, _ = batch_loss(runtime, state["parameters"], micro)
        return total + loss.cross_entropy, None

    if runtime.plan.pipeline is not None:
        entropy = pipeline.batch_loss(runtime, state["parameters"], cut).cross_entropy
    else:
        entropy, _ = jax.lax.scan(step, jnp.float32(0), cut)
    own = jnp.sum(batch["targets"] != NO_WORD, dtype=jnp.int32)
    return {"loss_sum": all_reduce(entropy, MESH), "tokens": all_reduce(own, (*BATCH, *SEQUENCE))}


def _microbatches(plan: Plan, batch: _Batch) -> _Batch:
    count = plan.batch.microbatches
    return jax.tree.map(lambda rows: rows.reshape(count, -1, *rows.shape[1:]), batch)


def _accumulate_gradients(
    runtime: Runtime, weights: _Tree, batch: _Batch, tokens: jax.Array | int
) -> tuple[_Sums, _Tree]:
    """This chip's share of the sums over tokens, and of the gradient of the mean loss in fp32."""

    def mean_loss(weights: _Tree, micro: _Batch) -> tuple[jax.Array, _Sums]:
        loss, routed = batch_loss(runtime, weights, micro)
        mean = loss.objective / tokens
        if routed is not None:
            mean += routed.penalty.sum() / runtime.training.batch.tokens
        return mean, (loss, routed)

    def differentiate(micro: _Batch) -> tuple[_Sums, _Tree]:
        (_, sums), gradients = jax.value_and_grad(mean_loss, has_aux=True)(weights, micro)
        return sums, jax.tree.map(lambda g: g.astype(jnp.float32), gradients)

    cut = _microbatches(runtime.training, batch)
    if runtime.plan.pipeline is not None:
        return pipeline.loss_and_gradients(runtime, weights, cut, tokens)
    if runtime.training.batch.microbatches == 1:
        return differentiate(batch)

    def step(total: _Tree, micro: _Batch) -> tuple[_Tree, None]:
        return jax.tree.map(jnp.add, total, differentiate(micro)), None

    shapes = jax.eval_shape(differentiate, jax.tree.map(lambda rows: rows[0], cut))
    start = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.scan(step, start, cut)[0]
