"""What people read: numbers with units, aligned columns, a plan on one screen."""

import pytest

from orchestrator.plan.make import make_plan, make_plans
from orchestrator.render import alternatives, plan, text
from tests.asks import spec_of
from tests.conftest import HoldGolden


@pytest.mark.parametrize(
    ("value", "said"), [(4_587_520, "4.59M"), (15e12, "15T"), (999, "999"), (70.5537e9, "70.6B")]
)
def test_counts_are_short_and_decimal(value: float, said: str) -> None:
    """K M B T are powers of a thousand."""
    assert text.scaled(value) == said


@pytest.mark.parametrize(
    ("value_s", "said"),
    [(12.1234, "12.1 s"), (0.4192, "419 ms"), (0.00386, "3.86 ms"), (2.5e-5, "25 us"), (0, "0 us")],
)
def test_seconds_take_the_unit_that_shows_digits(value_s: float, said: str) -> None:
    """Three digits, never an exponent."""
    assert text.seconds(value_s) == said


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(459e12, "FLOP/s", "459 TFLOP/s"), (6.25e9, "B/s", "6.25 GB/s"), (0, "B", "0 B")],
)
def test_quantities_take_si_prefixes(value: float, unit: str, said: str) -> None:
    """G for giga: a billion bytes are not BB."""
    assert text.with_unit(value, unit) == said


def test_columns_align_and_do_not_trail() -> None:
    """Numbers to the right, words to the left, no blanks at the end."""
    lines = text.columns([("a", "1", ""), ("bbb", "22", "")], "<><")
    assert lines == ["a     1", "bbb  22"]


def test_a_plan_is_one_screen(golden: HoldGolden) -> None:
    """The four-pod plan, to the letter; within 100 columns and 55 lines."""
    screen = plan.screen(make_plan(spec_of()), "orch explain spec.yaml")
    golden("plan_70b_4pod.txt", screen)
    lines = screen.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 55


def test_the_last_lines_are_the_verdict_and_the_next_command() -> None:
    """A person who reads only the end knows what to think and what to do."""
    lines = plan.screen(make_plan(spec_of()), "orch explain spec.yaml").splitlines()
    assert lines[-2].startswith("Plan: fits, bound by ")
    assert lines[-1] == "Next: orch explain spec.yaml"


def test_a_moved_batch_is_said_out_loud() -> None:
    """1,024 asked, 1,120 planned."""
    screen = plan.screen(make_plan(spec_of()), "x")
    assert "asked 1,024: moved +9.4 % to divide" in screen


def test_runners_up_say_what_they_lose(golden: HoldGolden) -> None:
    """One row a mesh; the first loses nothing."""
    golden("alternatives_70b_4pod.txt", alternatives.table(make_plans(spec_of(), 4)))
