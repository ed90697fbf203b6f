"""Puts an explanation together: derivation, published figures, the plan, its expected step."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from orchestrator import catalog
from orchestrator.catalog.published import (
    BookQuestion,
    Efficiency,
    LearnedConstant,
    PublishedFigure,
    RemarkFormula,
    figures,
    questions,
)
from orchestrator.errors import SpecError
from orchestrator.evidence.explain.book import MFU, mixed_times, vendor_rates
from orchestrator.evidence.explain.derivation import DerivationResult, derive, goodput_section
from orchestrator.evidence.explain.differences import differences, planned
from orchestrator.evidence.explain.formula import (
    Agreement,
    Citation,
    ComputedValue,
    Constant,
    DerivationSection,
    ExpectedPart,
    ExpectedStep,
    Explanation,
    ExplanationSummary,
    QuotedFigure,
    QuotedFigures,
    Remark,
    compute,
)
from orchestrator.planning.expected import SOURCE
from orchestrator.planning.flops import MFU_DEFINITION
from orchestrator.values.model import Model
from orchestrator.values.plan import LedgerLine, LineKind, Plan
from orchestrator.values.spec import Batch, Experiment, Pods, Resources, Spec

# Published figures, recomputed from the inputs that give them and from exact inputs.


def published_figures(spec: Spec) -> tuple[QuotedFigures, ...]:
    """What was published about this model on these slices; mostly nothing."""
    return tuple(
        quoted(key, question) for key, question in questions().items() if is_about(question, spec)
    )


def is_about(question: BookQuestion, spec: Spec) -> bool:
    """Whether a question is about the spec's model and, where it names slices, about its slices."""
    if not same_shape(catalog.model(question.model), spec.experiment.model):
        return False
    if not question.quoted_for_pods:
        return True
    resources, chip = spec.resources, catalog.chip(question.chip)
    if resources.chip != chip.name or resources.pods.max not in question.quoted_for_pods:
        return False
    shapes = (catalog.topology(chip, text) for text in (question.topology, resources.topology))
    return next(shapes) == next(shapes)


def same_shape(one: Model, other: Model) -> bool:
    """Whether two models have the same parameters, whatever their names."""
    alike = replace(one, name=other.name, rope_theta=other.rope_theta)
    return replace(alike, norm_epsilon=other.norm_epsilon) == other


def quoted(key: str, question: BookQuestion) -> QuotedFigures:
    numbers = exact_numbers(question)
    chosen = [figure for figure in figures() if key in figure.questions]
    return QuotedFigures(
        title=question.title, figures=tuple(recomputed(figure, numbers) for figure in chosen)
    )


def exact_numbers(question: BookQuestion) -> dict[str, float]:
    """The derivation for the question, and the vendor's own figures."""
    spec = spec_of(question)
    chip = catalog.chip(question.chip)
    vendor = vendor_rates(chip, spec.experiment.precision.compute)
    return derive(spec, MFU).numbers | {
        "C_vendor": vendor.peak_flops_per_s.value,
        "w_vendor": vendor.link_bytes_per_s.value,
        "HBM_vendor": vendor.hbm_bytes.value,
    }


def spec_of(question: BookQuestion) -> Spec:
    return Spec(
        name="question",
        experiment=Experiment(
            model=catalog.model(question.model),
            tokens=question.tokens,
            batch=Batch(sequences=question.sequences, length=question.length),
        ),
        resources=Resources(
            chip=question.chip,
            topology=question.topology,
            pods=Pods(min=question.pods, max=question.pods),
        ),
    )


def recomputed(figure: PublishedFigure, numbers: dict[str, float]) -> QuotedFigure:
    """A figure with what its inputs give, and what exact inputs give."""
    reproduced = compute(figure.formula, numbers | figure.inputs)
    exact = figure.inputs | numbers | figure.exact_inputs
    return QuotedFigure(
        about=figure.about,
        printed=figure.printed,
        unit=figure.unit,
        source=figure.source,
        reproduced=reproduced,
        agreement=agreement(figure.printed, reproduced.value),
        exact=compute(figure.exact or figure.formula, exact),
        asides=tuple(remark(one, figure.unit, numbers) for one in figure.asides),
        why=figure.why.strip(),
    )


def remark(written: RemarkFormula, unit: str, numbers: dict[str, float]) -> Remark:
    """A value that belongs beside a figure, in its unit unless it has one of its own."""
    computed = compute(written.formula, numbers | written.inputs)
    own_unit = unit if written.unit is None else written.unit
    return Remark(says=written.says, unit=own_unit, computed=computed)


def agreement(printed: str, value: float) -> Agreement:
    """Whether the printed digits are those of the value: rounded, or cut off."""
    figure = Decimal(printed)
    last_digit = Decimal(1).scaleb(int(figure.as_tuple().exponent))
    # The shortest digits of a float, not its binary tail: 3.645e25 is a tie, and rounds up.
    off = Decimal(repr(float(value))) - figure
    if abs(off) <= last_digit / 2:
        return "rounded"
    return "cut" if 0 <= off < last_digit else "differs"


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
