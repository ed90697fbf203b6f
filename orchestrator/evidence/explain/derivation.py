"""The book's derivation for one spec, section by section."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.evidence.explain import book
from orchestrator.evidence.explain.book import (
    AxisCounts,
    Rates,
    all_inputs,
    axes_of,
    book_rates,
    vendor_rates,
)
from orchestrator.evidence.explain.formula import DerivationSection, Formula, Input, Worksheet
from orchestrator.goodput.inputs import SPEC
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, Network, Sublayer, Weight
from orchestrator.planning.layout import DTYPE_BYTES, activation_type
from orchestrator.values.goodput import EvaluationCost, GoodputForecast
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec

# Logical axis → the book's letter, in the order in which a product names them.
LETTERS = {
    "embed": "D",
    "residual": "D",
    "ff": "F",
    "heads": "N",
    "kv_heads": "K",
    "head_dim": "H",
    "vocab": "V",
    "expert_ff": "F_exp",
    "shared_ff": "F_shared",
    "expert_embed": "D",
    "experts": "E",
    "routed_experts": "E",
    "value_dim": "H_v",
    "nope_dim": "H_nope",
    "rope_dim": "H_rope",
    "query_rank": "R_q",
    "query_latent": "R_q",
    "kv_rank": "R_kv",
    "kv_latent": "R_kv",
}
ACTIVE = LETTERS | {"experts": "k"}  # of experts, a token is multiplied by so many
FORWARD_AND_BACKWARD = 3
CAUSAL_PRODUCTS = 2  # two products of two FLOPs a pair of positions, of which half are causal


def parameter_formulas(network: Network) -> list[Formula]:
    """What each part of the network has, and what every token is multiplied by."""
    unit = "parameters"
    ffw = in_all_layers(network, lambda block: matrices(block.mlp))
    attention = in_all_layers(network, lambda block: matrices(block.attention))
    blocks = in_all_layers(network, lambda block: elements(block.vectors))
    norms = f"{blocks} + {elements(network.norm.weights)}"
    active = "P_ffw"
    experts, used = list[Formula](), list[Formula]()
    if network.mixture_layers:
        active = "P_act"
        multiplied = in_all_layers(network, lambda block: active_matrices(block.mlp))
        experts = [Formula("FFW of one token", active, multiplied, unit)]
        vectors = "P_norm"
        if any(is_of_experts(one) for block in network.blocks for one in block.vectors):
            vectors = "P_norm_act"
            met = in_all_layers(network, lambda block: elements(block.vectors, ACTIVE))
            met = f"{met} + {elements(network.norm.weights)}"
            experts.append(Formula("norms and biases of one token", vectors, met, unit))
        used = [Formula("used by one token", "P_used", f"P_act + P_att + P_voc + {vectors}", unit)]
    return [
        Formula("FFW", "P_ffw", ffw, unit),
        *experts,
        Formula("attention", "P_att", attention, unit),
        Formula("vocabulary", "P_voc", elements(network.tables), unit),
        Formula("norms", "P_norm", norms, unit),
        Formula("all", "P", "P_ffw + P_att + P_voc + P_norm", unit),
        *used,
        Formula("multiplied by every token", "P_mat", f"{active} + P_att + {head(network)}", unit),
    ]


def is_of_experts(weight: Weight) -> bool:
    return weight.dimensions[0].axis == "experts"


def flop_formulas(network: Network) -> list[Formula]:
    """The book's rule of thumb, and the definition that MFU uses here."""
    attention = in_all_layers(network, attention_flops)
    used = "P_used" if network.mixture_layers else "P"
    windows = any(block.attention.scores.window for block in network.blocks)
    return [
        *([Formula("positions in a window", "S_loc", "min(S, S_win)", "tokens")] * windows),
        Formula("of a token, by 6 P", "f", f"6 * {used}", "FLOP"),
        Formula("of a token, as MFU counts", "f_mfu", f"6 * P_mat + {attention}", "FLOP"),
        Formula("of all tokens, by 6 P", "flops", "f * T", "FLOP"),
        Formula("of all tokens, as MFU counts", "flops_mfu", "f_mfu * T", "FLOP"),
    ]


def head(network: Network) -> str:
    """Parameters of the matmul that makes logits."""
    return elements([network.head])


def elements(weights: Iterable[Weight], letters: Mapping[str, str] = LETTERS) -> str:
    """The sum of the weights' sizes; alike ones are counted: `2 * D * H + 2 * D * K`."""
    sizes = Counter(product((one.axis for one in weight.dimensions), letters) for weight in weights)
    return " + ".join(f"{count} * {size}" if count > 1 else size for size, count in sizes.items())


def active_matrices(part: Sublayer) -> str:
    """Those that one token is multiplied by: of each weight of experts, as many as it goes to."""
    every = [one.weight for one in part.matmuls if one.share == 1]
    routed = [one.weight for one in part.matmuls if one.share < 1]
    return " + ".join(text for text in (elements(routed, ACTIVE), elements(every)) if text)


