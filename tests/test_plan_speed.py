"""Speed as ratios, both sides measured in this run, least of several so that noise cancels."""

from functools import partial

from orchestrator.plan.planner import ask_of
from tests.bench.plan_speed import CASES, choose, imports_ratio, price_one_by_one, seconds


def test_a_plan_costs_at_most_three_bare_imports() -> None:
    """`orch plan` of the four pods against `import numpy, yaml, jsonschema`."""
    bare, plan = imports_ratio(rounds=5)
    assert plan / bare <= 3


def test_the_search_prices_arrays_not_rows() -> None:
    """All candidates of 71,680 chips take less time than 400 ledgers one by one."""
    ask = ask_of(CASES["405B, 8 pods of 16x20x28"])
    together = min(seconds(partial(choose, ask)) for _ in range(5))
    alone = min(seconds(partial(price_one_by_one, ask, 400)) for _ in range(3))
    assert together < alone
