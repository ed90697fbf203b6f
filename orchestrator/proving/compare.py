"""Compare a compiled program with the Forecast, line by line, and two proofs with each other."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from math import exp
from typing import Literal

from orchestrator.catalog.published import schedule_score
from orchestrator.formatting import GIB
from orchestrator.network.mesh_axes import AXES, DCN_AXES, PIPELINE, between_slices
from orchestrator.network.rematerialization import Treatments, policy
from orchestrator.planning.layout import DTYPE_BYTES, moment_bytes
from orchestrator.planning.time import IN_TICKS, IN_TICKS_IF_GATHERED
from orchestrator.proving import compiled as programs
from orchestrator.proving.compiled import GROUPED_MATMUL, PRODUCTS, REPEATED
from orchestrator.values import proof as proofs
from orchestrator.values.codec import Value
from orchestrator.values.model import Model
from orchestrator.values.plan import ATTENTION_LINES, LineKind, Link
from orchestrator.values.program import AnyPlan, ServedProgram
from orchestrator.values.proof import Comparison, Disagreement, Payload, Proof

# Check that pods exchange what the plan says, and nothing else.

_SCALARS_BYTES = 4096  # losses and the like, of one step
_ROUNDED_SHARE = 1.1  # of the Forecast: payloads are rounded up to whole tiles and shards
_SUMS = frozenset({"all-reduce", "reduce-scatter"})
_GATHER = "all-gather"
# The lines of the Forecast's ledger that price each payload.
_LINES: dict[Payload, tuple[LineKind, ...]] = {
    "gradients": ("gradient_reduction", "gradient_scatter"),
    "weights": ("weight_gather",),
    "activations": (
        "stage_exchange", "kv_gather", "kv_scatter", "expert_gather", "expert_scatter",
        "expert_exchange",
    ),
}  # fmt: skip


_STAGES = between_slices(PIPELINE)


def _crossings(sends: Iterable[programs.DcnSend]) -> tuple[proofs.DcnCrossing, ...]:
    """Everything that is sent to other pods, the most bytes first."""
    crossed = []
    for send in sorted(sends, key=lambda send: (-send.payload_bytes, send.name)):
        carries: Payload = "other"
        # Programs for TPUs name no line of a send: stages exchange little else than activations.
        if send.line in _LINES["activations"] or (send.axes == _STAGES and not send.line):
            carries = "activations"
        elif send.kind in _SUMS and send.in_backward:
            carries = "gradients"
        elif send.kind == _GATHER and send.is_stored:
            carries = "weights"
        crossed.append(
            proofs.DcnCrossing(
                name=send.name,
                kind=send.kind,
                dtype=send.dtype,
                bytes_per_step=send.payload_bytes,
                calls_per_step=send.calls,
                places=send.places,
                carries=carries,
                axes=send.axes,
            )
        )
    return tuple(crossed)


def _faults(
    plan: AnyPlan, crossed: tuple[proofs.DcnCrossing, ...]
) -> tuple[proofs.CrossingFault, ...]:
    """Return the payloads that must not cross pods. `crossed` has the most bytes first."""
    planned = {
        what: sum(
            line.collective.bytes_per_step
            for line in plan.forecast.time
            if line.kind in kinds and line.collective and line.collective.link == "dcn"
        )
        for what, kinds in _LINES.items()
    }
    # Another trainer has no Forecast, but gradients may always cross.
    expected = {"gradients", *(what for what, size in planned.items() if size)}
    others = [crossing for crossing in crossed if crossing.carries not in expected]
    faults: list[tuple[proofs.FaultCode, proofs.DcnCrossing, float, float]] = []
    if _bytes(others) > _SCALARS_BYTES:
        faults += [("not_planned", crossing, crossing.bytes_per_step, 0.0) for crossing in others]
    for what in sorted(expected):
        alike = [crossing for crossing in crossed if crossing.carries == what]
        is_over = _bytes(alike) > planned[what] * _ROUNDED_SHARE + _SCALARS_BYTES
        if is_over and plan.ledger_describes_trainer:
            faults.append(("too_many_bytes", alike[0], _bytes(alike), planned[what]))
    return tuple(
        proofs.CrossingFault(
            code=code, crossing=crossing, bytes_per_step=size, allowed_bytes_per_step=allowed
        )
        for code, crossing, size, allowed in faults
    )


def _bytes(crossed: list[proofs.DcnCrossing]) -> float:
    return sum(crossing.bytes_per_step for crossing in crossed)


# A Forecast agrees within these; for memory, within the larger of the two.
_MEMORY_SHARE, _MEMORY_BYTES = 0.05, 0.5 * GIB
_PAYLOAD_SHARE = _FLOPS_SHARE = 0.02

# The Forecast's lines of memory → classes of buffers of the compiled program.
_CLASS_OF: dict[LineKind, str] = {
    "parameters": "parameters",
    "kv_cache": "cache",
    "optimizer_state": "optimizer",
    "compute_copy": "compute copies",
    "gradients": "gradients",
    "kept_activations": "kept activations",
}
_WORKING = "working set"
# Lines of parameters that the model does not have, and the input that counts their elements.
_STORED: dict[LineKind, str] = {"copied_heads": "copied", "vocab_padding": "filled"}

_Key = tuple[tuple[str, ...], Link, str, str]  # axes, link, kind, dtype


def proof_of(plan: AnyPlan, compiled: programs.Compiled) -> Proof:
    """The verdict on a plan that the compiler accepts, without suggestions."""
    forecast = plan.forecast
    # Where a program uses the host's memory, the compiler's own number is that of the memory that
    # holds more; the program's text says which buffers are in HBM.
    on_host, live_bytes = compiled.memory.host, compiled.summary.live_bytes
    peak = sum(live_bytes.values()) if on_host else compiled.memory.peak
    on_host_forecast = forecast.host_memory_bytes_per_chip * plan.chips / plan.devices
    crossed = _crossings(compiled.summary.sends)
    others = [crossing for crossing in crossed if crossing.carries != "gradients"]
    crossing_faults = _faults(plan, crossed)
    flops = _compared_flops(plan, compiled)
    proof = Proof(
        schema=proofs.PROOF_SCHEMA,
        plan_digest=plan.digest,
        trainer=plan.trainer,
        fits=True,
        agrees=None,
        refusal=None,
        hbm_bytes_per_device=forecast.hbm_bytes_per_device,
        peak_hbm_bytes_per_device=peak,
        forecast_peak_hbm_bytes_per_device=forecast.memory_bytes_per_device,
        host_bytes_per_device=compiled.memory.host,
        forecast_host_bytes_per_device=on_host_forecast,
        margin_bytes=forecast.hbm_bytes_per_device - peak,
        memory={name: size for name, size in asdict(compiled.memory).items() if name != "peak"},
        ledger=_compared_memory(plan, compiled),
        peak_at=compiled.summary.peak_at,
        buffers=compiled.summary.buffers,
        collectives=_compared_collectives(plan, compiled),
        changes=_changes(compiled),
        only_gradients_cross_pods=_bytes(others) <= _SCALARS_BYTES,
        crosses_as_planned=not crossing_faults,
        crossing_faults=crossing_faults,
        crossings=crossed,
        flops_per_device=sum(line.compiled for line in flops),
        forecast_flops_per_device=sum(line.forecast or 0 for line in flops),
        flops=flops,
        schedule=_judged(plan, compiled.summary.schedule),
        disagreements=(),
        hints=(),
        compile_s=compiled.compile_s,
        compiler_memory_bytes=compiled.compiler_memory_bytes,
        versions=compiled.versions,
    )
    if plan.ledger_describes_trainer:
        missed = tuple(_disagreements(proof, compiled.summary.uncounted, plan.model))
        # A kernel that nobody counts says nothing about the forecast.
        agrees = all(each.code == "uncounted_kernel" for each in missed)
        return replace(proof, agrees=agrees, disagreements=missed)
    # The Forecast's figures describe another trainer's program: none of them stays.
    collectives = (replace(x, forecast_bytes_per_step=None) for x in proof.collectives)
    return replace(
        proof,
        forecast_peak_hbm_bytes_per_device=None,
        forecast_host_bytes_per_device=None,
        forecast_flops_per_device=None,
        ledger=tuple(replace(x, forecast=None) for x in proof.ledger if x.compiled),
        collectives=tuple(x for x in collectives if x.bytes_per_step),
        flops=tuple(replace(x, forecast=None) for x in proof.flops if x.compiled),
    )


def _judged(plan: AnyPlan, schedule: proofs.Schedule | None) -> proofs.Schedule | None:
    """Return the schedule with its interval, or with what no judged program had."""
    if schedule is None:
        return None
    if isinstance(plan, ServedProgram):
        return replace(schedule, never_judged=("a program that serves",))
    score = schedule_score()
    own = _program_kinds(
        plan.chip, plan.mesh, plan.model, plan.precision.compute, policy(plan.remat),
        plan.batch.microbatches,
    )  # fmt: skip
    never = sorted(own - {*score.kinds})
    tokens = plan.batch.tokens / plan.devices
    if tokens < score.least_tokens:
        never.append(f"under {score.least_tokens:,.0f} tokens per device")
    if never:
        return replace(schedule, never_judged=tuple(never))
    factor = exp(score.spread)
    total_s = schedule.total_s
    return replace(schedule, low_s=total_s / factor, high_s=total_s * factor)


def _program_kinds(
    chip: str, mesh: Mapping[str, int], model: Model, compute: str, remat: Treatments,
    microbatches: int,
) -> set[str]:  # fmt: skip
    """Return what tells a program from others, as words: `v6e`, `the axis tensor`, `offload`."""
    found = {
        "several slices": any(mesh.get(axis, 1) > 1 for axis in DCN_AXES),
        "weights shared by slices": mesh["fsdp_dcn"] > 1,
        "offload": remat.needs_host,
        "microbatches": microbatches > 1,
        "a mixture of experts": model.moe is not None,
        "latent attention": model.latent is not None,
        f"products in {compute}": compute != "bf16",
    }
    # `pods` and the axes that share weights have words of their own, or none.
    axes = (axis for axis in AXES if axis not in ("pods", "fsdp_dcn", "fsdp"))
    found |= {f"the axis {axis}": mesh.get(axis, 1) > 1 for axis in axes}
    return {chip, *(word for word, has in found.items() if has)}


def _disagreements(
    proof: Proof, uncounted: tuple[str, ...], model: Model
) -> Iterator[Disagreement]:
    """Where the Forecast is off: memory, payload, FLOPs, and kernels that no formula counts."""
    peak, expected_peak = proof.peak_hbm_bytes_per_device, proof.forecast_peak_hbm_bytes_per_device
    yield from _memory_disagreements(peak, expected_peak or 0)
    on_host, expected_on_host = proof.host_bytes_per_device, proof.forecast_host_bytes_per_device
    yield from _memory_disagreements(on_host, expected_on_host or 0, "host_memory")
    compiled: dict[tuple[str, ...], float] = defaultdict(float)
    forecast: dict[tuple[str, ...], float] = defaultdict(float)
    for collective in proof.collectives:
        compiled[collective.axes] += collective.bytes_per_step
        forecast[collective.axes] += collective.forecast_bytes_per_step or 0
    reported = _reported_bytes(model)
    for axes, size in compiled.items():
        if abs(size - forecast[axes]) > max(_PAYLOAD_SHARE * size, reported):
            yield Disagreement(code="payload", axes=axes, compiled=size, forecast=forecast[axes])
    flops, expected = proof.flops_per_device, proof.forecast_flops_per_device or 0
    if abs(flops - expected) > _FLOPS_SHARE * flops:
        yield Disagreement(code="flops", compiled=flops, forecast=expected)
    for name in uncounted:
        yield Disagreement(code="uncounted_kernel", kernel=name)


def _compared_memory(plan: AnyPlan, compiled: programs.Compiled) -> tuple[Comparison, ...]:
    """What is alive at the peak, and the lines of the Forecast's largest phase."""
    largest = max(plan.forecast.memory, key=lambda phase: phase.bytes)
    forecast: dict[str, float] = defaultdict(float)
    for line in largest.lines:
        if line.kind not in _STORED or isinstance(plan, ServedProgram):
            forecast[_CLASS_OF.get(line.kind, _WORKING)] += line.value
        else:  # copies and fillings are parameters, moments and gradients
            elements = line.inputs[_STORED[line.kind]]
            parameters = DTYPE_BYTES[plan.precision.parameters] * elements
            moments = moment_bytes(plan.optimizer, plan.precision) * elements
            forecast["parameters"] += parameters
            forecast["optimizer"] += moments
            forecast["gradients"] += line.value - parameters - moments
    live = compiled.summary.live_bytes
    return tuple(
        Comparison(name=name, compiled=live.get(name, 0.0), forecast=forecast.get(name))
        for name in sorted({*live, *forecast}, key=lambda name: (-live.get(name, 0.0), name))
        if live.get(name) or forecast.get(name)
    )


