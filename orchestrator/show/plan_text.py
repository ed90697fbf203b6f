"""Phrases about plans that several screens show."""

import re
from collections.abc import Callable, Sequence

from orchestrator.formatting import (
    at_least,
    count,
    counted,
    dollars,
    in_memory,
    lasting,
    percent,
    scaled,
    seconds,
    span,
    with_unit,
)
from orchestrator.network.mesh_axes import DCN_AXES
from orchestrator.planning.forecast import scale
from orchestrator.planning.odds import DeadlineOdds
from orchestrator.planning.plan_warnings import LEDGER_TRAINER
from orchestrator.show.parts import Part, Table, Text, heading, indent, section
from orchestrator.values.plan import Estimate, Forecast, LedgerLine, LineKind, Plan, PlannedBatch

INTERVAL = "80 % interval"


def headline(plan: Plan) -> str:
    chips = counted(plan.chips, f"{plan.chip} chip")
    stage = f", stage {plan.stage.number} of {plan.stage.of}" if plan.stage else ""
    return f"{plan.name}{stage}: {chips}, {counted(plan.pods, 'pod')} of {plan.topology}"


def of_trainer(plan: Plan) -> str:
    """Return whose program a ledger describes, where it is not the plan's."""
    return "" if plan.ledger_describes_trainer else f", of trainer {LEDGER_TRAINER}"


def with_numbers(line: LedgerLine) -> str:
    """Return the formula with its numbers: `size x owned` is 4 x 1.13B."""

    def number(name: re.Match[str]) -> str:
        return scaled(line.inputs[name[0]]) if name[0] in line.inputs else name[0]

    return re.sub(r"[a-z_]{2,}", number, line.formula)


def amount(line: LedgerLine) -> str:
    """Return the amount of work on the line, and the rate."""
    inputs = line.inputs
    if "calls" in inputs and "hops" in inputs:
        return f"{counted(int(inputs['calls']), 'call')} x {counted(int(inputs['hops']), 'hop')}"
    if "once" in inputs:
        return f"{counted(int(inputs['calls']), 'call')} x {seconds(inputs['once'])}, as measured"
    name, unit = ("flops", "FLOP") if "flops" in inputs else ("bytes", "B")
    return f"{with_unit(inputs[name], unit)} at {with_unit(inputs['rate'], unit + '/s')}"


def in_microbatches(batch: PlannedBatch) -> str:
    """Return the sequences of a step: 1,024, or 4 x 256 in four microbatches."""
    each = count(batch.sequences / batch.microbatches)
    return f"{batch.microbatches} x {each}" if batch.microbatches > 1 else each


