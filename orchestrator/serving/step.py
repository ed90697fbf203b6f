"""The seconds of a pass, at the peaks of the chip and as engines reach them, and what a mix of
requests makes of them. Formulas take numbers or numpy arrays.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from orchestrator.planning.layout import Number
from orchestrator.planning.step_work import hbm_rate
from orchestrator.serving.layout import Pass, Serving, decode, prefill
from orchestrator.values.plan import LedgerLine, LineKind
from orchestrator.values.serving import EngineConstants, ServingMemory, StoredType

# The types in which matrices multiply, the fastest first: int4 is widened to bf16 (weight-only).
_PRODUCTS: dict[StoredType, tuple[str, ...]] = {
    "bf16": ("bf16",), "int8": ("int8", "bf16"), "fp8": ("fp8", "bf16"), "int4": ("bf16",),
    # With activations of 8 bits: engines multiply few of a model's matrices in four.
    "fp4": ("fp8", "bf16"),
}  # fmt: skip


class PassWork(NamedTuple):
    """Seconds of each kind of work in a pass at the peaks of one device, and layers."""

    layers: Number
    mixture_layers: Number
    weights: Number
    matmul: Number
    cache: Number
    attention: Number
    exchange: Number
    expert_weights: Number
    expert_matmul: Number


PEAK = EngineConstants(
    layer_s=0.0, mixture_s=0.0, weights=1.0, matmul=1.0, cache=1.0, attention=1.0, exchange=1.0,
    experts=1.0, prefill=1.0,
)  # fmt: skip


def product_rate(layout: Serving, stored: StoredType) -> float:
    """FLOP/s of a device where weights or a cache of that type are multiplied."""
    peaks = layout.chip.peak_flops_per_s
    rate = next(peaks[name].value for name in _PRODUCTS[stored] if name in peaks)
    return rate / layout.chip.devices


def work_of(layout: Serving, work: Pass) -> PassWork:
    products, memory = product_rate(layout, layout.weights), hbm_rate(layout)
    own = work.sequences / layout.requests_split
    expert_bytes, expert_flops = layout.expert_weight_bytes(work), layout.expert_flops(work)
    links = layout.links
    return PassWork(
        layers=layout.network.layers,
        mixture_layers=layout.network.mixture_layers,
        weights=layout.shared_weight_bytes / memory,
        matmul=layout.shared_flops(work) / products,
        cache=own * layout.cache_bytes(work.context) / memory,
        attention=layout.attention_flops(work) / product_rate(layout, layout.kv_cache),
        exchange=layout.tensor_bytes(work) / links.bytes_per_s("tensor")
        + layout.expert_bytes(work) / links.bytes_per_s("replicas"),
        expert_weights=expert_bytes / memory,
        expert_matmul=expert_flops / products,
    )


def lower_s(work: PassWork) -> Number:
    """The seconds of a pass in which memory, products and links all work at their peak at once."""
    read = work.weights + work.cache + work.expert_weights
    multiplied = work.matmul + work.attention + work.expert_matmul
    return np.maximum(np.maximum(read, multiplied), work.exchange)


def expected_s(work: PassWork, engine: EngineConstants, products: Number = 1.0) -> Number:
    """The seconds of a pass of an engine: layer by layer, matrices, attention, sums and experts one
    after another, each as slow as memory or products make it. `products` slows products.
    """
    return sum(parts(work, engine, products).values())


def parts(work: PassWork, engine: EngineConstants, products: Number = 1.0) -> dict[str, Number]:
    matmul = np.maximum(engine.matmul * products, 1.0)
    return {
        "layers": work.layers * engine.layer_s + work.mixture_layers * engine.mixture_s,
        "matrices": np.maximum(engine.weights * work.weights, matmul * work.matmul),
        "attention": np.maximum(engine.cache * work.cache, engine.attention * work.attention),
        "exchange": engine.exchange * work.exchange,
        "experts": np.maximum(
            engine.weights * work.expert_weights, engine.experts * matmul * work.expert_matmul
        ),
    }


class _Rates(NamedTuple):
    """What a mix of requests needs of one copy: seconds of a decoding step with all its requests,
    of the prefill of one request by itself, and of what that adds to steps that decode anyway.
    """

    step_s: Number
    prefill_s: Number
    added_s: Number

    def tpot_s(self, batch: Number, output: Number) -> Number:
        """Seconds between tokens: of `batch` requests each is prefilled once in its `output`."""
        return self.step_s + batch * self.added_s / output


class Mix(NamedTuple):
    """Requests in the mean: tokens of a prompt and of an answer, positions of a request in work and
    of the prompt that a token of prompts belongs to, and the tokens of prompts in a step.
    """

    prompt: float
    output: float
    context: float
    positions: float
    chunk: float

    @property
    def chunks(self) -> float:
        """Steps that a prompt is part of, as a share of the chunks in them."""
        return self.prompt / min(self.chunk, self.prompt)


def mix_work(layout: Serving, batch: Number, mix: Mix) -> tuple[PassWork, PassWork]:
    """Return the work of a decoding step in the mean, and of a chunk of prompts."""
    tokens = min(mix.chunk, mix.prompt)
    return (
        work_of(layout, decode(batch, mix.context)),
        work_of(layout, prefill(tokens, mix.positions, mix.prompt)),
    )


def rates(decoded: PassWork, chunked: PassWork, chunks: Number, engine: EngineConstants) -> _Rates:
    """Return what a mix needs with an engine. A chunk joins a step that reads the weights in any
    case, so it adds only products and sums.
    """
    joined = chunked._replace(
        layers=0, mixture_layers=0, weights=0.0, expert_weights=0.0, cache=0.0
    )
    return _Rates(
        step_s=expected_s(decoded, engine),
        prefill_s=chunks * expected_s(chunked, engine, engine.prefill),
        added_s=chunks * expected_s(joined, engine, engine.prefill),
    )


def bound_tpot_s(decoded: PassWork, chunked: PassWork, prompts: Number) -> Number:
    """The least mean seconds between tokens where each step prefills so many chunks: memory,
    products and links all do their work at the peak at once.
    """
    added = chunked._replace(weights=0.0, expert_weights=0.0, cache=0.0)
    total = [own + prompts * more for own, more in zip(decoded, added, strict=True)]
    return lower_s(PassWork(*total))


# --- waiting, where requests arrive at random


def waits_s(
    found: _Rates, batch: Number, chunks: float, output: float, percentile: float
) -> Number:
    """Seconds at a percentile until the prefill of a request begins: it waits for the step that
    runs and for prompts before its own. The queue of prompts is M/D/1: of a load r, a wait is over
    t for about r exp(-2 (1 - r) t / service).
    """
    share = percentile / 100
    service = found.added_s + chunks * found.step_s
    per_s = batch / found.tpot_s(batch, output) / output
    load = np.minimum(per_s * service, 0.98)
    tail = np.log(np.maximum(load / (1 - share), 1.0))
    return share * found.step_s + service / (2 * (1 - load)) * tail


def tpot_at(found: _Rates, batch: Number, output: float, percentile: float) -> Number:
    """Seconds between tokens of a request at a percentile: the prefills that join its steps are as
    many as requests in work, in the mean, and spread like arrivals.
    """
    more = batch + NormalDist().inv_cdf(percentile / 100) * np.sqrt(batch)
    return found.step_s + np.maximum(more, 0) * found.added_s / output


def turning_batch(layout: Serving) -> float:
    """The requests of a copy with which products with weights take as long as reading these. Of
    experts more are read with more requests.
    """
    turns, before = 2.0**24, 0.0  # requests that read every expert
    while abs(turns - before) > turns * 1e-9:
        work, before = work_of(layout, decode(turns, 1.0)), turns
        read = as_float(work.weights) + as_float(work.expert_weights)
        turns *= read / (as_float(work.matmul) + as_float(work.expert_matmul))
    return turns


def as_float(value: Any) -> float:
    return float(np.asarray(value).item())


def as_int(value: Any) -> int:
    return int(np.asarray(value).item())


# The ledgers of serving: bytes of a device, and seconds of a step at the peaks of the chip.


def memory_of(layout: Serving, batch: float, mix: Mix) -> ServingMemory:
    own = batch / as_float(layout.requests_split)
    return ServingMemory(
        weights_bytes=as_float(layout.weights_bytes),
        activations_bytes=as_float(layout.activation_bytes(mix.chunk, batch)),
        cache_bytes=own * as_float(layout.cache_bytes(mix.prompt + mix.output)),
        hbm_bytes=layout.hbm_bytes,
    )


def pass_lines(layout: Serving, done: Pass) -> tuple[LedgerLine, ...]:
    """Seconds of a pass at the peaks, line by line."""
    work, memory = work_of(layout, done), hbm_rate(layout)
    products = product_rate(layout, layout.weights)
    scores = product_rate(layout, layout.kv_cache)
    own = as_float(done.sequences) / as_float(layout.requests_split)
    hbm, peaks = layout.chip.hbm_bytes_per_s.source, layout.chip.peak_flops_per_s
    peak_source = peaks["bf16"].source

    def line(
        kind: LineKind, name: str, seconds: Any, formula: str, resource: str, source: str,
        **inputs: Any,
    ) -> LedgerLine:  # fmt: skip
        numbers = {key: as_float(value) for key, value in inputs.items()}
        return LedgerLine(
            kind=kind, name=name, value=as_float(seconds), unit="s", formula=formula,
            inputs=numbers, sources=(source,), resource=resource,
        )  # fmt: skip

    found = [
        line("weight_traffic", "weights", work.weights, "bytes / bandwidth", "hbm", hbm,
             bytes=layout.shared_weight_bytes, bandwidth=memory),
        line("matmul", "products with weights", work.matmul, "flops / peak", "mxu", peak_source,
             flops=layout.shared_flops(done), peak=products),
        line("activation_traffic", "KV cache", work.cache, "requests * bytes / bandwidth", "hbm",
             hbm, requests=own, bytes=layout.cache_bytes(done.context), bandwidth=memory),
        line("attention", "attention", work.attention, "flops / peak", "mxu", peak_source,
             flops=layout.attention_flops(done), peak=scores),
    ]  # fmt: skip
    if layout.network.mixture_layers:
        found += [
            line("weight_traffic", "experts", work.expert_weights, "bytes / bandwidth", "hbm", hbm,
                 bytes=layout.expert_weight_bytes(done), bandwidth=memory),
            line("matmul", "products with experts", work.expert_matmul, "flops / peak", "mxu",
                 peak_source, flops=layout.expert_flops(done), peak=products),
        ]  # fmt: skip
    links, source = layout.links, layout.chip.ici_link_bytes_per_s.source
    sent: tuple[tuple[LineKind, str, Number, str, str], ...] = (
        ("activation_scatter", "sums over tensor", layout.tensor_bytes(done), "tensor", "tensor"),
        ("expert_exchange", "tokens to experts", layout.expert_bytes(done), "replicas", "experts"),
    )
    for kind, name, moved, group, resource in sent:
        if as_float(moved):
            rate = links.bytes_per_s(group)
            found.append(
                line(kind, name, moved / rate, "bytes / rate", resource, source,
                     bytes=moved, rate=rate)
            )  # fmt: skip
    return tuple(found)