def _memory_disagreements(
    compiled: float, forecast: float, code: proofs.DisagreementCode = "peak_memory"
) -> tuple[Disagreement, ...]:
    if abs(compiled - forecast) <= max(_MEMORY_SHARE * compiled, _MEMORY_BYTES):
        return ()
    return (Disagreement(code=code, compiled=compiled, forecast=forecast),)


def _compared_collectives(
    plan: AnyPlan, compiled: programs.Compiled
) -> tuple[proofs.ComparedCollective, ...]:
    """Every kind of collective that the program or the Forecast has."""
    forecast: dict[_Key, float] = defaultdict(float)
    for line in plan.forecast.time:
        if planned := line.collective:
            # An axis of one device leaves no trace in a program.
            axes = tuple(axis for axis in planned.axes if plan.mesh[axis] > 1)
            key: _Key = axes, planned.link, planned.kind, planned.dtype
            forecast[key] += _ticks_share(plan, line.kind) * planned.bytes_per_step
    payload: dict[_Key, float] = defaultdict(float)
    calls: dict[_Key, float] = defaultdict(float)
    moves: list[programs.CompiledCollective | programs.DcnSend] = [*compiled.summary.collectives]
    for moved in [*moves, *compiled.summary.sends]:
        is_send = isinstance(moved, programs.DcnSend)
        if is_send or moved.payload_bytes:
            key = moved.axes, "dcn" if is_send else "ici", moved.kind, moved.dtype
            payload[key] += moved.payload_bytes
            calls[key] += moved.calls
    return tuple(
        proofs.ComparedCollective(
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


def _reported_bytes(model: Model) -> float:
    """What devices send each other of what a step reports, and no ledger counts: scalars, and the
    fp32 load of every expert in every layer, summed over the slice.
    """
    loads = model.layers * model.moe.experts if model.moe else 0
    return _SCALARS_BYTES + 2 * 4 * loads


def _changes(compiled: programs.Compiled) -> tuple[proofs.CompilerChange, ...]:
    """What the compiler adds to the payload, the most first."""
    added: list[tuple[str, tuple[str, ...], Link, float]] = []
    for collective in compiled.summary.collectives:
        more = collective.executed_bytes - collective.payload_bytes
        kind = f"{collective.kind}, {collective.dtype}"
        if collective.executed_kind == collective.kind:
            what = f"padding of {kind}"
        elif collective.executed_kind == "collective-permute":
            what = f"collective-permute after a padded {kind}"
        else:
            what = f"{collective.executed_kind} in place of {kind}"
        added.append((what, collective.axes, "ici", more))
    padding: dict[tuple[str, ...], float] = defaultdict(float)
    for send in compiled.summary.sends:
        padding[send.axes] += send.padding_bytes
    added += [("padding to tiles", axes, "dcn", size) for axes, size in padding.items()]
    return tuple(
        proofs.CompilerChange(what=what, axes=axes, link=link, bytes_per_step=size)
        for what, axes, link, size in sorted(added, key=lambda change: -change[3])
        if size > 0
    )


def _compared_flops(plan: AnyPlan, compiled: programs.Compiled) -> tuple[Comparison, ...]:
    """Matrix products, with those of experts' groups; what the compiler repeats; and attention,
    unless a formula is missing for one of its kernels.
    """
    counted = [
        (line.kind, _ticks_share(plan, line.kind) * line.inputs["flops"])
        for line in plan.forecast.time
        if "flops" in line.inputs
    ]
    attention = sum(count for kind, count in counted if kind in ATTENTION_LINES)
    products = sum(count for _, count in counted) - attention
    flops = dict(compiled.summary.flops)
    multiplied = flops.pop(PRODUCTS, 0.0) + flops.pop(GROUPED_MATMUL, 0.0)
    lines = [
        Comparison(name=PRODUCTS, compiled=multiplied, forecast=products),
        Comparison(name=REPEATED, compiled=flops.pop(REPEATED, 0.0), forecast=None),
    ]
    if not compiled.summary.uncounted:
        kernels = sum(flops.values())
        lines.append(Comparison(name="attention kernels", compiled=kernels, forecast=attention))
    return tuple(line for line in lines if line.compiled or line.forecast)


def _ticks_share(plan: AnyPlan, kind: LineKind) -> float:
    """How often a program does what its ledger has once: more often where a pipeline has ticks in
    which not all stages have work.
    """
    pipeline = plan.pipeline
    if pipeline is None:
        return 1.0
    by_layer = kind in IN_TICKS_IF_GATHERED and pipeline.weight_gather == "per_layer"
    return 1 + pipeline.bubble * (by_layer or kind in IN_TICKS)


# --- two proofs: of two plans, two sets of compiler options, or two trainers

_FigureUnit = Literal["bytes", "flops", "s"]


class ProofFigure(Value):
    """One figure of two compiled programs, of one device and step."""

    name: str
    unit: _FigureUnit
    first: float
    second: float


class LineSeconds(Value):
    """Seconds that a source line takes in each of two schedules; None where it is absent."""

    line: str
    first_s: float | None
    second_s: float | None

    @property
    def more_s(self) -> float:
        return (self.second_s or 0.0) - (self.first_s or 0.0)


class ProofDiff(Value):
    """Two proofs side by side: figures of both, and the lines that differ most first."""

    schema: int = 1
    proofs: tuple[Proof, Proof]
    figures: tuple[ProofFigure, ...]
    lines: tuple[LineSeconds, ...]


_KINDS = ("products_s", "kernels_s", "copies_s", "other_s", "exposed_s", "total_s")


def diff_proofs(first: Proof, second: Proof) -> ProofDiff:
    """Figures that either proof has, and lines of source by how much their seconds differ."""
    before, after = _figures(first), _figures(second)
    figures = tuple(
        ProofFigure(
            name=key[0], unit=key[1], first=before.get(key, 0.0), second=after.get(key, 0.0)
        )
        for key in dict.fromkeys([*before, *after])
    )
    lines: list[LineSeconds] = []
    if first.schedule and second.schedule:
        first_s, second_s = _line_seconds(first.schedule), _line_seconds(second.schedule)
        lines = [
            LineSeconds(line=line, first_s=first_s.get(line), second_s=second_s.get(line))
            for line in {*first_s, *second_s}
        ]
        lines.sort(key=lambda line: (-abs(line.more_s), line.line))
    return ProofDiff(proofs=(first, second), figures=figures, lines=tuple(lines))


def _figures(proof: Proof) -> dict[tuple[str, _FigureUnit], float]:
    link_bytes: dict[str, float] = defaultdict(float)
    for collective in proof.collectives:
        link_bytes[collective.link] += collective.bytes_per_step
    found: dict[tuple[str, _FigureUnit], float] = {
        ("peak_hbm", "bytes"): proof.peak_hbm_bytes_per_device,
        ("host", "bytes"): proof.host_bytes_per_device,
        ("flops", "flops"): proof.flops_per_device,
        **{(link, "bytes"): size for link, size in link_bytes.items()},
    }
    if proof.schedule:
        found |= {(kind, "s"): getattr(proof.schedule, kind) for kind in _KINDS}
    return found


def _line_seconds(schedule: proofs.Schedule) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for line in schedule.lines:
        total[line.line] += line.total_s
    return dict(total)
