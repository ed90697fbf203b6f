"""The worked answer sheet: the plan that it is compared with, and how it reads."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from orchestrator import catalog
from orchestrator.catalog.published import figures
from orchestrator.evidence.explain.assemble import explain
from orchestrator.evidence.explain.differences import difference_texts
from orchestrator.evidence.explain.formula import ComputedValue, Explanation, compute
from orchestrator.evidence.score.published_runs import OTHER_SOFTWARE, PUBLISHED, read
from orchestrator.formatting import lasting, span
from orchestrator.network.mesh_axes import DCN_AXES
from orchestrator.planning.planner import make_plan
from orchestrator.show import explain_screen
from orchestrator.show.parts import NO_BREAK, Table
from orchestrator.show.plan_text import likely
from orchestrator.values import codec
from tests.conftest import ROOT, HoldGolden
from tests.example_specs import spec_of
from tests.explanations import REQUESTS, explanation_of, lines_of, spec_for

# --- numbers


def test_numbers_are_put_in_for_symbols_alone() -> None:
    """Functions, exponents of numbers and longer names stay as they are."""
    computed = ComputedValue(
        formula="floor(B / alpha) + 56.3e9 * B_pod**2",
        inputs={"B": 4e6, "alpha": 2550, "B_pod": 4194304},
        value=0,
    )
    assert explain_screen._put_in(computed) == "floor(4,000,000 / 2,550) + 56.3e9 x 4,194,304^2"


@pytest.mark.parametrize(
    ("value", "said"),
    [(70_553_706_496, "70,553,706,496"), (4.59e14, "4.59e14"), (1.8e11, "1.8e11"), (8192, "8,192"),
     (1618.26, "1,618"), (113.3946, "113.4"), (0.00065, "0.00065"), (6.34983e24, "6.35e24")],
)  # fmt: skip
def test_what_was_counted_keeps_its_digits(value: float, said: str) -> None:
    """And what was measured or computed has four."""
    assert explain_screen._number(value) == said


@pytest.mark.parametrize(
    ("digits", "unit", "said"),
    [("20.9e12", "bytes", "20.9 TB"), ("140e9", "bytes", "140 GB"), ("1752", "days", "1,752 days"),
     ("500e3", "tokens", "500K tokens"), ("0.43", "MFU", "43 % MFU"),
     ("4.2e11", "FLOP", "4.2e11 FLOP"), ("2.1e9", "parameters", "2.1e9 parameters")],
)  # fmt: skip
def test_a_figure_is_shown_with_the_digits_it_was_printed_with(
    digits: str, unit: str, said: str
) -> None:
    """No digit more, none less."""
    assert explain_screen._as_printed(digits, unit) == said


# --- the realizable plan


def test_the_plan_compared_with_is_the_plan() -> None:
    """The same digest, batch, mesh and days as `orch plan` has."""
    sheet, plan = explanation_of("70b-four-pods"), make_plan(spec_for("70b-four-pods"))
    assert sheet.plan_digest == plan.digest
    found = sheet.differences
    assert found is not None
    batch, mesh, days = found["batch"], found["mesh"], found["days"]
    assert batch is not None
    assert batch["sequences"] == plan.batch.sequences
    inside = {axis: size for axis, size in plan.mesh.items() if axis not in DCN_AXES}
    assert mesh is not None
    assert mesh["axes"] == inside
    assert days is not None
    assert days["planned"] == plan.forecast.days
    bound, recompute, memory = found["bound"], found["recompute"], found["memory"]
    assert bound is not None
    assert bound["bound"] == plan.forecast.bound
    assert recompute is not None
    assert recompute["remat"] == plan.remat
    assert memory is not None
    assert memory["phase"].bytes == plan.forecast.memory_bytes_per_device


def test_the_answer_has_the_days_that_the_plan_shows() -> None:
    """The interval; without one, what the run takes at best."""
    days = make_plan(spec_for("70b-four-pods")).forecast.days
    assert days.low is not None
    assert days.high is not None
    assert days.expected is not None
    between = span(lasting(days.low), lasting(days.high))
    sheet = explanation_of("70b-four-pods")
    assert sheet.summary.forecast is not None
    assert sheet.summary.forecast.days == days
    shown = explain_screen.explain_screen(sheet, "orch plan")
    assert f"planned {between}." in " ".join(shown.split())
    without = replace(days, low=None, high=None)
    assert likely(without, lasting) == f"at least {lasting(days.lower)}"


def test_what_the_book_leaves_out_is_said() -> None:
    """8,192 chips of 8,960, no even batch, half an axis, more chips than are rented."""
    found = explanation_of("70b-four-pods").differences
    assert found is not None
    mesh, batch, half = found["mesh"], found["batch"], found["tensor"]
    assert mesh is not None
    assert mesh["split"] == {"fsdp": 1024, "tensor": 8, "used": 8192}
    assert mesh["chips"] == 8960
    assert batch is not None
    assert batch["reason"].code == "batch_not_divisible"
    assert {980, 1120} <= {near.sequences for near in batch["nearest"]}
    assert half is not None
    assert (half["ways"], half["length"], half["share"]) == (8, 16, 0.5)
    renting = found["renting"]
    assert renting is not None
    obstacles = [obstacle.code for obstacle in renting["obstacles"]]
    assert obstacles == ["slice_not_rented", "slices_not_joined"]
    words = {about: (planned, why) for about, _, planned, why in difference_texts(found)}
    assert "8,960 = 2^8 x 5 x 7" in words["mesh of a pod"][1]
    assert "226.8 tokens a chip" in words["tensor 8 on an axis of 16"][0]
    assert "6,144 v5p chips as one slice (16x16x24)" in words["renting"][1]


def test_without_a_plan_the_derivation_still_stands() -> None:
    """And the reason that there is none stands where the plan would."""
    sheet = explain(spec_of(tolerance=0))
    assert (sheet.plan_digest, sheet.differences) == (None, None)
    assert sheet.no_plan is not None
    assert "multiple of 140" in sheet.no_plan
    assert sheet.sections == explanation_of("70b-four-pods").sections
    screen = explain_screen.explain_screen(sheet, "orch plan x.yaml")
    assert "\nno realizable plan\n" in screen
    assert sheet.summary.forecast is None


# --- what runs lead to expect


@pytest.mark.parametrize("key", REQUESTS)
def test_the_expected_step_is_explained_part_by_part(key: str) -> None:
    """Each part is its formula with its numbers; together they are what the plan expects."""
    found, forecast = explanation_of(key).expectation, make_plan(spec_for(key)).forecast
    if forecast.step_s.expected is None:
        assert found is None
        return
    assert found is not None
    for part in found.parts:
        again = compute(part.computed.formula, part.computed.inputs).value
        assert part.computed.value == pytest.approx(again, rel=1e-9), part.name
    assert sum(part.computed.value for part in found.parts) == pytest.approx(found.expected_s)
    assert found.expected_s == forecast.step_s.expected


def test_every_constant_names_the_runs_behind_it() -> None:
    """Those of the chip by name, those that all chips share by their number."""
    found = explanation_of("70b-four-pods").expectation
    assert found is not None
    rows = {
        (part.name, constant.symbol): constant.rows
        for part in found.parts
        for constant in part.constants
    }
    assert {*rows} == {
        ("matmuls", "share"), ("attention", "share"), ("exposed gathers", "exposed"),
        ("exposed tensor", "exposed"),
        ("waiting for slices", "wait"), ("waiting for slices", "hop"),
    }  # fmt: skip
    known = {row["id"] for path in (PUBLISHED, OTHER_SOFTWARE) for row in read(path)}
    assert all(names and set(names) <= known for names in rows.values())
    assert all("v5p" in name for name in rows["matmuls", "share"])
    screen = explain_screen.explain_screen(explanation_of("70b-four-pods"), "orch plan x.yaml")
    assert rows["matmuls", "share"][0] in screen
    count = len(rows["exposed gathers", "exposed"])
    assert f"exposed fitted to {count} runs, standard error" in screen


# --- the sheet


@pytest.mark.parametrize("key", REQUESTS)
def test_the_sheet_fits_and_ends_in_what_to_do(key: str) -> None:
    """80 columns of plain ASCII, a summary, the next command."""
    sheet = explain_screen.explain_screen(explanation_of(key), "orch plan specs/x.yaml")
    lines = sheet.splitlines()
    first = sheet.blocks[1][0]
    assert isinstance(first, Table)
    assert [row[0] for row in first.rows] == [
        "fits", "time", "cost", "MFU", "bound by", "by hand"
    ]  # fmt: skip
    assert max(map(len, lines)) <= 80
    assert all(line.isascii() and line == line.rstrip() for line in lines)
    assert [line for line in lines[-3:-1] if line.startswith("Answer: ")]
    assert lines[-1] == "Next: orch plan specs/x.yaml"


@pytest.mark.parametrize("key", REQUESTS)
def test_every_source_that_is_named_is_listed(key: str) -> None:
    """Once, with its title, and none beside."""
    sheet = explanation_of(key)
    listed = [citation.key for citation in sheet.sources]
    assert len(listed) == len(set(listed))
    named = {source for line in lines_of(sheet) for source in line.sources}
    losses = sheet.goodput.lines if sheet.goodput else ()
    named |= {source for line in losses for source in line.sources}
    named |= {entry.source for entry in sheet.inputs if entry.source}
    named |= {quote.source for entry in sheet.quotes for quote in entry.figures}
    named |= {sheet.expectation.source} if sheet.expectation else set()
    assert named == set(listed)


def test_every_quoted_source_is_in_the_catalog() -> None:
    """With title, place and date."""
    assert {figure.source for figure in figures()} <= catalog.sources().keys()


@pytest.mark.parametrize("key", ["70b-four-pods", "405b-eight-pods"])
def test_the_sheet_to_the_letter(key: str, golden: HoldGolden) -> None:
    """Derivation and quotes; what the plan does is tested where plans are."""
    screen = explain_screen.explain_screen(explanation_of(key), "orch plan x.yaml")
    by_hand, _, planned = screen.partition("\n\nWhere the realizable plan differs\n")
    assert planned
    golden(f"explain_{key.replace('-', '_')}.txt", by_hand + "\n")


def test_a_sheet_survives_json() -> None:
    """It is the same value after JSON and back; the figures of differences are mappings then."""
    for key in ("70b-four-pods", "tied-one-chip"):
        sheet = explanation_of(key)
        written = codec.to_json(sheet)
        back = codec.from_json(written, Explanation)
        assert replace(back, differences=sheet.differences) == sheet
        assert json.loads(codec.to_json(back)) == json.loads(written)


def test_overrides_are_shown() -> None:
    """What was changed on the command line stands in the first lines."""
    spec = replace(spec_for("8b-v5e"), overrides=("experiment.batch.sequences=512",))
    screen = explain_screen.explain_screen(explain(spec), "orch plan x.yaml")
    assert "experiment.batch.sequences=512" in "".join(screen.splitlines()[:2])


def test_the_same_spec_has_the_same_bytes() -> None:
    """Whatever the hash seed."""
    code = (
        "import sys; from orchestrator.evidence.explain.assemble import explain;"
        "from orchestrator.values import codec;"
        "from tests.example_specs import spec_of;"
        "sys.stdout.buffer.write(codec.to_json(explain(spec_of(pods=1))))"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert texts[0] == texts[1] == codec.to_json(explanation_of("70b-one-pod"))


def test_thousands_of_seconds_have_the_digits_with_which_they_are_put_in() -> None:
    computed = ComputedValue(formula="86400 / failures", inputs={"failures": 7.762}, value=11131.2)
    assert explain_screen._result(computed, "s") == f"={NO_BREAK}11,131{NO_BREAK}s"
    assert explain_screen._number(computed.value) == "11,131"
