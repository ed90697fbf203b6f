"""AdamW or Adafactor on each chip's own shards. Matrices decay, norms and biases do not."""

from collections.abc import Callable
from math import cos, pi, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from orchestrator.network.mesh_axes import GATHERED_AXES
from orchestrator.network.mlp import BALANCE_BIAS
from orchestrator.values.plan import Plan
from trainers.llama.collectives import COPY, all_reduce, axes_of, replicated_axes
from trainers.llama.parameters import DTYPES, Parameter, Parameters, leaves, matrices, shardings

_Tree = Any


def learning_rate(plan: Plan) -> Callable[[int], float]:
    """The learning rate by step of the run; warm-up begins with 1 / warmup_steps of the peak."""
    # A stage may be in a schedule that began before it, or begin one.
    options, (first, steps) = plan.optimizer, plan.schedule_span
    peak, warmup = options.peak_lr, options.warmup_steps
    end = peak if options.decay == "constant" else options.end_lr

    def rate(step: int) -> float:
        number = step - first + 1
        if number < warmup:
            return peak * number / warmup
        done = min((number - warmup) / max(1, steps - warmup), 1)
        left = (1 + cos(pi * done)) / 2 if options.decay == "cosine" else 1 - done
        return peak * left + end * (1 - left)

    return rate


def start(plan: Plan, parameters: Parameters, dtype: jnp.dtype) -> _Tree:
    """The state before the first step: moments of AdamW in `dtype`, or the first in its own."""
    if plan.optimizer.name == "adafactor":
        return _moments(plan, jnp.int32(0), lambda s, gone: jnp.zeros(s.without(gone), jnp.float32))
    return _adamw(plan, 0.0).init(jax.tree.map(lambda p: p.astype(dtype), parameters))


def state_shardings(plan: Plan, state: _Tree) -> _Tree:
    """Moments lie as their parameters do; counts are everywhere."""
    if plan.optimizer.name == "adafactor":
        # Means lie as what is left of their parameters' dimensions.
        return _moments(plan, P(), _Shape.sharding_without)
    return optax.tree.map_params(
        _adamw(plan, 0.0),
        lambda _, sharding: sharding,
        state,
        shardings(plan),
        transform_non_params=lambda _: P(),
    )


def update(
    plan: Plan, parameters: Parameters, gradients: Parameters, state: _Tree, rate: jax.Array
) -> tuple[Parameters, _Tree, jax.Array]:
    """Parameters and optimizer state after a step, and the gradients' norm before clipping."""
    # All arithmetic is in fp32; each result keeps the type of what it replaces.
    # Biases of routers have loads of experts in the place of their gradients.
    loads = gradients
    gradients = jax.tree_util.tree_map_with_path(
        lambda path, g: jnp.zeros_like(g) if _is_balance_bias(path) else g, gradients
    )

    # The norm of all gradients. Chips that repeat a parameter each count a fraction of it.
    def squares(gradient: jax.Array, sharding: P) -> jax.Array:
        return jnp.sum(gradient**2) / jax.lax.axis_size(replicated_axes(sharding))

    parts = jax.tree.leaves(jax.tree.map(squares, gradients, shardings(plan)))
    size = jnp.sqrt(all_reduce(jnp.sum(jnp.stack(parts)), COPY))
    if plan.optimizer.clip_norm > 0:
        shrink = jnp.minimum(1.0, plan.optimizer.clip_norm / jnp.maximum(size, 1e-30))
        gradients = jax.tree.map(lambda g: g * shrink, gradients)
    wide = jax.tree.map(lambda p: p.astype(jnp.float32), parameters)
    if plan.optimizer.name == "adamw":
        changes, new_state = _adamw(plan, rate).update(gradients, state, wide)
    else:
        changes, new_state = _adafactor_changes(plan, gradients, state, wide, rate)
    new = optax.apply_updates(wide, changes)
    step = plan.model.moe.balance_bias if plan.model.moe else None
    if step is not None:  # lower for experts above the mean load, higher for those below it
        new = jax.tree_util.tree_map_with_path(
            lambda path, p, load: p - step * jnp.sign(load) if _is_balance_bias(path) else p,
            new,
            loads,
        )
    return _typed(new, parameters), _typed(new_state, state), size


def _is_balance_bias(path: Any) -> bool:
    return bool(path[-1].key == BALANCE_BIAS)


def _typed(tree: _Tree, like: _Tree) -> _Tree:
    return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), tree, like)


def _adamw(plan: Plan, rate: jax.Array | float) -> optax.GradientTransformation:
    options, first = plan.optimizer, plan.precision.first_moment
    return optax.adamw(
        lambda _: rate,  # as a schedule, with its count of steps in the state
        b1=options.beta1,
        b2=options.beta2,
        eps=options.epsilon,
        weight_decay=options.weight_decay,
        mask=matrices(plan),
        mu_dtype=DTYPES[first] if first else None,
    )


# Adafactor on each chip's own shards (arXiv 1804.04235): second moments of rows and columns.

