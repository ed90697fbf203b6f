"""The cheapest slices that serve a spec as it wishes."""

import json
import time

import pytest

import orchestrator as api
from orchestrator.reading.load_serving import load_serving
from orchestrator.reading.offer_options import WrongOption
from orchestrator.serving.planner import make_serving_plan
from tests.conftest import RunOrch
from tests.test_serving import DEEPSEEK, QWEN, tpot


def test_all_chips_are_searched_in_seconds() -> None:
    """One or two of a quiet processor."""
    spec = load_serving(DEEPSEEK)
    began = time.process_time()
    found = api.serving_offers(spec, budget="1M")
    assert time.process_time() - began < 20
    assert len({offer.chip for offer in found.offers}) >= 7
    assert len(found.offers) > 30


def test_the_cheapest_is_planned_and_meets_the_wishes() -> None:
    found = api.serving_offers(QWEN, by="30d", budget="20k")
    best = found.cheapest
    assert best is not None
    assert best.plan is not None
    assert best.dollars is not None
    assert best.dollars <= 20_000
    serve = best.plan.serve
    assert serve.tpot is not None
    assert tpot(best.plan).expected <= serve.tpot.time
    costs = [
        offer.dollars_per_million_output_tokens
        for offer in found.offers
        if offer.plan and offer.within_budget
    ]
    assert best.dollars_per_million_output_tokens == pytest.approx(min(filter(None, costs)), 1e-3)
    price = best.plan.forecast.dollars_per_chip_hour
    assert price is not None
    assert best.dollars == pytest.approx(price * best.plan.chips * 24 * 30)


def test_a_rate_of_requests_gets_its_replicas() -> None:
    """With more requests as many slices more, each still within the wishes."""
    spec = load_serving(DEEPSEEK, ["serve.requests_per_s=60"])
    found = api.serving_offers(spec, chips="tpu7x")
    best = found.cheapest
    assert best is not None
    assert best.plan is not None
    assert best.plan.forecast.output_tokens_per_s.expected == pytest.approx(60 * 1024)
    chips = best.plan.chips
    few = api.serving_offers(DEEPSEEK, chips="tpu7x").cheapest
    assert few is not None
    assert few.plan is not None
    assert chips > few.plan.chips


def test_an_offer_is_the_plan_of_its_spec(orch: RunOrch) -> None:
    """What the last line says to type plans the same slices."""
    done = orch("plan", str(QWEN), "--budget", "20k")
    assert done.returncode == 0, done.stderr
    [following] = [line for line in done.stdout.splitlines() if line.startswith("Next: orch plan")]
    words = following.split()[2:]
    again = json.loads(orch(*words, "--json").stdout)
    found = api.serving_offers(QWEN, budget="20k").cheapest
    assert found is not None
    assert found.plan is not None
    assert again["topology"] == found.topology
    assert again["forecast"]["output_tokens_per_s"]["expected"] == pytest.approx(
        found.plan.forecast.output_tokens_per_s.expected
    )


def test_an_open_topology_is_chosen_on_its_chip() -> None:
    found = api.serving_offers(load_serving(QWEN, ["resources.topology=auto"]))
    assert {offer.chip for offer in found.offers} == {"v6e"}
    assert found.cheapest is not None
    fixed = load_serving(QWEN, [f"resources.topology={found.cheapest.topology}"])
    assert make_serving_plan(fixed).topology == found.cheapest.topology


def test_no_slice_within_a_budget(orch: RunOrch) -> None:
    done = orch("plan", str(DEEPSEEK), "--budget", "100")
    assert done.returncode == 2
    assert "no slice serves it as wished within $100" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("option", "given"),
    [("by", "soon"), ("budget", "much"), ("chips", "v99"), ("prices", "x.yaml")],
)
def test_wrong_options_name_themselves(option: str, given: str) -> None:
    with pytest.raises(WrongOption, match=f"--{option} is {given}"):
        api.serving_offers(QWEN, **{option: given})


def test_a_chip_without_a_price_has_its_row_and_is_never_the_cheapest(orch: RunOrch) -> None:
    done = orch("plan", str(QWEN), "--chips", "v5p,gb200")
    assert done.returncode == 0, done.stderr
    assert "cheapest: v5p" in done.stdout
    assert "no price" in next(line for line in done.stdout.splitlines() if " gb200 " in line)
    assert "gb200: no price is known; --prices takes a file" in done.stdout
    alone = api.serving_offers(QWEN, chips="gb200", prices="spot").cheapest
    assert alone is not None
    assert alone.plan is not None
    assert (alone.dollars, alone.plan.forecast.dollars_per_chip_hour) == (None, None)
    assert api.serving_offers(QWEN, chips="gb200", budget="1M").cheapest is None
    # A chip with a list price has none of a kind that is not known.
    assert api.serving_offers(QWEN, chips="h100", prices="spot").offers[-1].dollars is None
