"""What to rent: offers are real plans, odds follow from intervals, and refusals are true."""

import json
from dataclasses import replace
from datetime import date
from functools import partial
from math import erf, inf, log, sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

import orchestrator as api
from orchestrator import catalog
from orchestrator.errors import NoTopology, SpecError
from orchestrator.formatting import dollars
from orchestrator.planning.many_slices import best_of_slices
from orchestrator.planning.nearest_specs import changed
from orchestrator.planning.offers import (
    Offer,
    OfferRequest,
    Offers,
    UnknownCost,
    _is_round,
    _joined,
    _odds_of,
    chance,
)
from orchestrator.planning.planner import make_plan
from orchestrator.planning.ranking import best_choice
from orchestrator.planning.search import search, search_request
from orchestrator.reading.offer_options import (
    WrongOption,
    _dollars_of,
    _read_prices,
    offer_request,
)
from orchestrator.reading.problems import SpecProblems
from orchestrator.run.progress import ProgressEvent, UnitsDone
from orchestrator.show.offers_screen import odds_text, offers_screen
from orchestrator.values.plan import Estimate, Extrapolation
from orchestrator.values.spec import MeshRequest, Spec
from tests.conftest import ROOT, RunOrch
from tests.example_specs import TINY, chosen, spec_of

SPEC = "specs/llama3_8b_v6e_2slice.yaml"
TODAY = date(2026, 11, 22)
OF_80_PERCENT = 1.2815515655446004  # deviations from the middle of a normal distribution


