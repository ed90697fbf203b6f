"""The step, one `shard_map` manual over all mesh axes, and its Program."""

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
from orchestrator.network.published import published_weights
from orchestrator.planning import flops
from orchestrator.values.plan import Plan
from trainers.contract import Program
from trainers.llama import attention_kernels, optimizer, parameters
from trainers.llama.attention_kernels import attention
from trainers.llama.collectives import (
    BATCH,
    MESH,
    SEQUENCE,
    all_reduce,
    reduce_gradients,
    with_copies,
)
from trainers.llama.experts import grouped_matmul
from trainers.llama.loss import NO_WORD, Loss
from trainers.llama.mixture import Routed, router_metrics
from trainers.llama.model import batch_loss
from trainers.llama.runtime import DTYPES, Runtime

TRAINED = ("adamw", "adafactor")  # optimizers
Tree = Any
Sums = tuple[Loss, Routed | None]
TOKENS = P(BATCH, SEQUENCE)  # of every batch leaf [sequences, length]
# Initialization runs once. To optimize its program takes four times as long as to run it.
ONCE = {"xla_backend_optimization_level": "0"}


def program(plan: Plan, mesh: Mesh | AbstractMesh) -> Program:
    """The program of a plan on a mesh."""
    mesh = with_copies(mesh, plan.model.kv_heads)
    check_precision(plan)
    start = partial(_start, plan)
    state = _placed(mesh, jax.eval_shape(start, 0), _state_specs(plan))
    shape = (plan.batch.sequences, plan.batch.length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(mesh, TOKENS))
    return Program(
        plan=plan,
        mesh=mesh,
        state=state,
        batch=dict.fromkeys(batch_leaves(plan), tokens),
        arrange=partial(arrange, plan.mesh[SEQUENCE], plan.data.separator),
        init=jax.jit(start, out_shardings=_shardings(state), compiler_options=ONCE),
        step=_jitted(runtime_of(plan, mesh), mesh, state),
        evaluate=_jitted_evaluation(runtime_of(plan, mesh), mesh, state),
        published=partial(published_weights, decoder(plan.model)),
        table_rows={table.name: plan.model.vocab for table in decoder(plan.model).tables},
        model_flops_per_step=flops.model_flops_per_step(plan.model, plan.batch),
    )


def runtime_of(plan: Plan, mesh: Mesh | AbstractMesh) -> Runtime:
    """A plan with the kernels of the platform that its mesh is of."""
    compute, platform = DTYPES[plan.precision.compute], _platform(mesh)
    kernel = partial(attention, platform, compute, plan.batch.length, plan.mesh[SEQUENCE])
    kinds = {block.attention.scores for block in decoder(plan.model).blocks}
    return Runtime(plan, {kind: kernel(kind) for kind in kinds}, grouped_matmul(platform))


def check_precision(plan: Plan) -> None:
    """Refuse types and optimizers that can be planned only."""
    name, moments = plan.optimizer.name, plan.precision.optimizer
    if name not in TRAINED:
        raise SpecError(
            f"experiment.optimizer.name {name} can be planned, not trained: trainer {plan.trainer}"
            f" has {' and '.join(TRAINED)}"
        )
    if moments not in DTYPES:
        raise SpecError(
            f"experiment.precision.optimizer {moments} can be planned, not trained: trainer"
            f" {plan.trainer} has moments in {' or '.join(DTYPES)}"
        )
    compute = plan.precision.compute
    if compute not in DTYPES:
        raise SpecError(
            f"experiment.precision.compute {compute} can be planned, not trained: trainer"
            f" {plan.trainer} multiplies in {' or '.join(DTYPES)}"
        )


def batch_leaves(plan: Plan) -> tuple[str, ...]:
    documents = () if plan.data.separator is None else ("documents",)
    return ("inputs", "targets", *documents)


