"""Published figures, recomputed from the inputs that give them and from exact inputs."""

from dataclasses import replace
from decimal import Decimal

from orchestrator import catalog
from orchestrator.catalog.published_figures import (
    BookQuestion,
    PublishedFigure,
    RemarkFormula,
    figures,
    questions,
)
from orchestrator.explain.derivation import derive
from orchestrator.explain.derivation_inputs import MFU, vendor_rates
from orchestrator.explain.formula import compute
from orchestrator.types.explanation import Agreement, QuotedFigure, QuotedFigures, Remark
from orchestrator.types.model import Model
from orchestrator.types.spec import Batch, Experiment, Pods, Resources, Spec


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
