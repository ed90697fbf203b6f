"""What people read: numbers with units, aligned columns, a plan on one screen."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import SpecError
from orchestrator.plan.planner import make_plan, make_plans
from orchestrator.plan.rehearsal import rehearse
from orchestrator.render import (
    formatting,
    layout,
    plan_screen,
    rehearsal_screen,
    score_screen,
    study_screen,
)
from orchestrator.score import PUBLISHED, with_catalog_constants
from orchestrator.spec import load, load_study
from orchestrator.study import forecast_study
from tests.asks import spec_of
from tests.conftest import GOLDEN, ROOT, HoldGolden

SHIPPED = sorted((ROOT / "specs").glob("*.yaml"))
STUDIES = sorted((ROOT / "specs/studies").glob("*.yaml"))


@pytest.mark.parametrize(
    ("value", "said"), [(4_587_520, "4.59M"), (15e12, "15T"), (999, "999"), (70.5537e9, "70.6B")]
)
def test_counts_are_short_and_decimal(value: float, said: str) -> None:
    """K M B T are powers of a thousand."""
    assert formatting.scaled(value) == said


@pytest.mark.parametrize(
    ("value_s", "said"),
    [(12.1234, "12.1 s"), (0.4192, "419 ms"), (0.00386, "3.86 ms"), (2.5e-5, "25 us"), (0, "0 us")],
)
def test_seconds_take_the_unit_that_shows_digits(value_s: float, said: str) -> None:
    """Three digits, never an exponent."""
    assert formatting.seconds(value_s) == said


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(459e12, "FLOP/s", "459 TFLOP/s"), (6.25e9, "B/s", "6.25 GB/s"), (0, "B", "0 B")],
)
def test_quantities_take_si_prefixes(value: float, unit: str, said: str) -> None:
    """G for giga: a billion bytes are not BB."""
    assert formatting.with_unit(value, unit) == said


@pytest.mark.parametrize(
    ("value_bytes", "said"),
    [
        (0, "0.00 GiB"),
        (393_216, "0.38 MiB"),
        (formatting.GIB // 100, "10.24 MiB"),
        (formatting.GIB // 100 + 1, "0.01 GiB"),
        (102.8 * formatting.GIB, "102.80 GiB"),
    ],
)
def test_memory_is_in_gib_unless_that_shows_nothing(value_bytes: float, said: str) -> None:
    """With two places in both, so that a column of them lines up."""
    assert formatting.in_memory(value_bytes) == said


def test_columns_align_and_do_not_trail() -> None:
    """Numbers to the right, words to the left, no blanks at the end."""
    lines = layout.columns([("a", "1", ""), ("bbb", "22", "")], "<><")
    assert lines == ["a     1", "bbb  22"]


def test_a_plan_is_one_screen(golden: HoldGolden) -> None:
    """The four-pod plan, to the letter; within 80 columns and 65 lines."""
    screen = plan_screen.plan_screen(make_plan(spec_of()), "orch explain spec.yaml")
    golden("plan_70b_4pod.txt", screen)
    lines = screen.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 65


def test_the_last_lines_are_the_verdict_and_the_next_command() -> None:
    """A person who reads only the end knows what to think and what to do."""
    lines = plan_screen.plan_screen(make_plan(spec_of()), "orch explain spec.yaml").splitlines()
    assert lines[-2].startswith("Plan: fits, bound by ")
    assert lines[-1] == "Next: orch explain spec.yaml"


def test_a_moved_batch_is_said_out_loud() -> None:
    """1,024 asked, 1,120 planned."""
    screen = " ".join(plan_screen.plan_screen(make_plan(spec_of()), "x").split())
    assert "(1,024 asked; 9.4 % more divide" in screen


def test_runners_up_say_what_they_lose(golden: HoldGolden) -> None:
    """One row a mesh; the first loses nothing."""
    table = plan_screen.runners_up_table(make_plans(spec_of(), 4))
    golden("alternatives_70b_4pod.txt", "\n".join(table) + "\n")


def test_runners_up_stand_before_the_verdict() -> None:
    """The last lines are the same, and each mesh has the step and the MFU to expect of it."""
    plans = make_plans(spec_of(), 3)
    screen = plan_screen.plan_screen(plans[0], "x", runners_up=plan_screen.runners_up_table(plans))
    assert screen.endswith(plan_screen.plan_screen(plans[0], "x").partition("\n\nwarning:")[2])
    for one in plans[1:]:
        mfu = one.forecast.mfu.expected
        assert mfu is not None
        mesh = ".".join(str(one.mesh[axis]) for axis in ("data", "fsdp", "sequence", "tensor"))
        assert any(mesh in line and formatting.percent(mfu) in line for line in screen.splitlines())


def test_runners_up_of_a_chip_without_runs_have_both_bounds() -> None:
    """Where nothing is expected, the step at peak rates stands there."""
    plans = make_plans(spec_of("llama3-8b", chip="h100", topology="8", pods=1, sequences=64), 3)
    head, *rows = plan_screen.runners_up_table(plans)[1:-1]
    assert head.split()[5:7] == ["lower", "unoverlapped"]
    for one, row in zip(plans, rows, strict=True):
        assert formatting.seconds(one.forecast.step_s.unoverlapped) in row


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (15145.7, "15,145.7 days"),
        (1.04, "1.0 days"),
        (0.8, "19.2 hours"),
        (0.02, "28.8 minutes"),
        (2.573e-4, "22.2 s"),
        (5.1e-7, "44.1 ms"),
    ],
)
def test_a_training_shorter_than_a_day_is_not_shown_in_days(days: float, said: str) -> None:
    """Nothing takes 0.0 days."""
    assert formatting.lasting(days) == said


def too_wide(screen: str) -> list[str]:
    """Lines that 80 columns would break; a command or a path may be as long as it is."""
    return [
        line
        for line in screen.splitlines()
        if len(line) > layout.WIDTH and not line.startswith("Next: ") and " /" not in line
    ]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_screens_of_shipped_specs_fit_a_terminal(path: Path) -> None:
    """The plan, and what its rehearsal says first."""
    spec = load(path)
    made = make_plan(spec)
    small = rehearse(spec, made)
    screens = [
        plan_screen.plan_screen(
            made,
            "orch explain spec.yaml",
            runners_up=plan_screen.runners_up_table(make_plans(spec, 4)),
        ),
        rehearsal_screen.rehearsal_intro(made.name),
        rehearsal_screen.rehearsal_screen(made, small.plan, small.steps, small.changes),
    ]
    assert [line for screen in screens for line in too_wide(screen)] == []


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_screens_of_shipped_studies_fit_a_terminal(path: Path) -> None:
    """What is predicted, and what each rehearsed run begins with."""
    asked = load_study(path)
    made = {trial.number: make_plan(trial.spec) for trial in asked.trials}
    screens = [
        study_screen.study_screen(forecast_study(asked, made), "orch submit study.yaml"),
        study_screen.study_intro(asked),
        *(study_screen.trial_line(asked, trial, 1) for trial in asked.trials),
    ]
    assert [line for screen in screens for line in too_wide(screen)] == []


def test_the_score_fits_a_terminal_and_names_its_strays() -> None:
    """Below the table, runs outside their interval, and any faster than the roofline."""
    found = with_catalog_constants(PUBLISHED)
    impossible = replace(found.rows[0], id="too_fast", below_lower_bound=True, lower_step_s=2.0)
    screen = score_screen.score_screen(replace(found, rows=(*found.rows, impossible)), "orch score")
    assert too_wide(screen) == []
    outside = next(run.id for run in found.rows if not run.inside_interval)
    assert f"outside the 80 % interval: {outside}" in screen
    assert "faster than the lower bound: too_fast (at least 2 s)" in screen


def test_a_wide_table_moves_together() -> None:
    """As far as it has to, and no table that fits does."""
    narrow, wide = ["word"] * 5, ["long words"] * 7
    assert layout.tabulated([narrow], "<" * 5) == ["  word  word  word  word  word"]
    assert layout.tabulated([wide], "<" * 7) == ["  " + " ".join(wide)]


@pytest.mark.parametrize("name", ["plan_70b_4pod", "proof_8b_2pod", "proof_refused"])
def test_screens_that_tests_hold_fit_a_terminal(name: str) -> None:
    """As they are kept, word for word."""
    assert too_wide((GOLDEN / f"{name}.txt").read_text(encoding="utf-8")) == []


def test_a_refusal_fits_a_terminal() -> None:
    """Its reasons, and the meshes that it offers."""
    with pytest.raises(SpecError) as caught:
        make_plan(spec_of(tolerance=0.0))
    assert caught.value.is_prose
    assert too_wide(layout.fit(str(caught.value))) == []


def test_wide_lines_hang_under_their_last_cell() -> None:
    """Under a label, or a little further in; a number stays with its unit; paths stay whole."""
    said = layout.fit(f"warning: {'words ' * 12}12 GiB more\n  mesh  {'tensor 16, ' * 9}\n")
    words, last, mesh, more = said.splitlines()
    assert words.startswith("warning: words")
    assert last == "         words 12 GiB more"
    assert mesh.endswith("tensor 16,")
    assert more.startswith("        tensor 16,")
    path = f"  recorded in /{'folder/' * 12}runs"
    assert layout.fit(path) == path
