"""The difference between two plans: what decides them, their ledgers and their figures."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec

# The difference between two plans, as values.


@dataclass(frozen=True, kw_only=True)
class PlanReference:
    """Which plan it is."""

    name: str
    digest: str
    spec_digest: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KeyDiff:
    """A key whose values differ; None where one of them lacks it."""

    key: str
    first: bool | float | str | None
    second: bool | float | str | None


@dataclass(frozen=True, kw_only=True)
class LineDiff:
    """A ledger line in both plans; None where a plan has no such line.

    `part` is the phase of a line of bytes, or the resource that a line of seconds keeps busy.
    """

    name: str
    part: str
    unit: Literal["bytes", "s"]
    first: float | None
    second: float | None


@dataclass(frozen=True, kw_only=True)
class PlanDiff:
    """What differs between two plans, and what that does to each figure of their forecasts.

    `memory` ends each phase with a line named `sum`. `figures` are the forecast's, by
    their keys in it; `bounds` name what each plan is bound by.
    """

    schema: int
    plans: tuple[PlanReference, PlanReference]
    requested: tuple[KeyDiff, ...]
    decided: tuple[KeyDiff, ...]
    memory: tuple[LineDiff, ...]
    time: tuple[LineDiff, ...]
    figures: tuple[KeyDiff, ...]
    bounds: tuple[str, str]


SCHEMA = 3
# What a plan decides. What it repeats from its spec is listed there.
DECIDED = ("batch", "chips", "devices", "gradient_reduction", "hosts", "mesh", "remat")
# What a spec says of itself and not of the plan.
UNPLANNED = ("name", "overrides", "run", "cluster", "tracking")
FIGURES = (
    "memory_bytes_per_device", "hbm_bytes_per_device", "fits", "step_s", "mfu", "mfu_6p",
    "tokens_per_s", "days", "chip_hours", "dollars", "dollars_per_chip_hour",
)  # fmt: skip
OF_FIRST_STAGE = ("batch", "optimizer", "data")  # what a spec with stages repeats
TOTALS = ("fits", "days", "chip_hours", "dollars", "dollars_per_chip_hour")
GOODPUT = ("expected", "low", "high", "every_steps", "best_every_steps")

SUM = "sum"  # the line that ends a phase

Pair = tuple[Plan, Plan]
Lines = dict[tuple[str, str], float]


def diff_plans(specs: tuple[Spec, Spec], plans: Pair) -> PlanDiff:
    """What differs between two plans, and what that does to each line of their forecasts. Stages
    have figures, and no lines; where one plan alone has any, the whole runs are compared.
    """
    first, second = plans
    staged = bool(first.stages or second.stages)
    whole = bool(first.stages) != bool(second.stages)
    figures = [_totals(plan) if whole else _figures(plan) for plan in plans]
    return PlanDiff(
        schema=SCHEMA,
        plans=(_reference(first), _reference(second)),
        requested=differing(*(_requested(spec, whole=whole) for spec in specs)),
        decided=() if whole else differing(*(_decided(plan) for plan in plans)),
        memory=() if staged else _merged("bytes", *(_memory(plan) for plan in plans)),
        time=() if staged else _merged("s", *(_time(plan) for plan in plans)),
        figures=tuple(_pairs(*figures)),
        bounds=(first.forecast.bound, second.forecast.bound),
    )


def _figures(plan: Plan) -> dict[str, Any]:
    """The forecast's figures; of a run in stages those of all together, and of each."""
    if plan.stages:
        return _totals(plan) | _by_stage(plan, _figures)
    return _figures_of(plan, FIGURES)


def _totals(plan: Plan) -> dict[str, Any]:
    """The figures of a whole run, with stages or without."""
    return _figures_of(plan, TOTALS)


