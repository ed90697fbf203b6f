"""The book's derivation for one spec, section by section."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from orchestrator import catalog
from orchestrator.evidence.explain import book
from orchestrator.evidence.explain.book import all_inputs, axes_of, book_rates, vendor_rates
from orchestrator.evidence.explain.formula import DerivationSection, Formula, Input, Worksheet
from orchestrator.goodput.inputs import SPEC
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, Network, Sublayer, Weight
from orchestrator.planning.layout import DTYPE_BYTES, activation_type
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec

# Logical axis → the book's letter, in the order in which a product names them.
_LETTERS = {
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
_ACTIVE = _LETTERS | {"experts": "k"}  # the experts that a token is multiplied by


def _parameter_formulas(network: Network) -> list[Formula]:
    """Return what each part of the network has, and what every token is multiplied by."""
    unit = "parameters"
    ffw = _in_all_layers(network, lambda block: _matrices(block.mlp))
    attention = _in_all_layers(network, lambda block: _matrices(block.attention))
    blocks = _in_all_layers(network, lambda block: _elements(block.vectors))
    final_norm = _elements(network.norm.weights)
    active = "P_ffw"
    experts, used = list[Formula](), list[Formula]()
    if network.mixture_layers:
        active, vectors = "P_act", "P_norm"
        multiplied = _in_all_layers(network, lambda block: _active_matrices(block.mlp))
        experts = [Formula("FFW of one token", active, multiplied, unit)]
        of_experts = (
            vector.dimensions[0].axis == "experts"
            for block in network.blocks
            for vector in block.vectors
        )
        if any(of_experts):
            vectors = "P_norm_act"
            met = _in_all_layers(network, lambda block: _elements(block.vectors, _ACTIVE))
            text = f"{met} + {final_norm}"
            experts.append(Formula("norms and biases of one token", vectors, text, unit))
        used = [Formula("used by one token", "P_used", f"P_act + P_att + P_voc + {vectors}", unit)]
    head = _elements([network.head])
    return [
        Formula("FFW", "P_ffw", ffw, unit),
        *experts,
        Formula("attention", "P_att", attention, unit),
        Formula("vocabulary", "P_voc", _elements(network.tables), unit),
        Formula("norms", "P_norm", f"{blocks} + {final_norm}", unit),
        Formula("all", "P", "P_ffw + P_att + P_voc + P_norm", unit),
        *used,
        Formula("multiplied by every token", "P_mat", f"{active} + P_att + {head}", unit),
    ]


def _elements(weights: Iterable[Weight], letters: Mapping[str, str] = _LETTERS) -> str:
    """Return the sum of the weights' sizes; equal ones are counted: `2 * D * H + 2 * D * K`."""
    sizes = Counter(
        _product((dimension.axis for dimension in weight.dimensions), letters) for weight in weights
    )
    return " + ".join(f"{count} * {size}" if count > 1 else size for size, count in sizes.items())


def _matrices(part: Sublayer) -> str:
    return _elements(matmul.weight for matmul in part.matmuls)


def _active_matrices(part: Sublayer) -> str:
    """Return the matrices that one token is multiplied by: its own experts, and all others."""
    every = [matmul.weight for matmul in part.matmuls if matmul.share == 1]
    routed = [matmul.weight for matmul in part.matmuls if matmul.share < 1]
    return " + ".join(text for text in (_elements(routed, _ACTIVE), _elements(every)) if text)


def _product(axes: Iterable[str], letters: Mapping[str, str] = _LETTERS) -> str:
    ordered = sorted((letters[axis] for axis in axes), key=[*letters.values()].index)
    return " * ".join(ordered)


def _attention_flops(block: Block) -> str:
    """Return forward and backward FLOPs of a token's attention in one layer."""
    scores, values = (
        [dimension.axis for dimension in tensor.dimensions]
        for tensor in (block.attention.queries, block.attention.result)
    )
    seen = "S" if block.attention.scores.window is None else "(2 * S_loc - S_loc * S_loc / S)"
    # Forward and backward are 3 passes. Each is 2 products (scores and values) with 2 FLOPs per
    # pair of positions, and half of the pairs are causal.
    if scores == values:
        return f"3 * 2 * {seen} * {_product(values)}"
    return f"3 * {seen} * ({_product(scores)} + {_product(values)})"


def _in_all_layers(network: Network, text_of: Callable[[Block], str]) -> str:
    """Return what blocks have, times the layers of their kind; equal kinds count as one."""
    layers: Counter[str] = Counter()
    for block, count in network.kinds:
        text = text_of(block)
        layers[f"({text})" if "+" in text else text] += count
    if len(layers) == 1:
        return f"{next(iter(layers))} * L"
    return " + ".join(f"{text} * {count}" for text, count in layers.items())


# What the vendor's rates change, in the order of the derivation.
_CHANGED_BY_RATES = ("W", "alpha", "fsdp_least", "Y_most", "mixed_least", "mixed_least_eff")