_DECAY_EXPONENT = 0.8  # the decay rate of step t is 1 - t^-0.8
_LEAST_SQUARE = 1e-30  # in place of a second moment that is zero
_LEAST_SCALE = 1e-3  # of an update, where a matrix is smaller
_LARGEST_UPDATE = 1.0  # root mean square, before the scale
# Dimensions along which a leaf has one matrix after another.
_STACKED = ("chunks", "layers", "experts")


class _Moments(NamedTuple):
    """Means of squares over columns and over rows; those of vectors lie in `rows`, whole."""

    steps: Any  # an array, or its sharding
    rows: Parameters
    columns: Parameters


class _Shape:
    """A leaf's dimensions: the gathered one, the others of its matrix, and where each is split."""

    def __init__(self, leaf: Parameter) -> None:
        dimensions, self.leaf = list(enumerate(leaf.axes)), leaf
        self.row = tuple(i for i, axis in dimensions if axis in GATHERED_AXES)
        inside = [i for i, axis in dimensions if axis not in _STACKED]
        self.columns = tuple(i for i in inside if i not in self.row)

    def without(self, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size for i, size in enumerate(self.leaf.shape) if i not in dimensions)

    def sharding_without(self, dimensions: tuple[int, ...]) -> P:
        return P(*(entry for i, entry in enumerate(self.leaf.sharding) if i not in dimensions))

    def mean(self, x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
        """The mean over dimensions of all chips' shards, which stay as dimensions of one."""
        total = jnp.sum(x, axis=dimensions, keepdims=True)
        if axes := axes_of(self.leaf.sharding[i] for i in dimensions):
            total = all_reduce(total, axes)
        return total / prod(self.leaf.filled[i] for i in dimensions)


def _moments(plan: Plan, steps: Any, made: Callable[[_Shape, tuple[int, ...]], Any]) -> _Moments:
    """Moments of which `made` makes each, without the dimensions that it is the mean over."""

    def rows(shape: _Shape) -> Any:
        return made(shape, shape.columns if shape.leaf.is_matrix else ())

    def columns(shape: _Shape) -> Any:
        return made(shape, shape.row if shape.leaf.is_matrix else (*range(len(shape.leaf.shape)),))

    tree = jax.tree.map(_Shape, leaves(plan))
    return _Moments(steps, jax.tree.map(rows, tree), jax.tree.map(columns, tree))


def _adafactor_changes(
    plan: Plan, gradients: Parameters, state: _Moments, parameters: Parameters, rate: jax.Array
) -> tuple[Parameters, _Moments]:
    """What a step adds to the parameters, and the moments after it."""
    decay = 1 - (state.steps + 1).astype(jnp.float32) ** -_DECAY_EXPONENT
    changed = jax.tree.map(
        lambda leaf, *arrays: _change(_Shape(leaf), decay, *arrays),
        leaves(plan),
        gradients,
        state.rows,
        state.columns,
        parameters,
    )
    wanted, rows, columns = jax.tree.transpose(
        jax.tree.structure(gradients), jax.tree.structure((0, 0, 0)), changed
    )
    moments, weight_decay = _Moments(state.steps + 1, rows, columns), plan.optimizer.weight_decay
    changes = jax.tree.map(
        lambda change, p, is_matrix: -rate * (change + weight_decay * is_matrix * p),
        wanted,
        parameters,
        matrices(plan),
    )
    return changes, moments


def _change(
    shape: _Shape,
    decay: jax.Array,
    gradient: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    parameter: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A leaf's change for a rate of one, and its moments."""
    square, matrix = gradient**2, (*shape.row, *shape.columns)
    if not shape.leaf.is_matrix:
        # v = decay v + (1 - decay) g^2, change g / sqrt(v)
        rows = decay * rows + (1 - decay) * square
        inverse = jax.lax.rsqrt(jnp.maximum(rows, _LEAST_SQUARE))
        matrix = shape.columns
    else:
        # r, c: the same of the means of g^2 over columns and over rows; v = r c / mean(r)
        by_row, by_column = shape.mean(square, shape.columns), shape.mean(square, shape.row)
        rows = decay * rows + (1 - decay) * by_row.reshape(rows.shape)
        columns = decay * columns + (1 - decay) * by_column.reshape(columns.shape)
        whole = jnp.maximum(rows.reshape(by_row.shape), _LEAST_SQUARE)
        inverse = jax.lax.rsqrt(whole / shape.mean(whole, shape.row))
        inverse *= jax.lax.rsqrt(jnp.maximum(columns.reshape(by_column.shape), _LEAST_SQUARE))
    # u / max(1, rms(u)) x max(rms(p), 1e-3)
    wanted = gradient * inverse
    size = jnp.sqrt(shape.mean(wanted**2, matrix))
    scale = jnp.maximum(jnp.sqrt(shape.mean(parameter**2, matrix)), _LEAST_SCALE)
    return wanted * scale / jnp.maximum(1.0, size / _LARGEST_UPDATE), rows, columns
