"""The identity of an experiment and of a plan: their digests."""

from dataclasses import asdict, replace
from typing import Any

import msgspec

from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Experiment

UNDIGESTED = {
    "digest", "name", "trainer", "ledger_describes_trainer", "run_steps", "overrides", "warnings",
    "search", "forecast",
}  # fmt: skip
DIGESTED_IF_GIVEN = ("chip_definition", "chip_profile", "start", "stage", "stages")


def plan_digest(plan: Plan) -> str:
    """The identity of what will be done, without its name and its forecast."""
    digested = asdict(replace(plan, stages=()))
    digested["stages"] = [one.digest for one in plan.stages]
    _leave_out(digested["precision"])
    absent = {key for key in DIGESTED_IF_GIVEN if not digested[key]}
    return codec.digest({key: digested[key] for key in digested.keys() - UNDIGESTED - absent})


def experiment_digest(experiment: Experiment) -> str:
    """The identity of an experiment. What it leaves out cannot differ."""
    values = msgspec.to_builtins(experiment)
    if not experiment.stages:
        values.pop("stages", None)
    _leave_out(values.get("precision", {}))
    return codec.digest(values)


def _leave_out(precision: dict[str, Any]) -> None:
    """Leave out the type of the first moment where it is none of its own."""
    if precision.get("first_moment") is None:
        precision.pop("first_moment", None)
