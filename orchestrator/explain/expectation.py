"""Explain room: where the expected step comes from, part by part, with the runs behind each."""

from orchestrator import catalog
from orchestrator.catalog import Efficiency, LearnedConstant
from orchestrator.plan.expected import SOURCE
from orchestrator.types.explanation import ComputedValue, Constant, ExpectedPart, ExpectedStep
from orchestrator.types.plan import LedgerLine, Plan


def expectation(plan: Plan) -> ExpectedStep | None:
    """The plan's own ledger; None where nothing was learned about its chip."""
    known, step_s = catalog.efficiency(plan.chip), plan.forecast.step_s
    if known is None or step_s.expected is None or step_s.low is None or step_s.high is None:
        return None
    constants = learned(known)
    return ExpectedStep(
        parts=tuple(part(line, constants) for line in plan.forecast.expected_time),
        expected_s=step_s.expected,
        low_s=step_s.low,
        high_s=step_s.high,
        spread=known.spread.value,
        rows=known.spread.rows,
        source=SOURCE,
    )


def learned(known: Efficiency) -> dict[str, tuple[Constant, ...]]:
    """The constants in the formula of each part that has any."""
    return {
        "matmuls": (constant("share", known.matmul),),
        "attention": (constant("share", known.attention),),
        "exposed collectives": (constant("exposed", known.exposed),),
        "waiting for slices": (
            constant("wait", known.slice_wait_s),
            constant("hop", known.slice_hop_s),
        ),
        "between steps": (constant("between", known.between_steps_s),),
    }


def constant(symbol: str, known: LearnedConstant) -> Constant:
    return Constant(symbol=symbol, unsure=known.unsure, rows=known.rows)


def part(line: LedgerLine, constants: dict[str, tuple[Constant, ...]]) -> ExpectedPart:
    return ExpectedPart(
        name=line.name,
        computed=ComputedValue(formula=line.formula, inputs=line.inputs, value=line.value),
        constants=constants.get(line.name, ()),
    )
