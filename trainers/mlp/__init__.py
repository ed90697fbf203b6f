"""Trainer mlp: the smallest trainer, to start a new one from: a regression from a sequence's words
to the next. Its hidden layer lies over `tensor`; the compiler writes collectives.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator.network.mesh_axes import LOGICAL_AXES
from orchestrator.values.plan import Plan
from trainers.contract import Program

State = dict[str, Any]
BATCH = P(LOGICAL_AXES["batch"])
_SHARDINGS = {"into": P(None, "tensor"), "out": P("tensor")}  # [length, d_ff], [d_ff]


def program(plan: Plan, mesh: Mesh | AbstractMesh) -> Program:
    rows, length, width = plan.batch.sequences, plan.batch.length, plan.model.d_ff

    def initial(seed: jax.Array) -> State:
        into, out = jax.random.split(jax.random.key(seed))
        weights = {
            "into": jax.random.normal(into, (length, width)) * length**-0.5,
            "out": jax.random.normal(out, (width,)) * width**-0.5,
        }
        return {"step": jnp.int32(0), "weights": weights, "moments": optax.adam(0.0).init(weights)}

    shapes = jax.eval_shape(initial, 0)
    moments = optax.tree.map_params(
        optax.adam(0.0),
        lambda _, sharding: sharding,
        shapes["moments"],
        _SHARDINGS,
        transform_non_params=lambda _: P(),
    )
    specs = {"step": P(), "weights": _SHARDINGS, "moments": moments}
    state = jax.tree.map(partial(_placed, mesh), shapes, specs)
    batch = {
        "words": jax.ShapeDtypeStruct((rows, length), jnp.float32),
        "next": jax.ShapeDtypeStruct((rows,), jnp.float32),
    }
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return Program(
        plan=plan,
        mesh=mesh,
        state=state,
        batch={name: _placed(mesh, leaf, BATCH) for name, leaf in batch.items()},
        arrange=partial(_arrange, plan),
        init=jax.jit(initial, out_shardings=shardings),
        step=jax.jit(_step, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P()))),
        learning_rate=lambda _: plan.optimizer.peak_lr,
        # Forward and backward matmuls. Words are data: nothing goes back to them.
        model_flops_per_step=float(rows * (4 * length + 6) * width),
    )


def _arrange(plan: Plan, tokens: np.ndarray) -> dict[str, np.ndarray]:
    numbers = (tokens / plan.model.vocab).astype(np.float32)
    return {"words": numbers[:, :-1], "next": numbers[:, -1]}


def _placed(mesh: Mesh | AbstractMesh, leaf: Any, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def _step(state: State, batch: State, rate: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    def mean_square(weights: State) -> jax.Array:
        hidden = jax.nn.gelu(batch["words"] @ weights["into"])
        return jnp.mean((hidden @ weights["out"] - batch["next"]) ** 2)

    loss, gradients = jax.value_and_grad(mean_square)(state["weights"])
    changes, moments = optax.adam(rate).update(gradients, state["moments"])
    weights = optax.apply_updates(state["weights"], changes)
    metrics = {"loss": loss, "grad_norm": optax.tree.norm(gradients), "learning_rate": rate}
    return {"step": state["step"] + 1, "weights": weights, "moments": moments}, metrics
