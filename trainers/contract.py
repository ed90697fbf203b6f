"""What a trainer promises. Knows JAX and the stations; knows no trainer by name.

A trainer is a package under `trainers/` that a stranger can write. It exposes two functions:

    program(plan, mesh)   -> Program   `mesh` may be abstract: then it can be traced, and no more
    build(plan, devices)  -> Program   the same on `trainers.mesh.mesh_of(plan, devices)`

Data comes as token ids [sequences, length + 1] in natural order, row by row a pure function of
(seed, step). The trainer's `arrange` turns any rows of it into its batch leaves on the host: it is
plain numpy, works on each row alone and keeps the rows' order, so a process can arrange the rows
that its own devices hold and nothing else. Axis 0 of every batch leaf is the sequences.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from orchestrator.errors import UnknownName
from orchestrator.types.plan import Plan

Tree = Any
METRICS = ("loss", "grad_norm", "learning_rate")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One plan on one mesh, as functions and shapes. Nothing is on a device until `init`.

    state    nested dicts and tuples of `jax.ShapeDtypeStruct`, each leaf with its sharding;
             a dict with at least `step` (int32 scalar: how many steps are done)
    batch    dict of `jax.ShapeDtypeStruct`, each leaf with its sharding, axis 0 the sequences
    arrange  tokens int [rows, length + 1] -> dict of arrays [rows, ...], leaves as in `batch`
    init     seed -> state on the devices; the same values on every mesh
    step     jitted, the state donated: (state, batch) -> (state, metrics), where metrics is a
             flat dict of replicated fp32 scalars with at least `METRICS`. Its gradient is of the
             mean loss over all tokens of the batch. `step.lower(state, batch)` on the shapes above
             is what is compiled ahead of time, with `plan.compiler_options`.
    model_flops_per_step
             what MFU counts (`orchestrator.plan.flops`): of all devices, no recompute
    """

    plan: Plan
    mesh: Mesh | AbstractMesh
    state: dict[str, Tree]
    batch: dict[str, jax.ShapeDtypeStruct]
    arrange: Callable[[np.ndarray], dict[str, np.ndarray]]
    init: Callable[[int], dict[str, Tree]]
    step: jax.stages.Wrapped
    model_flops_per_step: float


class Trainer(Protocol):
    """The module of a trainer."""

    def program(self, plan: Plan, mesh: Mesh | AbstractMesh) -> Program: ...

    def build(self, plan: Plan, devices: Sequence[jax.Device]) -> Program: ...


def names() -> list[str]:
    """Every trainer there is: the packages beside this file that fulfil the contract."""
    return [n for n in _packages() if _fulfils(importlib.import_module(f"trainers.{n}"))]


def load(name: str) -> Trainer:
    """The trainer of that name."""
    if name in _packages() and _fulfils(module := importlib.import_module(f"trainers.{name}")):
        return cast(Trainer, module)
    raise UnknownName("trainer", name, names())


def place(program: Program, tokens: Callable[[int, int], np.ndarray]) -> Mapping[str, jax.Array]:
    """The batch as global arrays; `tokens(start, stop)` is asked for this process's rows alone."""
    arranged: dict[tuple[int, int], dict[str, np.ndarray]] = {}

    def leaf(name: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
        def shard(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # it is for keys of random numbers alone
            start, stop, _ = index[0].indices(shape.shape[0])
            if (start, stop) not in arranged:
                arranged[start, stop] = program.arrange(tokens(start, stop))
            return arranged[start, stop][name][:, *index[1:]]

        return jax.make_array_from_callback(shape.shape, shape.sharding, shard)

    return {name: leaf(name, shape) for name, shape in program.batch.items()}


def _packages() -> list[str]:
    beside = pkgutil.iter_modules([str(Path(__file__).parent)])
    return [module.name for module in beside if module.ispkg]


def _fulfils(module: object) -> bool:
    return callable(getattr(module, "program", None)) and callable(getattr(module, "build", None))