def small_spec(**more: object) -> Spec:
    """Llama 3 8B on 500B tokens: small slices serve it, so that tests are quick."""
    settings = {"model": "llama3-8b", "chip": "v6e", "topology": "16x16", "pods": 1,
                "tokens": 500 * 10**9, "tolerance": 0.0}  # fmt: skip
    return spec_of(**{**settings, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Offers:
    return api.offers(small_spec(), by="30d", budget="400k", chips="v5e,v6e,v5p")


def test_stages_have_the_farthest_value_along_each_axis(found: Offers) -> None:
    """Also along an axis on which all published runs have zero."""
    few, many = (
        tuple(
            Extrapolation(axis=axis, value=value, low=0.0, high=high)
            for axis, high in (("length", 4.0), ("pipeline", 0.0))
        )
        for value in (8.0, 16.0)
    )
    assert found.cheapest is not None
    stages = [(replace(found.cheapest, extrapolations=own), 0.0, 0.0) for own in (few, many, few)]
    joined = {axis.axis: axis.value for axis in _joined(stages, found.request).extrapolations}
    assert joined == {"length": 16.0, "pipeline": 8.0}


# --- the search over many slices


@pytest.mark.parametrize(
    "spec",
    [
        small_spec(tolerance=0.1),
        small_spec(model="llama3-70b", length=32_768, sequences=96, tolerance=0.25),
        small_spec(model="mixtral-8x7b", tolerance=0.05),
        small_spec(model="gemma3-27b", remat="full"),
        small_spec(model=TINY, sequences=96, length=512),
    ],
    ids=["8b", "70b-long", "mixtral", "gemma-full", "tiny"],
)
def test_many_slices_together_are_chosen_as_each_alone(spec: Spec) -> None:
    """The bounds that save the pricing of most meshes change no choice."""
    for chip, shapes in (
        ("v5e", ("4x4", "16x16")),
        ("v6e", ("8x16",)),
        ("v5p", ("2x2x1", "4x8x8")),
        ("tpu7x", ("4x4x4",)),
    ):
        requests = [
            search_request(
                changed(spec, {"resources.chip": chip, "resources.topology": shape,
                               "resources.pods": pods})
            )
            for shape in shapes
            for pods in (1, 6)
        ]  # fmt: skip
        alone = [best_choice(request, search(request).candidates) for request in requests]
        assert best_of_slices(requests) == alone


@pytest.mark.parametrize(
    "mesh", [MeshRequest(fsdp_dcn=2), MeshRequest(tensor=4), MeshRequest(fsdp_dcn=4, sequence=2)]
)
def test_a_requested_mesh_is_chosen_as_by_the_search_of_one_slice(mesh: MeshRequest) -> None:
    """Suggestions of a refusal search one slice at a time, also where slices share weights."""
    spec = small_spec(model="llama3-70b", chip="v5e", topology="8x16", pods=4, mesh=mesh)
    request = search_request(spec)
    [choice] = best_of_slices([request])
    assert choice is not None
    assert choice == chosen(request)


def test_requested_microbatches_stay() -> None:
    """A number that a spec requests is the only one that is priced."""
    spec = small_spec(sequences=64)
    batch = replace(spec.experiment.batch, microbatches=4)
    spec = replace(spec, experiment=replace(spec.experiment, batch=batch))
    [choice] = best_of_slices([search_request(spec)])
    assert choice is not None
    assert choice == chosen(search_request(spec))
    assert choice.microbatches == 4


# --- offers


def test_an_offer_is_the_plan_of_its_overrides(found: Offers) -> None:
    """Pasted, the overrides give the same mesh, days and dollars."""
    planned = [offer for offer in found.offers if offer.days]
    assert len(planned) > 20
    assert {offer.chip for offer in planned[::19]} == {"v5e", "v6e", "v5p"}
    for offer in planned[::19]:
        plan = make_plan(pasted(small_spec(), offer))
        inside = {axis: plan.mesh[axis] for axis in offer.mesh or {}}
        assert (plan.chip, plan.topology, plan.pods, plan.chips, inside) == (
            offer.chip, offer.topology, offer.pods, offer.chips, offer.mesh,
        )  # fmt: skip
        assert (plan.forecast.days, plan.forecast.dollars) == (offer.days, offer.dollars)
        assert (plan.forecast.step_s, plan.forecast.mfu) == (offer.step_s, offer.mfu)
        assert plan.remat == offer.remat


def pasted(spec: Spec, one: Offer) -> Spec:
    """The spec with an offer's overrides, as if they were typed."""
    change = dict(text.split("=") for text in one.overrides)
    numbers = {"resources.pods": int, "resources.dollars_per_chip_hour": float}
    return changed(spec, {key: numbers.get(key, str)(value) for key, value in change.items()})


def test_refused_offers_have_no_plan(found: Offers) -> None:
    """An offer that is left out for anything but time cannot be planned."""
    refused = [offer for offer in found.offers if offer.reason and offer.reason.code != "too_slow"]
    assert refused
    for offer in refused[::9]:
        with pytest.raises(SpecError):
            make_plan(pasted(small_spec(), offer))


def test_too_slow_is_a_bound(found: Offers) -> None:
    """No plan of a slice is faster than the bound for which it was left out."""
    slow = [offer for offer in found.offers if offer.reason and offer.reason.code == "too_slow"]
    assert slow
    for offer in slow[::12]:
        assert offer.reason
        bound = float(offer.reason.figures["days_at_best"])
        assert bound > 30
        try:
            plan = make_plan(pasted(small_spec(), offer))
        except SpecError:
            continue
        assert plan.forecast.days.lower >= bound * (1 - 1e-9)


def test_every_offer_says_something(found: Offers) -> None:
    """It has a plan, or the reason why not; of chip, topology and pods each stands once."""
    places = [(offer.chip, offer.topology, offer.pods) for offer in found.offers]
    assert len(set(places)) == len(places)
    for offer in found.offers:
        assert (offer.days is None) == (offer.reason is not None)
        assert (
            offer.chips
            == offer.pods * catalog.topology(catalog.chip(offer.chip), offer.topology).chips
        )
        assert _is_round(offer.chips // offer.pods)


def test_the_frontier_is_what_no_other_undercuts(found: Offers) -> None:
    """Of every offer off the frontier another is at least as fast and as cheap."""
    planned = [offer for offer in found.offers if offer.days and offer.dollars]
    figures = {id(offer): expected(offer) for offer in planned}
    for offer in planned:
        days, dollars = figures[id(offer)]
        better = [
            other
            for other in planned
            if other is not offer
            and figures[id(other)][0] <= days
            and figures[id(other)][1] <= dollars
            and figures[id(other)] != (days, dollars)
        ]
        assert offer.on_frontier == (not better)


def expected(one: Offer) -> tuple[float, float]:
    assert one.days
    assert one.dollars
    return one.days.expected or 0.0, one.dollars.expected or 0.0


def test_the_chosen_are_the_least_of_those_that_are_sure(found: Offers) -> None:
    """The cheapest holds both limits, the fastest the budget, each nine times in ten."""
    planned = [offer for offer in found.offers if offer.odds]
    sure = [offer for offer in planned if offer.odds and (offer.odds.both or 0) >= 0.9]
    paid = [offer for offer in planned if offer.odds and (offer.odds.in_budget or 0) >= 0.9]
    assert found.cheapest == min(sure, key=lambda offer: expected(offer)[1])
    assert found.fastest == min(paid, key=lambda offer: expected(offer)[0])


def test_the_best_of_each_chip_comes_before_the_list(found: Offers) -> None:
    """Each chip has the offer that it would have if it were the only one, or says why none."""
    assert {o.chip for o in found.best_of_chips} == {"v5e", "v6e", "v5p"}
    for best in found.best_of_chips[1:]:
        only = api.offers(small_spec(), by="30d", budget="400k", chips=best.chip)
        chosen = only.cheapest or only.likeliest or only.fastest
        assert chosen is not None
        assert best.overrides == chosen.overrides
    large = small_spec(model="llama3-405b", tokens=15 * 10**12)
    shown = offers_screen(api.offers(large, by="30d", chips="v5e,tpu7x"), None)
    head, _, after = shown.partition("side by side, ")
    best_rows, _, listed = after.partition("that no other undercuts:")
    assert "v5e: no plan: " in best_rows
    assert " tpu7x " in best_rows
    assert "v5e" not in listed.partition("planned, of")[0]
    assert "side by side" not in offers_screen(only, None)
    assert head


def test_where_nothing_is_sure_the_likeliest_stands() -> None:
    """Too little money leaves odds, and no choice."""
    found = api.offers(small_spec(), by=20, budget=1000.0, chips=["v6e"])
    assert found.cheapest is None
    assert found.fastest is None
    assert found.likeliest is not None
    assert found.likeliest.odds is not None
    assert found.likeliest.odds.both == 0.0
    shown = offers_screen(found, None, "brief")
    assert "no offer comes near: each has odds below 1 %" in shown
    ends = sorted(expected(offer)[1] for offer in found.offers if offer.on_frontier)
    [cheapest, fastest] = [line for line in shown.splitlines() if " of all " in line]
    assert cheapest.endswith(f", {dollars(ends[0])}")
    assert fastest.endswith(f", {dollars(ends[-1])}")


def test_the_reason_names_too_few_sequences() -> None:
    """Sixteen sequences feed no hundred slices."""
    found = api.offers(small_spec(sequences=16, tokens=10**13), chips="v5e", by="60d")
    codes = {offer.reason.code for offer in found.offers if offer.reason}
    assert "too_few_sequences" in codes
    for offer in found.offers:
        if offer.reason and offer.reason.code == "too_few_sequences":
            assert int(offer.reason.figures["least"]) > 16


def test_a_model_too_large_for_a_slice_lacks_memory() -> None:
    """One chip cannot hold 8B parameters in training."""
    found = api.offers(small_spec(tokens=10**9), chips="v6e", by="300d")
    [one] = [o for o in found.offers if (o.topology, o.pods) == ("1x1", 1)]
    assert one.reason is not None
    assert one.reason.code == "memory"


def test_a_large_batch_is_said() -> None:
    """Beyond what the field trains with, the offers carry the plan's own warning."""
    found = api.offers(small_spec(sequences=65_536), chips="v6e", by="30d")
    [large] = found.warnings
    assert large.code == "large_batch"
    assert found.critical_batch_tokens == large.figures["critical_tokens"]
    assert all(offer.tokens_per_chip for offer in found.offers if offer.days)


# --- odds


@given(
    lower=st.floats(1, 100), over=st.floats(1.001, 5), up=st.floats(1.01, 4),
    down=st.floats(1.01, 4), limit=st.floats(0.5, 2000),
)  # fmt: skip
def test_odds_are_those_of_a_normal_logarithm(
    lower: float, over: float, up: float, down: float, limit: float
) -> None:
    """The closed form: the error function of how many deviations the limit lies away, on its side
    of what is expected.
    """
    middle = lower * over
    low = max(lower, middle / down)
    estimate = Estimate(lower=lower, unoverlapped=9 * middle, expected=middle, low=low,
                        high=middle * up)  # fmt: skip
    width = log(up) if limit >= middle else log(middle / low)
    closed = (1 + erf(log(limit / middle) / (width / OF_80_PERCENT) / sqrt(2))) / 2
    assert chance(estimate, limit, extrapolates=False) == pytest.approx(
        closed if limit >= lower else 0.0, abs=1e-6
    )


def test_the_interval_holds_four_of_five() -> None:
    """At its high end nine of ten runs are done, at what is expected half of them."""
    estimate = Estimate(lower=1.0, unoverlapped=99.0, expected=10.0, low=5.0, high=20.0)
    assert chance(estimate, 10.0, extrapolates=False) == pytest.approx(0.5)
    assert chance(estimate, 20.0, extrapolates=False) == pytest.approx(0.9, abs=1e-3)
    assert chance(estimate, 5.0, extrapolates=False) == pytest.approx(0.1, abs=1e-3)
    assert (
        chance(replace(estimate, expected=None, low=None, high=None), 10.0, extrapolates=False)
        is None
    )


def test_both_limits_hold_as_often_as_the_rarer() -> None:
    """Dollars follow days, so that nothing is lost twice."""
    days = Estimate(lower=1.0, unoverlapped=99.0, expected=10.0, low=5.0, high=20.0)
    dollars = Estimate(lower=100.0, unoverlapped=9900.0, expected=1000.0, low=500.0, high=2000.0)
    odds_within = partial(_odds_of, extrapolates=False)
    odds = odds_within(days, dollars, 20.0, 1000.0)
    assert odds.both == odds.in_budget == pytest.approx(0.5)
    assert odds_within(days, None, 20.0, 1000.0).both is None
    assert odds_within(days, None, 20.0, None).both == odds.by_date
    assert odds_within(days, dollars, None, None).both is None


def test_outside_of_published_runs_no_odds_are_above_the_end_of_an_interval() -> None:
    """The same estimate, 300 times faster than the limit; and offers with 32 tokens per chip."""
    estimate = Estimate(lower=1.0, unoverlapped=99.0, expected=10.0, low=5.0, high=20.0)
    assert chance(estimate, 3000.0, extrapolates=False) == pytest.approx(1.0)
    assert chance(estimate, 3000.0, extrapolates=True) == 0.9
    assert chance(estimate, 10.0, extrapolates=True) == pytest.approx(0.5)
    found = api.offers(small_spec(tokens=10**11), by="300d", chips="v6e")
    odds = [
        (o.odds.both or 0.0, bool(o.extrapolations), o.tokens_per_chip)
        for o in found.offers
        if o.odds
    ]
    assert max(both for both, is_outside, _ in odds if not is_outside) > 0.99
    assert {both for both, is_outside, _ in odds if is_outside} == {0.9}
    assert all(is_outside for _, is_outside, tokens in odds if tokens == 128)


# --- options


def asked(**options: Any) -> OfferRequest:
    """The request of a small spec with these options, today."""
    usual = dict.fromkeys(("by", "budget", "chips", "prices"))
    return offer_request(small_spec().resources, **(usual | options), today=TODAY)


@pytest.mark.parametrize(
    ("by", "days"),
    [("30d", 30), ("6w", 42), ("12h", 0.5), ("2027-03-01", 99), (12.5, 12.5),
     (date(2026, 12, 2), 10)],
)  # fmt: skip
def test_a_date_is_days_from_today(by: str | float | date, days: float) -> None:
    assert asked(by=by).by_days == days


@pytest.mark.parametrize(
    "by",
    ["yesterday", "2026-11-22", "2020-01-01", "2026-02-30", "0d", "-3d", "30", "", "1e3d", "nan",
     "9999999d", -1.0, float("inf"), date(2026, 11, 1)],
)  # fmt: skip
def test_a_wrong_date_is_refused(by: str | float | date) -> None:
    with pytest.raises(WrongOption) as error:
        asked(by=by)
    assert (error.value.key, error.value.exit_code) == ("--by", 2)


@pytest.mark.parametrize(
    ("budget", "dollars"),
    [("2M", 2e6), ("500k", 5e5), ("$1.5M", 1.5e6), ("2,000,000", 2e6), ("1B", 1e9), (7.0, 7.0)],
)
def test_a_budget_is_dollars(budget: str | float, dollars: float) -> None:
    assert _dollars_of(budget) == dollars


@pytest.mark.parametrize("budget", ["-3", "0", "2T", "much", "", "M", "nan", "1e9", float("inf")])
def test_a_wrong_budget_is_refused(budget: str | float) -> None:
    with pytest.raises(WrongOption) as error:
        _dollars_of(budget)
    assert error.value.key == "--budget"


@pytest.mark.parametrize("chips", ["v5p,v9", "h1000", "", "v5p,,v6e", []])
def test_unknown_chips_are_refused(chips: str | list[str]) -> None:
    with pytest.raises(WrongOption) as error:
        asked(chips=chips)
    assert "v5p" in str(error.value)


def test_prices_are_those_of_the_catalog_or_of_a_file(tmp_path: Path) -> None:
    """Dollars are in proportion; the overrides carry a price that the plan would not take."""
    mine = tmp_path / "prices.yaml"
    mine.write_text("v6e: 1.35  # half\n", encoding="utf-8")
    by_kind = {
        kind: api.offers(small_spec(), by="30d", chips="v6e", prices=kind)
        for kind in ("on-demand", "reserved", "spot", str(mine))
    }
    chip = catalog.chip("v6e")
    assert chip.dollars_per_hour and chip.reserved_dollars_per_hour and chip.spot_dollars_per_hour  # noqa: PT018
    wanted = (chip.dollars_per_hour.value, chip.reserved_dollars_per_hour.value,
              chip.spot_dollars_per_hour.value, 1.35)  # fmt: skip
    for found, price in zip(by_kind.values(), wanted, strict=True):
        [one] = [o for o in found.offers if (o.topology, o.pods) == ("16x16", 1)]
        assert one.dollars_per_chip_hour == price
        assert one.dollars
        assert one.days
        assert one.dollars.lower == pytest.approx(one.days.lower * 24 * 256 * price)
        stated = f"resources.dollars_per_chip_hour={price}"
        assert (stated in one.overrides) == (price != chip.dollars_per_hour.value)


def test_the_price_of_a_spec_is_for_its_own_chip() -> None:
    """Another chip has the price of the catalog, also after the overrides are pasted."""
    spec = small_spec()
    spec = replace(spec, resources=replace(spec.resources, dollars_per_chip_hour=1.0))
    found = api.offers(spec, by="30d", chips="v5e,v6e")
    prices = {offer.chip: offer.dollars_per_chip_hour for offer in found.offers}
    assert prices == {"v5e": 1.2, "v6e": 1.0}
    other = next(offer for offer in found.offers if offer.chip == "v5e" and offer.days)
    assert make_plan(pasted(spec, other)).forecast.dollars_per_chip_hour == 1.2


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [("v5p: -1\n", "illegal-value", 1), ("v5p: 2\nv9: 3\n", "unknown-key", 2),
     ("v5p: [2]\n", "illegal-value", 1), ("- v5p\n", "illegal-value", 1), ("", "illegal-value", 1),
     ("v5p: .nan\n", "illegal-value", 1), ("v5p: 2\nv5p: 3\n", "duplicate-key", 2)],
)  # fmt: skip
def test_a_wrong_file_of_prices_is_refused(tmp_path: Path, text: str, code: str, line: int) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecProblems) as error:
        _read_prices(path)
    problem = error.value.problems[0]
    assert (problem.code, problem.line, error.value.exit_code) == (code, line, 2)


def test_an_unknown_price_leaves_dollars_open_and_a_budget_refused(tmp_path: Path) -> None:
    """A chip without a price is planned where nothing is to be paid, and named where it is."""
    mine = tmp_path / "prices.yaml"
    mine.write_text("v5p: 2\n", encoding="utf-8")
    free = api.offers(small_spec(), by="30d", chips="v6e", prices=str(mine))
    assert {offer.dollars for offer in free.offers} == {None}
    assert free.cheapest is None
    assert free.fastest is not None
    paid = api.offers(small_spec(), by="30d", chips="v6e", prices=str(mine), budget="1M")
    assert {offer.reason.code for offer in paid.offers if offer.reason} == {"no_price"}


# --- sizing


def test_without_a_topology_the_search_answers(tmp_path: Path) -> None:
    """Left out or auto, the topology is open: offers of the spec's chip, and no plan."""
    text = (ROOT / SPEC).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "topology:" not in line]
    path = tmp_path / "open.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    spec = api.load(path)
    opened = api.load(ROOT / SPEC, ["resources.topology=auto"])
    assert replace(spec, choice=None) == replace(opened, overrides=())
    with pytest.raises(NoTopology):
        api.plan(spec)
    found = api.offers(spec, by="40d")
    assert {offer.chip for offer in found.offers} == {"v6e"}
    assert found.cheapest is not None


