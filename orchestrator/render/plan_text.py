"""Phrases about plans that several screens show."""

import re
from collections.abc import Callable

from orchestrator.formatting import (
    at_least,
    count,
    counted,
    dollars,
    lasting,
    scaled,
    seconds,
    span,
    with_unit,
)
from orchestrator.plan.forecast import scale
from orchestrator.plan.plan_warnings import LEDGER_TRAINER
from orchestrator.types.plan import Estimate, Forecast, LedgerLine, Plan, PlannedBatch

INTERVAL = "80 % interval"


def headline(plan: Plan) -> str:
    chips = counted(plan.chips, f"{plan.chip} chip")
    stage = f", stage {plan.stage.number} of {plan.stage.of}" if plan.stage else ""
    return f"{plan.name}{stage}: {chips}, {counted(plan.pods, 'pod')} of {plan.topology}"


def of_trainer(plan: Plan) -> str:
    """Return whose program a ledger describes, where it is not the plan's."""
    return "" if plan.ledger_describes_trainer else f", of trainer {LEDGER_TRAINER}"


def with_numbers(line: LedgerLine) -> str:
    """Return the formula with its numbers: `size x owned` is 4 x 1.13B."""

    def number(name: re.Match[str]) -> str:
        return scaled(line.inputs[name[0]]) if name[0] in line.inputs else name[0]

    return re.sub(r"[a-z_]{2,}", number, line.formula)


def amount(line: LedgerLine) -> str:
    """Return the amount of work on the line, and the rate."""
    inputs = line.inputs
    if "calls" in inputs and "hops" in inputs:
        return f"{counted(int(inputs['calls']), 'call')} x {counted(int(inputs['hops']), 'hop')}"
    if "once" in inputs:
        return f"{counted(int(inputs['calls']), 'call')} x {seconds(inputs['once'])}, as measured"
    name, unit = ("flops", "FLOP") if "flops" in inputs else ("bytes", "B")
    return f"{with_unit(inputs[name], unit)} at {with_unit(inputs['rate'], unit + '/s')}"


def in_microbatches(batch: PlannedBatch) -> str:
    """Return the sequences of a step: 1,024, or 4 x 256 in four microbatches."""
    each = count(batch.sequences / batch.microbatches)
    return f"{batch.microbatches} x {each}" if batch.microbatches > 1 else each


def likely(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the 80 % interval of a time or a cost; without one, the least it can be."""
    if estimate.low is None or estimate.high is None:
        return at_least(show(estimate.lower))
    return span(show(estimate.low), show(estimate.high))


def time_and_cost(forecast: Forecast, share: float) -> list[str]:
    """Return the days and dollars that so much of all tokens is likely to take."""
    takes = [likely(scale(forecast.days, share), lasting)]
    if forecast.dollars is not None:
        takes.append(likely(scale(forecast.dollars, share), dollars))
    return takes
