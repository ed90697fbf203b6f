"""Explain room: the book's derivation for one spec, section by section."""

from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Topology
from orchestrator.explain import counting, sharding
from orchestrator.explain.inputs import (
    AxisCounts,
    Rates,
    axes_of,
    book_rates,
    everything_given,
    vendor_rates,
)
from orchestrator.explain.worksheet import Worksheet
from orchestrator.plan.layout import DTYPE_BYTES
from orchestrator.types.explanation import DerivationSection, Input
from orchestrator.types.spec import Spec


@dataclass(frozen=True)
class DerivationResult:
    """What was worked out: the numbers for whoever goes on, the sections for the reader."""

    numbers: dict[str, float]
    given: tuple[Input, ...]
    sections: tuple[DerivationSection, ...]


def derive(spec: Spec, mfu: float) -> DerivationResult:
    """Everything by the book's rates, then the bounds again by the vendor's."""
    chip = catalog.chip_of(spec.resources)
    topology = catalog.topology(chip, spec.resources.topology)
    dtype = spec.experiment.precision.compute
    book, vendor = book_rates(chip, dtype), vendor_rates(chip, dtype)
    sheet = Worksheet(everything_given(spec, chip, topology, book, mfu))
    model = spec.experiment.model
    sections = [
        counting.parameters(sheet, model),
        counting.compute(sheet, model, spec.experiment.batch.length),
        counting.duration(sheet),
        counting.memory(sheet),
        sharding.sequences_alone(sheet),
    ]
    axes = axes_of(chip, topology)
    if axes is not None:
        sections += inside_a_pod(sheet, spec, chip, axes)
    if spec.resources.pods.max > 1:
        sections.append(sharding.between_pods(sheet))
    if axes is not None and values(book) != values(vendor):
        sections.append(by_the_vendor(spec, chip, topology, axes, sheet))
    return DerivationResult(sheet.numbers, sheet.given, tuple(sections))


def inside_a_pod(
    sheet: Worksheet, spec: Spec, chip: Chip, axes: AxisCounts
) -> list[DerivationSection]:
    return [
        *bounds(sheet, spec, chip, axes),
        sharding.one_layer(sheet, axes),
        sharding.bytes_of_a_layer(sheet),
    ]


def bounds(sheet: Worksheet, spec: Spec, chip: Chip, axes: AxisCounts) -> list[DerivationSection]:
    """The sections that depend on the rates of the links."""
    rings = "w" if chip.switched else "2 * w"
    width = DTYPE_BYTES[spec.experiment.precision.compute]
    return [
        sharding.weights_alone(sheet, rings, width),
        sharding.tensor_alone(sheet),
        sharding.mixed(sheet, spec.experiment.model, axes),
    ]


def values(rates: Rates) -> tuple[float, ...]:
    """The rates that the bounds depend on."""
    return (
        rates.peak_flops_per_s.value,
        rates.link_bytes_per_s.value,
        rates.dcn_bytes_per_s.value,
        rates.hbm_bytes.value,
    )


# What the vendor's rates change, in the order in which it is worked out.
AGAIN = ("W", "alpha", "fsdp_least", "Y_most", "mixed_least", "mixed_least_eff")


def by_the_vendor(
    spec: Spec, chip: Chip, topology: Topology, axes: AxisCounts, book: Worksheet
) -> DerivationSection:
    """The book rounds links down and HBM up: the same lines with the datasheet's figures."""
    rates = vendor_rates(chip, spec.experiment.precision.compute)
    sheet = Worksheet(everything_given(spec, chip, topology, rates, book["mfu"]))
    sheet.numbers = book.numbers | sheet.numbers
    again = bounds(sheet, spec, chip, axes)
    lines = [line for section in again for line in section.lines if line.symbol in AGAIN]
    lines.append(sheet.line("chips that hold it, by [B, D]", "few", "ceil(b_all / HBM)", "chips"))
    if spec.resources.pods.max > 1:
        again.append(sharding.between_pods(sheet))
        lines += again[-1].lines
    return DerivationSection(
        title="The same by the vendor's figures",
        lines=tuple(lines),
        verdicts=tuple(verdict for section in again for verdict in section.verdicts),
    )
