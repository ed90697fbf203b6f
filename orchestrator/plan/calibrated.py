"""Forecasts a plan with the rates that were measured on a machine.

It is the plan's own ledger: each line at a measured rate, not at a datasheet's. Emulated devices
take turns on the cores of one machine, so nothing overlaps and the lines add up to the step.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Quantity
from orchestrator.errors import SpecError
from orchestrator.network.rematerialization import policy
from orchestrator.plan import flops
from orchestrator.plan.forecast import Terms, plain, plain_line, write_forecast
from orchestrator.plan.kernel_constants import ATTENTION_BLOCK
from orchestrator.plan.layout import Layout
from orchestrator.plan.messages import Message, messages
from orchestrator.plan.plan_warnings import forecast_warnings, too_long
from orchestrator.plan.planner import plan_digest
from orchestrator.plan.step_work import pass_bytes
from orchestrator.plan.time import device_peak, hbm_lines, math_lines
from orchestrator.plan.torus import NO_LINKS
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmark, ChipProfile, Operation, Timing
from orchestrator.types.plan import Estimate, Forecast, LedgerLine, LineKind, Plan

CORES, EXCHANGES = "cores", "exchanges"
BLOCK_PRODUCTS = 4  # two in each sublayer: the trainer multiplies parallel matmuls as one
# On a machine at rest, four of five measured steps took between these shares of the forecast.
FASTEST, SLOWEST = 0.8, 1.4
# The operation that prices a line, and the calls of it in one block.
PRICED_BY: dict[LineKind, tuple[Operation, int]] = {
    "matmul": ("matmul", BLOCK_PRODUCTS),
    "copied_heads": ("matmul", BLOCK_PRODUCTS),
    "unembedding": ("matmul", BLOCK_PRODUCTS),
    "matmul_recompute": ("matmul", BLOCK_PRODUCTS),
    "attention": ("attention", 1),
    "attention_recompute": ("attention", 1),
    "elementwise": ("elementwise", BLOCK_PRODUCTS),
    "weight_traffic": ("copy", 1),
    "activation_traffic": ("copy", 1),
    "optimizer_update": ("copy", 1),
}


def with_profile(plan: Plan, profile: ChipProfile) -> Plan:
    """The plan with a forecast from a profile, which it names. Its digest changes with it."""
    replaced = forecast_warnings(plan)  # of the forecast by datasheets
    calibrated = replace(
        plan,
        chip_profile=codec.digest(profile),
        forecast=forecast(plan, profile),
        warnings=tuple(warning for warning in plan.warnings if warning not in replaced),
    )
    warnings = (*calibrated.warnings, *too_long(calibrated))
    return replace(calibrated, digest=plan_digest(calibrated), warnings=warnings)


def with_own_profile(plan: Plan, profile: ChipProfile) -> Plan:
    """The same; a profile of another kind of chip than the plan's is an error."""
    kind, kinds = profile.machine.device_kind, catalog.chip_of(plan).device_kinds
    if kind not in kinds:
        raise SpecError(
            f"the profile is of {kind}, the plan of {plan.chip}, which JAX calls {kinds[0]}"
        )
    return with_profile(plan, profile)


def missing(plan: Plan, profile: ChipProfile) -> tuple[Benchmark, ...]:
    """The benchmarks that the forecast needs and the profile lacks."""
    layout = layout_of(plan, catalog.chip_of(plan))
    needed = [
        *(benchmark_of(line, plan, profile) for line in own_lines(layout)),
        *(
            collective_benchmark(message, plan)
            for message in messages(layout, processes=plan.hosts)
        ),
    ]
    measured = {timing.benchmark for timing in profile.timings}
    return tuple(dict.fromkeys(one for one in needed if one not in measured))


def forecast(plan: Plan, profile: ChipProfile) -> Forecast:
    """The forecast at measured rates. `unoverlapped` is the sum of all lines.

    On emulated devices `lower` takes only the FLOPs, at the best measured rate of a matmul. On
    chips it stays the datasheet's, as does the peak that MFU is over.
    """
    layout = layout_of(plan, chip_of(plan, profile))
    lines = [*computation_lines(plan, layout, profile), *message_lines(plan, layout, profile)]
    lines = sorted(map(plain_line, lines), key=lambda line: -line.value)
    step_s = step_bounds(plan, layout, profile, sum(line.value for line in lines))
    price = None if profile.emulated else plan.forecast.dollars_per_chip_hour
    return write_forecast(
        layout,
        Terms(plan.tokens, plan.forecast.goodput, price),
        memory=plan.forecast.memory,
        time=tuple(lines),
        step_s=step_s,
        bottleneck=binding(lines),
        expected_time=tuple(lines) if step_s.expected else (),
    )


# --- what a device does alone


def own_lines(layout: Layout) -> list[LedgerLine]:
    """The ledger's lines for math and memory, and the operations between the matmuls."""
    between = LedgerLine(
        kind="elementwise",
        name="between matmuls",
        value=0.0,
        unit="s",
        formula="bytes / rate",
        inputs={"bytes": plain(pass_bytes(layout))},
    )
    return [*math_lines(layout), *hbm_lines(layout), between]


def amount_of(line: LedgerLine) -> tuple[str, float]:
    """The FLOPs or the bytes of a line."""
    unit = "flops" if "flops" in line.inputs else "bytes"
    return unit, line.inputs[unit]


def benchmark_of(line: LedgerLine, plan: Plan, profile: ChipProfile) -> Benchmark:
    """The benchmark that prices a line. Emulated devices compete, so all of them run it."""
    operation, _ = PRICED_BY[line.kind]
    alone = Benchmark(
        operation=operation,
        dtype=plan.precision.compute,
        devices=plan.devices if profile.emulated else 1,
        processes=plan.hosts if profile.emulated else 1,
    )
    if operation != "attention":
        return alone
    length = min(plan.batch.length, ATTENTION_BLOCK)
    return replace(alone, length=length, head_dim=plan.model.head_dim)


