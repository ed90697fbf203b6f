"""The optimizer on each chip's own shards, inside the body: AdamW, or Adafactor.

Matrices decay, the two vocabulary tables among them; norms and biases do not.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from orchestrator.network.mesh_axes import GATHERED_AXES
from orchestrator.network.mlp import BALANCE_BIAS
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Optimizer
from trainers.llama.collectives import COPY, all_reduce, replicated_axes
from trainers.llama.parameters import Parameter, Parameters, leaves, matrices, shardings
from trainers.llama.runtime import DTYPES

# Adafactor on each chip's own shards (arXiv 1804.04235): second moments of rows and columns.


DECAY_EXPONENT = 0.8  # the decay rate of step t is 1 - t^-0.8
LEAST_SQUARE = 1e-30  # in place of a second moment that is zero
LEAST_SCALE = 1e-3  # of an update, where a matrix is smaller
LARGEST_UPDATE = 1.0  # root mean square, before the scale
ALONE = ("layers", "experts")  # dimensions of matrices beside one another


class Moments(NamedTuple):
    """Means of squares over columns and over rows; those of vectors lie in `rows`, whole."""

    steps: Any  # an array, or its sharding
    rows: Parameters
    columns: Parameters


class Shape(NamedTuple):
    """A leaf's dimensions: the gathered one, the others of its matrix, and where each is split."""

    row: tuple[int, ...]
    columns: tuple[int, ...]
    leaf: Parameter

    def without(self, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size for i, size in enumerate(self.leaf.shape) if i not in dimensions)

    def sharding_without(self, dimensions: tuple[int, ...]) -> P:
        entries = [*self.leaf.sharding]
        return P(*(entry for i, entry in enumerate(entries) if i not in dimensions))

    def total(self, x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
        """The sum over dimensions of all chips' shards, which stay as dimensions of one."""
        entries = [self.leaf.sharding[i] for i in dimensions]
        named = [(entry,) if isinstance(entry, str) else entry or () for entry in entries]
        axes = tuple(axis for axes in named for axis in axes)
        part = jnp.sum(x, axis=dimensions, keepdims=True)
        return all_reduce(part, axes) if axes else part

    def mean(self, x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
        return self.total(x, dimensions) / prod(self.leaf.filled[i] for i in dimensions)


def shape_of(leaf: Parameter) -> Shape:
    row = tuple(i for i, axis in enumerate(leaf.axes) if axis in GATHERED_AXES)
    others = (i for i, axis in enumerate(leaf.axes) if axis not in ALONE and i not in row)
    return Shape(row, tuple(others), leaf)


def adafactor_start(plan: Plan) -> Moments:
    """Zero moments."""

    def zeros(shape: Callable[[Shape], tuple[int, ...]]) -> Parameters:
        return over(plan, lambda one: jnp.zeros(shape(one), jnp.float32))

    return Moments(
        jnp.int32(0),
        zeros(lambda one: one.without(one.columns if one.leaf.is_matrix else ())),
        zeros(lambda one: one.without(one.row) if one.leaf.is_matrix else ()),
    )


def adafactor_shardings(plan: Plan) -> Moments:
    """Means lie as what is left of their parameters' dimensions."""
    return Moments(
        P(),
        over(plan, lambda one: one.sharding_without(one.columns if one.leaf.is_matrix else ())),
        over(plan, lambda one: one.sharding_without(one.row) if one.leaf.is_matrix else P()),
    )


def over(plan: Plan, made: Callable[[Shape], Any]) -> Parameters:
    """Something of every parameter."""
    return jax.tree.map(lambda leaf: made(shape_of(leaf)), leaves(plan.model, plan.mesh))


def adafactor_update(
    plan: Plan, gradients: Parameters, state: Moments, parameters: Parameters
) -> tuple[Parameters, Moments]:
    """What a step of size one adds to the parameters, and the moments after it."""
    decay = 1 - (state.steps + 1).astype(jnp.float32) ** -DECAY_EXPONENT

    def of_leaf(leaf: Parameter, *arrays: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return change(shape_of(leaf), decay, *arrays)

    every = jax.tree.map(
        of_leaf, leaves(plan.model, plan.mesh), gradients, state.rows, state.columns, parameters
    )
    changes, rows, columns = jax.tree.transpose(
        jax.tree.structure(gradients), jax.tree.structure((0, 0, 0)), every
    )
    return changes, Moments(state.steps + 1, rows, columns)


def change(
    shape: Shape,
    decay: jax.Array,
    gradient: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    parameter: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A leaf's change, and its moments: the gradient over their root, of a bounded size, times the
    size of the parameter.
    """
    square, matrix = gradient**2, (*shape.row, *shape.columns)
    if not shape.leaf.is_matrix:
        rows = decay * rows + (1 - decay) * square
        inverse = jax.lax.rsqrt(jnp.maximum(rows, LEAST_SQUARE))
        matrix = shape.columns
    else:
        by_row, by_column = shape.mean(square, shape.columns), shape.mean(square, shape.row)
        rows = decay * rows + (1 - decay) * by_row.reshape(rows.shape)
        columns = decay * columns + (1 - decay) * by_column.reshape(columns.shape)
        whole = jnp.maximum(rows.reshape(by_row.shape), LEAST_SQUARE)
        inverse = jax.lax.rsqrt(whole / shape.mean(whole, shape.row))
        inverse *= jax.lax.rsqrt(jnp.maximum(columns.reshape(by_column.shape), LEAST_SQUARE))
    wanted = gradient * inverse
    size = jnp.sqrt(shape.mean(wanted**2, matrix))
    scale = jnp.maximum(jnp.sqrt(shape.mean(parameter**2, matrix)), LEAST_SCALE)
    return wanted * scale / jnp.maximum(1.0, size / LARGEST_UPDATE), rows, columns


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
        return adafactor_start(plan)
    return adamw(plan).init(jax.tree.map(lambda p: p.astype(dtype), parameters))


def state_shardings(plan: Plan, state: Tree) -> Tree:
    """Moments lie as their parameters do; counts are everywhere."""
    if plan.optimizer.name == "adafactor":
        return adafactor_shardings(plan)
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
    wanted, moments = adafactor_update(plan, gradients, state, parameters)
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
