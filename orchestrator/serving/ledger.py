"""The ledgers of serving: bytes of a device, and seconds of a step at the peaks of the chip."""

from typing import Any

from orchestrator.serving.layout import Pass, Serving
from orchestrator.serving.step import Mix, as_float, hbm_rate, product_rate, work_of
from orchestrator.values.plan import LedgerLine, LineKind
from orchestrator.values.serving import ServingMemory


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
    if as_float(layout.tensor_bytes(done)):
        rate = links.bytes_per_s("tensor")
        found.append(
            line("activation_scatter", "sums over tensor", layout.tensor_bytes(done) / rate,
                 "bytes / rate", "tensor", source, bytes=layout.tensor_bytes(done), rate=rate)
        )  # fmt: skip
    if as_float(layout.expert_bytes(done)):
        rate = links.bytes_per_s("replicas")
        found.append(
            line("expert_exchange", "tokens to experts", layout.expert_bytes(done) / rate,
                 "bytes / rate", "experts", source, bytes=layout.expert_bytes(done), rate=rate)
        )  # fmt: skip
    return tuple(found)
