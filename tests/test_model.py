"""The protocol of claims, attempts, checkpoints and slices, tried in every order within bounds."""

from dataclasses import replace

import pytest

from tests.model.checker import check
from tests.model.protocol import Bounds, Rules, rule_names

ONE_FAULT = Bounds(faults=1, drivers=3, steps=2)
TWO_FAULTS = Bounds(faults=2, drivers=2, steps=1)
# Without a guard: the promise that breaks, and a move that the shortest way to it has.
BROKEN = {
    "exclusive_numbers": ("claimed with a number that an event had", "claims by an old look"),
    "look_for_successor": ("is superseded, and cannot know it", "driver 0 goes on"),
    "ranks_watch": ("can never end", "on hosts that others cannot reach"),
    "evict": ("can never end", "the ranks of attempt 1 stop"),
    "end_ranks": ("two attempts are on the same slices", "one rank of attempt 1 dies"),
    "recorded_only": ("began from a step of a superseded claim", "driver 1 claims"),
    "own_folders": ("can never end", "another has saved step 1"),
    "prune_recorded": ("a checkpoint that counts is gone", "driver 1 claims"),
}


@pytest.mark.parametrize("bounds", [ONE_FAULT, TWO_FAULTS], ids=["one fault", "two faults"])
def test_no_step_of_a_superseded_claim_survives_and_a_resume_progresses(bounds: Bounds) -> None:
    """Whatever dies or stops, and however old a look at a folder is."""
    result = check(bounds)
    assert (result.broken, result.trace) == (None, ())
    assert result.states > 2_000


@pytest.mark.parametrize("rule", rule_names())
def test_each_guard_is_needed(rule: str) -> None:
    """Without it a few moves break a promise."""
    bounds = TWO_FAULTS if rule == "evict" else ONE_FAULT
    rules = Rules(**{name: name != rule for name in rule_names()})
    result = check(replace(bounds, rules=rules))
    promise, move = BROKEN[rule]
    assert result.broken
    assert promise in result.broken
    assert any(move in one for one in result.trace), result.trace


@pytest.mark.slow
def test_two_faults_and_two_steps() -> None:
    """A larger search: minutes."""
    assert check(Bounds(faults=2, drivers=3, steps=2)).broken is None
