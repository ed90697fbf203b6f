"""The book's derivation for one spec, section by section."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Topology
from orchestrator.explain import book
from orchestrator.explain.derivation_inputs import (
    AxisCounts,
    Rates,
    all_inputs,
    axes_of,
    book_rates,
    vendor_rates,
)
from orchestrator.explain.formula import Worksheet
from orchestrator.explain.network_formulas import flop_formulas, head, parameter_formulas
from orchestrator.network.decoder import decoder
from orchestrator.plan.layout import DTYPE_BYTES, activation_type
from orchestrator.types.explanation import DerivationSection, Input
from orchestrator.types.spec import Spec

# What the vendor's rates change, in the order of the derivation.
CHANGED_BY_RATES = ("W", "alpha", "fsdp_least", "Y_most", "mixed_least", "mixed_least_eff")


@dataclass(frozen=True)
class DerivationResult:
    """The numbers by symbol, and the sections for the reader."""

    numbers: dict[str, float]
    inputs: tuple[Input, ...]
    sections: tuple[DerivationSection, ...]


def derive(spec: Spec, mfu: float) -> DerivationResult:
    """Everything by the book's rates, then the bounds again by the vendor's."""
    chip = catalog.chip_of(spec.resources)
    topology = catalog.topology(chip, spec.resources.topology)
    dtype = spec.experiment.precision.compute
    rates, vendor = book_rates(chip, dtype), vendor_rates(chip, dtype)
    sheet = Worksheet(all_inputs(spec, chip, topology, rates, mfu))
    axes = axes_of(chip, topology)
    sections = [
        *needs(sheet, spec),
        *(inside_a_pod(sheet, spec, chip, axes) if axes else ()),
        *([book.between_pods(sheet)] if spec.resources.pods.max > 1 else ()),
    ]
    if axes and values(rates) != values(vendor):
        sections.append(by_the_vendor(spec, chip, topology, axes, sheet))
    return DerivationResult(sheet.numbers, sheet.inputs, tuple(sections))


def needs(sheet: Worksheet, spec: Spec) -> Iterator[DerivationSection]:
    """What training needs, however it is sharded."""
    network = decoder(spec.experiment.model)
    yield sheet.section("Parameters", parameter_formulas(network))
    yield sheet.section("FLOPs", flop_formulas(network))
    yield book.time(sheet)
    yield book.memory(sheet)
    yield book.whole_sequences(sheet)


def inside_a_pod(
    sheet: Worksheet, spec: Spec, chip: Chip, axes: AxisCounts
) -> Iterator[DerivationSection]:
    yield from bounds(sheet, spec, chip, axes)
    yield book.one_mlp(sheet, axes)
    yield book.mlp_bytes(sheet)


def bounds(
    sheet: Worksheet, spec: Spec, chip: Chip, axes: AxisCounts
) -> Iterator[DerivationSection]:
    """The sections that depend on the rates of the links."""
    width = DTYPE_BYTES[activation_type(spec.experiment.precision)]
    yield book.fsdp(sheet, "w" if chip.switched else "2 * w", width)
    yield book.tensor(sheet, axes)
    yield book.mixed(sheet, axes, head(decoder(spec.experiment.model)))


def values(rates: Rates) -> tuple[float, ...]:
    """The rates that the bounds depend on."""
    return (
        rates.peak_flops_per_s.value,
        rates.link_bytes_per_s.value,
        rates.dcn_bytes_per_s.value,
        rates.hbm_bytes.value,
    )


def by_the_vendor(
    spec: Spec, chip: Chip, topology: Topology, axes: AxisCounts, by_the_book: Worksheet
) -> DerivationSection:
    """The same bounds with the datasheet's rates: the book rounds links down and HBM up."""
    rates = vendor_rates(chip, spec.experiment.precision.compute)
    sheet = Worksheet(all_inputs(spec, chip, topology, rates, by_the_book["mfu"]))
    sheet.numbers = by_the_book.numbers | sheet.numbers
    again = list(bounds(sheet, spec, chip, axes))
    lines = [line for one in again for line in one.lines if line.symbol in CHANGED_BY_RATES]
    lines.append(sheet.line(book.FEWEST_CHIPS))
    if spec.resources.pods.max > 1:
        again.append(book.between_pods(sheet))
        lines += again[-1].lines
    return DerivationSection(
        title="The same by the vendor's figures",
        lines=tuple(lines),
        verdicts=tuple(verdict for section in again for verdict in section.verdicts),
    )
