"""Reads the options of `orch plan` about offers: a date, a budget, chips, prices."""

import datetime
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.planning.offers import OfferRequest
from orchestrator.reading.nodes import NUMBER, Mapping, Scalar, parse, read
from orchestrator.reading.problems import SpecProblems
from orchestrator.values.serving import ServingResources
from orchestrator.values.spec import Resources

_DAYS = {"h": Fraction(1, 24), "d": Fraction(1), "w": Fraction(7)}
_DURATION = re.compile(r"([0-9]{1,6}([.][0-9]{1,6})?)([hdw])")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MONEY = re.compile(r"[$]?([0-9][0-9,]{0,17}([.][0-9]{1,6})?)([kKmMbB]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_USUAL_PRICES = "on-demand"
_FIELDS = {
    "on-demand": "dollars_per_hour",
    "reserved": "reserved_dollars_per_hour",
    "spot": "spot_dollars_per_hour",
}


class WrongOption(SpecError):
    """A date, budget, chip or price makes no sense. `key` is the option."""

    is_prose = True

    def __init__(self, key: str, given: object, must: str) -> None:
        self.key = key
        super().__init__(f"{key} is {given}, must be {must}")


def offer_request(
    resources: Resources | ServingResources,
    *,
    by: str | float | datetime.date | None,
    budget: str | float | None,
    chips: str | Sequence[str] | None,
    prices: str | None,
    today: datetime.date,
) -> OfferRequest:
    """Return the request, about the chips named. Otherwise a spec of training asks for its own chip
    where its topology is open, or for every TPU with published runs; one of serving for all chips,
    or for its own where nothing else is asked. The price that a spec states is for its chip, unless
    another is asked for.
    """
    names: tuple[str, ...] = (resources.chip,)
    if chips is not None:
        listed = chips.split(",") if isinstance(chips, str) else chips
        names = tuple(dict.fromkeys(name.strip() for name in listed))
        for name in names or ("",):
            if name not in catalog.chips():
                must = f"chips of the catalog: {', '.join(catalog.chips())}"
                raise WrongOption("--chips", name or "empty", must)
    elif isinstance(resources, ServingResources):
        if (by, budget, prices) != (None, None, None):
            names = catalog.chips()
    elif not resources.has_open_topology:
        names = tuple(name for name in catalog.chips() if catalog.efficiency(name))
    known = {name: catalog.chip(name) for name in names if name != resources.chip}
    if resources.chip in names:
        known[resources.chip] = catalog.chip_of(resources)
    days = None if by is None else _days(by, today)
    if by is not None and (days is None or not math.isfinite(days) or days <= 0):
        must = "a duration such as 30d or 6w, or a date to come such as 2027-03-31"
        raise WrongOption("--by", by, must)
    return OfferRequest(
        by_days=days,
        budget_dollars=_dollars_of(budget),
        chips=names,
        prices=prices or _USUAL_PRICES,
        dollars_per_chip_hour=_prices_of(prices, known, resources),
    )


def _prices_of(
    asked: str | None, known: dict[str, Chip], resources: Resources | ServingResources
) -> dict[str, float]:
    """Return the dollars of an hour of each chip: of a kind, of a file, or stated by the spec."""
    kind = asked or _USUAL_PRICES
    if kind in _FIELDS:
        quantities = {name: getattr(chip, _FIELDS[kind]) for name, chip in known.items()}
        per_hour = {name: quantity.value for name, quantity in quantities.items() if quantity}
    elif Path(kind).exists():
        per_hour = _read_prices(Path(kind))
    else:
        must = f"{', '.join(_FIELDS)}, or a YAML file with your prices"
        raise WrongOption("--prices", kind, must)
    if asked is None and resources.dollars_per_chip_hour is not None:
        per_hour[resources.chip] = resources.dollars_per_chip_hour
    return {name: per_hour[name] for name in known if name in per_hour}


def deadline_ahead(deadline: str | None, today: datetime.date) -> float | None:
    """Return the days until the deadline of a spec, if it has one; refuse one that is past."""
    if deadline is None:
        return None
    if days := days_to_deadline(deadline, today):
        return days
    raise SpecError(f"run.deadline {deadline} is past: no slices end by it")


def days_to_deadline(deadline: str, today: datetime.date) -> float:
    return max(_days(deadline, today) or 0.0, 0.0)


def _days(by: str | float | datetime.date, today: datetime.date) -> float | None:
    if isinstance(by, datetime.date):
        return float((by - today).days)
    if not isinstance(by, str):
        return float(by)
    if match := _DURATION.fullmatch(by.strip()):
        return float(Fraction(match[1]) * _DAYS[match[3]])
    try:
        is_date = _DATE.fullmatch(by.strip())
        return float((datetime.date.fromisoformat(by.strip()) - today).days) if is_date else None
    except ValueError:
        return None


def _dollars_of(budget: str | float | None) -> float | None:
    """Return the dollars of 2M, 500k or a number."""
    if budget is None:
        return None
    if isinstance(budget, str):
        match = _MONEY.fullmatch(budget.strip())
        units = match and Fraction(match[1].replace(",", "")) * _UNITS[match[3].lower()]
        dollars = math.nan if units is None else float(units)
    else:
        dollars = float(budget)
    if not math.isfinite(dollars) or dollars <= 0:
        raise WrongOption("--budget", budget, "dollars above 0, such as 2M, 500k or 1500000")
    return dollars


def _read_prices(path: Path) -> dict[str, float]:
    """Return the prices of a YAML file, whose lines are `chip: dollars per chip-hour`."""
    root, problems = parse(read(path))
    if not isinstance(root, Mapping) or not root.entries:
        found = root.text if isinstance(root, Scalar) and root.text else "empty"
        must = "a mapping of chips to dollars per chip-hour, such as v5p: 2.50"
        message = f"is {found}, must be {must}"
        raise SpecProblems([*problems, root.place.problem("illegal-value", "prices", message)])
    prices: dict[str, float] = {}
    for name, entry in root.entries.items():
        text = entry.node.text if isinstance(entry.node, Scalar) else "a list or a mapping"
        price = float(text) if NUMBER.fullmatch(text) else math.nan
        if name not in catalog.chips():
            message = f"is unknown, must be one of {', '.join(catalog.chips())}"
            problems.append(entry.key_place.problem("unknown-key", name, message))
        elif not math.isfinite(price) or price <= 0:
            message = f"is {text or 'empty'}, must be a number of dollars above 0"
            problems.append(entry.node.place.problem("illegal-value", name, message))
        else:
            prices[name] = price
    if problems:
        raise SpecProblems(problems)
    return prices
