"""A vocabulary that `tensor` does not divide: padded, counted, trained and resumed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from orchestrator import catalog
from orchestrator.network.mesh_axes import padded
from orchestrator.planning.planner import make_plan
from orchestrator.values.model import Model
from orchestrator.values.plan import LedgerLine, Plan
from orchestrator.values.spec import MeshRequest
from tests.example_specs import spec_of
from tests.trainer_plans import TINY, plan_of
from tests.trainer_steps import trained
from trainers import llama
from trainers.checkpoint.step_folders import difference
from trainers.llama import parameters

GPT2 = 50_257  # words of GPT-2: 29 x 1,733


def planned(tensor: int, vocab: int = GPT2, tied: bool = False) -> Plan:
    model = replace(catalog.model("llama3-8b"), vocab=vocab, tied=tied)
    return make_plan(spec_of(model, chip="v6e", topology="8x8", pods=1, sequences=256,
                             mesh=MeshRequest(fsdp=64 // tensor, tensor=tensor)))  # fmt: skip


def lines_of(plan: Plan, kind: str) -> tuple[list[LedgerLine], list[LedgerLine]]:
    """The lines of that kind: of memory while tokens are embedded, and of time."""
    memory = [line for line in plan.forecast.memory[0].lines if line.kind == kind]
    return memory, [line for line in plan.forecast.time if line.kind == kind]


@pytest.mark.parametrize(
    ("vocab", "ways", "rows"),
    [
        (GPT2, 1, GPT2),
        (GPT2, 2, 50_432),  # 197 x 256, as Megatron-LM pads it
        (GPT2, 8, 51_200),
        (128_256, 8, 128_256),
        (32_003, 6, 32_256),
        (67, 4, 512),
    ],
)
def test_rows_are_a_multiple_of_128_in_each_part(vocab: int, ways: int, rows: int) -> None:
    """Only where the parts do not divide the vocabulary."""
    assert padded(vocab, ways) == rows
    assert padded(vocab, np.array([ways, 1])).tolist() == [rows, vocab]


@pytest.mark.parametrize(("tied", "tables"), [(False, 2), (True, 1)])
def test_padding_has_lines_of_its_own(tied: bool, tables: int) -> None:
    """Its parameters and moments in memory, its logits in time; MFU does not count it."""
    plan = planned(8, tied=tied)
    model, devices = plan.model, plan.devices
    rows = 51_200 - GPT2
    [stored], [computed] = lines_of(plan, "vocab_padding")
    assert stored.value == pytest.approx(12 * tables * rows * model.d_model / devices)
    flops = 6 * plan.batch.tokens / devices * rows * model.d_model
    assert computed.inputs["flops"] == pytest.approx(flops)
    even = planned(8, vocab=51_200, tied=tied)
    assert lines_of(even, "vocab_padding") == ([], [])
    assert plan.forecast.memory_bytes_per_device == pytest.approx(
        even.forecast.memory_bytes_per_device
    )
    assert plan.forecast.step_s.unoverlapped == pytest.approx(even.forecast.step_s.unoverlapped)
    assert plan.forecast.model_flops_per_step < even.forecast.model_flops_per_step
    assert plan.model.vocab == GPT2


def test_nothing_is_padded_where_the_mesh_divides_the_vocabulary() -> None:
    """A prime vocabulary with `tensor 1`."""
    assert lines_of(planned(1), "vocab_padding") == ([], [])


# --- trained

ODD = replace(TINY, vocab=67)


def start(model: Model, **mesh: Any) -> Any:
    """The embedding before the first step."""
    tree = parameters.start(plan_of(model, **mesh), jnp.dtype("float32"), jnp.int32(3))
    return np.asarray(tree["embedding"])


def test_padding_starts_at_zero() -> None:
    """The words start alike on every mesh, and the rows below them at zero."""
    alone, two = start(ODD), start(ODD, tensor=2)
    assert (alone.shape, two.shape) == ((67, 32), (256, 32))
    assert np.array_equal(two[:67], alone)
    assert not two[67:].any()


def losses_of(folder: Path, plan: Plan, steps: int) -> list[float]:
    """The losses of a run's steps, from its last checkpoint."""
    return [step.loss for step in trained(llama, plan, folder, steps)[1]]


@pytest.mark.slow
def test_a_run_is_resumed_with_more_and_with_fewer_rows(tmp_path: Path) -> None:
    """67 words in 67, 512 and 256 rows: the losses are those of one device."""
    straight = losses_of(tmp_path / "straight", plan_of(ODD), 9)
    losses: list[float] = []
    meshes: list[dict[str, Any]] = [{}, {"tensor": 4}, {"fsdp": 2, "tensor": 2}]
    for done, mesh in enumerate(meshes, start=1):
        losses += losses_of(tmp_path / "run", plan_of(ODD, **mesh), 3 * done)
    assert losses == pytest.approx(straight, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "saved", "expected", "alike"),
    [
        ("parameters.embedding", (256, 32), (67, 32), True),
        ("optimizer.0.mu.unembedding", (67, 32), (512, 32), True),
        ("parameters.embedding", (64, 32), (67, 32), False),  # words would be lost
        ("parameters.embedding", (256, 64), (67, 32), False),
        ("parameters.layers.up", (256, 32), (67, 32), False),
    ],
)
def test_only_rows_without_a_word_may_differ(
    name: str, saved: tuple[int, ...], expected: tuple[int, ...], alike: bool
) -> None:
    """Another size, or another leaf, is another model."""
    rows = {"embedding": 67, "unembedding": 67}
    found = difference({name: ("float32", saved)}, {name: ("float32", expected)}, rows)
    assert (found is None) is alike
    assert difference({name: ("float32", saved)}, {name: ("float32", expected)}) is not None
