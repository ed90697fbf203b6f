"""Puts an explanation together: derivation, published figures, the plan, its expected step."""

from dataclasses import replace
from decimal import Decimal

from orchestrator import catalog
from orchestrator.catalog.published import BookQuestion, LearnedConstant, figures, questions
from orchestrator.errors import SpecError
from orchestrator.evidence.explain import formula
from orchestrator.evidence.explain.book import MFU, mixed_times, vendor_rates
from orchestrator.evidence.explain.derivation import derive, goodput_section
from orchestrator.evidence.explain.differences import differences
from orchestrator.evidence.explain.formula import Explanation, QuotedFigures, compute
from orchestrator.planning.expected import SOURCE
from orchestrator.planning.flops import MFU_DEFINITION
from orchestrator.planning.planner import make_plan
from orchestrator.values.plan import LineKind, Plan
from orchestrator.values.spec import Batch, Experiment, Pods, Resources, Spec


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
    sheet, _ = derive(spec, MFU)
    numbers = sheet.numbers | {f"{symbol}_vendor": rate.value for symbol, rate in vendor.items()}
    quoted = []
    for figure in figures():
        if key not in figure.questions:
            continue
        reproduced = compute(figure.formula, numbers | figure.inputs)
        exact = figure.inputs | numbers | figure.exact_inputs
        asides = [
            formula.Remark(
                says=remark.says,
                unit=figure.unit if remark.unit is None else remark.unit,
                computed=compute(remark.formula, numbers | remark.inputs),
            )
            for remark in figure.asides
        ]
        quoted.append(
            formula.QuotedFigure(
                about=figure.about,
                printed=figure.printed,
                unit=figure.unit,
                source=figure.source,
                reproduced=reproduced,
                agreement=_agreement(figure.printed, reproduced.value),
                exact=compute(figure.exact or figure.formula, exact),
                asides=tuple(asides),
                why=figure.why.strip(),
            )
        )
    return QuotedFigures(title=question.title, figures=tuple(quoted))


def _agreement(printed: str, value: float) -> formula.Agreement:
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
    sheet, sections = derive(spec, mfu)
    numbers = sheet.numbers
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

    named = [entry.source for entry in sheet.inputs if entry.source is not None]
    lines = [line for section in sections for line in section.lines]
    lines += goodput.lines if goodput else ()
    named += [source for line in lines for source in line.sources]
    named += [figure.source for entry in quotes for figure in entry.figures]
    named += [expected.source] if expected else []
    # Sources of the catalog; or the text that a chip's own file gives as one.
    citations = []
    for key in dict.fromkeys(named):
        title, where, date = key, "the chip's file", ""
        if source := catalog.sources().get(key):
            title, where, date = source.title, source.where, source.date
        citations.append(formula.Citation(key=key, title=title, where=where, date=date))
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
        inputs=sheet.inputs,
        sections=sections,
        quotes=quotes,
        plan_digest=plan.digest if plan else None,
        differences=differences(spec, plan, numbers) if plan else None,
        expectation=expected,
        goodput=goodput,
        no_plan=no_plan,
        sources=tuple(citations),
        summary=formula.ExplanationSummary(
            days=numbers["days"],
            mfu=numbers["mfu"],
            mixed_times=(
                mixed_times(numbers, "mixed_least_eff") if "mixed_least_eff" in numbers else None
            ),
            tokens=numbers["T"],
            forecast=plan.forecast if plan else None,
        ),
    )


def _expectation(plan: Plan) -> formula.ExpectedStep | None:
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
    return formula.ExpectedStep(
        parts=tuple(
            formula.ExpectedPart(
                name=line.name,
                computed=formula.ComputedValue(
                    formula=line.formula, inputs=line.inputs, value=line.value
                ),
                constants=tuple(
                    formula.Constant(symbol=symbol, unsure=value.unsure, rows=value.rows)
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
