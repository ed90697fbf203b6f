"""A serving plan derived line by line, and the book's worked answers on inference next to it."""

from collections.abc import Iterator
from itertools import starmap

from orchestrator import catalog
from orchestrator.catalog.serving import constants_of, figures, questions
from orchestrator.evidence.explain.assemble import quoted_figure
from orchestrator.evidence.explain.formula import (
    Citation,
    DerivationSection,
    Formula,
    Input,
    QuotedFigures,
    Worksheet,
)
from orchestrator.formatting import HOUR_S
from orchestrator.planning.step_work import hbm_rate
from orchestrator.serving import step
from orchestrator.serving.layout import STORED_BYTES, Serving, decode, prefill
from orchestrator.serving.planner import layout_of, mix_of
from orchestrator.values.codec import Value
from orchestrator.values.serving import ServingPlan, ServingSpec

_SCHEMA = 1
_SOURCE = "serving-runs"


class ServingExplanation(Value):
    """Everything `orch explain` says of a serving spec; `quotes` are the book's answers."""

    schema: int
    name: str
    overrides: tuple[str, ...]
    inputs: tuple[Input, ...]
    sections: tuple[DerivationSection, ...]
    quotes: tuple[QuotedFigures, ...]
    sources: tuple[Citation, ...]
    plan: ServingPlan


def derive(spec: ServingSpec, plan: ServingPlan) -> ServingExplanation:
    layout = layout_of(plan)
    sheet = Worksheet(tuple(_inputs(spec, plan, layout)))
    sections = tuple(
        sheet.section(title, starmap(Formula, lines)) for title, lines in _sections(layout, plan)
    )
    quotes = quoted(plan)
    keys = dict.fromkeys(
        source
        for source in (
            *(entry.source for entry in sheet.inputs),
            *(figure.source for part in quotes for figure in part.figures),
        )
        if source
    )
    known = catalog.sources()
    cited = [known[key] for key in keys if key in known]
    return ServingExplanation(
        schema=_SCHEMA,
        name=plan.name,
        overrides=plan.overrides,
        inputs=sheet.inputs,
        sections=sections,
        quotes=quotes,
        sources=tuple(
            Citation(key=each.key, title=each.title, where=each.where, date=each.date)
            for each in cited
        ),
        plan=plan,
    )


def quoted(plan: ServingPlan | None = None) -> tuple[QuotedFigures, ...]:
    """Return the book's answers about the model and chip of a plan, or without one all of them."""
    found = []
    for key, question in questions().items():
        about = plan is None or (
            question.model in (None, plan.serve.model.name) and question.chip == plan.chip
        )
        own = [quoted_figure(each, {}) for each in figures() if about and key in each.questions]
        if own:
            found.append(QuotedFigures(title=question.title, figures=tuple(own)))
    return tuple(found)


def _inputs(spec: ServingSpec, plan: ServingPlan, layout: Serving) -> Iterator[Input]:
    serve, chip, mix = plan.serve, layout.chip, mix_of(plan.serve)
    number = step.as_float

    def given(symbol: str, value: object, meaning: str, source: str | None = None) -> Input:
        return Input(symbol=symbol, value=number(value), meaning=meaning, source=source)

    copies = plan.replicas * plan.mesh["replicas"]
    batch = plan.forecast.batch / copies
    work = decode(batch, mix.context)
    chunk = prefill(min(mix.chunk, mix.prompt), mix.positions, mix.prompt)
    network = f"{serve.model.name}, on a device"
    yield given("T", mix.prompt, "tokens of a prompt, mean")
    yield given("G", mix.output, "tokens of an answer, mean")
    yield given("S", mix.context, "positions of a request in work, mean")
    yield given("Q", min(mix.chunk, mix.prompt), "tokens of prompts in a step")
    yield given("B", batch, "requests in work of a copy of the model")
    yield given("a", layout.requests_split, "parts of these for attention")
    yield given("copies", copies, "copies of the model on all slices")
    yield given("b_w", STORED_BYTES[serve.weights], f"bytes of a weight in {serve.weights}")
    yield given("b_kv", STORED_BYTES[serve.kv_cache], f"bytes in the cache in {serve.kv_cache}")
    vectors = layout.elements(layout.network.head) + layout.vector_elements
    matrices = (number(layout.shared_weight_bytes) - 2 * number(vectors)) / STORED_BYTES[
        serve.weights
    ]
    yield given("M", matrices, f"elements of matrices of {network}, without experts")
    yield given("V", layout.elements(layout.network.head), f"elements of the head of {network}")
    yield given("N", layout.vector_elements, "elements of norms and biases")
    elements = number(layout.cache_bytes(mix.context)) / mix.context / STORED_BYTES[serve.kv_cache]
    yield given("K", elements, "elements that a position has in the cache of a device, mean")
    has_experts = layout.network.mixture_layers > 0
    if has_experts:
        turning = decode(plan.forecast.turns_at, mix.context)
        of_step = "bytes of experts that a step reads"
        yield from (
            given("L_moe", layout.network.mixture_layers, "layers with experts"),
            given("X", layout.expert_weight_bytes(work), of_step),
            given("X_turns", layout.expert_weight_bytes(turning), f"{of_step} where it turns"),
            given("X_flops", layout.expert_flops(work), "FLOPs of a step in experts"),
            given("X_chunk", layout.expert_flops(chunk), "FLOPs of a chunk in experts"),
        )
    yield given("A", layout.attention_flops(work), "FLOPs of attention in a decoding step")
    yield given("A_chunk", layout.attention_flops(chunk), "FLOPs of attention in a chunk")
    memory, peak = chip.hbm_bytes_per_s, chip.peak_flops_per_s["bf16"]
    yield given("W", hbm_rate(layout), "bytes per second of a device's HBM", memory.source)
    yield given(
        "C", step.product_rate(layout, layout.weights), "FLOP/s of products with weights",
        peak.source,
    )  # fmt: skip
    yield given(
        "C_kv", step.product_rate(layout, layout.kv_cache), "FLOP/s of attention", peak.source
    )
    decoded, chunked = step.mix_work(layout, batch, mix)
    yield given("E", decoded.exchange, "seconds of a step on links between devices")
    yield given("E_chunk", chunked.exchange, "seconds of a chunk on links between devices")
    yield given("L", layout.network.layers, "layers")
    engine = constants_of(serve.engine, chip.name)
    says = {
        "layer_s": "seconds that a layer takes at least", "mixture_s": "more where it has experts",
        "weights": "x for reading weights", "matmul": "x for products",
        "cache": "x for reading the cache", "attention": "x for attention",
        "exchange": "x for links", "experts": "x for products with experts",
        "prefill": "x for products of prompts, besides",
    }  # fmt: skip
    for name, meaning in says.items():
        if has_experts or name not in ("mixture_s", "experts"):
            about = f"engine {serve.engine}: {meaning}"
            yield given(f"k_{name}", getattr(engine, name), about, _SOURCE)
    if price := plan.forecast.dollars_per_chip_hour:
        stated = spec.resources.dollars_per_chip_hour
        known = chip.dollars_per_hour.source if chip.dollars_per_hour else None
        yield given("usd", price, "dollars of a chip-hour", None if stated else known)
        yield given("chips", plan.chips, "chips")


