"""In which types chips and trainers multiply, and what is refused because they do not."""

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.values.model import Model

_KEY = "experiment.precision.compute"


def multiplies_in(chip: Chip, compute: str) -> bool:
    """Whether a chip gains from that type: it has a rate for it, fp8 a higher one than bf16."""
    rates = chip.peak_flops_per_s
    return compute in rates and (compute != "fp8" or rates[compute].value > rates["bf16"].value)


def check_chip(chip: Chip, compute: str) -> None:
    """Refuse a type that a chip gains nothing from."""
    if multiplies_in(chip, compute):
        return
    why = f"no rate of {chip.name} is known for it"
    if compute in chip.peak_flops_per_s:
        why = f"{chip.name} multiplies in it no faster than in bf16, and less exactly"
    own = [name for name in ("int8", "bf16") if name in chip.peak_flops_per_s]
    others = [name for name in catalog.chips() if multiplies_in(catalog.chip(name), compute)]
    raise SpecError(
        f"{_KEY} {compute}: {why}\n"
        f"Plan in {' or '.join(own)}: --set {_KEY}={own[-1]}\n"
        f"Chips with {compute}: {', '.join(others)}"
    )


def check_experts(model: Model, compute: str) -> None:
    """Refuse experts whose products the trainer cannot make in fp8."""
    if compute == "fp8" and model.moe is not None and model.moe.capacity_factor is None:
        raise SpecError(
            f"{_KEY} fp8: the trainer cannot multiply the experts of {model.name} in fp8; a mixture"
            " that drops no choice has groups of rows of any size, and no kernel for these in fp8\n"
            "Give experiment.model.moe a capacity_factor, which makes groups alike, or --set"
            f" {_KEY}=bf16"
        )
