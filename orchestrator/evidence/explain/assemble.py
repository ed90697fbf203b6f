"""An explanation: the book's derivation, published figures, the plan and its expected step."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal

from orchestrator import catalog
from orchestrator.catalog.published import (
    BookQuestion,
    LearnedConstant,
    PublishedFigure,
    figures,
    gpu_constants,
    questions,
)
from orchestrator.errors import SpecError
from orchestrator.evidence.explain import book, formula
from orchestrator.evidence.explain.book import all_inputs, axes_of, rates_of
from orchestrator.evidence.explain.differences import differences
from orchestrator.evidence.explain.formula import DerivationSection, Formula, Worksheet, compute
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, Network, Sublayer, Weight
from orchestrator.planning.expected import SOURCE
from orchestrator.planning.flops import MFU_DEFINITION
from orchestrator.planning.goodput_inputs import SPEC
from orchestrator.planning.gpu_expected import SOURCE as GPU_SOURCE
from orchestrator.planning.layout import DTYPE_BYTES, activation_type
from orchestrator.planning.planner import make_plan
from orchestrator.values.plan import LineKind, Plan
from orchestrator.values.spec import Batch, Experiment, Pods, Resources, Spec

_SCHEMA = 5
# The book's letter → the logical axes that it names, in the order in which a product has them.
_AXES = {
    "D": "embed residual expert_embed",
    "F": "ff",
    "N": "heads",
    "K": "kv_heads",
    "K_g": "global_kv_heads",
    "H": "head_dim",
    "H_g": "global_head_dim",
    "V": "vocab",
    "S_max": "positions",
    "1": "layer_scale",
    "F_exp": "expert_ff",
    "F_shared": "shared_ff",
    "E": "experts routed_experts",
    "H_v": "value_dim",
    "H_nope": "nope_dim",
    "H_rope": "rope_dim",
    "R_q": "query_rank query_latent",
    "R_kv": "kv_rank kv_latent",
}
_LETTERS = {axis: letter for letter, axes in _AXES.items() for axis in axes.split()}
_ACTIVE = _LETTERS | {"experts": "k"}  # the experts that a token is multiplied by


def _parameter_formulas(network: Network) -> list[Formula]:
    """Return what each part of the network has, and what every token is multiplied by."""
    unit = "parameters"

    def matrices(part: Sublayer) -> str:
        return _elements(matmul.weight for matmul in part.matmuls)

    def active_matrices(block: Block) -> str:
        every = [matmul.weight for matmul in block.mlp.matmuls if matmul.share == 1]
        routed = [matmul.weight for matmul in block.mlp.matmuls if matmul.share < 1]
        return " + ".join(filter(None, (_elements(routed, _ACTIVE), _elements(every))))

    ffw = _in_all_layers(network, lambda block: matrices(block.mlp))
    attention = _in_all_layers(network, lambda block: matrices(block.attention))
    blocks = _in_all_layers(network, lambda block: _elements(block.vectors))
    final_norm, head = _elements(network.norm.weights), _elements([network.head])
    active, experts, used = "P_ffw", list[Formula](), list[Formula]()
    if network.mixture_layers:
        active, norms = "P_act", "P_norm"
        multiplied = _in_all_layers(network, active_matrices)
        experts = [Formula("FFW of one token", active, multiplied, unit)]
        vectors = [vector for block in network.blocks for vector in block.vectors]
        if any(vector.dimensions[0].axis == "experts" for vector in vectors):
            norms = "P_norm_act"
            met = _in_all_layers(network, lambda block: _elements(block.vectors, _ACTIVE))
            text = f"{met} + {final_norm}"
            experts.append(Formula("norms and biases of one token", norms, text, unit))
        used = [
            Formula("used by one token", "P_used", f"P_act + P_att + P_voc + {norms}", unit),
            Formula("F of one token, three [D, F]", book.F_TOKEN, "P_act / (3 * D * L)", ""),
            Formula("F of all experts", book.F_ALL, "P_ffw / (3 * D * L)", ""),
        ]
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


def _product(axes: Iterable[str], letters: Mapping[str, str] = _LETTERS) -> str:
    ordered = sorted((letters[axis] for axis in axes), key=[*letters.values()].index)
    return " * ".join(ordered)


def _attention_flops(block: Block) -> str:
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
    rates, vendor = rates_of(chip, precision.compute)
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
    flops = [
        *([Formula("positions in a window", "S_loc", "min(S, S_win)", "tokens")] * windows),
        Formula("of a token, by 6 P", "f", f"6 * {used}", "FLOP"),
        Formula("of a token, as MFU counts", "f_mfu", f"6 * P_mat + {attention}", "FLOP"),
        Formula("of all tokens, by 6 P", "flops", "f * T", "FLOP"),
        Formula("of all tokens, as MFU counts", "flops_mfu", "f_mfu * T", "FLOP"),
    ]
    sections = [
        sheet.section("Parameters", _parameter_formulas(network)),
        sheet.section("FLOPs", flops),
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


_STEPPING = "every / M * exp(0 - (R + write) / M) / (exp((every + w) / M) - 1)"
_TRAINING = "every_steps / (every_steps + as_steps)"
_FORMULAS = (
    Formula("seconds between failures", "M", "86400 / failures", "s"),
    Formula("a recovery", "R", "detection + waiting + restart + restore", "s"),
    Formula("steps wait for a save", "w", "blocking + max(write - every, 0)", "s"),
    Formula("Young's interval", "young", "sqrt(2 * w * M)", "s"),
    Formula("share of time in steps", "stepping", _STEPPING, ""),
    Formula("share of time in recoveries", "recovering", "1 - exp(0 - R / M)", ""),
    Formula("share of time in saves", "saving", "stepping * w / every", ""),
    Formula("goodput", "goodput", "stepping * (1 - missing)", ""),
)
_WITH_EVALUATION = (
    *_FORMULAS[:-1],
    Formula("share of steps and evaluations in steps", "training", _TRAINING, ""),
    Formula("goodput", "goodput", "stepping * training * (1 - missing)", ""),
)


def _goodput_section(plan: Plan) -> DerivationSection | None:
    """Return the derivation; None where the spec states the goodput, or nothing fails."""
    forecast = plan.forecast.goodput
    if forecast.stated or forecast.seconds_between_failures is None:
        return None
    inputs, save, evaluation = forecast.inputs, forecast.inputs.save, forecast.inputs.evaluation
    # A symbol of the formulas, its value, what it is, and the key that its sources have.
    rows: list[tuple[str, float, str, str]] = [
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

    symbols = []
    for symbol, value, meaning, key in rows:
        # A key of the catalog; None for what the spec says.
        source = next((text for text in inputs.sources.get(key, ()) if text != SPEC), None)
        given = formula.Input(symbol=symbol, value=value, meaning=meaning, source=source)
        symbols.append(given)
    title = "Goodput: the share of time that trains"
    formulas = _WITH_EVALUATION if evaluation else _FORMULAS
    return Worksheet(tuple(symbols)).section(title, formulas)


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


def _quoted(key: str, question: BookQuestion) -> formula.QuotedFigures:
    """Return the figures published for a question, and what their inputs and exact ones give."""
    chip = catalog.chip(question.chip)
    batch = Batch(sequences=question.sequences, length=question.length)
    model, pods = catalog.model(question.model), Pods(min=question.pods, max=question.pods)
    spec = Spec(
        name="question",
        experiment=Experiment(model=model, tokens=question.tokens, batch=batch),
        resources=Resources(chip=question.chip, topology=question.topology, pods=pods),
    )
    _, vendor = rates_of(chip, spec.experiment.precision.compute)
    sheet, _ = derive(spec, book.MFU)
    numbers = sheet.numbers | {f"{symbol}_vendor": rate.value for symbol, rate in vendor.items()}
    about = (figure for figure in figures() if key in figure.questions)
    quoted = tuple(quoted_figure(figure, numbers) for figure in about)
    return formula.QuotedFigures(title=question.title, figures=quoted)


def quoted_figure(figure: PublishedFigure, numbers: Mapping[str, float]) -> formula.QuotedFigure:
    """Return a published figure with what its own inputs give, and exact ones, over `numbers`."""
    reproduced = compute(figure.formula, {**numbers, **figure.inputs})
    exact = {**figure.inputs, **numbers, **figure.exact_inputs}
    asides = []
    for remark in figure.asides:
        unit = figure.unit if remark.unit is None else remark.unit
        computed = compute(remark.formula, {**numbers, **remark.inputs})
        asides.append(formula.Remark(says=remark.says, unit=unit, computed=computed))
    return formula.QuotedFigure(
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


def _agreement(printed: str, value: float) -> formula.Agreement:
    """Return whether the printed digits are those of the value: rounded, or cut off."""
    figure = Decimal(printed)
    last_digit = Decimal(1).scaleb(int(figure.as_tuple().exponent))
    # The shortest digits of a float, not its binary tail: 3.645e25 is a tie, and rounds up.
    off = Decimal(repr(float(value))) - figure
    if abs(off) <= last_digit / 2:
        return "rounded"
    return "cut" if 0 <= off < last_digit else "differs"


def explain(spec: Spec, mfu: float = book.MFU) -> formula.Explanation:
    """Return the book's derivation for a spec, figures published about it, and its plan's."""
    sheet, sections = derive(spec, mfu)
    numbers = sheet.numbers
    asked = questions().items()
    quotes = tuple(_quoted(key, question) for key, question in asked if _is_about(question, spec))
    plan: Plan | None = None
    no_plan: str | None = None
    try:
        plan = make_plan(spec)
    except SpecError as error:
        no_plan = str(error)
    expected = _expectation(plan) if plan else None
    goodput = _goodput_section(plan) if plan else None

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
    is_one_chip = "mixed_least_eff" not in numbers
    return formula.Explanation(
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
            mixed_times=None if is_one_chip else book.mixed_times(numbers, "mixed_least_eff"),
            tensor_pays=not is_one_chip and book.tensor_pays(numbers),
            tokens=numbers["T"],
            forecast=plan.forecast if plan else None,
        ),
    )


def _expectation(plan: Plan) -> formula.ExpectedStep | None:
    """Return the expected step part by part; None for a chip without learned constants."""
    step_s = plan.forecast.step_s
    if step_s.expected is None or step_s.low is None or step_s.high is None:
        return None
    compute, chip = plan.precision.compute, catalog.chip_of(plan)
    # The symbols of learned constants in the formula of each kind of line. Those of GPUs are
    # learned together: all runs are behind each.
    learned: dict[LineKind, dict[str, LearnedConstant]] = {}
    rows: tuple[str, ...] = ()
    if on_gpus := gpu_constants().efficiency(chip, compute, mixture=plan.model.moe is not None):
        spread, source = on_gpus.spread, GPU_SOURCE
    elif efficiency := catalog.efficiency(plan.chip, compute):
        spread, rows, source = efficiency.spread.value, efficiency.spread.rows, SOURCE
        learned = {
            "matmul": {"share": efficiency.matmul},
            "attention": {"share": efficiency.attention},
            "row_moves": {"move": efficiency.row_move_s},
            "exposed_gathers": {"exposed": efficiency.exposed_gathers},
            "exposed_tensor": {"exposed": efficiency.exposed_tensor},
            "slice_wait": {"wait": efficiency.slice_wait_s, "hop": efficiency.slice_hop_s},
        }
    else:
        return None
    parts = []
    for line in plan.forecast.expected_time:
        computed = formula.ComputedValue(formula=line.formula, inputs=line.inputs, value=line.value)
        constants = tuple(
            formula.Constant(symbol=symbol, unsure=value.unsure, rows=value.rows)
            for symbol, value in learned.get(line.kind, {}).items()
        )
        parts.append(formula.ExpectedPart(name=line.name, computed=computed, constants=constants))
    return formula.ExpectedStep(
        parts=tuple(parts),
        expected_s=step_s.expected,
        low_s=step_s.low,
        high_s=step_s.high,
        spread=spread,
        rows=rows,
        source=source,
    )
