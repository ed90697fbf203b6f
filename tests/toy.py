"""The smallest trainer there can be: a table of next-token scores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator.network.mesh_axes import LOGICAL_AXES
from orchestrator.values.plan import Plan
from trainers.contract import Program

ROWS = LOGICAL_AXES["batch"]
State = dict[str, Any]


def program(plan: Plan, mesh: Mesh | AbstractMesh) -> Program:
    """Scores [V, V], learned by plain gradient descent at the plan's peak rate."""
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P(ROWS))
    vocab, batch = plan.model.vocab, plan.batch
    table = jax.ShapeDtypeStruct((vocab, vocab), jnp.float32, sharding=NamedSharding(mesh, P(ROWS)))
    state = {"step": jax.ShapeDtypeStruct((), jnp.int32, sharding=whole), "scores": table}
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

    def start(seed: jax.Array) -> State:
        noise = jax.random.normal(jax.random.key(seed), (vocab, vocab))
        return {"step": jnp.int32(0), "scores": noise}

    def step(state: State, batch: State) -> tuple[State, State]:
        loss, gradient = jax.value_and_grad(mean_loss)(state["scores"], batch["tokens"])
        metrics = {
            "loss": loss,
            "grad_norm": jnp.linalg.norm(gradient),
            "learning_rate": jnp.float32(plan.optimizer.peak_lr),
            "tokens_mean": batch["tokens"].astype(jnp.float32).mean(),
        }
        scores = state["scores"] - plan.optimizer.peak_lr * gradient
        return {"step": state["step"] + 1, "scores": scores}, metrics

    def evaluate(state: State, batch: State) -> State:
        read = jnp.where(batch["tokens"] < 0, ~batch["tokens"], batch["tokens"])
        own = token_losses(state["scores"], read)
        counted = batch["tokens"][:, 1:] >= 0
        return {"loss_sum": jnp.where(counted, own, 0).sum(), "tokens": counted.sum()}

    return Program(
        plan=plan,
        mesh=mesh,
        state=state,
        batch={
            "tokens": jax.ShapeDtypeStruct(
                (batch.sequences, batch.length + 1), jnp.int32, sharding=rows
            )
        },
        arrange=lambda tokens: {"tokens": tokens.astype(np.int32)},
        init=jax.jit(start, out_shardings=shardings),
        step=jax.jit(step, donate_argnums=0, out_shardings=(shardings, whole)),
        evaluate=jax.jit(evaluate, out_shardings=whole),
        model_flops_per_step=float(batch.tokens),
    )


def mean_loss(scores: jax.Array, tokens: jax.Array) -> jax.Array:
    return token_losses(scores, tokens).mean()


def token_losses(scores: jax.Array, tokens: jax.Array) -> jax.Array:
    """Cross entropy of each next token."""
    chances = jax.nn.log_softmax(scores)
    return -chances[tokens[:, :-1], tokens[:, 1:]]
