"""The Forecast of one layout, from its two ledgers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator import catalog
from orchestrator.network.mesh_axes import DCN_AXES
from orchestrator.plan import flops
from orchestrator.plan.expected import expected_lines, expected_s, interval
from orchestrator.plan.layout import Layout
from orchestrator.plan.memory import phases
from orchestrator.plan.time import StepTime, peak, step_time, time_lines
from orchestrator.types.plan import Estimate, Forecast, LedgerLine, MemoryPhase
from orchestrator.types.spec import Experiment, Resources

DAY_S, HOUR_S = 86_400, 3_600


def forecast(layout: Layout, experiment: Experiment, resources: Resources) -> Forecast:
    """The forecast of one layout of plain numbers."""
    memory = tuple(plain_phase(phase) for phase in phases(layout))
    lines = time_lines(layout)
    time = step_time(layout, lines)
    step_s = step_bounds(layout, lines, time)
    bound, bound_by = binding_resource(layout, time)
    usable = layout.chip.hbm_usable_bytes.value
    peak_bytes = max(phase.bytes for phase in memory)
    return Forecast(
        memory_bytes_per_device=peak_bytes,
        hbm_bytes_per_device=usable,
        fits=peak_bytes <= usable,
        memory=memory,
        time=tuple(plain_line(line) for line in lines if line.value > 0),
        step_s=step_s,
        bound=bound,
        bound_by=bound_by,
        **utilization(layout, experiment, step_s),
        **cost(layout, experiment, resources, step_s),
        expected_time=expected_ledger(layout, lines, time),
    )


def step_bounds(layout: Layout, lines: list[LedgerLine], time: StepTime) -> Estimate:
    """Seconds of a step: the bound, the estimate if runs of such chips are known, and all lines."""
    lower, unoverlapped = float(time.lower_s), float(time.unoverlapped_s)
    known = catalog.efficiency(layout.chip.name)
    if known is None:
        return Estimate(lower=lower, unoverlapped=unoverlapped)
    expected = float(expected_s(layout, lines, time, known))
    low, high = interval(layout, lines, time, known)
    return Estimate(lower=lower, unoverlapped=unoverlapped, expected=expected, low=low, high=high)


def expected_ledger(
    layout: Layout, lines: list[LedgerLine], time: StepTime
) -> tuple[LedgerLine, ...]:
    known = catalog.efficiency(layout.chip.name)
    if known is None:
        return ()
    return tuple(plain_line(line) for line in expected_lines(layout, lines, time, known))


def plain(value: Any) -> float:
    """A numpy scalar as a plain float."""
    return float(value)


def plain_line(line: LedgerLine) -> LedgerLine:
    inputs = {name: plain(value) for name, value in line.inputs.items()}
    return replace(line, value=plain(line.value), inputs=inputs)


def plain_phase(phase: MemoryPhase) -> MemoryPhase:
    lines = tuple(plain_line(line) for line in phase.lines if line.value > 0)
    return replace(phase, lines=lines, bytes=plain(phase.bytes))


def binding_resource(layout: Layout, time: StepTime) -> tuple[str, float]:
    """The resource that sets the lower bound, and by what fraction it exceeds the next."""
    names = {"mxu": "matmul", "hbm": "hbm", "host": "host"}
    names |= {axis: f"dcn {axis}" for axis in DCN_AXES}
    busy = {names[name]: float(s) for name, s in time.busy_s.items() if name in names}
    slowest = max(range(len(time.torus_axis_s)), key=lambda i: float(time.torus_axis_s[i]))
    on_axis = {g: time.busy_s[g] for g, uses in layout.links.uses.items() if uses[slowest]}
    if on_axis:
        most = max(on_axis, key=lambda group: float(on_axis[group]))
        busy[f"ici {most}"] = float(time.torus_axis_s[slowest])
    ordered = sorted(busy, key=lambda name: -busy[name])
    first, second = busy[ordered[0]], busy[ordered[1]]
    return ordered[0], first / second - 1 if second else 0.0


def scale(values: Estimate, scale: float) -> Estimate:
    """The same in days, hours or money."""
    return apply(values, lambda value: value * scale)


def rates(values: Estimate, amount: float) -> Estimate:
    """An amount over each of these times; the longest time is the lowest rate."""
    of_times = apply(values, lambda value: amount / value)
    return replace(of_times, low=of_times.high, high=of_times.low)


def apply(values: Estimate, change: Callable[[float], float]) -> Estimate:
    def known(value: float | None) -> float | None:
        return None if value is None else change(value)

    return Estimate(
        lower=change(values.lower),
        unoverlapped=change(values.unoverlapped),
        expected=known(values.expected),
        low=known(values.low),
        high=known(values.high),
    )


def utilization(layout: Layout, experiment: Experiment, step_s: Estimate) -> dict[str, Any]:
    """MFU by its one definition, and by the rule of thumb 6 P."""
    tokens = float(layout.sequences) * layout.length
    per_device = peak(layout.chip, layout.precision.compute).value / layout.chip.devices
    devices = int(layout.devices)

    def mfu(step_flops: float) -> Estimate:
        return rates(step_s, flops.mfu(step_flops, 1.0, devices, per_device))

    step_flops = tokens * flops.model_flops_per_token(experiment.model, layout.length)
    return {
        "peak_flops_per_s": per_device,
        "model_flops_per_step": step_flops,
        "mfu_definition": flops.MFU_DEFINITION,
        "mfu": mfu(step_flops),
        "mfu_6p": mfu(tokens * flops.simple_flops_per_token(experiment.model)),
        "tokens_per_s": rates(step_s, tokens),
    }


def cost(
    layout: Layout, experiment: Experiment, resources: Resources, step_s: Estimate
) -> dict[str, Any]:
    """Days, chip-hours and dollars for all tokens at the stated goodput."""
    steps = experiment.tokens / (float(layout.sequences) * layout.length)
    total_s = scale(step_s, steps / resources.goodput)
    chips = int(layout.devices) // layout.chip.devices
    chip_hours = scale(total_s, chips / HOUR_S)
    listed = layout.chip.dollars_per_hour
    price = resources.dollars_per_chip_hour or (listed.value if listed else None)
    return {
        "goodput": resources.goodput,
        "days": scale(total_s, 1 / DAY_S),
        "chip_hours": chip_hours,
        "dollars": scale(chip_hours, price) if price is not None else None,
        "dollars_per_chip_hour": price,
    }