def arrange(ways: int, separator: int | None, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Each word and the word after it, positions in zigzag order. Where a separator ends documents,
    also the number of each word's document; no word comes after a separator. Of tokens below zero
    ~token is read, and not predicted.
    """
    places = attention_kernels.order(tokens.shape[1] - 1, ways)
    words = tokens.astype(np.int32)
    read = np.where(words < 0, ~words, words)
    inputs, targets = read[:, :-1], np.maximum(words[:, 1:], NO_WORD)
    if separator is None:
        return {"inputs": inputs[:, places], "targets": targets[:, places]}
    ends = inputs == separator
    documents = (np.cumsum(ends, axis=1) - ends).astype(np.int32)
    leaves = {
        "inputs": inputs,
        "targets": np.where(ends, NO_WORD, targets),
        "documents": documents,
    }
    return {name: leaf[:, places] for name, leaf in leaves.items()}


def _start(plan: Plan, seed: jax.Array) -> dict[str, Tree]:
    types = plan.precision
    weights = parameters.start(plan.model, plan.mesh, DTYPES[types.parameters], seed)
    moments = optimizer.start(plan, weights, DTYPES[types.optimizer])
    return {"step": jnp.int32(0), "parameters": weights, "optimizer": moments}


def _state_specs(plan: Plan) -> dict[str, Tree]:
    shapes = jax.eval_shape(partial(_start, plan), 0)
    return {
        "step": P(),
        "parameters": parameters.shardings(plan.model),
        "optimizer": optimizer.state_shardings(plan, shapes["optimizer"]),
    }


def _placed(mesh: Mesh | AbstractMesh, shapes: Tree, specs: Tree) -> Tree:
    def place(shape: jax.ShapeDtypeStruct, spec: P) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    return jax.tree.map(place, shapes, specs)


def _shardings(shapes: Tree) -> Tree:
    return jax.tree.map(lambda shape: shape.sharding, shapes)


def _jitted(runtime: Runtime, mesh: Mesh | AbstractMesh, state: Tree) -> jax.stages.Wrapped:
    specs = _state_specs(runtime.plan)
    body = jax.shard_map(
        partial(train_step, runtime),
        mesh=mesh,
        in_specs=(specs, TOKENS),
        out_specs=(specs, P()),
        axis_names=set(MESH),
        check_vma=False,  # every reduction is written out, none is inferred
    )
    replicated = NamedSharding(mesh, P())
    return jax.jit(body, donate_argnums=0, out_shardings=(_shardings(state), replicated))


def train_step(
    runtime: Runtime, state: dict[str, Tree], batch: dict[str, jax.Array]
) -> tuple[dict[str, Tree], dict[str, jax.Array]]:
    """The step of one chip, with its shards of state and batch [rows, S/s]."""
    plan = runtime.plan
    tokens = predicted_tokens(plan, batch)
    (loss, routed), gradients = accumulate_gradients(runtime, state["parameters"], batch, tokens)
    if plan.gradient_reduction == "at_end":
        wire = DTYPES[plan.precision.gradients]
        specs = parameters.shardings(plan.model)
        gradients = jax.tree.map(
            lambda g, spec: reduce_gradients([g], (spec,), wire)[0], gradients, specs
        )
    _, entropy, penalty = all_reduce(jnp.stack(loss), MESH) / tokens
    weights, moments, norm = optimizer.update(
        plan, state["parameters"], gradients, state["optimizer"]
    )
    metrics = {
        "loss": entropy,
        "z_loss": penalty,
        "grad_norm": norm,
        "learning_rate": jnp.float32(optimizer.learning_rate(plan)(state["step"])),
        **(router_metrics(plan, routed) if routed else {}),
    }
    state = {"step": state["step"] + 1, "parameters": weights, "optimizer": moments}
    return state, metrics


def _jitted_evaluation(
    runtime: Runtime, mesh: Mesh | AbstractMesh, state: Tree
) -> jax.stages.Wrapped:
    body = jax.shard_map(
        partial(evaluate, replace(runtime, some_predict_nothing=True)),
        mesh=mesh,
        in_specs=(_state_specs(runtime.plan), TOKENS),
        out_specs=P(),
        axis_names=set(MESH),
        check_vma=False,
    )
    return jax.jit(body, out_shardings=NamedSharding(mesh, P()))


def evaluate(
    runtime: Runtime, state: dict[str, Tree], batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """The cross-entropy of a batch, summed over its predicted tokens, and their number. It takes
    microbatches one after another, as a step does, and keeps nothing for a backward pass.
    """

    def step(total: jax.Array, micro: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        loss, _ = batch_loss(runtime, state["parameters"], micro)
        return total + loss.cross_entropy, None

    entropy, _ = jax.lax.scan(step, jnp.float32(0), microbatches(runtime.plan, batch))
    own = jnp.sum(batch["targets"] != NO_WORD, dtype=jnp.int32)
    return {
        "loss_sum": all_reduce(entropy, MESH),
        "tokens": all_reduce(own, (*BATCH, SEQUENCE)),
    }


def microbatches(plan: Plan, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The rows of each leaf by microbatch."""
    count = plan.batch.microbatches
    return jax.tree.map(lambda rows: rows.reshape(count, -1, *rows.shape[1:]), batch)


def accumulate_gradients(
    runtime: Runtime, weights: Tree, batch: dict[str, jax.Array], tokens: jax.Array | int
) -> tuple[Sums, Tree]:
    """This chip's share of the sums over tokens, and of the gradient of the mean loss in fp32."""
    count = runtime.plan.batch.microbatches
    differentiate = jax.value_and_grad(partial(_mean_loss, runtime, tokens), has_aux=True)

    def one(micro: dict[str, jax.Array]) -> tuple[Sums, Tree]:
        (_, sums), gradients = differentiate(weights, micro)
        return sums, jax.tree.map(lambda g: g.astype(jnp.float32), gradients)

    if count == 1:
        return one(batch)

    def step(total: Tree, micro: dict[str, jax.Array]) -> tuple[Tree, None]:
        return jax.tree.map(jnp.add, total, one(micro)), None

    cut = microbatches(runtime.plan, batch)
    shapes = jax.eval_shape(one, jax.tree.map(lambda rows: rows[0], cut))
    start = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    (sums, gradients), _ = jax.lax.scan(step, start, cut)
    return sums, gradients


def predicted_tokens(plan: Plan, batch: dict[str, jax.Array]) -> jax.Array | int:
    """Tokens of the whole batch that are predicted: all, but for the first of a document."""
    if plan.data.separator is None:
        return plan.batch.tokens
    own = jnp.sum(batch["targets"] != NO_WORD, dtype=jnp.int32)
    return all_reduce(own, (*BATCH, SEQUENCE)).astype(jnp.float32)


def _mean_loss(
    runtime: Runtime, tokens: jax.Array | int, weights: Tree, batch: dict[str, jax.Array]
) -> tuple[jax.Array, Sums]:
    loss, routed = batch_loss(runtime, weights, batch)
    mean = loss.objective / tokens
    if routed is not None:
        mean += routed.penalty.sum() / runtime.plan.batch.tokens
    return mean, (loss, routed)


def _platform(mesh: Mesh | AbstractMesh) -> str:
    """The platform of a mesh; one without devices is traced as a CPU's."""
    return "cpu" if isinstance(mesh, AbstractMesh) else str(mesh.devices.flat[0].platform)
