"""The Forecast of one layout, from its two ledgers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import ceil, inf
from typing import Any

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.catalog.published import OTHER, REFERENCE, GpuEfficiency, gpu_constants
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.losses import goodput_forecast, over_share
from orchestrator.network.mesh_axes import DCN_GROUPS, MODEL_OVER_DCN
from orchestrator.planning import expected as estimates
from orchestrator.planning import flops, gpu_expected
from orchestrator.planning.goodput_inputs import goodput_inputs
from orchestrator.planning.layout import Training
from orchestrator.planning.memory import phases
from orchestrator.planning.step_work import (
    StepWork,
    host_bytes,
    host_limit_bytes,
    never_hidden_s,
    step_work,
    transfers,
)
from orchestrator.planning.time import StepTime, device_peak, math_lines, step_time, time_lines
from orchestrator.values import plan
from orchestrator.values.goodput import EvaluationCost, GoodputForecast, GoodputInputs
from orchestrator.values.model import Model
from orchestrator.values.spec import Spec


@dataclass(frozen=True)
class Terms:
    """The basis of days and dollars: all tokens, the inputs of goodput, a chip's price."""

    tokens: int
    goodput: GoodputInputs
    dollars_per_chip_hour: float | None


def forecast(layout: Training, spec: Spec) -> plan.Forecast:
    resources = spec.resources
    lines = time_lines(layout)
    time = step_time(layout, lines)
    work = step_work(layout, lines)
    step_s = step_bounds(layout, lines, time, work)
    price = price_of(layout.chip, resources.dollars_per_chip_hour)
    # The resource that sets the lower bound, and by what fraction it exceeds the next.
    names = {"mxu": "matmul", "hbm": "hbm", "host": "host"}
    busy = {names[name]: float(s) for name, s in time.busy_s.items() if name in names}
    most_sent = max(DCN_GROUPS, key=lambda group: float(time.busy_s.get(group, 0.0)))
    busy[f"dcn {most_sent}"] = float(time.dcn_s)
    slowest = max(range(len(time.torus_axis_s)), key=lambda i: float(time.torus_axis_s[i]))
    uses = layout.links.uses
    on_axis = {g: time.busy_s[g] for g in uses if uses[g][slowest] and g in time.busy_s}
    if on_axis:
        most = max(on_axis, key=lambda group: float(on_axis[group]))
        busy[f"ici {most}"] = float(time.torus_axis_s[slowest])
    ordered = sorted(busy, key=lambda name: -busy[name])
    first, second = busy[ordered[0]], busy[ordered[1]]
    efficiency, expected = _efficiency_of(layout), tuple[plan.LedgerLine, ...]()
    if isinstance(efficiency, GpuEfficiency):
        expected = gpu_expected.expected_lines(layout, lines, time, efficiency)
    elif efficiency:
        expected = estimates.expected_lines(layout, work, time, efficiency)
    return write_forecast(
        layout,
        Terms(spec.experiment.tokens, run_goodput(layout, spec), price),
        memory=tuple(
            replace(phase, lines=_plain_lines(phase.lines), bytes=float(phase.bytes))
            for phase in phases(layout)
        ),
        time=_plain_lines(lines),
        step_s=step_s,
        hidden_s=float(transfers(layout).hidden_s()),
        never_hidden_s=float(never_hidden_s(layout, lines)),
        bottleneck=(ordered[0], first / second - 1 if second else 0.0),
        expected_time=_plain_lines(expected),
        extrapolated=extrapolated(layout, work, step_s),
    )


def price_of(chip: Chip, stated: float | None) -> float | None:
    if stated is not None:
        return stated
    return chip.dollars_per_hour.value if chip.dollars_per_hour else None


