"""Reads what `orch plan` is asked for beside a spec: a date, a budget, chips, prices."""

import datetime
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.planning.odds import OfferRequest
from orchestrator.reading.nodes import NUMBER, Mapping, Node, Scalar, parse, read
from orchestrator.reading.problems import SpecProblems
from orchestrator.values.spec import Resources

DAYS = {"h": Fraction(1, 24), "d": Fraction(1), "w": Fraction(7)}
DURATION = re.compile(r"([0-9]{1,6}([.][0-9]{1,6})?)([hdw])")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MONEY = re.compile(r"[$]?([0-9][0-9,]{0,17}([.][0-9]{1,6})?)([kKmMbB]?)")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
FIELDS = {
    "on-demand": "dollars_per_hour",
    "reserved": "reserved_dollars_per_hour",
    "spot": "spot_dollars_per_hour",
}
ON_DEMAND = "on-demand"


class WrongOption(SpecError):
    """A date, budget, chip or price makes no sense. `key` is the option."""

    is_prose = True

    def __init__(self, key: str, given: object, must: str) -> None:
        self.key = key
        super().__init__(f"{key} is {given}, must be {must}")


def offer_request(
    resources: Resources,
    *,
    by: str | float | datetime.date | None,
    budget: str | float | None,
    chips: str | Sequence[str] | None,
    prices: str | None,
    today: datetime.date,
) -> OfferRequest:
    """The request of these words, for a spec with those resources.

    A spec that leaves its topology open has chosen its chip. The price that it states is for that.
    """
    names = wanted_chips(chips) if chips is not None else chips_of(resources)
    kind = prices or ON_DEMAND
    per_hour = prices_of(kind, [chip_named(name, resources) for name in names])
    if prices is None and resources.dollars_per_chip_hour is not None:
        per_hour[resources.chip] = resources.dollars_per_chip_hour
    return OfferRequest(
        by_days=days_until(by, today),
        budget_dollars=dollars_of(budget),
        chips=names,
        prices=kind,
        dollars_per_chip_hour={name: per_hour[name] for name in names if name in per_hour},
    )


def chip_named(name: str, resources: Resources) -> Chip:
    return catalog.chip_of(resources) if name == resources.chip else catalog.chip(name)


def chips_of(resources: Resources) -> tuple[str, ...]:
    """The chips where none is named: the spec's own, or every TPU with published runs."""
    if not resources.has_open_topology:
        return tuple(one for one in catalog.chips() if catalog.efficiency(one))
    if catalog.chip_of(resources).switched:
        raise SpecError(
            f"slices are chosen for TPUs alone ({', '.join(tpus())}): for GPUs say how many NVLink"
            f" domains, such as topology: {int(catalog.chip_of(resources).pod_chips.value)} and"
            " pods: 64"
        )
    return (resources.chip,)


def tpus() -> list[str]:
    return [one for one in catalog.chips() if not catalog.chip(one).switched]


def days_until(by: str | float | datetime.date | None, today: datetime.date) -> float | None:
    """Days from today until a date, or of a duration."""
    must = "a duration such as 30d or 6w, or a date to come such as 2027-03-31"
    if by is None:
        return None
    days = _days(by, today)
    if days is None or not math.isfinite(days) or days <= 0:
        raise WrongOption("--by", by, must)
    return days


def deadline_ahead(deadline: str | None, today: datetime.date) -> float | None:
    """Days until the deadline of a spec, if it has one; one that is past is an error."""
    if deadline is None:
        return None
    if days := days_to_deadline(deadline, today):
        return days
    raise SpecError(f"run.deadline {deadline} is past: no slices end by it")


def days_to_deadline(deadline: str, today: datetime.date) -> float:
    """Days from today until a deadline of a spec; none are left of one that is past."""
    return max(_days(deadline, today) or 0.0, 0.0)


def _days(by: str | float | datetime.date, today: datetime.date) -> float | None:
    if isinstance(by, datetime.date):
        return float((by - today).days)
    if not isinstance(by, str):
        return float(by)
    if match := DURATION.fullmatch(by.strip()):
        return float(Fraction(match[1]) * DAYS[match[3]])
    if not DATE.fullmatch(by.strip()):
        return None
    try:
        return float((datetime.date.fromisoformat(by.strip()) - today).days)
    except ValueError:
        return None


def dollars_of(budget: str | float | None) -> float | None:
    """Dollars, from 2M, 500k or a number."""
    must = "dollars above 0, such as 2M, 500k or 1500000"
    if budget is None:
        return None
    dollars = _dollars(budget) if isinstance(budget, str) else float(budget)
    if not math.isfinite(dollars) or dollars <= 0:
        raise WrongOption("--budget", budget, must)
    return dollars


def _dollars(text: str) -> float:
    match = MONEY.fullmatch(text.strip())
    if not match:
        return math.nan
    return float(Fraction(match[1].replace(",", "")) * UNITS[match[3].lower()])


def wanted_chips(chips: str | Sequence[str]) -> tuple[str, ...]:
    """The chips by name."""
    listed = chips.split(",") if isinstance(chips, str) else list(chips)
    names = tuple(dict.fromkeys(one.strip() for one in listed))
    for name in names or ("",):
        if name not in tpus():
            raise WrongOption(
                "--chips", name or "empty", f"TPUs of the catalog: {', '.join(tpus())}"
            )
    return names


# --- prices


def prices_of(prices: str, chips: Sequence[Chip]) -> dict[str, float]:
    """Dollars of a chip-hour by chip: those of the catalog, or of a file."""
    if prices not in FIELDS:
        if not Path(prices).exists():
            must = f"{', '.join(FIELDS)}, or a YAML file with your prices"
            raise WrongOption("--prices", prices, must)
        return read_prices(Path(prices))
    known = {chip.name: getattr(chip, FIELDS[prices]) for chip in chips}
    return {name: quantity.value for name, quantity in known.items() if quantity}


def read_prices(path: Path) -> dict[str, float]:
    """The prices of a YAML file: a line `chip: dollars per chip-hour` each."""
    root, problems = parse(read(path))
    if not isinstance(root, Mapping) or not root.entries:
        found = root.text if isinstance(root, Scalar) and root.text else "empty"
        must = "a mapping of chips to dollars per chip-hour, such as v5p: 2.50"
        wrong = root.place.problem("illegal-value", "prices", value=found, expected=must)
        raise SpecProblems([*problems, wrong])
    prices: dict[str, float] = {}
    for name, entry in root.entries.items():
        price = _price(entry.node)
        if name not in catalog.chips():
            known = ", ".join(catalog.chips())
            problems.append(entry.key_place.problem("unknown-key", name, expected=known))
        elif price is None:
            text = entry.node.text if isinstance(entry.node, Scalar) else "a list or a mapping"
            must = "a number of dollars above 0"
            place = entry.node.place
            problems.append(
                place.problem("illegal-value", name, value=text or "empty", expected=must)
            )
        else:
            prices[name] = price
    if problems:
        raise SpecProblems(problems)
    return prices


def _price(node: Node) -> float | None:
    if not isinstance(node, Scalar) or not NUMBER.fullmatch(node.text):
        return None
    value = float(node.text)
    return value if math.isfinite(value) and value > 0 else None
