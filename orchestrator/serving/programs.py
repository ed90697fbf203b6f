"""The programs of a serving plan, prefill and decoding, with what the ledger says of each."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod
from typing import Literal

from orchestrator import catalog
from orchestrator.network.description import LatentAttention
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.planning.layout import Number
from orchestrator.planning.torus import make_torus, spans_of
from orchestrator.serving.layout import STREAM_BYTES, Pass, Serving, decode
from orchestrator.serving.planner import layout_of, mix_of
from orchestrator.serving.step import as_float, as_int, lower_s, pass_lines, work_of
from orchestrator.values import plan as plans
from orchestrator.values.program import ProgramForecast, ServedProgram
from orchestrator.values.serving import ServingPlan

# Otherwise the compiler copies a cache of latents from the tiles of arguments to larger ones.
_TPU_OPTIONS: dict[str, bool | int | float | str] = {
    "xla_tpu_control_large_2nd_minor_layout_for_x16": False
}
_LANES = 128  # positions of which the cache of a sequence has a multiple


def served_programs(plan: ServingPlan) -> tuple[ServedProgram, ServedProgram]:
    """Return prefill and decoding on one slice, with a cache for the requests in work at their full
    length; each part of the attention prefills one of its own at a time.
    """
    layout, mix, serve = layout_of(plan), mix_of(plan.serve), plan.serve
    chip, parts = layout.chip, plan.mesh["attention"]
    sequences = ceil(plan.forecast.batch / plan.replicas / plan.mesh["replicas"] / parts - 1e-9)
    positions = ceil((mix.prompt + mix.output) / _LANES) * _LANES
    tokens = ceil(min(mix.chunk, mix.prompt) / parts / _LANES) * _LANES
    torus = make_torus(chip, catalog.topology(chip, plan.topology))
    mesh = {axis: as_int(layout.mesh[axis]) for axis in ICI_AXES}
    axes = tuple(
        plans.MeshAxis(
            name=axis, size=size, link="ici", spans=spans_of(torus, layout.factors[0], (axis,))
        )
        for axis, size in mesh.items()
    )  # fmt: skip
    passes: dict[Literal["prefill", "decode"], Pass] = {
        "prefill": Pass(tokens * parts, positions, parts, positions, parts, together=tokens),
        "decode": decode(sequences * parts, positions),
    }
    made = [
        ServedProgram(
            name=f"{plan.name}-{phase}",
            phase=phase,
            model=serve.model,
            weights=serve.weights,
            kv_cache=serve.kv_cache,
            sequences=sequences,
            positions=positions,
            tokens=tokens,
            expert_ways=plan.mesh["experts"],
            chip=plan.chip,
            chip_definition=plan.chip_definition,
            topology=plan.topology,
            chips=plan.chips // plan.replicas,
            devices=prod(mesh.values()),
            mesh=mesh,
            axes=axes,
            compiler_options=_TPU_OPTIONS if chip.libtpu else {},
            forecast=_forecast(layout, work, sequences * as_float(layout.cache_bytes(positions))),
        )
        for phase, work in passes.items()
    ]
    return made[0], made[1]


def _forecast(layout: Serving, work: Pass, cache: float) -> ProgramForecast:
    seconds, lines = work_of(layout, work), [*_lines(layout, work)]
    activations = as_float(layout.activation_bytes(work.tokens, work.logits))
    sizes: tuple[tuple[plans.LineKind, str, float], ...] = (
        ("parameters", "weights", as_float(layout.weights_bytes)),
        ("kv_cache", "KV cache", cache),
        ("working_activations", "activations", activations),
    )
    memory = tuple(
        plans.LedgerLine(kind=kind, name=name, value=size, unit="bytes", formula=name, inputs={})
        for kind, name, size in sizes
    )
    taken = sum(line.value for line in memory)
    return ProgramForecast(
        memory_bytes_per_device=taken,
        hbm_bytes_per_device=layout.hbm_bytes,
        memory=(plans.MemoryPhase(name="pass", lines=memory, bytes=taken),),
        time=tuple(lines),
        step_s=plans.Estimate(
            lower=as_float(lower_s(seconds)), unoverlapped=sum(line.value for line in lines)
        ),
    )


def _lines(layout: Serving, work: Pass) -> Iterator[plans.LedgerLine]:
    """Yield the lines of a pass, with what the program multiplies and sends. Experts' devices take
    the tokens of all parts of the attention and sum results over these, then over `tensor`.
    """
    sent: tuple[plans.LineKind, ...] = ("activation_scatter", "expert_exchange")
    for line in pass_lines(layout, work):
        if more := _more_flops(layout, work, line.name):
            flops = line.inputs["flops"] + more
            inputs = line.inputs | {"flops": flops}
            line = replace(line, inputs=inputs, value=flops / line.inputs["peak"])  # noqa: PLW2901
        if line.kind not in sent:
            yield line
    stream = work.tokens * layout.model.d_model * STREAM_BYTES
    mixtures = layout.network.mixture_layers
    own, sums = stream / as_float(layout.requests_split), as_float(layout.sums) + mixtures
    exchanges: tuple[tuple[plans.LineKind, str, plans.CollectiveKind, str, float, float], ...] = (
        ("activation_scatter", "sums over tensor", "all-reduce", "tensor", sums, 2 * own),
        ("expert_gather", "tokens to experts", "all-gather", "expert", mixtures, stream),
        ("expert_scatter", "results of experts", "reduce-scatter", "expert", mixtures, stream),
    )
    for kind, name, how, axis, calls, volume in exchanges:
        ways, rate = as_int(layout.mesh[axis]), as_float(layout.links.bytes_per_s(axis))
        size = calls * volume * (ways - 1) / ways
        if size:
            yield plans.LedgerLine(
                kind=kind, name=name, value=size / rate, unit="s", formula="bytes / rate",
                inputs={"bytes": size, "rate": rate}, resource=axis,
                sources=(layout.chip.ici_link_bytes_per_s.source,),
                collective=plans.Collective(
                    kind=how, axes=(axis,), link="ici", dtype="bf16", bytes_per_step=size,
                    calls_per_step=calls,
                ),
            )  # fmt: skip


def _more_flops(layout: Serving, work: Pass, line: str) -> Number:
    """FLOPs of a line beyond those of the plan. Decoding, and on GPUs, an expert multiplies every
    token. Another prefill has rows for the most choices there can be, and a tile of rows that two
    experts share twice. It makes keys and values from the latents of earlier positions.
    """
    moe, prefills = layout.model.moe, as_float(work.together) > 0
    if moe is not None and line == "products with experts":
        own = moe.experts / as_float(layout.expert_ways)
        rows = work.tokens * own
        if prefills and (unit := layout.chip.matrix_unit):
            rows = work.tokens * min(moe.top_k, own) + (own - 1) * unit.value
        flops = 2 * rows * as_float(layout.expert_elements) / own
        return flops - as_float(layout.expert_flops(work))
    if prefills and line == "products with weights":
        return 2 * work.positions * as_float(layout.over_layers(
            lambda block: sum(layout.elements(m.weight) for m in block.attention.inputs[1:])
            if isinstance(block.attention, LatentAttention) else 0
        ))  # fmt: skip
    return 0.0
