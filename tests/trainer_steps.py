"""One step of trainer llama on emulated devices, and what it says of losses and gradients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from orchestrator.values import codec
from orchestrator.values.model import Model
from orchestrator.values.plan import Plan
from orchestrator.values.run import Outcome, Step
from orchestrator.values.spec import CheckpointOptions, Optimizer
from tests import trainer_reference
from trainers import llama
from trainers.contract import Program, build, place
from trainers.loop import Assignment, run
from trainers.mesh import abstract_mesh_of

# The program is the same, only LLVM works less: tests would compile four times as long.
QUICK_COMPILE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
# From zero moments Adam's first moment is (1 - beta1) x gradient: the step shows its gradients.
SHOWING = Optimizer(warmup_steps=0, clip_norm=0.0, beta1=0.9)
Tree = Any


@dataclass(frozen=True)
class StepOutcome:
    """What a step reports and leaves behind, as numpy arrays."""

    metrics: dict[str, float]
    gradients: Tree
    parameters: Tree


def trained(
    trainer: Any, plan: Plan, folder: Path, steps: int, every: int = 3, keep: int = 2, **more: Any
) -> tuple[Outcome, list[Step]]:
    """How a run of the loop ends, and the steps that it does."""
    emitted: list[Step] = []
    assignment = Assignment(
        directory=folder,
        steps=steps,
        emit=emitted.append,
        checkpoint=CheckpointOptions(every=every, keep=keep),
        **more,
    )
    return run(program_of(trainer, plan), assignment), emitted


_PROGRAMS: dict[tuple[Any, bytes], Program] = {}


def program_of(trainer: Any, plan: Plan) -> Program:
    """The program of a plan; runs that do it again need not trace it again."""
    key = trainer.program, codec.to_json(plan)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = build(trainer, plan, jax.devices()[: plan.devices])
    return _PROGRAMS[key]


def random_tokens(plan: Plan, seed: int = 0) -> np.ndarray:
    """Random words [sequences, length + 1]."""
    shape = (plan.batch.sequences, plan.batch.length + 1)
    return np.asarray(np.random.default_rng(seed).integers(0, plan.model.vocab, shape))


def random_parameters(program: Program) -> Tree:
    """Larger than a start's, so that no gradient is small, and norms unlike one another."""
    random = np.random.default_rng(7)

    def leaf(path: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        middle = 1.0 if any(part in path[-1].key for part in ("norm", "scale")) else 0.0
        places = 2 if is_of_pipeline(program, path) else 1  # dimensions of layers, or of rows
        filled = program.layers.get(path[0].key) or program.table_rows.get(path[0].key)
        stored, rest = int(np.prod(shape.shape[:places])), shape.shape[places:]
        values = middle + 0.2 * random.standard_normal((filled or stored, *rest))
        more = [(0, stored - len(values))] + [(0, 0)] * len(rest)
        return np.pad(np.asarray(values, np.float32), more).reshape(shape.shape)

    return jax.tree_util.tree_map_with_path(leaf, program.state["parameters"])


def initial_state(program: Program, parameters: Tree) -> dict[str, Tree]:
    """A state before the first step, with these parameters, on the devices."""

    def put(value: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        placed: jax.Array = jax.device_put(np.asarray(value, shape.dtype), shape.sharding)
        return placed

    zeros = jax.tree.map(lambda shape: np.zeros(shape.shape), program.state)
    state: dict[str, Tree] = jax.tree.map(put, {**zeros, "parameters": parameters}, program.state)
    return state


def plan_showing_gradients(plan: Plan) -> Plan:
    """The plan with an optimizer whose state shows the gradients; its z-loss stays."""
    return replace(plan, optimizer=replace(SHOWING, z_loss=plan.optimizer.z_loss))


def take_step(plan: Plan) -> StepOutcome:
    """The plan's first step on random parameters and words."""
    program = build(llama, plan, jax.devices()[: plan.devices])
    state = initial_state(program, random_parameters(program))
    tokens = random_tokens(plan)
    batch = place(program, lambda start, stop: tokens[start:stop])
    compiled = program.lowered().compile(QUICK_COMPILE)
    state, metrics = compiled(state, batch, *program.rate(0))
    first_moment = state["optimizer"][0].mu
    return StepOutcome(
        metrics={name: float(value) for name, value in metrics.items()},
        gradients=jax.tree.map(
            lambda m: np.float32(m) / (1 - SHOWING.beta1), without_padding(program, first_moment)
        ),
        parameters=without_padding(program, state["parameters"]),
    )


def is_of_pipeline(program: Program, path: Any) -> bool:
    """Whether a parameter is [chunks, places, ...], of the layers of a pipeline."""
    return program.plan.pipeline is not None and path[0].key in program.layers


def without_padding(program: Program, tree: Tree) -> Tree:
    """The tree as one device has it, without the rows of its tables that no word has and places
    without a layer; these are zero.
    """

    def leaf(path: Any, value: Any) -> np.ndarray:
        array = np.asarray(value)
        if is_of_pipeline(program, path):
            array = array.reshape(-1, *array.shape[2:])
        rows = (program.layers | program.table_rows).get(path[0].key, len(array))
        assert not array[rows:].any()
        return array[:rows]

    return jax.tree_util.tree_map_with_path(leaf, tree)


def expected(plan: Plan) -> tuple[float, Tree]:
    """Loss and gradients by the reference, for the parameters and words of `take_step`."""
    one = replace(plan, mesh=dict.fromkeys(plan.mesh, 1), pipeline=None)
    parameters = random_parameters(llama.program(one, abstract_mesh_of(one)))
    plain = Model(**{field: getattr(plan.model, field) for field in Model.__dataclass_fields__})
    loss, gradients = reference(plain, plan.optimizer.z_loss, plan.data.separator)(
        parameters, random_tokens(plan)
    )
    return float(loss), gradients


@cache
def reference(
    model: Model, z_loss: float = 0.0, separator: int | None = None
) -> Callable[[Tree, np.ndarray], tuple[Any, Tree]]:
    """The plain loss and gradients of parameters and words, compiled."""

    def loss(parameters: Tree, tokens: jax.Array) -> jax.Array:
        return trainer_reference.loss(parameters, tokens, model, z_loss, separator)

    return jax.jit(jax.value_and_grad(loss), compiler_options=QUICK_COMPILE)


ROUNDING = 1e-7


def largest_difference(found: Tree, right: Tree) -> float:
    """The largest difference in any leaf, over the largest value of that leaf."""

    def off(a: np.ndarray, b: np.ndarray) -> float:
        largest = np.abs(b).max()  # of a gradient that is zero but for rounding, the difference
        return float(np.abs(a - b).max() / (largest if largest > ROUNDING else 1))

    differences = jax.tree.map(off, found, jax.tree.map(np.asarray, right))
    return float(max(jax.tree.leaves(differences)))
