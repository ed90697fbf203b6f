"""The difference between two plans: what decides them, their ledgers and their figures."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec


class PlanReference(Value):
    name: str
    digest: str
    spec_digest: str
    overrides: tuple[str, ...]


class KeyDiff(Value):
    key: str
    first: bool | float | str | None
    second: bool | float | str | None


class LineDiff(Value):
    """A ledger line in both plans; None where a plan has no such line.

    `part` is the phase of a line of bytes, or the resource that a line of seconds keeps busy.
    """

    name: str
    part: str
    unit: Literal["bytes", "s"]
    first: float | None
    second: float | None


class PlanDiff(Value):
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


SUM = "sum"  # the line that ends a phase
_SCHEMA = 3
# The decisions of a plan. Fields that it repeats from its spec are listed there.
_DECIDED = ("batch", "chips", "devices", "gradient_reduction", "hosts", "mesh", "pipeline", "remat")
# What a spec says of itself and not of the plan.
_UNPLANNED = ("name", "overrides", "run", "cluster", "tracking")
_OF_FIRST_STAGE = ("batch", "optimizer", "data")  # what a spec with stages repeats
_FIGURES = (
    "memory_bytes_per_device", "hbm_bytes_per_device", "fits", "step_s", "mfu", "mfu_6p",
    "tokens_per_s", "days", "chip_hours", "dollars", "dollars_per_chip_hour",
)  # fmt: skip
_TOTALS = ("fits", "days", "chip_hours", "dollars", "dollars_per_chip_hour")
_GOODPUT = ("expected", "low", "high", "every_steps", "best_every_steps")

_Lines = dict[tuple[str, str], float]  # (part, name) → value


def diff_plans(specs: tuple[Spec, Spec], plans: tuple[Plan, Plan]) -> PlanDiff:
    """Return what differs between two plans, line by line; whole runs if only one has stages."""
    first, second = plans
    staged = bool(first.stages or second.stages)
    whole = bool(first.stages) != bool(second.stages)
    figures = [_figures(plan, _TOTALS) if whole else _all_figures(plan) for plan in plans]
    requested = []
    for spec in specs:
        # Equal limits on pods are one number, and stages are only counted for a whole run.
        fields, pods = asdict(spec), spec.resources.pods
        if whole:
            fields["experiment"]["stages"] = len(spec.experiment.stages) or None
        if pods.min == pods.max:
            fields["resources"]["pods"] = pods.max
        for section in _OF_FIRST_STAGE if whole or spec.experiment.stages else ():
            del fields["experiment"][section]
        requested.append(_flat({key: fields[key] for key in fields if key not in _UNPLANNED}))
    reference, other = (
        PlanReference(
            name=plan.name,
            digest=plan.digest,
            spec_digest=plan.spec_digest,
            overrides=plan.overrides,
        )
        for plan in plans
    )
    return PlanDiff(
        schema=_SCHEMA,
        plans=(reference, other),
        requested=_differing(*requested),
        decided=() if whole else _differing(*map(_decided, plans)),
        memory=() if staged else _merged("bytes", *map(_memory, plans)),
        time=() if staged else _merged("s", *map(_time, plans)),
        figures=_pairs(*figures),
        bounds=(first.forecast.bound, second.forecast.bound),
    )


def _all_figures(plan: Plan) -> dict[str, Any]:
    if plan.stages:
        return _figures(plan, _TOTALS) | _by_stage(plan, _all_figures)
    return _figures(plan, _FIGURES)


def _figures(plan: Plan, names: tuple[str, ...]) -> dict[str, Any]:
    forecast = asdict(plan.forecast)
    figures: dict[str, Any] = {key: forecast[key] for key in names}
    return _flat(figures | {"goodput": {key: forecast["goodput"][key] for key in _GOODPUT}})


def _by_stage(plan: Plan, values_of: Callable[[Plan], dict[str, Any]]) -> dict[str, Any]:
    """Return values of each stage under its place in the plan's JSON: `stages.0.mfu.expected`."""
    return {
        f"stages.{place}.{key}": value
        for place, stage in enumerate(plan.stages)
        for key, value in values_of(stage).items()
    }


def _decided(plan: Plan) -> dict[str, Any]:
    if plan.stages:
        return _by_stage(plan, _decided)
    fields = asdict(plan)
    decided = _flat({key: fields[key] for key in _DECIDED})
    for requested in ("batch.requested_sequences", "batch.length"):
        del decided[requested]
    return decided | {f"{axis.name} lies on": axis.torus_text for axis in plan.axes if axis.spans}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return every value of nested mappings and lists of them under its dotted key."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, dict) for item in value):
        value = {str(place): item for place, item in enumerate(value)}
    if not isinstance(value, dict):
        return {path: value}
    flat: dict[str, Any] = {}
    for key in value:
        flat |= _flat(value[key], f"{path}.{key}" if path else key)
    return flat


def _pairs(first: dict[str, Any], second: dict[str, Any]) -> tuple[KeyDiff, ...]:
    keys = dict.fromkeys([*first, *second])
    return tuple(KeyDiff(key=key, first=first.get(key), second=second.get(key)) for key in keys)


def _differing(first: dict[str, Any], second: dict[str, Any]) -> tuple[KeyDiff, ...]:
    return tuple(pair for pair in _pairs(first, second) if pair.first != pair.second)


def _memory(plan: Plan) -> _Lines:
    lines: _Lines = defaultdict(float)
    for phase in plan.forecast.memory:
        for line in phase.lines:
            lines[phase.name, line.name] += line.value
        lines[phase.name, SUM] = phase.bytes
    return lines


def _time(plan: Plan) -> _Lines:
    lines: _Lines = defaultdict(float)
    for line in plan.forecast.time:
        lines[line.resource or "", line.name] += line.value
    return lines


def _merged(unit: Literal["bytes", "s"], first: _Lines, second: _Lines) -> tuple[LineDiff, ...]:
    """Return both ledgers as one, part by part in the order in which the parts appear."""
    keys = dict.fromkeys([*first, *second])
    parts = list(dict.fromkeys(part for part, _ in keys))
    ordered = sorted(keys, key=lambda key: (parts.index(key[0]), key[1] == SUM))
    return tuple(
        LineDiff(name=key[1], part=key[0], unit=unit, first=first.get(key), second=second.get(key))
        for key in ordered
    )
