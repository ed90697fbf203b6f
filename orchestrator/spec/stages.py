"""The stages of a spec: written out, and checked. What one leaves out is as in the one before."""

from collections.abc import Iterator
from typing import Any

from orchestrator.spec.checks import Fault, batch_faults, data_faults, rate_faults
from orchestrator.spec.resolved import ResolvedSpec, default
from orchestrator.spec.schema import field

SECTIONS = ("batch", "optimizer", "data")
# A stage that changes one of these has a schedule of its own.
SCHEDULE = ("peak_lr", "end_lr", "warmup_steps", "decay")
Values = dict[str, Any]


def written_out(experiment: Values) -> list[Values]:
    """Every stage with all that it leaves out."""
    before: Values = {name: experiment.get(name, {}) for name in SECTIONS}
    stages = []
    for number, entry in enumerate(experiment["stages"]):
        before = _next_stage(before, entry, begins=number == 0)
        stages.append(before)
    return stages


def _next_stage(before: Values, entry: Values, *, begins: bool) -> Values:
    optimizer, data = entry.get("optimizer", {}), entry.get("data", {})
    restarts = not begins and any(key in optimizer for key in SCHEDULE)
    return {
        "tokens": entry.get("tokens"),
        "batch": before["batch"] | _batch(entry),
        "optimizer": before["optimizer"] | ({"warmup_steps": 0} if restarts else {}) | optimizer,
        "data": data if "kind" in data else before["data"] | data,
        "restarts_schedule": restarts,
    }


def _batch(entry: Values) -> Values:
    batch = entry.get("batch", {})
    length = {"length": entry["length"]} if entry.get("length") else {}
    return (batch if isinstance(batch, dict) else {"sequences": batch}) | length


def check_stages(spec: ResolvedSpec) -> None:
    """Add what is wrong with stages to the problems of a spec."""
    entries = spec["experiment.stages"]
    if not entries or not all(isinstance(one, dict) for one in entries):
        return
    stages = written_out(spec["experiment"])
    for number, (entry, stage) in enumerate(zip(entries, stages, strict=True)):
        for key, code, fields in _faults(spec, number, entry, stage, stages[number - 1]):
            spec.report(f"experiment.stages.{number}.{key}", code, **fields)
    tokens, each = spec["experiment.tokens"], [one["tokens"] for one in stages]
    if tokens and all(each) and tokens != sum(each):
        spec.report("experiment.tokens", "tokens-of-stages", tokens=tokens, sum=sum(each))


def _faults(
    spec: ResolvedSpec, number: int, entry: Values, stage: Values, before: Values
) -> Iterator[Fault]:
    yield from _size_faults(entry, stage["batch"])
    yield from batch_faults(stage["tokens"], stage["batch"])
    if "data" in entry:
        kind = stage["data"].get("kind", "synthetic")
        yield from data_faults(spec, stage["data"] | {"kind": kind})
    optimizer, earlier = stage["optimizer"], before["optimizer"]
    if "optimizer" in entry:
        yield from rate_faults(*(_or_default(optimizer, key) for key in ("peak_lr", "end_lr")))
    names = [_or_default(one, "name") for one in (optimizer, earlier)]
    if number and names[0] != names[1]:
        yield "optimizer.name", "stage-optimizer", {"name": names[0], "earlier": names[1]}


def _or_default(optimizer: Values, key: str) -> Any:
    return optimizer.get(key, default(field(("experiment", "optimizer", key)) or {}))


def _size_faults(entry: Values, batch: Values) -> Iterator[Fault]:
    """Sizes of a batch that nobody says, or that two keys say."""
    given = entry.get("batch")
    if isinstance(given, dict) and None not in (given.get("length"), entry.get("length")):
        yield "length", "two-lengths", {"length": entry["length"], "other": given["length"]}
    for key, size in (("batch", "sequences"), ("length", "length")):
        if size not in batch and key not in entry:
            yield key, "stage-without-batch", {"name": key}