def write_forecast(
    layout: Training,
    terms: Terms,
    *,
    memory: tuple[plan.MemoryPhase, ...],
    time: tuple[plan.LedgerLine, ...],
    step_s: plan.Estimate,
    hidden_s: float = 0.0,
    never_hidden_s: float = 0.0,
    bottleneck: tuple[str, float],
    expected_time: tuple[plan.LedgerLine, ...],
    extrapolated: tuple[plan.Extrapolation, ...] = (),
) -> plan.Forecast:
    peak_bytes, usable_bytes = max(p.bytes for p in memory), layout.chip.hbm_usable_bytes.value
    on_host_bytes, host = float(host_bytes(layout)), layout.chip.host_bytes
    tokens = _tokens_per_step(layout)
    goodput, days, chip_hours, dollars = time_and_money(layout, step_s, terms)
    # The software for whose runs `expected` speaks.
    learned, efficiency = None, _efficiency_of(layout)
    if isinstance(efficiency, GpuEfficiency) and step_s.expected is not None:
        names = f"{efficiency.programs} frameworks"
        learned = plan.LearnedFrom(
            reference=plan.SoftwareRuns(software=names, runs=efficiency.runs, longer=0.0), others=()
        )
    elif isinstance(efficiency, catalog.Efficiency) and step_s.expected is not None:
        runs = {
            name: plan.SoftwareRuns(software=name, runs=len(found.rows),
                               longer=found.value / (1 - found.value))
            for name, found in efficiency.software.items()
            if name != OTHER
        }  # fmt: skip
        learned = plan.LearnedFrom(reference=runs.pop(REFERENCE), others=tuple(runs.values()))
    return plan.Forecast(
        memory_bytes_per_device=peak_bytes,
        hbm_bytes_per_device=usable_bytes,
        host_memory_bytes_per_chip=on_host_bytes,
        host_bytes_per_chip=host.value if host else None,
        fits=peak_bytes <= usable_bytes and on_host_bytes <= host_limit_bytes(layout.chip),
        memory=memory,
        time=time,
        step_s=step_s,
        hidden_s=hidden_s,
        never_hidden_s=never_hidden_s,
        bound=bottleneck[0],
        bound_by=bottleneck[1],
        peak_flops_per_s=device_peak(layout),
        model_flops_per_step=tokens * flops.model_flops_per_token(layout.model, layout.length),
        mfu_definition=flops.MFU_DEFINITION,
        mfu=mfu(layout, step_s),
        mfu_6p=mfu(layout, step_s, flops.simple_flops_per_token(layout.model)),
        tokens_per_s=_rates(step_s, tokens),
        goodput=goodput,
        days=days,
        chip_hours=chip_hours,
        dollars=dollars,
        dollars_per_chip_hour=terms.dollars_per_chip_hour,
        expected_time=expected_time,
        extrapolations=extrapolated,
        learned_from=learned,
    )


def time_and_money(
    layout: Training, step_s: plan.Estimate, terms: Terms
) -> tuple[GoodputForecast, plan.Estimate, plan.Estimate, plan.Estimate | None]:
    """The goodput, and with it days, chip-hours and, at a known price, dollars of all tokens."""
    steps = terms.tokens / _tokens_per_step(layout)
    goodput = goodput_forecast(terms.goodput, typical(step_s), ceil(steps))
    total_s = over_share(scale(step_s, steps), goodput)
    chips, price = int(layout.devices) // layout.chip.devices, terms.dollars_per_chip_hour
    chip_hours = scale(total_s, chips / HOUR_S * terms.goodput.rented)
    dollars = scale(chip_hours, price) if price is not None else None
    return goodput, scale(total_s, 1 / DAY_S), chip_hours, dollars


def run_goodput(layout: Training, spec: Spec) -> GoodputInputs:
    chip, resources, options = layout.chip, spec.resources, spec.run.evaluation
    slice_, pods = catalog.topology(chip, resources.topology), resources.pods.max
    size = layout.parameter_bytes + layout.moment_bytes
    # The forward passes of an evaluation, and the FLOPs of a step.
    evaluation = None
    if options is not None:
        evaluation = EvaluationCost(
            every_steps=options.every,
            batches=ceil(options.sequences / int(layout.sequences)),
            forward_flops=float(flops.forward_flops(layout)),
            step_flops=float(sum(line.inputs["flops"] for line in math_lines(layout))),
        )
    return goodput_inputs(
        chip,
        pods * catalog.hosts(chip, slice_),
        pods * slice_.chips,
        int(layout.devices_along(MODEL_OVER_DCN)) * slice_.chips,
        resources,
        spec.run,
        state_bytes=round(size * flops.parameters(layout.model)),
        bytes_per_chip=float(size * layout.stored_parameter_elements) * chip.devices,
        evaluation=evaluation,
    )


def typical(step_s: plan.Estimate) -> float:
    return step_s.unoverlapped if step_s.expected is None else step_s.expected


def _tokens_per_step(layout: Training) -> float:
    return float(layout.sequences) * layout.length


