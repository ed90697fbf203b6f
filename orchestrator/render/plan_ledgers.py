"""The ledgers of a plan's screen: bytes of a device, seconds of a step, parts of the expected step.

A bar beside each line shows where memory and time go.
"""

from collections.abc import Sequence

from orchestrator.formatting import counted, in_memory, percent, seconds, span
from orchestrator.render.plan_text import INTERVAL, amount, likely, of_trainer, with_numbers
from orchestrator.render.plan_verdict import ahead_of_next
from orchestrator.render.resource_names import resource_name
from orchestrator.render.screen_parts import Part, Table, Text, heading, indent, section
from orchestrator.types.plan import Forecast, LedgerLine, LineKind, Plan

SMALL_LINE = 0.009  # of the unoverlapped step: smaller lines are shown as one
SMALL_BYTES = 0.01  # of the peak
SMALL_PART = 0.02  # of the expected step
# Parts of the expected step of which the lines at peak rates have little or nothing.
BESIDE_WORK: tuple[LineKind, ...] = ("elementwise", "slice_wait")


def memory(plan: Plan, *, full: bool) -> list[Part]:
    """Return the ledger of the largest phase, and the size of the next; or of all."""
    forecast = plan.forecast
    largest, *others = sorted(forecast.memory, key=lambda phase: -phase.bytes)
    shown, small = split(largest.lines, 0 if full else SMALL_BYTES * largest.bytes)
    rows = [(line.name, with_numbers(line), in_memory(line.value)) for line in shown]
    if small:
        rows.append((counted(len(small), "smaller line"), "", in_memory(sum(small))))
    peak = f"peak: {largest.name}", "", in_memory(largest.bytes)
    sizes = [*(line.value for line in shown), *([sum(small)] if small else []), 0]
    table = Table(rows=[*rows, peak], columns="<<>", bars=sizes, row_styles={len(rows): "bold"})
    limit = f"the compiler allows {in_memory(forecast.hbm_bytes_per_device)}"
    phases = others if full else others[:1]
    next_phases = ", ".join(f"{phase.name} {in_memory(phase.bytes)}" for phase in phases)
    notes = [
        f"{limit}; {'other phases' if full else 'next phase'}: {next_phases}",
        *on_host(forecast),
    ]
    return section(f"memory per device{of_trainer(plan)}", [table, *notes])


def on_host(forecast: Forecast) -> list[Part]:
    """Return what the host holds for each chip, if anything."""
    if not forecast.host_memory_bytes_per_chip:
        return []
    limit = forecast.host_bytes_per_chip
    known = f"of {in_memory(limit)}" if limit else "of an unknown size"
    return [f"host memory per chip: {in_memory(forecast.host_memory_bytes_per_chip)} {known}"]


def split(lines: Sequence[LedgerLine], least: float) -> tuple[list[LedgerLine], list[float]]:
    """Return the lines that are shown, and the values of the smaller ones."""
    shown = [line for line in lines if line.value >= least]
    return shown, [line.value for line in lines if line.value < least]


def time(plan: Plan, *, full: bool) -> list[Part]:
    """Return the ledger of seconds, with the small lines as one."""
    forecast = plan.forecast
    step_s = forecast.step_s
    shown, small = split(forecast.time, 0 if full else SMALL_LINE * step_s.unoverlapped)
    rows = [time_row(plan, line) for line in shown]
    sizes = [line.value for line in shown]
    if small:
        rows.append((f"  {counted(len(small), 'smaller line')}", "", "", seconds(sum(small))))
        sizes.append(sum(small))
    rows.append(("  unoverlapped", "", "all lines", seconds(step_s.unoverlapped)))
    rows.append(("  lower bound", forecast.bound, "", seconds(step_s.lower)))
    styles = {}
    if step_s.expected is not None:
        styles[len(rows)] = "bold"
        rows.append(("  expected", "", "as real runs take it", seconds(step_s.expected)))
    sizes += [0] * (len(rows) - len(sizes))
    table = Table(rows=rows, columns="<<<>", bars=sizes, row_styles=styles)
    notes = indent([bottleneck(plan), *above_unoverlapped(forecast)])
    title = f"time per step, each line at its peak rate{of_trainer(plan)}"
    return indent([heading(title), *indent([table, *notes], 0)])


def time_row(plan: Plan, line: LedgerLine) -> tuple[str, ...]:
    name = resource_name(line.resource or "")
    mark = "*" if name == plan.forecast.bound else " "
    return f"{mark} {line.name}", name, amount(line), seconds(line.value)


def bottleneck(plan: Plan) -> str:
    """Return what the star means, and how much longer the bottleneck takes than the next."""
    ahead = ahead_of_next(plan.forecast)
    return f"* bottleneck: {ahead}" if ahead else "* bottleneck"


def above_unoverlapped(forecast: Forecast) -> list[Part]:
    """Return why `expected` exceeds the sum of all lines, where it does."""
    expected_s, unoverlapped_s = forecast.step_s.expected, forecast.step_s.unoverlapped
    if expected_s is None or expected_s <= unoverlapped_s:
        return []
    lines = forecast.expected_time
    shares = [(line.name, line.inputs["share"]) for line in lines if "share" in line.inputs]
    reached = [f"{name} {percent(share)}" for name, share in shares if share < 1]
    beside = [f"{seconds(line.value)} {line.name}" for line in lines if line.kind in BESIDE_WORK]
    text = "expected is above unoverlapped, which has each line at its peak rate."
    if reached:
        text += f" Of that rate real runs reach: {', '.join(reached)}."
    if beside:
        text += f" They also take {', '.join(beside)}."
    return [Text(text=text, hang=2)]


def expected_parts(plan: Plan, *, full: bool) -> list[Part]:
    """Return the parts of the expected step, largest first."""
    lines = sorted(plan.forecast.expected_time, key=lambda line: -line.value)
    total_s = sum(line.value for line in lines)
    shown, small = split(lines, 0 if full else SMALL_PART * total_s)
    rows = [(line.name, seconds(line.value), percent(line.value / total_s)) for line in shown]
    if small:
        name = counted(len(small), "smaller part")
        rows.append((name, seconds(sum(small)), percent(sum(small) / total_s)))
    sizes = [*(line.value for line in shown), *([sum(small)] if small else [])]
    table = Table(rows=rows, columns="<>>", bars=sizes)
    interval = f"{INTERVAL} {likely(plan.forecast.step_s, seconds)}"
    name = f"expected step: {seconds(total_s)}, {interval}{of_trainer(plan)}"
    return section(name, [table, *learned_from(plan)]) if rows else []


def learned_from(plan: Plan) -> list[Part]:
    """Return the software for whose runs `expected` speaks."""
    known = plan.forecast.learned_from
    if known is None:
        return []
    reference, longer = known.reference, [other.longer for other in known.others]
    text = f"as in {counted(reference.runs, 'published run')} of {reference.software}"
    if longer:
        names = ", ".join(other.software for other in known.others)
        text += f"; other software took {span(percent(min(longer)), percent(max(longer)))} longer"
        text += f" ({names})"
    return [Text(text=text, hang=2)]
