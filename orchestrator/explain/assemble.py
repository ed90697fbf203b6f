"""Puts an explanation together: derivation, published figures, the plan, its expected step."""

from collections.abc import Iterator

from orchestrator import catalog
from orchestrator.catalog import Efficiency, LearnedConstant
from orchestrator.errors import SpecError
from orchestrator.explain.book import mixed_times
from orchestrator.explain.derivation import DerivationResult, derive
from orchestrator.explain.derivation_inputs import MFU
from orchestrator.explain.differences import differences, planned
from orchestrator.explain.goodput_derivation import goodput_section
from orchestrator.explain.published import published_figures
from orchestrator.plan.expected import SOURCE
from orchestrator.plan.flops import MFU_DEFINITION
from orchestrator.types.explanation import (
    Citation,
    ComputedValue,
    Constant,
    DerivationSection,
    ExpectedPart,
    ExpectedStep,
    Explanation,
    ExplanationSummary,
    QuotedFigures,
)
from orchestrator.types.plan import LedgerLine, LineKind, Plan
from orchestrator.types.spec import Spec

SCHEMA = 5


def explain(spec: Spec, mfu: float = MFU) -> Explanation:
    """The book's derivation for a spec, figures published about it, and what the plan does."""
    derived, quotes, plan = derive(spec, mfu), published_figures(spec), planned(spec)
    expected = expectation(plan) if isinstance(plan, Plan) else None
    goodput = goodput_section(plan) if isinstance(plan, Plan) else None
    return Explanation(
        schema=SCHEMA,
        name=spec.name,
        overrides=spec.overrides,
        model=spec.experiment.model.name,
        chip=spec.resources.chip,
        topology=str(catalog.topology(catalog.chip_of(spec.resources), spec.resources.topology)),
        pods=spec.resources.pods.max,
        chips=int(derived.numbers["chips"]),
        mfu_definition=MFU_DEFINITION,
        inputs=derived.inputs,
        sections=derived.sections,
        quotes=quotes,
        plan_digest=plan.digest if isinstance(plan, Plan) else None,
        differences=differences(spec, plan, derived.numbers) if isinstance(plan, Plan) else None,
        expectation=expected,
        goodput=goodput,
        no_plan=None if isinstance(plan, Plan) else str(plan),
        sources=cited(derived, quotes, expected, goodput),
        summary=summary(derived, plan),
    )


def cited(
    derived: DerivationResult,
    quotes: tuple[QuotedFigures, ...],
    expected: ExpectedStep | None,
    goodput: DerivationSection | None,
) -> tuple[Citation, ...]:
    """Every source that the explanation names, in order."""
    return tuple(map(citation, dict.fromkeys(named(derived, quotes, expected, goodput))))


def citation(key: str) -> Citation:
    """A source of the catalog; or the text that a chip's own file gives as one."""
    source = catalog.sources().get(key)
    if source is None:
        return Citation(key=key, title=key, where="the chip's file", date="")
    return Citation(key=key, title=source.title, where=source.where, date=source.date)


def named(
    derived: DerivationResult,
    quotes: tuple[QuotedFigures, ...],
    expected: ExpectedStep | None,
    goodput: DerivationSection | None,
) -> Iterator[str]:
    yield from (entry.source for entry in derived.inputs if entry.source is not None)
    for section in (*derived.sections, *([goodput] if goodput else [])):
        for line in section.lines:
            yield from line.sources
    yield from (figure.source for entry in quotes for figure in entry.figures)
    if expected is not None:
        yield expected.source


def summary(derived: DerivationResult, plan: Plan | SpecError) -> ExplanationSummary:
    """The whole explanation in a few figures."""
    numbers = derived.numbers
    mixed = mixed_times(numbers, "mixed_least_eff") if "mixed_least_eff" in numbers else None
    return ExplanationSummary(
        days=numbers["days"],
        mfu=numbers["mfu"],
        mixed_times=mixed,
        tokens=numbers["T"],
        forecast=plan.forecast if isinstance(plan, Plan) else None,
    )


# --- the expected step, part by part, with the runs behind each constant


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
        "exposed_gathers": (constant("exposed", efficiency.exposed_gathers),),
        "exposed_tensor": (constant("exposed", efficiency.exposed_tensor),),
        "slice_wait": (
            constant("wait", efficiency.slice_wait_s),
            constant("hop", efficiency.slice_hop_s),
        ),
    }


def constant(symbol: str, value: LearnedConstant) -> Constant:
    return Constant(symbol=symbol, unsure=value.unsure, rows=value.rows)


def part(line: LedgerLine, constants: dict[LineKind, tuple[Constant, ...]]) -> ExpectedPart:
    return ExpectedPart(
        name=line.name,
        computed=ComputedValue(formula=line.formula, inputs=line.inputs, value=line.value),
        constants=constants.get(line.kind, ()),
    )
