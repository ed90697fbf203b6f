"""The optimizer on each chip's own shards, inside the body: AdamW, or Adafactor.

Matrices decay, the two vocabulary tables among them; norms and biases do not.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from orchestrator.network.mixture import BALANCE_BIAS
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Optimizer
from trainers.llama import adafactor
from trainers.llama.axes import COPY
from trainers.llama.collectives import all_reduce, replicated_axes
from trainers.llama.parameters import Parameters, matrices, shardings
from trainers.llama.runtime import DTYPES

Tree = Any


def learning_rate(plan: Plan) -> optax.Schedule:
    """The learning rate by step of the run: the first of warm-up has 1 / warmup_steps of the peak.

    A stage may be in a schedule that began before it, or begin one.
    """
    options, (first, steps) = plan.optimizer, plan.schedule_span
    warmup = optax.linear_schedule(0.0, options.peak_lr, options.warmup_steps)
    rest = _after_warmup(options, max(1, steps - options.warmup_steps))
    whole = optax.join_schedules([warmup, rest], [options.warmup_steps])
    return lambda step: whole(step - first + 1)


def _after_warmup(options: Optimizer, steps: int) -> optax.Schedule:
    if options.decay == "cosine":
        floor = options.end_lr / options.peak_lr
        return optax.cosine_decay_schedule(options.peak_lr, steps, alpha=floor)
    end = options.end_lr if options.decay == "linear" else options.peak_lr
    return optax.linear_schedule(options.peak_lr, end, steps)


def adamw(plan: Plan) -> optax.GradientTransformation:
    options, first = plan.optimizer, plan.precision.first_moment
    return optax.adamw(
        learning_rate(plan),
        b1=options.beta1,
        b2=options.beta2,
        eps=options.epsilon,
        weight_decay=options.weight_decay,
        mask=matrices(plan.model),
        mu_dtype=DTYPES[first] if first else None,
    )


def start(plan: Plan, parameters: Parameters, dtype: jnp.dtype) -> Tree:
    """The state before the first step: moments of AdamW in `dtype`, or the first in its own."""
    if plan.optimizer.name == "adafactor":
        return adafactor.start(plan)
    return adamw(plan).init(jax.tree.map(lambda p: p.astype(dtype), parameters))


def state_shardings(plan: Plan, state: Tree) -> Tree:
    """Moments lie as their parameters do; counts are everywhere."""
    if plan.optimizer.name == "adafactor":
        return adafactor.shardings(plan)
    return optax.tree.map_params(
        adamw(plan),
        lambda _, sharding: sharding,
        state,
        shardings(plan.model),
        transform_non_params=lambda _: P(),
    )


def global_norm(gradients: Parameters, specs: Parameters) -> jax.Array:
    """The norm of all gradients. Chips that repeat a parameter each count a fraction of it."""

    def squares(gradient: jax.Array, sharding: P) -> jax.Array:
        return jnp.sum(gradient**2) / jax.lax.axis_size(replicated_axes(sharding))

    parts = jax.tree.leaves(jax.tree.map(squares, gradients, specs))
    return jnp.sqrt(all_reduce(jnp.sum(jnp.stack(parts)), COPY))


def update(
    plan: Plan, parameters: Parameters, gradients: Parameters, state: Tree
) -> tuple[Parameters, Tree, jax.Array]:
    """Parameters and optimizer state after a step, and the gradients' norm before clipping.

    All arithmetic is in fp32; each result keeps the type of what it replaces.
    """
    loads, gradients = gradients, without_loads(gradients)
    size = global_norm(gradients, shardings(plan.model))
    if plan.optimizer.clip_norm > 0:
        shrink = jnp.minimum(1.0, plan.optimizer.clip_norm / jnp.maximum(size, 1e-30))
        gradients = jax.tree.map(lambda g: g * shrink, gradients)
    wide = jax.tree.map(lambda p: p.astype(jnp.float32), parameters)
    changes, new_state = changes_of(plan, gradients, state, wide)
    new = balanced(plan, optax.apply_updates(wide, changes), loads)
    return _typed(new, parameters), _typed(new_state, state), size


def changes_of(
    plan: Plan, gradients: Parameters, state: Tree, parameters: Parameters
) -> tuple[Parameters, Tree]:
    """What a step adds to the parameters, and the optimizer's state after it."""
    if plan.optimizer.name == "adamw":
        changes, after = adamw(plan).update(gradients, state, parameters)
        return changes, after
    wanted, moments = adafactor.update(plan, gradients, state, parameters)
    rate, decay = learning_rate(plan)(state.steps), plan.optimizer.weight_decay
    changes = jax.tree.map(
        lambda change, p, is_matrix: -rate * (change + decay * is_matrix * p),
        wanted,
        parameters,
        matrices(plan.model),
    )
    return changes, moments


def without_loads(gradients: Parameters) -> Parameters:
    """The gradients, zero for biases of routers: these have loads of experts in their place."""
    return jax.tree_util.tree_map_with_path(
        lambda path, g: jnp.zeros_like(g) if path[-1].key == BALANCE_BIAS else g, gradients
    )


def balanced(plan: Plan, parameters: Parameters, loads: Parameters) -> Parameters:
    """The parameters, with each router's bias lower for experts above the mean load, and higher
    for those below it.
    """
    step = plan.model.moe.balance_bias if plan.model.moe else None
    if step is None:
        return parameters
    return jax.tree_util.tree_map_with_path(
        lambda path, p, load: p - step * jnp.sign(load) if path[-1].key == BALANCE_BIAS else p,
        parameters,
        loads,
    )


def _typed(tree: Tree, like: Tree) -> Tree:
    return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), tree, like)
