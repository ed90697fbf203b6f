"""What a trainer promises (trainers/README.md). Knows no trainer by name.

It has `program(plan, mesh) -> Program`, traced only where `mesh` is abstract; or it is a function
`build(plan, mesh)`, which may return a lowered program: proved, not trained.

Data is token ids [sequences, length + 1] in natural order; each row is a pure function of (seed,
step). The trainer's `arrange` keeps the rows' order: processes arrange only their own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from orchestrator import plugins
from orchestrator.errors import SpecError
from orchestrator.network.published import PublishedWeight
from orchestrator.values.plan import Plan
from orchestrator.values.program import AnyPlan
from trainers.mesh import mesh_of

_Tree = Any
METRICS = ("loss", "grad_norm", "learning_rate")
# Beginnings of the names of options that the compiler for CPU devices lacks or ignores.
_FOR_ACCELERATORS = ("xla_tpu_", "xla_sc_", "xla_gpu_", "xla_enable_async_")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One plan on one mesh, as functions and shapes. Nothing is on a device until `init`."""

    plan: Plan
    mesh: Mesh | AbstractMesh
    # Nested dicts and tuples of `jax.ShapeDtypeStruct`, each leaf with its sharding; a dict with at
    # least `step` (int32 scalar: how many steps are done).
    state: dict[str, _Tree]
    batch: dict[str, jax.ShapeDtypeStruct]  # each leaf with its sharding, axis 0 the sequences
    # Tokens int [rows, length + 1] -> dict of arrays [rows, ...], leaves as in `batch`.
    arrange: Callable[[np.ndarray], dict[str, np.ndarray]]
    init: Callable[[int], dict[str, _Tree]]  # of a seed: the same values on every mesh
    # Jitted, the state donated: (state, batch) -> (state, metrics), where metrics is a flat dict of
    # replicated fp32 scalars with at least `METRICS`. It takes the gradient of the mean loss over
    # all tokens of the batch. `lowered()` is compiled ahead of time, with `compiler_options`.
    step: jax.stages.Wrapped
    # What MFU counts (`orchestrator.planning.flops`): of all devices, no recompute.
    model_flops_per_step: float
    # The rate by step of the run, which `step` then takes as a third argument, an fp32 scalar, so
    # plans with other rates have the same program. None where `step` has its own rates.
    learning_rate: Callable[[int], float] | None = None
    # Jitted: (state, batch) -> sums over the predicted tokens of a batch, replicated scalars
    # `loss_sum` and `tokens`; None where the trainer has no evaluation. A token of the batch may be
    # below zero: ~token is then read, and not predicted.
    evaluate: jax.stages.Wrapped | None = None
    # How a Hugging Face checkpoint of an architecture (the `model_type` of its config.json) stores
    # the leaves of `state["parameters"]`; None where the trainer does not say.
    published: Callable[[str], Sequence[PublishedWeight]] | None = None
    # Rows with a word, by the names of the leaves of `state` that may have more: these are zero,
    # and as many as the mesh needs.
    table_rows: dict[str, int] = field(default_factory=dict)
    # Layers by the name of the part of the tree that stacks them, in order. A pipeline stacks them
    # in two dimensions, [chunks, places]; its last places may be empty.
    layers: dict[str, int] = field(default_factory=dict)

    def lowered(self) -> jax.stages.Lowered:
        """Lower the step for its shapes, without a device."""
        return self.step.lower(self.state, self.batch, *self.rate(self.plan.first_step))

    def rate(self, step: int) -> tuple[np.float32, ...]:
        """Return what a step takes after the state and the batch: its learning rate, or nothing."""
        return () if self.learning_rate is None else (np.float32(self.learning_rate(step)),)

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The plan's options; on CPU devices, without those for accelerators."""
        assert isinstance(self.mesh, Mesh)
        options: dict[str, Any] = self.plan.compiler_options
        if self.mesh.devices.flat[0].platform != "cpu":
            return options
        kept = (name for name in options if not name.startswith(_FOR_ACCELERATORS))
        return {name: options[name] for name in kept}


class _Trainer(Protocol):
    def program(self, plan: Plan, mesh: Mesh | AbstractMesh) -> Program: ...


@dataclass(frozen=True)
class _BuildFunction:
    name: str
    build: Callable[[Plan, Mesh], Program | jax.stages.Lowered]

    def program(self, plan: Plan, mesh: Mesh | AbstractMesh) -> Program:
        assert isinstance(mesh, Mesh)
        made = self.build(plan, mesh)
        if not isinstance(made, Program):
            raise SpecError(f"run.trainer: {self.name} returns no Program: it can only be proved")
        return made


def load(name: str) -> _Trainer:
    """Import the trainer that `run.trainer` names."""
    try:
        trainer = plugins.trainer_entry_point(name).load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"run.trainer: {name} cannot be imported: {error}") from error
    if callable(getattr(trainer, "program", None)):
        return cast(_Trainer, trainer)
    if callable(trainer):
        return _BuildFunction(name, trainer)
    raise SpecError(f"run.trainer: {name} has no function program(plan, mesh)")


def build(trainer: _Trainer, plan: Plan, devices: Sequence[jax.Device]) -> Program:
    return trainer.program(plan, mesh_of(plan, devices))


def lower(
    trainer: _Trainer, plan: AnyPlan, devices: Sequence[jax.Device]
) -> tuple[jax.stages.Lowered, Mesh | None]:
    """Return what is compiled for a plan on these devices, and the mesh of its program if known."""
    mesh = mesh_of(plan, devices)
    build_any: Any = trainer.build if isinstance(trainer, _BuildFunction) else trainer.program
    made = build_any(plan, mesh)
    if not isinstance(made, Program):
        return made, None
    assert isinstance(made.mesh, Mesh)
    return made.lowered(), made.mesh


def place(program: Program, tokens: Callable[[int, int], np.ndarray]) -> Mapping[str, jax.Array]:
    """Return the batch as global arrays; `tokens(start, stop)` gives the rows of this process."""
    arranged: dict[tuple[int, int], dict[str, np.ndarray]] = {}

    def leaf(name: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
        def shard(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # only keys of random numbers have none
            start, stop, _ = index[0].indices(shape.shape[0])
            if (start, stop) not in arranged:
                arranged[start, stop] = program.arrange(tokens(start, stop))
            return arranged[start, stop][name][:, *index[1:]]

        return jax.make_array_from_callback(shape.shape, shape.sharding, shard)

    return {name: leaf(name, shape) for name, shape in program.batch.items()}
