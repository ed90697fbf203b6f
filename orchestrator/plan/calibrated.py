"""Forecasts a plan with the rates that were measured on a machine.

It is the plan's own ledger: each line at a measured rate, not at a datasheet's. Emulated devices
take turns on the cores of one machine, so nothing overlaps and the lines add up to the step.
"""

from dataclasses import dataclass, replace
from typing import Any

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Quantity
from orchestrator.errors import SpecError
from orchestrator.plan import flops
from orchestrator.plan.compute import BACKWARD_OVER_FORWARD
from orchestrator.plan.expected import ATTENTION, beyond, pass_bytes
from orchestrator.plan.forecast import cost, plain, plain_line, plain_phase, utilization
from orchestrator.plan.layout import Layout
from orchestrator.plan.memory import phases
from orchestrator.plan.messages import Message, messages, stride, vote, ways
from orchestrator.plan.planner import plan_digest, too_long
from orchestrator.plan.remat import policy
from orchestrator.plan.time import peak
from orchestrator.plan.torus import NO_LINKS
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmark, ChipProfile, Operation, Timing
from orchestrator.types.plan import Estimate, Forecast, LedgerLine, Plan
from orchestrator.types.spec import Batch, DType, Experiment, Resources

CORES, EXCHANGES = "cores", "exchanges"
BLOCK_PRODUCTS = 4  # query, key and value are one product in the trainer; gate and up are one
# Four of five measured steps took between these shares of the forecast (docs/calibrate.md).
FASTEST, SLOWEST = 0.8, 1.4


def on_profile(plan: Plan, profile: ChipProfile) -> Plan:
    """The plan with a forecast from a profile, which it names. Its digest changes with it."""
    replaced = (*beyond(plan), *too_long(plan))  # warnings about the datasheet's forecast
    made = replace(
        plan,
        chip_profile=codec.digest(profile),
        forecast=forecast(plan, profile),
        warnings=tuple(warning for warning in plan.warnings if warning not in replaced),
    )
    return replace(made, digest=plan_digest(made), warnings=(*made.warnings, *too_long(made)))


def on_its_chips(plan: Plan, profile: ChipProfile) -> Plan:
    """The same with a profile of the plan's own kind of chip; any other kind is an error."""
    kind, kinds = profile.machine.device_kind, catalog.chip(plan.chip).device_kinds
    if kind not in kinds:
        raise SpecError(
            f"the profile is of {kind}, the plan of {plan.chip}, which JAX calls {kinds[0]}"
        )
    return on_profile(plan, profile)


# --- what the forecast reads from a profile


@dataclass(frozen=True)
class MeasuredWork:
    """Lines of the ledger that one benchmark prices, and the size of one call in its unit."""

    benchmark: Benchmark
    unit: str
    amounts: dict[str, float]  # by the name of the line
    calls: float

    @property
    def amount_of_a_call(self) -> float:
        return sum(self.amounts.values()) / self.calls


def missing(plan: Plan, profile: ChipProfile) -> tuple[Benchmark, ...]:
    """The benchmarks that the forecast needs and the profile lacks."""
    layout = layout_of(plan, catalog.chip(plan.chip))
    needed = [
        *(work.benchmark for work in computation(plan, layout, profile)),
        *(benchmark_of(message, plan, layout) for message in all_messages(plan, layout)),
    ]
    known = {timing.benchmark for timing in profile.timings}
    return tuple(dict.fromkeys(one for one in needed if one not in known))


def computation(plan: Plan, layout: Layout, profile: ChipProfile) -> list[MeasuredWork]:
    """What each device computes and reads alone. Emulated devices do it all at the same time."""
    blocks = plan.model.layers * plan.batch.microbatches
    ledger = plan.forecast.time
    attention = {line.name: line.inputs["flops"] for line in ledger if line.name in ATTENTION}
    matmuls = {
        line.name: line.inputs["flops"]
        for line in ledger
        if line.resource == "mxu" and line.name not in attention
    }
    memory = {line.name: line.inputs["bytes"] for line in ledger if line.resource == "hbm"}
    between = {"between matmuls": plain(pass_bytes(layout))}
    products, dtype = BLOCK_PRODUCTS * blocks, plan.precision.compute
    head_dim = plan.model.head_dim
    at_once = (plan.devices, plan.hosts) if profile.emulated else (1, 1)
    return [
        MeasuredWork(on_all("matmul", dtype, at_once), "flops", matmuls, products),
        MeasuredWork(on_all("attention", dtype, at_once, head_dim), "flops", attention, blocks),
        MeasuredWork(on_all("elementwise", dtype, at_once), "bytes", between, products),
        MeasuredWork(on_all("copy", dtype, at_once), "bytes", memory, blocks),
    ]


