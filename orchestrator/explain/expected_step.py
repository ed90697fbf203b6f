"""Explains the expected step, part by part, with the runs behind each constant."""

from orchestrator import catalog
from orchestrator.catalog import Efficiency, LearnedConstant
from orchestrator.plan.expected import SOURCE
from orchestrator.types.explanation import ComputedValue, Constant, ExpectedPart, ExpectedStep
from orchestrator.types.plan import LedgerLine, LineKind, Plan


def expectation(plan: Plan) -> ExpectedStep | None:
    """The plan's own ledger; None for a chip without learned constants."""
    efficiency, step_s = catalog.efficiency(plan.chip), plan.forecast.step_s
    if efficiency is None or step_s.expected is None or step_s.low is None or step_s.high is None:
        return None
    constants = learned(efficiency)
    return ExpectedStep(
        parts=tuple(part(line, constants) for line in plan.forecast.expected_time),
        expected_s=step_s.expected,
        low_s=step_s.low,
        high_s=step_s.high,
        spread=efficiency.spread.value,
        rows=efficiency.spread.rows,
        source=SOURCE,
    )


def learned(efficiency: Efficiency) -> dict[LineKind, tuple[Constant, ...]]:
    """The constants in the formulas, by kind of line."""
    return {
        "matmul": (constant("share", efficiency.matmul),),
        "attention": (constant("share", efficiency.attention),),
        "exposed_collectives": (constant("exposed", efficiency.exposed),),
        "slice_wait": (
            constant("wait", efficiency.slice_wait_s),
            constant("hop", efficiency.slice_hop_s),
        ),
        "between_steps": (constant("between", efficiency.between_steps_s),),
    }


def constant(symbol: str, value: LearnedConstant) -> Constant:
    return Constant(symbol=symbol, unsure=value.unsure, rows=value.rows)


def part(line: LedgerLine, constants: dict[LineKind, tuple[Constant, ...]]) -> ExpectedPart:
    return ExpectedPart(
        name=line.name,
        computed=ComputedValue(formula=line.formula, inputs=line.inputs, value=line.value),
        constants=constants.get(line.kind, ()),
    )