def computation_lines(plan: Plan, layout: Layout, profile: ChipProfile) -> Iterator[LedgerLine]:
    """Lines of one operation have one rate, which depends on the size of a call."""
    lines, sources = own_lines(layout), (source_of(profile),)
    totals: dict[Benchmark, float] = {}
    for line in lines:
        benchmark = benchmark_of(line, plan, profile)
        totals[benchmark] = totals.get(benchmark, 0.0) + amount_of(line)[1]
    for line in lines:
        benchmark, (unit, amount) = benchmark_of(line, plan, profile), amount_of(line)
        if not amount:
            continue
        _, calls = PRICED_BY[line.kind]
        call = totals[benchmark] / (calls * plan.model.layers * plan.batch.microbatches)
        rate = call / timing_of(profile, benchmark).seconds(call)
        inputs = {unit: amount, "rate": rate}
        yield replace(
            line,
            value=amount / rate,
            formula=f"{unit} / measured rate",
            inputs=inputs,
            sources=sources,
            resource=CORES,
        )


def timing_of(profile: ChipProfile, benchmark: Benchmark) -> Timing:
    for timing in profile.timings:
        if timing.benchmark == benchmark:
            return timing
    what = f"{benchmark.operation} in {benchmark.dtype} on {benchmark.devices} devices"
    raise SpecError(f"the profile has no {what}: orch calibrate measures it")


# --- what devices send each other


def collective_benchmark(message: Message, plan: Plan) -> Benchmark:
    return Benchmark(
        operation=message.operation,
        dtype=message.dtype,
        devices=plan.devices,
        processes=plan.hosts,
        group=message.ways,
        stride=message.stride,
    )


def message_lines(plan: Plan, layout: Layout, profile: ChipProfile) -> Iterator[LedgerLine]:
    """The collectives; those of one name share a line."""
    sent = sorted(messages(layout, processes=plan.hosts), key=lambda message: message.name)
    for name, group in groupby(sent, key=lambda message: message.name):
        same = list(group)
        calls = sum(one.calls for one in same)
        total_s = sum(one.calls * message_s(one, plan, profile) for one in same)
        moved = sum(one.calls * one.bytes for one in same)
        yield LedgerLine(
            kind=same[0].line,
            name=name,
            value=total_s,
            unit="s",
            formula="calls x measured",
            inputs={"calls": calls, "bytes": moved, "measured": total_s / calls},
            sources=(source_of(profile),),
            resource=EXCHANGES,
        )


def message_s(message: Message, plan: Plan, profile: ChipProfile) -> float:
    """Seconds of one collective; those that travel at the same time share their latency."""
    timing = timing_of(profile, collective_benchmark(message, plan))
    return timing.seconds(message.bytes * message.together) / message.together


# --- bounds and peaks


def step_bounds(plan: Plan, layout: Layout, profile: ChipProfile, sum_s: float) -> Estimate:
    """The sum is expected where nothing overlaps: on emulated devices and on a single chip."""
    lower_s = plan.forecast.step_s.lower
    if profile.emulated:
        lower_s = plain(least_flops(plan, layout) / device_peak(layout))
    sum_s = max(sum_s, lower_s)
    if not (profile.emulated or plan.devices == 1):
        return Estimate(lower=lower_s, unoverlapped=sum_s)
    low_s, high_s = max(sum_s * FASTEST, lower_s), sum_s * SLOWEST
    return Estimate(lower=lower_s, unoverlapped=sum_s, expected=sum_s, low=low_s, high=high_s)


def least_flops(plan: Plan, layout: Layout) -> float:
    """FLOPs that a device has to do: all that MFU counts, and repeated matmuls."""
    matmuls = [
        line.inputs["flops"] for line in math_lines(layout) if PRICED_BY[line.kind][0] == "matmul"
    ]
    forward = flops.attention_flops_per_token(plan.model, plan.batch.length) * plan.batch.tokens
    return sum(matmuls) + (1 + flops.BACKWARD_OVER_FORWARD) * forward / plan.devices


def binding(lines: list[LedgerLine]) -> tuple[str, float]:
    """Whether computing or exchanging takes longer, and by what share."""
    computing_s = sum(line.value for line in lines if line.resource == CORES)
    exchanging_s = sum(line.value for line in lines if line.resource == EXCHANGES)
    less, more = sorted((computing_s, exchanging_s))
    slower = CORES if computing_s >= exchanging_s else EXCHANGES
    return slower, more / less - 1 if less else 0.0


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
    chip, dtype = catalog.chip_of(plan), plan.precision.compute
    if not profile.emulated:
        return chip
    source = source_of(profile)
    rate = Quantity(value=peak_flops_per_s(profile, dtype) / plan.chips, source=source)
    memory_bytes = profile.machine.memory_bytes / plan.devices
    return replace(
        chip,
        peak_flops_per_s={dtype: rate},
        hbm_usable_bytes=Quantity(value=memory_bytes, source=source),
        dollars_per_hour=None,
    )


def source_of(profile: ChipProfile) -> str:
    """The profile as the source of a number."""
    return f"profile {codec.short(codec.digest(profile))}"


def layout_of(plan: Plan, chip: Chip) -> Layout:
    """The plan's layout, without links."""
    return Layout(
        chip=chip,
        model=plan.model,
        precision=plan.precision,
        optimizer=plan.optimizer,
        remat=policy(plan.remat),
        length=plan.batch.length,
        sequences=plan.batch.sequences,
        microbatches=plan.batch.microbatches,
        links=NO_LINKS,
        mesh=plan.mesh,
    )