def mfu(
    layout: Training, step_s: plan.Estimate, flops_per_token: float | None = None
) -> plan.Estimate:
    """MFU by the FLOPs of the model or, if given, by others."""
    if flops_per_token is None:
        flops_per_token = flops.model_flops_per_token(layout.model, layout.length)
    step_flops = _tokens_per_step(layout) * flops_per_token
    return _rates(step_s, flops.mfu(step_flops, 1.0, int(layout.devices), device_peak(layout)))


def step_bounds(
    layout: Training, lines: list[plan.LedgerLine], time: StepTime, work: StepWork
) -> plan.Estimate:
    """Seconds of a step: the bound, the estimate if runs on such chips are known, and all lines."""
    estimate = plan.Estimate(lower=float(time.lower_s), unoverlapped=float(time.unoverlapped_s))
    efficiency = _efficiency_of(layout)
    if isinstance(efficiency, GpuEfficiency):
        seconds = float(gpu_expected.expected_s(layout, lines, time, efficiency))
        values = estimates.axis_values(layout, work, seconds)
        ranges = efficiency.ranges.items()
        outside = [estimates.outside(axis, values[axis], reached) for axis, reached in ranges]
        low, high = gpu_expected.interval(seconds, estimate.lower, efficiency.spread, outside)
        return replace(estimate, expected=seconds, low=low, high=high)
    if efficiency is None:
        return estimate
    expected = float(estimates.expected_s(work, time, efficiency))
    low, high = estimates.interval(layout, work, time, efficiency)
    return replace(estimate, expected=expected, low=low, high=high)


def efficiency_of(
    chip: Chip, model: Model, compute: str
) -> catalog.Efficiency | GpuEfficiency | None:
    """Return what published runs on such chips reach, or None without such runs. On GPUs none is of
    this project's trainer: its plans are as those of software never seen.
    """
    if chip.switched:
        return gpu_constants().efficiency(chip, compute, mixture=model.moe is not None)
    return catalog.efficiency(chip.name, compute)


def _efficiency_of(layout: Training) -> catalog.Efficiency | GpuEfficiency | None:
    return efficiency_of(layout.chip, layout.model, layout.precision.compute)


def extrapolated(
    layout: Training, work: StepWork, step_s: plan.Estimate
) -> tuple[plan.Extrapolation, ...]:
    efficiency = _efficiency_of(layout)
    if efficiency is None or step_s.expected is None:
        return ()
    values = estimates.axis_values(layout, work, step_s.expected)
    return estimates.extrapolations(values, efficiency.ranges)


def beyond(value: float, low: float, high: float) -> float:
    """Return how many times as far as its range a value lies; of one that ends at 0, endlessly."""
    near, far = sorted((value, high if value > high else low))
    return far / near if near else inf


def plain_line(line: plan.LedgerLine) -> plan.LedgerLine:
    inputs = {name: float(value) for name, value in line.inputs.items()}
    return replace(line, value=float(line.value), inputs=inputs, serial_s=float(line.serial_s))


def _plain_lines(lines: Iterable[plan.LedgerLine]) -> tuple[plan.LedgerLine, ...]:
    return tuple(plain_line(line) for line in lines if line.value > 0)


def scale(values: plan.Estimate, factor: float) -> plan.Estimate:
    return apply(values, lambda value: value * factor)


def add(values: Sequence[plan.Estimate]) -> plan.Estimate:
    """The sum of times that are long together: ends of intervals add up."""
    sums: dict[str, Any] = {}
    for field in fields(plan.Estimate):
        parts = [getattr(value, field.name) for value in values]
        sums[field.name] = None if None in parts else sum(parts)
    return plan.Estimate(**sums)


def plus(values: plan.Estimate, more: float) -> plan.Estimate:
    """The same times, each with so much more; the bound is without it."""
    return replace(apply(values, lambda value: value + more), lower=values.lower)


def _rates(values: plan.Estimate, amount: float) -> plan.Estimate:
    """An amount over each of these times; the longest time is the lowest rate."""
    of_times = apply(values, lambda value: amount / value)
    return replace(of_times, low=of_times.high, high=of_times.low)


def apply(values: plan.Estimate, change: Callable[[float], float]) -> plan.Estimate:
    known = {name: value for name, value in asdict(values).items() if value is not None}
    return replace(values, **{name: change(value) for name, value in known.items()})
