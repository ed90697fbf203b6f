"""Numbers as people read them."""

import pytest

from orchestrator.formatting import ago, change_by, dollars, in_memory, time_limit


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [(-60.0, "0 s ago"), (59.0, "59 s ago"), (7200.0, "2 h ago"), (3 * 86_400.0, "3 days ago")],
)
def test_an_age_is_never_negative(age_s: float, shown: str) -> None:
    """Whoever wrote a time may have a clock that is ahead."""
    assert ago(age_s) == shown


@pytest.mark.parametrize(
    ("days", "shown"), [(30, "30 days"), (1, "1 day"), (0.5, "12 hours"), (45.5, "45.5 days")]
)
def test_a_limit_is_shown_as_it_was_chosen(days: float, shown: str) -> None:
    assert time_limit(days) == shown


@pytest.mark.parametrize(("ratio", "shown"), [(1.094, "+9.4 %"), (0.5, "-50.0 %"), (3.2, "x 3.2")])
def test_a_large_change_is_a_multiple(ratio: float, shown: str) -> None:
    assert change_by(ratio) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "$0"), (3e-5, "<$0.01"), (0.096, "$0.10"), (1.6, "$1.60"), (25, "$25"),
        (38.25, "$38.25"), (99.996, "$100"), (940.2, "$940"), (17_310_000, "$17.3M"),
    ],
)  # fmt: skip
def test_small_sums_have_their_cents(value: float, shown: str) -> None:
    assert dollars(value) == shown


def test_no_memory_is_zero() -> None:
    assert [in_memory(size) for size in (0, 100, 1 << 20, 1 << 30)] == [
        "0", "< 0.01 MiB", "1.00 MiB", "1.00 GiB",
    ]  # fmt: skip
