"""Serving specs: load, plan and derive them, and hold forecasts against published runs."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.evidence.explain.serving import ServingExplanation, derive
from orchestrator.evidence.score import serving as evaluate
from orchestrator.evidence.score.serving_runs import is_serving as has_serving_runs
from orchestrator.reading.load import is_serving as describes_serving
from orchestrator.reading.load_serving import load_serving as load
from orchestrator.reading.offer_options import serving_request
from orchestrator.serving.cheapest import ServingOffers
from orchestrator.serving.cheapest import serving_offers as make_offers
from orchestrator.serving.planner import make_serving_plan
from orchestrator.values.serving import ServingPlan, ServingSpec

ServingSource: TypeAlias = str | Path | ServingSpec  # the path of a spec, or a spec


def is_serving(path: str | Path) -> bool:
    """Return whether a YAML file says what to serve rather than what to train, or a CSV file has
    serving runs.
    """
    found = Path(path)
    return has_serving_runs(found) if found.suffix == ".csv" else describes_serving(found)


def load_serving(path: str | Path, overrides: Sequence[str] = ()) -> ServingSpec:
    """Return the serving spec in a YAML file. `overrides` are `key=value`, as after `--set`."""
    return load(Path(path), tuple(overrides))


def plan_serving(spec: ServingSource, overrides: Sequence[str] = ()) -> ServingPlan:
    """Return the plan of a serving spec that meets its wishes, or raise `SpecError` with the
    arithmetic and the nearest that is met.
    """
    return make_serving_plan(_loaded(spec, overrides))


def serving_offers(
    spec: ServingSource,
    overrides: Sequence[str] = (),
    *,
    by: str | float | date | None = None,
    budget: str | float | None = None,
    chips: str | Sequence[str] | None = None,
    prices: str | None = None,
) -> ServingOffers:
    """Return the slices that serve a spec as it wishes, the cheapest first. `by` is how long, or
    until when, they are rented, a month by default; `budget` is dollars for that time; `chips` and
    `prices` are as for `offers`.
    """
    found, today = _loaded(spec, overrides), datetime.now(UTC).date()
    request = serving_request(
        found.resources, by=by, budget=budget, chips=chips, prices=prices, today=today
    )
    return make_offers(found, request)


def explain_serving(spec: ServingSource, overrides: Sequence[str] = ()) -> ServingExplanation:
    """Derive the plan of a serving spec, formula by formula, next to the book's answers."""
    found = _loaded(spec, overrides)
    return derive(found, make_serving_plan(found))


def score_serving(
    runs: str | Path | None = None,
    *,
    without: Literal["document", "group", "software"] | None = None,
) -> evaluate.ServingScore:
    """Compare forecasts of published serving runs with what they reached. `runs` is a CSV file, by
    default the project's own. `without` learns the constants anew without each document or
    software, and scores what it left out.
    """
    path = Path(runs) if runs else None
    if without:
        return evaluate.cross_validated(without, path)
    return evaluate.with_catalog_constants(path)


def _loaded(spec: ServingSource, overrides: Sequence[str]) -> ServingSpec:
    if isinstance(spec, ServingSpec):
        if overrides:
            raise TypeError("overrides change the file of a spec: pass its path")
        return spec
    return load_serving(spec, overrides)
