"""The contract: every trainer under trainers/, on every mixture of axes, without a device."""

from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from orchestrator import plugins
from orchestrator.errors import UnknownName
from orchestrator.network.mesh_axes import AXES, OPTIONAL_AXES
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Precision
from tests.trainer_plans import TINY, plan_of
from tests.trainer_steps import QUICK_COMPILE
from trainers.contract import METRICS, Program, build, load, place
from trainers.mesh import abstract_mesh_of

IN_EVERY_PLAN = [axis for axis in AXES if axis not in OPTIONAL_AXES]
TRAINERS = [*plugins._BUILT_IN["trainer"]]
# Each axis at one or two. Axes alone and all together are quick enough for always.
MIXTURES = [
    pytest.param(
        dict(zip(IN_EVERY_PLAN, sizes, strict=True)),
        id="".join(map(str, sizes)),
        marks=() if sizes.count(2) in (0, 1, len(IN_EVERY_PLAN)) else pytest.mark.slow,
    )
    for sizes in product((1, 2), repeat=len(IN_EVERY_PLAN))
]
# 35,840 devices
WIDE: dict[str, Any] = {"pods": 4, "data": 35, "fsdp": 8, "sequence": 4, "tensor": 8}


def abstract(name: str, plan: Plan) -> Program:
    return load(name).program(plan, abstract_mesh_of(plan))


def shape_of(leaf: Any) -> tuple[Any, ...]:
    return leaf.shape, leaf.dtype


def check_contract(program: Program) -> None:
    """What `trainers.contract` promises about shapes, types and shardings."""
    leaves = jax.tree.leaves((program.state, program.batch))
    assert all(isinstance(leaf.sharding, NamedSharding) for leaf in leaves)
    assert shape_of(program.state["step"]) == ((), np.dtype("int32"))
    assert {leaf.shape[0] for leaf in program.batch.values()} == {program.plan.batch.sequences}
    start = jax.eval_shape(program.init, 0)
    state, metrics = program.step.trace(program.state, program.batch, *program.rate(0)).out_info
    for found in (start, state):
        assert jax.tree.map(shape_of, found) == jax.tree.map(shape_of, program.state)
    assert metrics.keys() >= set(METRICS)
    assert {shape_of(metric) for metric in metrics.values()} == {((), np.dtype("float32"))}


def test_there_are_trainers() -> None:
    """The two built-in trainers are found, and packages without a program are not."""
    assert {"llama", "mlp"} <= set(TRAINERS)
    assert "data" not in TRAINERS


@pytest.mark.parametrize("mesh", MIXTURES)
@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_traces_on_every_mixture(name: str, mesh: dict[str, Any]) -> None:
    """Each axis at one or two, alone and mixed: the step traces, and keeps its state's shapes."""
    check_contract(abstract(name, plan_of(sequences=32, **mesh)))


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_traces_on_four_pods(name: str) -> None:
    """Tracing needs no device, so it works for 35,840 of them."""
    wide = replace(TINY, d_model=64)
    check_contract(abstract(name, plan_of(wide, sequences=1120, length=256, **WIDE)))


@pytest.mark.parametrize("optimizer", ["fp32", "bf16"])
@pytest.mark.parametrize("parameters", ["fp32", "bf16"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_every_type_keeps_its_place(parameters: Any, compute: Any, optimizer: Any) -> None:
    """A step leaves parameters and moments in the types that the plan gives them."""
    types = Precision(parameters=parameters, compute=compute, gradients="bf16", optimizer=optimizer)
    program = abstract("llama", plan_of(precision=types, fsdp=2, tensor=2))
    check_contract(program)
    moments = program.state["optimizer"][0]
    found = [program.state["parameters"], moments.mu, moments.nu]
    names = [{str(leaf.dtype) for leaf in jax.tree.leaves(tree)} for tree in found]
    full = {"fp32": "float32", "bf16": "bfloat16"}
    assert names == [{full[parameters]}, {full[optimizer]}, {full[optimizer]}]


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_arranges_row_by_row(name: str) -> None:
    """Rows arranged apart are the rows of all arranged together, as the batch leaves say."""
    program = abstract(name, plan_of(sequence=2, sequences=4))
    tokens = np.random.default_rng(0).integers(0, 64, (4, 33))
    together, apart = program.arrange(tokens), program.arrange(tokens[2:3])
    assert {key: shape_of(a) for key, a in together.items()} == {
        key: shape_of(leaf) for key, leaf in program.batch.items()
    }
    assert all((apart[key] == together[key][2:3]).all() for key in together)


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_learns(name: str) -> None:
    """Ten steps on one batch lower the loss, and the state counts them."""
    plan = plan_of(pods=2, fsdp=2, tensor=2, sequences=4)
    program = build(load(name), plan, jax.devices()[:8])
    tokens = np.random.default_rng(0).integers(0, 64, (4, 33))
    batch = place(program, lambda start, stop: tokens[start:stop])
    step = program.lowered().compile(QUICK_COMPILE)
    state, losses = program.init(0), []
    for number in range(10):
        state, metrics = step(state, batch, *program.rate(number))
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    assert int(state["step"]) == 10


def test_an_unknown_trainer_is_refused() -> None:
    """The message lists those there are; a package that is no trainer is unknown too."""
    for name in ("gpt", "data"):
        with pytest.raises(UnknownName, match="known: llama, mlp"):
            load(name)


def test_a_process_is_asked_for_its_own_rows() -> None:
    """Each device's rows are read once and arranged once, whatever else splits them."""
    plan = plan_of(data=4, sequence=2, tensor=2)
    program = build(load("llama"), plan, jax.devices())
    asked: list[tuple[int, int]] = []

    def tokens(start: int, stop: int) -> np.ndarray:
        asked.append((start, stop))
        return np.arange(16 * 33).reshape(16, 33)[start:stop]

    batch = place(program, tokens)
    assert sorted(asked) == [(0, 4), (4, 8), (8, 12), (12, 16)]
    whole = program.arrange(np.arange(16 * 33).reshape(16, 33))
    assert all((np.asarray(batch[key]) == whole[key]).all() for key in batch)


def test_the_smallest_trainer_counts_its_own_matmuls() -> None:
    """What `mlp` says that a step computes is what its traced step multiplies."""
    plan = plan_of(sequences=16, length=32)
    program = abstract("mlp", plan)
    traced = program.step.trace(program.state, program.batch, *program.rate(0)).jaxpr
    assert program.model_flops_per_step == sum(map(dot_flops, traced.eqns))


def dot_flops(equation: Any) -> int:
    """FLOPs of the products in an equation, and in what it calls."""
    inner = [value.jaxpr for value in equation.params.values() if hasattr(value, "jaxpr")]
    below = sum(dot_flops(eqn) for jaxpr in inner for eqn in jaxpr.eqns)
    if equation.primitive.name != "dot_general":
        return below
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return int(2 * prod(shape[i] for i in contracted) * prod(equation.outvars[0].aval.shape))


def test_a_trainer_lies_in_folders_without_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders are found without importing them, as those of a package are."""
    file = tmp_path / "folder_of_mine" / "inner" / "sys.py"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.source("folder_of_mine.inner.sys") == file
    assert plugins.source("folder_of_mine.inner") is None
    assert plugins.source("folder_of_mine.inner.absent.deeper") is None
    assert plugins.source("jaxlib.mlir") is None