def likely(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the 80 % interval of a time or a cost; without one, the least it can be."""
    if estimate.low is None or estimate.high is None:
        return at_least(show(estimate.lower))
    return span(show(estimate.low), show(estimate.high))


def time_and_cost(forecast: Forecast, share: float) -> list[str]:
    """Return the days and dollars that so much of all tokens is likely to take."""
    takes = [likely(scale(forecast.days, share), lasting)]
    if forecast.dollars is not None:
        takes.append(likely(scale(forecast.dollars, share), dollars))
    return takes


# The names of resources, as ledgers show them.


RESOURCES = {
    "mxu": "matmul",
    "latency": "ici",
    **{axis: f"dcn {axis}" for axis in DCN_AXES},
    **{name: name for name in ("hbm", "host", "cores")},
}

IN_WORDS = {
    "matmul": "the chips' matrix units",
    "hbm": "the chips' memory bandwidth",
    "host": "the link between chip and host",
    "cores": "the cores of this machine",
    "ici": "the links inside a slice",
    "dcn": "the network between slices",
}


def resource_name(name: str) -> str:
    """Return the display name of a ledger line's resource; unlisted ones are ICI links."""
    return RESOURCES.get(name, f"ici {name}")


def in_words(bound: str) -> str:
    """Return what a resource is, from its display name."""
    return IN_WORDS.get(bound) or IN_WORDS[bound.partition(" ")[0]]


# The verdict on a plan: five lines that come first, and one sentence that comes last.


def verdict_lines(plan: Plan, compiled: str, odds: DeadlineOdds | None = None) -> list[Part]:
    """Return whether it fits, its time, cost and MFU with their intervals, and what binds it; then
    how likely the deadline holds, what a shorter run takes, and what the compiler says where it was
    asked.
    """
    if not plan.ledger_describes_trainer:
        return []
    more = [("deadline", deadline_text(odds))] if odds else []
    if plan.run_share < 1:
        more.append(("this run", shorter_run(plan)))
    if compiled:
        more.append(("proof", compiled))
    return [verdict_table(plan.forecast, plan.tokens, more)]


def verdict_table(forecast: Forecast, tokens: float, more: Sequence[tuple[str, str]] = ()) -> Table:
    """Return the five lines of a forecast, and more lines below them."""
    rows = [
        ("fits", fits_text(forecast)),
        ("time", time_text(forecast, tokens)),
        ("cost", cost_text(forecast)),
        ("MFU", mfu_text(forecast.mfu)),
        ("bound by", bound_text(forecast)),
    ]
    styles = dict.fromkeys(range(1, len(rows)), "bold")
    styles[0] = "green" if forecast.fits else "red"
    return Table(rows=[*rows, *more], columns="<w", row_styles=styles)


def fits_text(forecast: Forecast) -> str:
    used, limit = forecast.memory_bytes_per_device, forecast.hbm_bytes_per_device
    text = f"{in_memory(used)} of {in_memory(limit)} per device ({percent(used / limit)})"
    if forecast.host_memory_bytes_per_chip:
        on_host = in_memory(forecast.host_memory_bytes_per_chip)
        known = forecast.host_bytes_per_chip
        of = f" of {in_memory(known)}" if known else ""
        text += f", {on_host}{of} of the host per chip"
    return f"{'yes' if forecast.fits else 'no'}: {text}"


def time_text(forecast: Forecast, tokens: float) -> str:
    return f"{with_interval(forecast.days, lasting)}; {scaled(tokens)} tokens"


def cost_text(forecast: Forecast) -> str:
    if forecast.dollars is None:
        return "unknown: no price of a chip-hour (resources.dollars_per_chip_hour)"
    price = f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"
    return f"{with_interval(forecast.dollars, dollars)}; {price}"


def mfu_text(mfu: Estimate) -> str:
    """Return the expected MFU, and the most that any run can reach."""
    most = f"at most {percent(mfu.lower)}"
    if mfu.expected is None:
        return most
    return f"{percent(mfu.expected)}, {INTERVAL} {likely(mfu, percent)}; {most}"


def deadline_text(odds: DeadlineOdds) -> str:
    """Return how likely the deadline holds, for a run that begins now."""
    within = "" if odds.deadline == f"{odds.days:g}d" else f", in {lasting(odds.days)}"
    if odds.odds is None:
        return f"{odds.deadline}{within}: nothing is expected, so how likely is unknown"
    return f"{odds.deadline}{within}: {percent(odds.odds)} likely, if it begins now"


def bound_text(forecast: Forecast) -> str:
    text = f"{forecast.bound}: {in_words(forecast.bound)}"
    return f"{text}, {ahead}" if (ahead := ahead_of_next(forecast)) else text


def ahead_of_next(forecast: Forecast) -> str:
    """Return how much longer the bottleneck takes than the next resource."""
    margin = forecast.bound_by
    if not margin:
        return ""
    longer = (
        f"{percent(margin)} longer than" if margin < 1 else f"{1 + margin:.1f} times as long as"
    )
    return f"{longer} the next"


def with_interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the expected value with its interval; without one, the least it can be."""
    if estimate.expected is None:
        return at_least(show(estimate.lower))
    return f"{show(estimate.expected)}, {INTERVAL} {likely(estimate, show)}"


def shorter_run(plan: Plan) -> str:
    """Return what a run takes and costs that ends before all tokens are used."""
    steps = f"{count(plan.run_steps or 0)} of {count(plan.total_steps)} steps"
    return f"{steps}: {', '.join(time_and_cost(plan.forecast, plan.run_share))}"


def verdict(plan: Plan) -> str:
    """Return the plan in one line."""
    forecast = plan.forecast
    if not plan.ledger_describes_trainer:
        return f"Plan: a mesh for {plan.trainer}, whose memory, time and cost are unknown."
    parts = ["fits" if forecast.fits else "does not fit", f"bound by {forecast.bound}"]
    parts += time_and_cost(forecast, 1)
    if plan.run_share == 1:
        return f"Plan: {', '.join(parts)}."
    shorter = ", ".join(time_and_cost(forecast, plan.run_share))
    return f"Plan: {', '.join(parts)}; {counted(plan.run_steps or 0, 'step')}: {shorter}."


# The ledgers of a plan's screen: bytes of a device, seconds of a step, parts of the expected
# step.


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
