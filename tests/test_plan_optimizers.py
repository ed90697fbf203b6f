"""Optimizers in the ledgers: what they hold, and what their update costs."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.planning import flops
from orchestrator.planning.calibrated import layout_of
from orchestrator.planning.layout import Training
from orchestrator.planning.memory import _resting_lines
from orchestrator.planning.planner import make_plan
from orchestrator.planning.time import _hbm_lines
from orchestrator.values.codec import DType, MomentType
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Optimizer, Precision
from tests.example_specs import spec_of
from tests.trainer_plans import TINY, plan_of

MODEL = replace(TINY, d_model=256, d_ff=512, head_dim=32, vocab=1024)


def layout_for(
    name: str, moments: MomentType = "fp32", first: DType | None = None, **mesh: Any
) -> Training:
    plan = plan_of(
        MODEL,
        optimizer=Optimizer(name=name),  # type: ignore[arg-type]
        precision=Precision(optimizer=moments, first_moment=first),
        **mesh,
    )
    return layout_of(plan, catalog.chip(plan.chip))


def held(layout: Training) -> float:
    return float(
        sum(
            resting_line.value
            for resting_line in _resting_lines(layout)
            if resting_line.kind == "optimizer_state"
        )
    )


def updated(layout: Training) -> float:
    [line] = [hbm_line for hbm_line in _hbm_lines(layout) if hbm_line.kind == "optimizer_update"]
    return float(line.inputs["bytes"]) / float(layout.owned_elements)


def test_moments_take_what_their_type_takes() -> None:
    """Two of fp32, of bf16, and of a byte with an fp32 scale for 256."""
    wide = layout_for("adamw")
    assert held(layout_for("adamw", "bf16")) == held(wide) / 2
    assert held(layout_for("adamw", "int8")) == pytest.approx(held(wide) * (1 + 1 / 64) / 4)
    assert updated(wide) == 2 * (4 + 8) + 4


def test_the_first_moment_may_have_a_type_of_its_own() -> None:
    """Muon has no other of the layers' matrices, Adafactor has none."""
    wide, narrow = layout_for("adamw"), layout_for("adamw", first="bf16")
    assert held(narrow) == held(wide) * 3 / 4
    muon = layout_for("muon", first="bf16")
    others = muon.stored_parameter_elements - muon.stored_layer_elements
    assert held(muon) == 2 * muon.stored_parameter_elements + 4 * others
    assert held(layout_for("adafactor", first="bf16")) == held(layout_for("adafactor"))


def test_a_type_of_the_first_moment_is_part_of_the_identity() -> None:
    """A plan without one is digested as before there were any: golden plans show it."""
    types = [Precision(), Precision(first_moment="fp32"), Precision(first_moment="bf16")]
    specs = [spec_of(precision=precision) for precision in types]
    assert len({make_plan(spec).digest for spec in specs}) == len(types)
    assert len({make_plan(spec).spec_digest for spec in specs}) == len(types)


def test_adafactor_holds_rows_and_columns() -> None:
    """Of each matrix, on two ways of `fsdp` half of the rows; whole moments of vectors."""
    layout = layout_for("adafactor", fsdp=2)
    matrices = (256 + 256) + 2 * (256 + 128) + (256 + 256) + 3 * (256 + 512)
    split = matrices - 7 * 256 + 7 * 128  # the rows of seven matrices lie on two devices
    tables = 2 * (128 + 1024)
    vectors = 2 * 2 * 256 + 256
    assert held(layout) == 4 * (2 * split + tables + vectors)
    assert updated(layout) == 2 * 4 + 2 * 4  # its gradient is read twice


def test_muon_holds_one_moment_of_matrices() -> None:
    """And two of tables and vectors; each matrix is made orthogonal on one device."""
    alone, four = layout_for("muon"), layout_for("muon", fsdp=4)
    others = alone.stored_parameter_elements - alone.stored_layer_elements
    assert held(alone) == 4 * (alone.stored_parameter_elements + others)
    square, wide, narrow = (
        2 * 5 * (2 * short**2 * long + short**3)
        for short, long in ((256, 256), (256, 512), (128, 256))
    )
    assert flops.orthogonalization_flops(alone) == 2 * (2 * square + 3 * wide + 2 * narrow)
    assert flops.orthogonalization_flops(four) == 2 * square + 3 * wide + 2 * narrow
    assert flops.orthogonalization_flops(layout_for("adamw")) == 0


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_a_plan_has_its_lines(name: str) -> None:
    """From a spec, through the search."""
    spec = spec_of()
    optimizer = Optimizer(name=name)  # type: ignore[arg-type]
    changed = replace(spec, experiment=replace(spec.experiment, optimizer=optimizer))
    usual, plan = make_plan(spec), make_plan(changed)
    assert kept(plan) < kept(usual)
    kinds = {line.kind for line in plan.forecast.time if line.value}
    assert ({"orthogonalization", "moment_exchange"} <= kinds) == (name == "muon")


def kept(plan: Plan) -> float:
    lines = plan.forecast.memory[0].lines
    return sum(line.value for line in lines if line.kind == "optimizer_state")
