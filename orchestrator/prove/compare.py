"""Prove room: the compiled program held against the Forecast, line by line."""

from collections import defaultdict

from orchestrator.plan.layout import DTYPE_BYTES
from orchestrator.prove.compiled import PRODUCTS, REPEATED, Compiled, CompiledCollective
from orchestrator.prove.dcn_check import SCALARS_BYTES, crossings, faults
from orchestrator.types.plan import Link, Plan
from orchestrator.types.proof import ComparedCollective, Comparison, CompilerChange, Proof

SCHEMA = 1

# A Forecast agrees within these; for memory, within the larger of the two.
MEMORY_SHARE, MEMORY_BYTES = 0.10, 0.5 * 2**30
EXCHANGE_SHARE = FLOPS_SHARE = 0.02

# The Forecast's lines of memory → what the buffers of the compiled program hold.
CLASS_OF = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "compute copy": "compute copies",
    "gradients": "gradients",
    "kept activations": "kept activations",
}
WORKING = "working set"
KERNELS = "attention kernels"

Key = tuple[tuple[str, ...], Link, str, str]  # axes, link, kind, dtype


def proof_of(plan: Plan, trainer: str, compiled: Compiled) -> Proof:
    """The verdict on a plan that the compiler accepted."""
    memory, forecast = compiled.memory, plan.forecast
    crossed = crossings(compiled.reading.sent)
    collectives, flops = exchanged(plan, compiled), flops_held(plan, compiled)
    executed = sum(line.compiled for line in flops)
    expected = sum(line.forecast or 0 for line in flops)
    missed = [
        *memory_missed(memory.peak, forecast.memory_bytes_per_device),
        *exchanges_missed(collectives),
        *flops_missed(executed, expected),
        *(f"no formula counts the FLOPs of kernel {name}" for name in compiled.reading.uncounted),
    ]
    return Proof(
        schema=SCHEMA,
        plan_digest=plan.digest,
        trainer=trainer,
        fits=True,
        agrees=not missed,
        refusal=None,
        hbm_bytes_per_device=forecast.hbm_bytes_per_device,
        peak_hbm_bytes_per_device=memory.peak,
        forecast_peak_hbm_bytes_per_device=forecast.memory_bytes_per_device,
        margin_bytes=forecast.hbm_bytes_per_device - memory.peak,
        memory=classes(compiled),
        ledger=memory_held(plan, compiled),
        peak_at=compiled.reading.peak_at,
        buffers=compiled.reading.buffers,
        collectives=collectives,
        changes=changes(compiled),
        only_gradients_cross_pods=not faults(plan, crossed),
        crossing_faults=tuple(faults(plan, crossed)),
        crossings=crossed,
        flops_per_device=executed,
        forecast_flops_per_device=expected,
        flops=flops,
        disagreements=tuple(missed),
        hints=(),
        compile_s=compiled.compile_s,
        compiler_memory_bytes=compiled.compiler_memory_bytes,
        versions=compiled.versions,
    )


# --- memory


def classes(compiled: Compiled) -> dict[str, float]:
    """The compiler's own account of a device's memory."""
    memory = compiled.memory
    return {
        "arguments": memory.arguments,
        "outputs": memory.outputs,
        "aliased": memory.aliased,
        "temporaries": memory.temporaries,
        "code": memory.code,
        "host": memory.host,
    }


def memory_held(plan: Plan, compiled: Compiled) -> tuple[Comparison, ...]:
    """What is held at the worst moment, beside the lines of the Forecast's largest phase."""
    largest = max(plan.forecast.memory, key=lambda phase: phase.bytes)
    forecast: dict[str, float] = defaultdict(float)
    for line in largest.lines:
        if "copied" in line.inputs:
            for name, size in _copied(plan, line.inputs["copied"], line.value).items():
                forecast[name] += size
        else:
            forecast[CLASS_OF.get(line.name, WORKING)] += line.value
    live = compiled.reading.live_bytes
    return tuple(
        Comparison(name=name, compiled=live.get(name, 0.0), forecast=forecast.get(name))
        for name in sorted({*live, *forecast}, key=lambda name: (-live.get(name, 0.0), name))
        if live.get(name) or forecast.get(name)
    )


def _copied(plan: Plan, elements: float, size_bytes: float) -> dict[str, float]:
    """The Forecast's line of copied kv heads, cut into the classes it is made of."""
    parameters = DTYPE_BYTES[plan.precision.parameters] * elements
    moments = 2 * DTYPE_BYTES[plan.precision.optimizer] * elements
    return {
        "parameters": parameters,
        "optimizer": moments,
        "gradients": size_bytes - parameters - moments,
    }


def memory_missed(compiled: float, forecast: float) -> list[str]:
    if abs(compiled - forecast) <= max(MEMORY_SHARE * compiled, MEMORY_BYTES):
        return []
    return [f"peak memory is {_off(compiled, forecast)} the forecast's"]


# --- collectives