_Line = tuple[str, str, str, str]  # as in a Formula


def _sections(layout: Serving, plan: ServingPlan) -> Iterator[tuple[str, list[_Line]]]:
    mixture = bool(layout.network.mixture_layers)

    def with_experts(formula: str, term: str) -> str:
        return f"{formula} + {term}" if mixture else formula

    def of_mixture(*lines: _Line) -> list[_Line]:
        return list(lines) if mixture else []

    each = "2 * (M + V) / a"  # FLOPs of a request in a step
    read = "(w + X_turns)" if mixture else "w"
    turns = f"{read} / W * C / ({with_experts(each, 'X_flops / B')})"
    yield (
        "A decoding step at the peaks of the chip",
        [
            ("weights of a device", "w", "b_w * M + 2 * (V + N)", "bytes"),
            ("weights read", "t_w", "w / W", "s"),
            ("products", "t_F", "2 * B / a * (M + V) / C", "s"),
            ("cache of a request", "kv", "b_kv * K * S", "bytes"),
            ("cache read", "t_kv", "B / a * kv / W", "s"),
            ("attention", "t_A", "A / C_kv", "s"),
            *of_mixture(
                ("experts read", "t_X", "X / W", "s"),
                ("experts multiplied", "t_XF", "X_flops / C", "s"),
            ),
            (
                "lower bound", "lower",
                f"max({with_experts('t_w + t_kv', 't_X')}, {with_experts('t_F + t_A', 't_XF')}, E)",
                "s",
            ),
            ("requests at which it turns", "turns", turns, "requests"),
        ],
    )  # fmt: skip
    layers = with_experts("L * k_layer_s", "L_moe * k_mixture_s")
    yield (
        "A decoding step as the engine does it",
        [
            ("layers", "s_L", layers, "s"),
            ("matrices", "s_M", "max(k_weights * t_w, k_matmul * t_F)", "s"),
            ("attention", "s_A", "max(k_cache * t_kv, k_attention * t_A)", "s"),
            ("links", "s_E", "k_exchange * E", "s"),
            *of_mixture(
                ("experts", "s_X", "max(k_weights * t_X, k_experts * k_matmul * t_XF)", "s")
            ),
            ("step", "step", with_experts("s_L + s_M + s_A + s_E", "s_X"), "s"),
        ],
    )
    in_chunk = "k_p * c_F + k_attention * A_chunk / C_kv + k_exchange * E_chunk"
    yield (
        "Prefill",
        [
            ("chunks of a prompt", "chunks", "T / Q", ""),
            ("products of a chunk", "c_F", "2 * (Q * M + Q / T * V) / a / C", "s"),
            *of_mixture(("experts of a chunk", "c_X", "X_chunk / C", "s")),
            ("factor of its products", "k_p", "max(k_matmul * k_prefill, 1)", ""),
            (
                "what a prompt adds to steps", "added",
                f"chunks * ({with_experts(in_chunk, 'k_experts * k_p * c_X')})", "s",
            ),
        ],
    )  # fmt: skip
    dollars = [
        ("dollars per 1M output tokens", "cost", f"usd * chips / {HOUR_S} / rate * 1e6", "$")
    ]
    between = (
        "time between tokens, mean" if plan.forecast.tpot_s else "time of the requests at work"
    )
    yield (
        "What requests see",
        [
            (between, "tpot", "step + B * added / G", "s"),
            ("output tokens/s", "rate", "copies * B / tpot", "tokens/s"),
            *(dollars if plan.forecast.dollars_per_chip_hour else []),
        ],
    )
