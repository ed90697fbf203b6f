"""Puts an explanation together: derivation, published figures, the plan, its expected step."""

from dataclasses import replace
from decimal import Decimal

from orchestrator import catalog
from orchestrator.catalog.published import (
    BookQuestion,
    LearnedConstant,
    PublishedFigure,
    figures,
    questions,
)
from orchestrator.errors import SpecError
from orchestrator.evidence.explain.book import MFU, mixed_times, vendor_rates
from orchestrator.evidence.explain.derivation import derive, goodput_section
from orchestrator.evidence.explain.differences import differences
from orchestrator.evidence.explain.formula import (
    Agreement,
    Citation,
    ComputedValue,
    Constant,
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
from orchestrator.planning.planner import make_plan
from orchestrator.values.plan import LineKind, Plan
from orchestrator.values.spec import Batch, Experiment, Pods, Resources, Spec

# Published figures, recomputed from the inputs that give them and from exact inputs.


def _is_about(question: BookQuestion, spec: Spec) -> bool:
    """Whether a question is about the spec's model and, where it names slices, about its slices."""
    model, asked = spec.experiment.model, catalog.model(question.model)
    # Models with the same parameters are the same, whatever their names.
    alike = replace(asked, name=model.name, rope_theta=model.rope_theta)
    if replace(alike, norm_epsilon=model.norm_epsilon) != model:
        return False
    if not question.quoted_for_pods:
        return True
    resources, chip = spec.resources, catalog.chip(question.chip)
    if resources.chip != chip.name or resources.pods.max not in question.quoted_for_pods:
        return False
    shape, own = (catalog.topology(chip, text) for text in (question.topology, resources.topology))
    return shape == own


def _quoted(key: str, question: BookQuestion) -> QuotedFigures:
    """Return the figures published for a question, and what their inputs and exact ones give."""
    chip = catalog.chip(question.chip)
    spec = Spec(
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
    vendor = vendor_rates(chip, spec.experiment.precision.compute)
    numbers = derive(spec, MFU).numbers | {
        "C_vendor": vendor.peak_flops_per_s.value,
        "w_vendor": vendor.link_bytes_per_s.value,
        "HBM_vendor": vendor.hbm_bytes.value,
    }
    chosen = [figure for figure in figures() if key in figure.questions]
    return QuotedFigures(
        title=question.title, figures=tuple(_recomputed(figure, numbers) for figure in chosen)
    )


def _recomputed(figure: PublishedFigure, numbers: dict[str, float]) -> QuotedFigure:
    reproduced = compute(figure.formula, numbers | figure.inputs)
    exact = figure.inputs | numbers | figure.exact_inputs
    return QuotedFigure(
        about=figure.about,
        printed=figure.printed,
        unit=figure.unit,
        source=figure.source,
        reproduced=reproduced,
        agreement=_agreement(figure.printed, reproduced.value),
        exact=compute(figure.exact or figure.formula, exact),
        asides=tuple(
            Remark(
                says=remark.says,
                unit=figure.unit if remark.unit is None else remark.unit,
                computed=compute(remark.formula, numbers | remark.inputs),
            )
            for remark in figure.asides
        ),
        why=figure.why.strip(),
    )


def _agreement(printed: str, value: float) -> Agreement:
    """Return whether the printed digits are those of the value: rounded, or cut off."""
    figure = Decimal(printed)
    last_digit = Decimal(1).scaleb(int(figure.as_tuple().exponent))
    # The shortest digits of a float, not its binary tail: 3.645e25 is a tie, and rounds up.
    off = Decimal(repr(float(value))) - figure
    if abs(off) <= last_digit / 2:
        return "rounded"
    return "cut" if 0 <= off < last_digit else "differs"


_SCHEMA = 5


def explain(spec: Spec, mfu: float = MFU) -> Explanation:
    """Return the book's derivation for a spec, figures published about it, and its plan's."""
    derived = derive(spec, mfu)
    quotes = tuple(
        _quoted(key, question) for key, question in questions().items() if _is_about(question, spec)
    )
    plan: Plan | None = None
    no_plan: str | None = None
    try:
        plan = make_plan(spec)
    except SpecError as error:
        no_plan = str(error)
    expected = _expectation(plan) if plan else None
    goodput = goodput_section(plan) if plan else None
    numbers, sections = derived.numbers, (*derived.sections, *([goodput] if goodput else []))

    named = [entry.source for entry in derived.inputs if entry.source is not None]
    named += [source for section in sections for line in section.lines for source in line.sources]
    named += [figure.source for entry in quotes for figure in entry.figures]
    named += [expected.source] if expected else []
    return Explanation(
        schema=_SCHEMA,
        name=spec.name,
        overrides=spec.overrides,
        model=spec.experiment.model.name,
        chip=spec.resources.chip,
        topology=str(catalog.topology(catalog.chip_of(spec.resources), spec.resources.topology)),
        pods=spec.resources.pods.max,
        chips=int(numbers["chips"]),
        mfu_definition=MFU_DEFINITION,
        inputs=derived.inputs,
        sections=derived.sections,
        quotes=quotes,
        plan_digest=plan.digest if plan else None,
        differences=differences(spec, plan, numbers) if plan else None,
        expectation=expected,
        goodput=goodput,
        no_plan=no_plan,
        sources=tuple(map(_citation, dict.fromkeys(named))),
        summary=ExplanationSummary(
            days=numbers["days"],
            mfu=numbers["mfu"],
            mixed_times=(
                mixed_times(numbers, "mixed_least_eff") if "mixed_least_eff" in numbers else None
            ),
            tokens=numbers["T"],
            forecast=plan.forecast if plan else None,
        ),
    )


def _citation(key: str) -> Citation:
    """Return a source of the catalog; or the text that a chip's own file gives as one."""
    source = catalog.sources().get(key)
    if source is None:
        return Citation(key=key, title=key, where="the chip's file", date="")
    return Citation(key=key, title=source.title, where=source.where, date=source.date)


def _expectation(plan: Plan) -> ExpectedStep | None:
    """Return the expected step part by part; None for a chip without learned constants."""
    efficiency, step_s = catalog.efficiency(plan.chip), plan.forecast.step_s
    if efficiency is None or step_s.expected is None or step_s.low is None or step_s.high is None:
        return None
    # Of each kind of line: the symbols of learned constants in its formula.
    learned: dict[LineKind, dict[str, LearnedConstant]] = {
        "matmul": {"share": efficiency.matmul},
        "attention": {"share": efficiency.attention},
        "exposed_gathers": {"exposed": efficiency.exposed_gathers},
        "exposed_tensor": {"exposed": efficiency.exposed_tensor},
        "slice_wait": {"wait": efficiency.slice_wait_s, "hop": efficiency.slice_hop_s},
    }
    return ExpectedStep(
        parts=tuple(
            ExpectedPart(
                name=line.name,
                computed=ComputedValue(formula=line.formula, inputs=line.inputs, value=line.value),
                constants=tuple(
                    Constant(symbol=symbol, unsure=value.unsure, rows=value.rows)
                    for symbol, value in learned.get(line.kind, {}).items()
                ),
            )
            for line in plan.forecast.expected_time
        ),
        expected_s=step_s.expected,
        low_s=step_s.low,
        high_s=step_s.high,
        spread=efficiency.spread.value,
        rows=efficiency.spread.rows,
        source=SOURCE,
    )