def on_all(
    operation: Operation, dtype: DType, at_once: tuple[int, int], head_dim: int = 0
) -> Benchmark:
    devices, processes = at_once
    return Benchmark(
        operation=operation, dtype=dtype, devices=devices, processes=processes, head_dim=head_dim
    )


def all_messages(plan: Plan, layout: Layout) -> list[Message]:
    """The collectives of a step, and the vote on stopping if there are several processes."""
    sent = messages(layout, plan.gradient_reduction == "per_layer")
    return [*sent, vote()] if plan.hosts > 1 else sent


def benchmark_of(message: Message, plan: Plan, layout: Layout) -> Benchmark:
    return Benchmark(
        operation=message.kind,
        dtype=message.dtype,
        devices=plan.devices,
        processes=plan.hosts,
        group=ways(layout, message.axes),
        stride=stride(layout, message.axes),
    )


def seconds(profile: ChipProfile, benchmark: Benchmark, amount: float) -> float:
    """Seconds for an amount of a benchmark's work, interpolated between the measured ones."""
    return between(timing_of(profile, benchmark).points, amount)


def timing_of(profile: ChipProfile, benchmark: Benchmark) -> Timing:
    for timing in profile.timings:
        if timing.benchmark == benchmark:
            return timing
    devices = f"{benchmark.operation} in {benchmark.dtype} on {benchmark.devices} devices"
    raise SpecError(f"the profile has no {devices}: orch calibrate measures it")


def between(points: tuple[tuple[float, float], ...], amount: float) -> float:
    """A straight line between the two nearest points, extended beyond the last.

    Less than the smallest measured amount costs as much as that one.
    """
    amount = max(amount, points[0][0])
    below = sum(known < amount for known, _ in points[1:-1])
    (low, low_s), (high, high_s) = points[below : below + 2]
    slope = max(high_s - low_s, 0.0) / (high - low)
    return low_s + slope * (amount - low)


# --- the forecast


def forecast(plan: Plan, profile: ChipProfile) -> Forecast:
    """The forecast at measured rates. `unoverlapped` is the sum of all lines.

    On emulated devices `lower` takes only the FLOPs, at the best measured rate of a matmul. On
    chips it stays the datasheet's, as does the peak that MFU is over.
    """
    layout = layout_of(plan, chip_of(plan, profile))
    lines = [
        plain_line(line)
        for line in (
            *computation_lines(plan, layout, profile),
            *message_lines(plan, layout, profile),
        )
    ]
    lines.sort(key=lambda line: -line.value)
    step_s = step_bounds(plan, layout, profile, sum(line.value for line in lines))
    memory = tuple(plain_phase(phase) for phase in phases(layout))
    usable_bytes, peak_bytes = layout.chip.hbm_usable_bytes.value, max(p.bytes for p in memory)
    batch = Batch(sequences=plan.batch.sequences, length=plan.batch.length)
    experiment = Experiment(model=plan.model, tokens=plan.tokens, batch=batch)
    resources = Resources(chip=plan.chip, topology=plan.topology, goodput=plan.forecast.goodput)
    return Forecast(
        memory_bytes_per_device=peak_bytes,
        hbm_bytes_per_device=usable_bytes,
        fits=peak_bytes <= usable_bytes,
        memory=memory,
        time=tuple(lines),
        step_s=step_s,
        **binding(lines),
        **utilization(layout, experiment, step_s),
        **cost(layout, experiment, resources, step_s),
        expected_time=tuple(lines) if step_s.expected else (),
    )


def computation_lines(plan: Plan, layout: Layout, profile: ChipProfile) -> list[LedgerLine]:
    """The ledger's lines for math and memory, and the operations between the matmuls."""
    return [
        measured_line(work, name, amount, profile)
        for work in computation(plan, layout, profile)
        for name, amount in work.amounts.items()
    ]


def measured_line(work: MeasuredWork, name: str, amount: float, profile: ChipProfile) -> LedgerLine:
    call = work.amount_of_a_call
    rate = call / seconds(profile, work.benchmark, call)
    return LedgerLine(
        name=name,
        value=amount / rate,
        unit="s",
        formula=f"{work.unit} / measured rate",
        inputs={work.unit: amount, "rate": rate},
        resource=CORES,
    )