def product(axes: Iterable[str], letters: Mapping[str, str] = LETTERS) -> str:
    ordered = sorted((letters[axis] for axis in axes), key=[*letters.values()].index)
    return " * ".join(ordered)


def matrices(part: Sublayer) -> str:
    return elements(matmul.weight for matmul in part.matmuls)


def attention_flops(block: Block) -> str:
    """Forward and backward FLOPs of a token's attention in one layer."""
    scores, values = (
        [dimension.axis for dimension in tensor.dimensions]
        for tensor in (block.attention.queries, block.attention.result)
    )
    seen = "S" if block.attention.scores.window is None else "(2 * S_loc - S_loc * S_loc / S)"
    if scores == values:
        return f"{FORWARD_AND_BACKWARD} * {CAUSAL_PRODUCTS} * {seen} * {product(values)}"
    return f"{FORWARD_AND_BACKWARD} * {seen} * ({product(scores)} + {product(values)})"


def in_all_layers(network: Network, text_of: Callable[[Block], str]) -> str:
    """What blocks have, times the layers of their kind; kinds that have the same count as one."""
    layers: Counter[str] = Counter()
    for block, count in network.kinds:
        layers[text_of(block)] += count
    if len(layers) == 1:
        return f"{bracketed(*layers)} * L"
    return " + ".join(f"{bracketed(text)} * {count}" for text, count in layers.items())


def bracketed(text: str) -> str:
    return f"({text})" if "+" in text else text


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


# The goodput of a plan, worked out from failures and saves as docs/goodput.md has it.


TITLE = "Goodput: the share of time that trains"
FORMULAS = (
    Formula("seconds between failures", "M", "86400 / failures", "s"),
    Formula("a recovery", "R", "detection + waiting + restart + restore", "s"),
    Formula("steps wait for a save", "w", "blocking + max(write - every, 0)", "s"),
    Formula("Young's interval", "young", "sqrt(2 * w * M)", "s"),
    Formula(
        "share of time in steps",
        "stepping",
        "every / M * exp(0 - (R + write) / M) / (exp((every + w) / M) - 1)",
        "",
    ),
    Formula("share of time in recoveries", "recovering", "1 - exp(0 - R / M)", ""),
    Formula("share of time in saves", "saving", "stepping * w / every", ""),
    Formula("goodput", "goodput", "stepping * (1 - missing)", ""),
)
WITH_EVALUATION = (
    *FORMULAS[:-1],
    Formula(
        "share of steps and evaluations in steps",
        "training",
        "every_steps / (every_steps + as_steps)",
        "",
    ),
    Formula("goodput", "goodput", "stepping * training * (1 - missing)", ""),
)


def goodput_section(plan: Plan) -> DerivationSection | None:
    """The derivation; None where the spec states the goodput, or nothing fails."""
    forecast = plan.forecast.goodput
    if forecast.stated or forecast.seconds_between_failures is None:
        return None
    formulas = WITH_EVALUATION if forecast.inputs.evaluation else FORMULAS
    return Worksheet(goodput_inputs(forecast)).section(TITLE, formulas)


def goodput_inputs(forecast: GoodputForecast) -> tuple[Input, ...]:
    """The symbols of the formulas, with the first source of each."""
    inputs, save = forecast.inputs, forecast.inputs.save
    rows = (
        ("failures", inputs.failures_per_day.value, "a day", "failures_per_day"),
        ("detection", inputs.detection_s.value, "seconds", "detection_s"),
        ("waiting", inputs.waiting_s.value, "seconds for a slice", "waiting_s"),
        ("restart", inputs.restart_s.value, "seconds", "restart_s"),
        ("restore", inputs.restore_s.value, "seconds", "storage_bytes_per_s"),
        ("blocking", save.blocking_s.value, "seconds", ""),
        ("write", save.write_s.value, "seconds", "storage_bytes_per_s"),
        ("every", forecast.every_s, "seconds between saves", ""),
        ("missing", inputs.missing_pods.value, "share of pods", "waiting_s"),
        *evaluation_rows(inputs.evaluation),
    )
    return tuple(
        Input(symbol=symbol, value=value, meaning=meaning, source=source_of(forecast, key))
        for symbol, value, meaning, key in rows
    )


def evaluation_rows(cost: EvaluationCost | None) -> tuple[tuple[str, float, str, str], ...]:
    if cost is None:
        return ()
    return (
        ("every_steps", cost.every_steps, "steps between evaluations", ""),
        ("as_steps", cost.in_steps, "steps that would take as long as an evaluation", ""),
    )


def source_of(forecast: GoodputForecast, key: str) -> str | None:
    """A key of the catalog; None for what the spec says."""
    return next((one for one in forecast.inputs.sources.get(key, ()) if one != SPEC), None)