def _figures_of(plan: Plan, kept: tuple[str, ...]) -> dict[str, Any]:
    forecast = asdict(plan.forecast)
    figures: dict[str, Any] = {key: forecast[key] for key in kept}
    return _flat(figures | {"goodput": {key: forecast["goodput"][key] for key in GOODPUT}})


def _by_stage(plan: Plan, of: Callable[[Plan], dict[str, Any]]) -> dict[str, Any]:
    """What each stage has, under its place as in the plan's JSON: `stages.0.mfu.expected`."""
    each = enumerate(plan.stages)
    return {f"stages.{place}.{key}": value for place, one in each for key, value in of(one).items()}


def differing(first: dict[str, Any], second: dict[str, Any]) -> tuple[KeyDiff, ...]:
    """The keys whose values are not the same, in their order."""
    return tuple(pair for pair in _pairs(first, second) if pair.first != pair.second)


def _pairs(first: dict[str, Any], second: dict[str, Any]) -> Iterator[KeyDiff]:
    for key in dict.fromkeys([*first, *second]):
        yield KeyDiff(key=key, first=first.get(key), second=second.get(key))


def _reference(plan: Plan) -> PlanReference:
    return PlanReference(
        name=plan.name,
        digest=plan.digest,
        spec_digest=plan.spec_digest,
        overrides=plan.overrides,
    )


def _requested(spec: Spec, *, whole: bool) -> dict[str, Any]:
    """What a spec requests; equal limits on pods are one number. Of a whole run stages are
    counted.
    """
    fields = asdict(spec)
    if whole:
        fields["experiment"]["stages"] = len(spec.experiment.stages) or None
    pods = spec.resources.pods
    if pods.min == pods.max:
        fields["resources"]["pods"] = pods.max
    for section in OF_FIRST_STAGE if whole or spec.experiment.stages else ():
        del fields["experiment"][section]
    return _flat({key: fields[key] for key in fields if key not in UNPLANNED})


def _decided(plan: Plan) -> dict[str, Any]:
    if plan.stages:
        return _by_stage(plan, _decided)
    fields = asdict(plan)
    decided = _flat({key: fields[key] for key in DECIDED})
    torus = {f"{axis.name} lies on": axis.torus_text for axis in plan.axes if axis.spans}
    requested = ("batch.requested_sequences", "batch.length")
    return {key: decided[key] for key in decided if key not in requested} | torus


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every value of nested mappings and lists of them under its dotted key."""
    if isinstance(value, (list, tuple)) and all(isinstance(one, dict) for one in value):
        value = {str(place): one for place, one in enumerate(value)}
    if not isinstance(value, dict):
        return {path: value}
    inside = [_flat(value[key], f"{path}.{key}" if path else key) for key in value]
    return {key: one[key] for one in inside for key in one}


def _memory(plan: Plan) -> Lines:
    lines: Lines = {}
    for phase in plan.forecast.memory:
        lines |= _summed((phase.name, line.name, line.value) for line in phase.lines)
        lines[phase.name, SUM] = phase.bytes
    return lines


def _time(plan: Plan) -> Lines:
    return _summed((line.resource or "", line.name, line.value) for line in plan.forecast.time)


def _summed(entries: Iterable[tuple[str, str, float]]) -> Lines:
    lines: Lines = {}
    for part, name, value in entries:
        lines[part, name] = lines.get((part, name), 0.0) + value
    return lines


def _merged(unit: Literal["bytes", "s"], first: Lines, second: Lines) -> tuple[LineDiff, ...]:
    """Both ledgers as one, part by part in the order in which the parts appear."""
    keys = dict.fromkeys([*first, *second])
    parts = list(dict.fromkeys(part for part, _ in keys))
    ordered = sorted(keys, key=lambda key: (parts.index(key[0]), key[1] == SUM))
    return tuple(
        LineDiff(
            name=name,
            part=part,
            unit=unit,
            first=first.get((part, name)),
            second=second.get((part, name)),
        )
        for part, name in ordered
    )