def derive(spec: Spec, mfu: float) -> tuple[Worksheet, tuple[DerivationSection, ...]]:
    """Return the numbers, and the sections: by the book's rates, then bounds by the vendor's."""
    chip = catalog.chip_of(spec.resources)
    topology = catalog.topology(chip, spec.resources.topology)
    precision, network = spec.experiment.precision, decoder(spec.experiment.model)
    rates, vendor = book_rates(chip, precision.compute), vendor_rates(chip, precision.compute)
    sheet = Worksheet(all_inputs(spec, chip, topology, rates, mfu))
    axes, several = axes_of(chip, topology), spec.resources.pods.max > 1

    def bounds(by_rates: Worksheet, counts: book.AxisCounts) -> list[DerivationSection]:
        width = DTYPE_BYTES[activation_type(precision)]
        link = "w" if chip.switched else "2 * w"
        return [*book.bounds(by_rates, counts, link, width, _elements([network.head]))]

    # The book's rule of thumb, and the definition that MFU uses here.
    attention = _in_all_layers(network, _attention_flops)
    used = "P_used" if network.mixture_layers else "P"
    windows = any(block.attention.scores.window for block in network.blocks)
    sections = [
        sheet.section("Parameters", _parameter_formulas(network)),
        sheet.section(
            "FLOPs",
            [
                *([Formula("positions in a window", "S_loc", "min(S, S_win)", "tokens")] * windows),
                Formula("of a token, by 6 P", "f", f"6 * {used}", "FLOP"),
                Formula("of a token, as MFU counts", "f_mfu", f"6 * P_mat + {attention}", "FLOP"),
                Formula("of all tokens, by 6 P", "flops", "f * T", "FLOP"),
                Formula("of all tokens, as MFU counts", "flops_mfu", "f_mfu * T", "FLOP"),
            ],
        ),
        *book.needs(sheet),
        *((*bounds(sheet, axes), *book.mlps(sheet, axes)) if axes else ()),
        *([book.between_pods(sheet)] if several else ()),
    ]
    if axes and any(rate.value != vendor[symbol].value for symbol, rate in rates.items()):
        # The same bounds with the datasheet's rates: the book rounds links down and HBM up.
        by_vendor = Worksheet(all_inputs(spec, chip, topology, vendor, mfu))
        by_vendor.numbers = sheet.numbers | by_vendor.numbers
        bounded = bounds(by_vendor, axes)
        lines = [line for section in bounded for line in section.lines]
        lines = [line for line in lines if line.symbol in _CHANGED_BY_RATES]
        lines.append(by_vendor.line(book.FEWEST_CHIPS))
        if several:
            bounded.append(book.between_pods(by_vendor))
            lines += bounded[-1].lines
        verdicts = tuple(verdict for section in bounded for verdict in section.verdicts)
        title = "The same by the vendor's figures"
        sections.append(DerivationSection(title=title, lines=tuple(lines), verdicts=verdicts))
    return sheet, tuple(sections)


_FORMULAS = (
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
_WITH_EVALUATION = (
    *_FORMULAS[:-1],
    Formula(
        "share of steps and evaluations in steps",
        "training",
        "every_steps / (every_steps + as_steps)",
        "",
    ),
    Formula("goodput", "goodput", "stepping * training * (1 - missing)", ""),
)


def goodput_section(plan: Plan) -> DerivationSection | None:
    """Return the derivation; None where the spec states the goodput, or nothing fails."""
    forecast = plan.forecast.goodput
    if forecast.stated or forecast.seconds_between_failures is None:
        return None
    inputs, save, evaluation = forecast.inputs, forecast.inputs.save, forecast.inputs.evaluation
    # A symbol of the formulas, its value, what it is, and the key that its sources have.
    rows = [
        ("failures", inputs.failures_per_day.value, "a day", "failures_per_day"),
        ("detection", inputs.detection_s.value, "seconds", "detection_s"),
        ("waiting", inputs.waiting_s.value, "seconds for a slice", "waiting_s"),
        ("restart", inputs.restart_s.value, "seconds", "restart_s"),
        ("restore", inputs.restore_s.value, "seconds", "storage_bytes_per_s"),
        ("blocking", save.blocking_s.value, "seconds", ""),
        ("write", save.write_s.value, "seconds", "storage_bytes_per_s"),
        ("every", forecast.every_s, "seconds between saves", ""),
        ("missing", inputs.missing_pods.value, "share of pods", "waiting_s"),
    ]
    if evaluation:
        as_steps = "steps that would take as long as an evaluation"
        rows.append(("every_steps", evaluation.every_steps, "steps between evaluations", ""))
        rows.append(("as_steps", evaluation.in_steps, as_steps, ""))

    def source_of(key: str) -> str | None:
        """Return a key of the catalog; None for what the spec says."""
        sources = inputs.sources.get(key, ())
        return next((source for source in sources if source != SPEC), None)

    sheet = Worksheet(
        tuple(
            Input(symbol=symbol, value=value, meaning=meaning, source=source_of(key))
            for symbol, value, meaning, key in rows
        )
    )
    title = "Goodput: the share of time that trains"
    return sheet.section(title, _WITH_EVALUATION if evaluation else _FORMULAS)