def exchanged(plan: Plan, compiled: Compiled) -> tuple[ComparedCollective, ...]:
    """Every kind of collective that either the program or the Forecast has."""
    forecast: dict[Key, float] = defaultdict(float)
    for one in (line.collective for line in plan.forecast.time if line.collective):
        forecast[_axes(plan, one.axes), one.link, one.kind, one.dtype] += one.bytes_per_step
    payload: dict[Key, float] = defaultdict(float)
    calls: dict[Key, float] = defaultdict(float)
    for key, size, count in _compiled_exchanges(compiled):
        payload[key] += size
        calls[key] += count
    return tuple(
        ComparedCollective(
            axes=key[0],
            link=key[1],
            kind=key[2],
            dtype=key[3],
            bytes_per_step=payload.get(key, 0.0),
            forecast_bytes_per_step=forecast.get(key, 0.0),
            calls_per_step=calls.get(key, 0.0),
        )
        for key in sorted({*forecast, *payload})
    )


def _compiled_exchanges(compiled: Compiled) -> list[tuple[Key, float, float]]:
    inside: list[tuple[Key, float, float]] = [
        ((one.axes, "ici", one.kind, one.dtype), one.payload_bytes, one.calls)
        for one in compiled.reading.collectives
        if one.payload_bytes
    ]
    across: list[tuple[Key, float, float]] = [
        ((("pods",), "dcn", one.kind, one.dtype), one.payload_bytes, one.calls)
        for one in compiled.reading.sent
    ]
    return [*inside, *across]


def _axes(plan: Plan, axes: tuple[str, ...]) -> tuple[str, ...]:
    """A group's axes, those of one device left out: nothing shows them in a program."""
    return tuple(axis for axis in axes if plan.mesh[axis] > 1)


def exchanges_missed(collectives: tuple[ComparedCollective, ...]) -> list[str]:
    """Groups of axes on which the payload is not the Forecast's; a few scalars count nowhere."""
    compiled: dict[tuple[tuple[str, ...], str], float] = defaultdict(float)
    forecast: dict[tuple[tuple[str, ...], str], float] = defaultdict(float)
    for one in collectives:
        compiled[one.axes, one.link] += one.bytes_per_step
        forecast[one.axes, one.link] += one.forecast_bytes_per_step
    return [
        f"payload over {' x '.join(group[0])} is {_off(compiled[group], forecast[group])}"
        " the forecast's"
        for group in sorted(compiled)
        if abs(compiled[group] - forecast[group])
        > max(EXCHANGE_SHARE * compiled[group], SCALARS_BYTES)
    ]


def changes(compiled: Compiled) -> tuple[CompilerChange, ...]:
    """What the compiler adds to the payload, the most first."""
    found = [
        CompilerChange(
            what=_changed(one),
            axes=one.axes,
            link="ici",
            bytes_per_step=one.executed_bytes - one.payload_bytes,
        )
        for one in compiled.reading.collectives
        if one.executed_bytes > one.payload_bytes
    ]
    padding = sum(one.padding_bytes for one in compiled.reading.sent)
    if padding:
        found.append(
            CompilerChange(
                what="padding to tiles", axes=("pods",), link="dcn", bytes_per_step=padding
            )
        )
    return tuple(sorted(found, key=lambda change: -change.bytes_per_step))


def _changed(one: CompiledCollective) -> str:
    if one.executed_kind == one.kind:
        return f"padding of {one.kind}, {one.dtype}"
    if one.executed_kind == "collective-permute":
        return f"collective-permute after a padded {one.kind}, {one.dtype}"
    return f"{one.executed_kind} in place of {one.kind}, {one.dtype}"


# --- FLOPs


def flops_held(plan: Plan, compiled: Compiled) -> tuple[Comparison, ...]:
    """Matrix products and kernels; what the compiler repeats of its own accord is a line too."""
    counted = [line for line in plan.forecast.time if "flops" in line.inputs]
    attention = sum(x.inputs["flops"] for x in counted if x.name.startswith("attention"))
    products = sum(x.inputs["flops"] for x in counted) - attention
    found = dict(compiled.reading.flops)
    lines = [
        Comparison(name=PRODUCTS, compiled=found.pop(PRODUCTS, 0.0), forecast=products),
        Comparison(name=REPEATED, compiled=found.pop(REPEATED, 0.0), forecast=None),
        Comparison(name=KERNELS, compiled=sum(found.values()), forecast=attention),
    ]
    return tuple(line for line in lines if line.compiled or line.forecast)


def flops_missed(compiled: float, forecast: float) -> list[str]:
    if abs(compiled - forecast) <= FLOPS_SHARE * compiled:
        return []
    return [f"the program's FLOPs are {_off(compiled, forecast)} the forecast's"]


def _off(compiled: float, forecast: float) -> str:
    if not forecast:
        return f"{compiled:,.0f} B against 0 B of"
    return f"{compiled / forecast:.3f} times"
