"""Serving specs: load, plan and derive them, and hold forecasts against published runs."""

import csv
from collections.abc import Sequence
from datetime import UTC, date, datetime
from math import inf
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from orchestrator.errors import SpecError
from orchestrator.evidence.explain.serving import ServingExplanation, derive
from orchestrator.evidence.score import serving as evaluate
from orchestrator.evidence.score.serving_runs import DISAGGREGATED
from orchestrator.reading.load_serving import load_serving as load
from orchestrator.reading.offer_options import WrongOption, offer_request
from orchestrator.reading.problems import SpecText
from orchestrator.run.progress import RUNS
from orchestrator.serving.cheapest import ServingOffers
from orchestrator.serving.cheapest import serving_offers as make_offers
from orchestrator.serving.frontier import ServingFrontier
from orchestrator.serving.frontier import serving_frontier as make_frontier
from orchestrator.serving.load import Requests, ServingLoad
from orchestrator.serving.planner import loaded, make_serving_plan, serving_of
from orchestrator.storage.addresses import folder
from orchestrator.values.serving import ServingPlan, ServingSpec

ServingSource: TypeAlias = str | Path | ServingSpec  # the path of a spec, or a spec


def load_serving(path: str | Path, overrides: Sequence[str] = ()) -> ServingSpec:
    """Return the serving spec in a YAML file. `overrides` are `key=value`, as after `--set`."""
    return load(Path(path), tuple(overrides))


def plan_serving(spec: ServingSource, overrides: Sequence[str] = ()) -> ServingPlan:
    """Return the plan of a serving spec that meets its wishes, or raise `SpecError` with the
    arithmetic and the nearest that is met.
    """
    return make_serving_plan(_loaded(spec, overrides))


def plan_serving_of(
    run: str, storage: str | Path = RUNS, overrides: Sequence[str] = ()
) -> ServingPlan:
    """Return how the model of a run is served on one slice of its chips; of a rehearsal, the model
    and the chips of the plan that it rehearses. `overrides` change its serving spec.
    """
    # Few plans come from a run, and both are heavy to import.
    from orchestrator.journal.listing import find_run  # noqa: PLC0415
    from orchestrator.reading.examples import spec_text  # noqa: PLC0415

    journal = find_run(folder(storage), run)
    spec = serving_of(journal.full_plan(journal.run()))
    if overrides:
        if spec.resources.chip_definition:
            raise SpecError(
                f"--set: {spec.resources.chip} is a chip of a file of your own: write a serving"
                " spec that names the file"
            )
        text = SpecText(f"serving of {journal.key}", tuple(spec_text(spec).splitlines()))
        spec = load(text, tuple(overrides), Path())
    return make_serving_plan(spec)


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
    request = offer_request(
        found.resources, by=by, budget=budget, chips=chips, prices=prices, today=today
    )
    return make_offers(found, request)


def serving_frontier(spec: ServingSource, overrides: Sequence[str] = ()) -> ServingFrontier:
    """Return throughput against latency on the slice of a spec, interleaved and disaggregated."""
    return make_frontier(_loaded(spec, overrides))


def serving_load(
    spec: ServingSource,
    overrides: Sequence[str] = (),
    *,
    arrivals: str = "poisson",
    requests: int = 10_000,
    seed: int = 0,
) -> ServingLoad:
    """Return what requests see that arrive at the plan of a spec: `poisson`, in `bursts`, or those
    of a CSV file with the columns time_s, prompt and output.
    """
    for name, value, least in (("requests", requests, 1), ("seed", seed, 0)):
        if value < least:
            raise SpecError(f"{name} is {value}, must be at least {least}")
    plan, given = plan_serving(spec, overrides), None
    if arrivals not in ("poisson", "bursts"):
        # The requests of a file, by the time of their arrival.
        path = Path(arrivals)
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows = [
                    tuple(float(row[column]) for column in ("time_s", "prompt", "output"))
                    for row in csv.DictReader(file)
                ]
        except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as error:
            must = "poisson, bursts, or a CSV file with numbers under time_s, prompt and output"
            why = f" ({error.strerror})" if isinstance(error, OSError) else ""
            raise WrongOption("--load", f"{path}{why}", must) from None
        is_sound = all(0 <= time_s < inf and min(tokens) >= 1 for time_s, *tokens in rows)
        if not rows or not is_sound:
            raise WrongOption("--load", path, "a trace of requests with at least one token each")
        given = Requests(*np.array(sorted(rows)).T)
    return loaded(plan, arrivals, seed, requests, given)


def explain_serving(spec: ServingSource, overrides: Sequence[str] = ()) -> ServingExplanation:
    """Derive the plan of a serving spec, formula by formula, next to the book's answers."""
    found = _loaded(spec, overrides)
    return derive(found, make_serving_plan(found))


def score_serving(
    runs: str | Path | None = None,
    *,
    without: Literal["document", "group", "software"] | None = None,
    disaggregated: bool = False,
) -> evaluate.ServingScore:
    """Compare forecasts of published serving runs with what they reached. `runs` is a CSV file, by
    default the project's own, of which one is `disaggregated`. `without` learns the constants anew
    without each document or software, and scores what it left out.
    """
    path = Path(runs) if runs else DISAGGREGATED if disaggregated else None
    if without:
        return evaluate.cross_validated(without, path)
    return evaluate.with_catalog_constants(path)


def _loaded(spec: ServingSource, overrides: Sequence[str]) -> ServingSpec:
    if isinstance(spec, ServingSpec):
        if overrides:
            raise TypeError("overrides change the file of a spec: pass its path")
        return spec
    return load_serving(spec, overrides)