def test_a_mesh_is_for_the_slices_that_it_was_requested_for() -> None:
    """Offers search meshes anew, and say so."""
    spec = small_spec()
    mesh = replace(spec.resources.mesh, tensor=4)
    spec = replace(spec, resources=replace(spec.resources, mesh=mesh))
    found = api.offers(spec, by="30d", chips="v6e")
    assert all("resources.mesh=auto" in offer.overrides for offer in found.offers)


def test_another_trainer_has_no_offers() -> None:
    """The forecast is not about its program."""
    spec = small_spec()
    with pytest.raises(UnknownCost):
        api.offers(replace(spec, run=replace(spec.run, trainer="mlp")), by="30d")


def test_a_chip_of_ones_own_has_offers_without_odds(orch: RunOrch, tmp_path: Path) -> None:
    """Nothing is known of what runs on it reach: bounds, no odds, no choice that is sure."""
    definition = (ROOT / "orchestrator/catalog/chips/v6e.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(definition, encoding="utf-8")
    spec = (ROOT / SPEC).read_text(encoding="utf-8")
    own = spec.replace("chip: v6e", "chip: {file: mine.toml}").replace("16x16", "auto")
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    done = orch("plan", str(tmp_path / "own.yaml"), "--by", "60d", "--json")
    value = json.loads(done.stdout)
    assert value["cheapest"] is None
    assert {offer["chip"] for offer in value["offers"]} == {"mine"}
    planned = [offer for offer in value["offers"] if offer["days"]]
    assert planned
    assert {offer["odds"]["both"] for offer in planned} == {None}
    assert orch("plan", str(tmp_path / "own.yaml"), "--by", "60d").returncode == 0


# --- GPUs


@pytest.fixture(scope="module")
def beside() -> Offers:
    """TPUs and GPUs, one without a price and one that holds nothing of the model's type."""
    return api.offers(small_spec(), by="30d", chips="v6e,h100,gb200,v5e")


def test_an_offer_of_gpus_is_the_plan_of_its_overrides(beside: Offers) -> None:
    """Domains of eight in powers of two; of a domain of 72, all of it or 64."""
    planned = [offer for offer in beside.offers if offer.days and offer.chip in ("h100", "gb200")]
    assert {offer.topology for offer in planned if offer.pods > 1} == {"8", "64", "72"}
    assert {offer.pods.bit_count() for offer in planned} == {1}
    for offer in planned[::5]:
        plan = make_plan(pasted(small_spec(), offer))
        assert {axis: plan.mesh[axis] for axis in offer.mesh or {}} == offer.mesh
        assert plan.forecast.days == offer.days
        assert plan.forecast.mfu == offer.mfu
        assert plan.forecast.memory_bytes_per_device == pytest.approx(
            (offer.memory_share or 0) * plan.forecast.hbm_bytes_per_device
        )


def test_each_chip_has_a_row_the_cheapest_first(beside: Offers) -> None:
    """A chip without a price has the fewest chip-days among what is sure, below those with one."""
    rows = beside.best_of_chips
    assert {row.chip for row in rows} == {"v6e", "h100", "gb200", "v5e"}
    sure = [row for row in rows if row.odds and (row.odds.both or 0) >= beside.request.sure]
    assert sure == list(rows[: len(sure)])
    costs = [offer.dollars.likeliest if offer.dollars else inf for offer in sure]
    assert costs == sorted(costs)
    for row in sure:
        others = [
            offer for offer in beside.offers if offer.chip == row.chip and offer.days and offer.odds
        ]
        assert row.days
        least = min(
            other.chips * other.days.likeliest
            for other in others
            if other.days and other.odds and (other.odds.both or 0) >= beside.request.sure
        )
        assert row.chips * row.days.likeliest == pytest.approx(least)
    shown = str(offers_screen(beside, None))
    assert "no price" in shown
    assert "gb200: no price is known; --prices takes a file of yours" in " ".join(shown.split())


def test_tpus_have_the_same_offers_beside_gpus(beside: Offers) -> None:
    alone = api.offers(small_spec(), by="30d", chips="v6e,v5e")
    places = ({**to_builtins(offer), "on_frontier": False} for offer in alone.offers)
    of_tpus = [offer for offer in beside.offers if offer.chip in ("v6e", "v5e")]
    assert [*places] == [{**to_builtins(offer), "on_frontier": False} for offer in of_tpus]


def test_a_chip_that_cannot_says_why_in_its_row() -> None:
    """405B fits no v5e, and no GPU has a rate for what it cannot compute."""
    spec = small_spec(model="llama3-405b", chip="v5p", topology="4x4x4", tokens=10**10)
    spec = changed(spec, {"experiment.precision.compute": "fp8"})
    found = api.offers(spec, by="3000d", chips="b200,a100")
    assert [best.chip for best in found.best_of_chips] == ["b200", "a100"]
    first, last = found.best_of_chips
    assert first.days
    assert last.reason
    assert last.reason.code == "no_rate"
    assert "a100: no plan:" in str(offers_screen(found, None))


def test_more_gpus_than_the_date_needs_are_not_planned(beside: Offers) -> None:
    """They would cost more than the number that holds it."""
    skipped = [o for o in beside.offers if o.reason and o.reason.code == "more_than_needed"]
    assert {offer.chip for offer in skipped} == {"h100", "gb200"}
    for held in beside.best_of_chips:
        for more in [offer for offer in skipped if offer.chip == held.chip][:1]:
            dearer = make_plan(pasted(small_spec(), more))
            assert held.days
            assert dearer.chips * dearer.forecast.days.likeliest > held.chips * held.days.likeliest


def test_progress_reaches_all_offers() -> None:
    events: list[ProgressEvent] = []
    found = api.offers(small_spec(), by="30d", chips="v6e,gb200", progress=events.append)
    counts = [event.done for event in events if isinstance(event, UnitsDone)]
    assert counts == sorted(counts)
    assert counts[-1] == len(found.offers)


# --- the command


def test_the_command_prints_json(orch: RunOrch) -> None:
    """All of it, with the keys that are promised; what --json prints is what the API returns."""
    done = orch("plan", SPEC, "--by", "30d", "--budget", "2M", "--chips", "v6e", "--json")
    assert done.returncode == 0
    value = json.loads(done.stdout)
    assert {"offers", "cheapest", "fastest", "likeliest", "request", "warnings"} <= value.keys()
    one = next(offer for offer in value["offers"] if offer["days"])
    for key in ("chip", "topology", "pods", "chips", "overrides", "days", "dollars", "odds"):
        assert one[key] is not None
    assert {"lower", "expected", "low", "high"} <= one["days"].keys() & one["dollars"].keys()
    assert one["odds"].keys() == {"by_date", "in_budget", "both"}
    refused = next(offer for offer in value["offers"] if offer["reason"])
    assert refused["days"] is None
    assert refused["reason"]["code"]


def test_what_the_command_proposes_can_be_pasted(orch: RunOrch, tmp_path: Path) -> None:
    """The last line plans the cheapest offer, and `orch init --from` makes its spec."""
    asked = ("plan", SPEC, "--by", "30d", "--chips", "v6e,v5p")
    [*_, following] = orch(*asked).stdout.splitlines()
    assert following.startswith("Next: orch plan ")
    cheapest = json.loads(orch(*asked, "--json").stdout)["cheapest"]
    plan = json.loads(orch(*following.split()[2:], "--json").stdout)
    assert plan["forecast"]["days"] == cheapest["days"]
    made = tmp_path / "made.yaml"
    sets = [word for override in cheapest["overrides"] for word in ("--set", override)]
    assert orch("init", "--from", str(ROOT / SPEC), *sets, str(made)).returncode == 0
    assert api.plan(made).forecast.days.expected == cheapest["days"]["expected"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--by", "yesterday"), "wrong_option"),
        (("--by", ""), "wrong_option"),
        (("--budget", "-3"), "wrong_option"),
        (("--chips", "v9"), "wrong_option"),
        (("--prices", "nowhere.yaml"), "wrong_option"),
        (("--prices", "."), "folder"),
        (("--by", "30d", "--alternatives", "2"), "usage"),
        (("--html", "x.html", "--profile", "1234"), "usage"),
        (("specs/tiny_2pod.yaml", "--by", "30d"), "usage"),
        (("--by", "30d", "--stage", "1"), "usage"),
    ],
)
def test_wrong_optiones_end_in_their_code(
    orch: RunOrch, arguments: tuple[str, ...], code: str
) -> None:
    done = orch("plan", SPEC, *arguments, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["code"] == code


def test_slices_without_any_plan_end_in_two(orch: RunOrch, tmp_path: Path) -> None:
    """The reasons are still there to read."""
    done = orch("plan", SPEC, "--chips", "v5e", "--set", "experiment.model=llama3-405b", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["cheapest"] is None
    assert not list(tmp_path.iterdir())


def test_the_page_has_the_picture(orch: RunOrch, tmp_path: Path) -> None:
    """Every planned offer is a dot that names it, and the frontier is a line."""
    page = tmp_path / "offers.html"
    done = orch(
        "plan", SPEC, "--by", "30d", "--budget", "1M", "--chips", "v6e", "--html", str(page)
    )
    assert done.returncode == 0
    text = page.read_text(encoding="utf-8")
    found = api.offers(ROOT / SPEC, by="30d", budget="1M", chips="v6e")
    in_key = 1  # of the one chip, a dot as in the plot
    assert (
        text.count("<circle") == sum(offer.dollars is not None for offer in found.offers) + in_key
    )
    assert "<polyline" in text
    *_, wrote, following = done.stdout.splitlines()
    assert wrote == f"wrote {page}"
    assert following.startswith("Next: orch plan ")


def test_odds_that_are_not_sure_enough_do_not_look_sure(found: Offers) -> None:
    one = next(offer for offer in found.offers if offer.odds)
    assert one.odds
    shown = [
        odds_text(replace(one, odds=replace(one.odds, both=odds)))
        for odds in (0.004, 0.8999, 0.9, 0.995)
    ]
    assert shown == ["<1 %", "89 %", "90 %", ">99 %"]


def test_the_deadline_of_a_spec_is_the_time_limit() -> None:
    """Where none is named; a past one is refused."""
    base = small_spec(tokens=10**9)
    by_30 = replace(base, run=replace(base.run, deadline="30d"))
    [first, named] = [api.offers(by_30, chips="v6e", by=by).request.by_days for by in (None, "20d")]
    assert (first, named) == (30.0, 20.0)
    with pytest.raises(SpecError):
        api.offers(replace(base, run=replace(base.run, deadline="2020-01-01")), chips="v6e")