def message_lines(plan: Plan, layout: Layout, profile: ChipProfile) -> list[LedgerLine]:
    """The collectives; those of one name share a line."""
    by_name: dict[str, list[Message]] = {}
    for message in all_messages(plan, layout):
        by_name.setdefault(message.name, []).append(message)
    return [message_line(name, sent, plan, layout, profile) for name, sent in by_name.items()]


def message_line(
    name: str, sent: list[Message], plan: Plan, layout: Layout, profile: ChipProfile
) -> LedgerLine:
    total_s = sum(one.calls * message_s(one, plan, layout, profile) for one in sent)
    calls = sum(one.calls for one in sent)
    return LedgerLine(
        name=name,
        value=total_s,
        unit="s",
        formula="calls x measured",
        inputs={
            "calls": calls,
            "bytes": sum(one.calls * one.bytes for one in sent),
            "measured": total_s / calls,
        },
        resource=EXCHANGES,
    )


def message_s(message: Message, plan: Plan, layout: Layout, profile: ChipProfile) -> float:
    """Seconds of one collective; those that travel at the same time share their latency."""
    together_s = seconds(
        profile, benchmark_of(message, plan, layout), message.bytes * message.together
    )
    return together_s / message.together


def step_bounds(plan: Plan, layout: Layout, profile: ChipProfile, sum_s: float) -> Estimate:
    """The sum is expected where nothing overlaps: on emulated devices and on a single chip."""
    lower_s = plan.forecast.step_s.lower
    if profile.emulated:
        per_device = peak(layout.chip, plan.precision.compute).value / layout.chip.devices
        lower_s = plain(least_flops(plan, layout, profile) / per_device)
    sum_s = max(sum_s, lower_s)
    if not (profile.emulated or plan.devices == 1):
        return Estimate(lower=lower_s, unoverlapped=sum_s)
    return Estimate(
        lower=lower_s,
        unoverlapped=sum_s,
        expected=sum_s,
        low=max(sum_s * FASTEST, lower_s),
        high=sum_s * SLOWEST,
    )


def least_flops(plan: Plan, layout: Layout, profile: ChipProfile) -> float:
    """FLOPs that a device has to do: all that MFU counts, and repeated matmuls."""
    matmuls = computation(plan, layout, profile)[0]
    forward = flops.attention_flops_per_token(plan.model, plan.batch.length) * plan.batch.tokens
    attention = (1 + BACKWARD_OVER_FORWARD) * forward / plan.devices
    return sum(matmuls.amounts.values()) + attention


def binding(lines: list[LedgerLine]) -> dict[str, Any]:
    """Whether computing or exchanging takes longer, and by what share."""
    computing_s = sum(line.value for line in lines if line.resource == CORES)
    exchanging_s = sum(line.value for line in lines) - computing_s
    more, less = max(computing_s, exchanging_s), min(computing_s, exchanging_s)
    return {
        "bound": CORES if computing_s >= exchanging_s else EXCHANGES,
        "bound_by": more / less - 1 if less else 0.0,
    }


def peak_flops_per_s(profile: ChipProfile, dtype: str) -> float:
    """The best measured rate of a matmul, over all devices."""
    rates = [
        timing.best_per_s * timing.benchmark.devices
        for timing in profile.timings
        if (timing.benchmark.operation, timing.benchmark.dtype) == ("matmul", dtype)
    ]
    if not rates:
        raise SpecError(f"the profile has no matmul in {dtype}: orch calibrate measures it")
    return max(rates)


def chip_of(plan: Plan, profile: ChipProfile) -> Chip:
    """The plan's chip; an emulated one has its share of the machine."""
    chip, dtype = catalog.chip(plan.chip), plan.precision.compute
    if not profile.emulated:
        return chip
    name = f"profile {codec.short(codec.digest(profile))}"
    rate = Quantity(value=peak_flops_per_s(profile, dtype) / plan.chips, source=name)
    memory_bytes = profile.machine.memory_bytes / plan.devices
    return replace(
        chip,
        peak_flops_per_s={dtype: rate},
        hbm_usable_bytes=Quantity(value=memory_bytes, source=name),
        dollars_per_hour=None,
    )


def layout_of(plan: Plan, chip: Chip) -> Layout:
    """The plan's layout, without links."""
    return Layout(
        chip=chip,
        model=plan.model,
        precision=plan.precision,
        remat=policy(plan.remat),
        length=plan.batch.length,
        sequences=plan.batch.sequences,
        microbatches=plan.batch.microbatches,
        links=NO_LINKS,
        **plan.mesh,
    )
