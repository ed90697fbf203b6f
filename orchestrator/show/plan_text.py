"""What the screens and pages of plans share: phrases, the verdict, the ledgers."""

import re
from collections.abc import Callable, Sequence

from orchestrator import formatting as fmt
from orchestrator.network.mesh_axes import DCN_GROUPS
from orchestrator.planning.forecast import scale
from orchestrator.planning.offers import DeadlineOdds
from orchestrator.planning.plan_warnings import LEDGER_TRAINER
from orchestrator.show import parts as ui
from orchestrator.values.goodput import LossKind
from orchestrator.values.plan import Estimate, Forecast, LedgerLine, LineKind, Plan
from orchestrator.values.program import AnyPlan

_INTERVAL = "80 % interval"

_RESOURCES = {"mxu": "matmul", "latency": "ici", "hbm": "hbm", "host": "host", "cores": "cores"}
_RESOURCES |= {group: f"dcn {group}" for group in DCN_GROUPS}
_IN_WORDS = {
    "matmul": "the chips' matrix units",
    "hbm": "the chips' memory bandwidth",
    "host": "the link between chip and host",
    "cores": "the cores of this machine",
    "ici": "the links inside a slice",
    "dcn": "the network between slices",
}


def headline(plan: AnyPlan) -> str:
    chips = fmt.counted(plan.chips, f"{plan.chip} chip")
    stage = f", stage {plan.stage.number} of {plan.stage.of}" if plan.stage else ""
    return f"{plan.name}{stage}: {chips}, {fmt.counted(plan.pods, 'pod')} of {plan.topology}"


def of_trainer(plan: Plan) -> str:
    """Return whose program a ledger describes, where it is not the plan's."""
    return "" if plan.ledger_describes_trainer else f", of trainer {LEDGER_TRAINER}"


def resource_name(name: str) -> str:
    """Return the display name of a ledger line's resource; unlisted ones are ICI links."""
    return _RESOURCES.get(name, f"ici {name}")


def in_words(bound: str) -> str:
    return _IN_WORDS[bound.partition(" ")[0]]


def amount(line: LedgerLine) -> str:
    inputs = line.inputs
    if "calls" in inputs:
        calls = fmt.counted(int(inputs["calls"]), "call")
        if "hops" in inputs:
            return f"{calls} x {fmt.counted(int(inputs['hops']), 'hop')}"
        if "once" in inputs:
            return f"{calls} x {fmt.seconds(inputs['once'])}, as measured"
    if "stages" in inputs:
        stages, passes, chunks = (int(inputs[key]) for key in ("stages", "microbatches", "chunks"))
        return f"{fmt.seconds(inputs['passes'])} x {stages - 1} / ({passes} x {chunks})"
    name, unit = ("flops", "FLOP") if "flops" in inputs else ("bytes", "B")
    return f"{fmt.with_unit(inputs[name], unit)} at {fmt.with_unit(inputs['rate'], unit + '/s')}"


def likely(estimate: Estimate, show: ui.Show) -> str:
    """Return the 80 % interval of a time or a cost; without one, the least it can be."""
    if estimate.low is None or estimate.high is None:
        return fmt.at_least(show(estimate.lower))
    return fmt.span(show(estimate.low), show(estimate.high))


def _with_interval(estimate: Estimate, show: ui.Show) -> str:
    """Return the expected value with its interval; without one, the least it can be."""
    if estimate.expected is None:
        return fmt.at_least(show(estimate.lower))
    return f"{show(estimate.expected)}, {_INTERVAL} {likely(estimate, show)}"


def _time_and_cost(forecast: Forecast, share: float) -> list[str]:
    takes = [likely(scale(forecast.days, share), fmt.lasting)]
    if forecast.dollars is not None:
        takes.append(likely(scale(forecast.dollars, share), fmt.dollars))
    return takes


def _price(forecast: Forecast) -> str:
    return f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"


def estimates_table(
    forecast: Forecast, rows: Sequence[tuple[str, Estimate, ui.Show]], name: str = ""
) -> ui.Table:
    """Return bounds, expected values and intervals, the cost last; or only the best values."""
    cost = forecast.dollars
    is_known = forecast.days.expected is not None
    head = ("lower bound", "expected", _INTERVAL, "unoverlapped") if is_known else ("at best",)
    shown = [(name, *head)]
    for label, value, show in (*rows, *([(_price(forecast), cost, fmt.dollars)] if cost else [])):
        after: ui.Row = ()
        if value.expected is not None:
            after = show(value.expected), likely(value, show), show(value.unoverlapped)
        shown.append((label, show(value.lower), *after))
    return ui.Table(shown)


def verdict_table(
    forecast: Forecast, tokens: float, more: Sequence[tuple[str, str]] = ()
) -> ui.Table:
    """Return the five lines of a forecast with their intervals, then more lines."""
    used, limit = forecast.memory_bytes_per_device, forecast.hbm_bytes_per_device
    fits = f"{'yes' if forecast.fits else 'no'}: {fmt.in_memory(used)} of {fmt.in_memory(limit)}"
    fits += f" per device ({fmt.percent(used / limit)})"
    if on_host := forecast.host_memory_bytes_per_chip:
        known = forecast.host_bytes_per_chip
        of = f" of {fmt.in_memory(known)}" if known else ""
        fits += f", {fmt.in_memory(on_host)}{of} of the host per chip"
    mfu = f"at most {fmt.percent(forecast.mfu.lower)}"
    if forecast.mfu.expected is not None:
        mfu = f"{_with_interval(forecast.mfu, fmt.percent)}; {mfu}"
    bound = f"{forecast.bound}: {in_words(forecast.bound)}"
    if ahead := _ahead_of_next(forecast):
        bound += f", {ahead}"
    return five_lines(forecast, (fits, *time_and_price(forecast, tokens), mfu, bound), more)


def five_lines(
    forecast: Forecast, texts: Sequence[str], more: Sequence[tuple[str, str]] = ()
) -> ui.Table:
    """Return the five lines of a verdict, the first green or red, and more lines below them."""
    names = ("fits", "time", "cost", "MFU", "bound by")
    styles = {0: "green" if forecast.fits else "red", **dict.fromkeys(range(1, 5), "bold")}
    rows = [*zip(names, texts, strict=True), *more]
    return ui.Table(rows, "<w", row_styles=styles)


def time_and_price(forecast: Forecast, tokens: float) -> tuple[str, str]:
    time = f"{_with_interval(forecast.days, fmt.lasting)}; {fmt.scaled(tokens)} tokens"
    if forecast.dollars is None:
        return time, "unknown: no price of a chip-hour (resources.dollars_per_chip_hour)"
    return time, f"{_with_interval(forecast.dollars, fmt.dollars)}; {_price(forecast)}"


def deadline_and_run(plan: Plan, odds: DeadlineOdds | None) -> list[tuple[str, str]]:
    """Return how likely the deadline holds, and what a run of fewer steps takes, where asked."""
    rows = []
    if odds:
        within = "" if odds.deadline == f"{odds.days:g}d" else f", in {fmt.lasting(odds.days)}"
        likeliness = "nothing is expected, so how likely is unknown"
        if odds.odds is not None:
            likeliness = f"{fmt.percent(odds.odds)} likely, if it begins now"
        rows.append(("deadline", f"{odds.deadline}{within}: {likeliness}"))
    if plan.run_share < 1:
        steps = f"{fmt.count(plan.run_steps or 0)} of {fmt.count(plan.total_steps)} steps"
        takes = ", ".join(_time_and_cost(plan.forecast, plan.run_share))
        rows.append(("this run", f"{steps}: {takes}"))
    return rows


def _ahead_of_next(forecast: Forecast) -> str:
    margin = forecast.bound_by or 0.0
    if margin >= 1:
        return f"{1 + margin:.1f} times as long as the next"
    return f"{fmt.percent(margin)} longer than the next" if margin else ""


def verdict(plan: Plan) -> str:
    forecast = plan.forecast
    if not plan.ledger_describes_trainer:
        return f"Plan: a mesh for {plan.trainer}, whose memory, time and cost are unknown."
    fits = "fits" if forecast.fits else "does not fit"
    text = ", ".join([fits, f"bound by {forecast.bound}", *_time_and_cost(forecast, 1)])
    if plan.run_share < 1:
        shorter = ", ".join(_time_and_cost(forecast, plan.run_share))
        text += f"; {fmt.counted(plan.run_steps or 0, 'step')}: {shorter}"
    return f"Plan: {text}."


# The ledgers: bytes of a device, seconds of a step, parts of the expected step, lost time.

_SMALL_LINE = 0.009  # of the unoverlapped step: smaller lines are shown as one
_SMALL_BYTES = 0.01  # of the peak
_SMALL_PART = 0.02  # of the expected step
_SMALL_LOSS = 0.01  # of all time
# Parts of the expected step of which the lines at peak rates have little or nothing.
_WITH_WORK: tuple[LineKind, ...] = ("elementwise", "slice_wait")
_LOSSES: dict[LossKind, str] = {
    "saving": "steps wait for saves",
    "lost_steps": "steps done again",
    "detection": "until a failure is seen",
    "waiting": "waiting for a slice",
    "restart": "starting processes",
    "restore": "restoring",
    "evaluation": "evaluating",
    "fewer_pods": "running on fewer pods",
    "stage_changes": "changes of stages",
}


def _ledger(
    lines: Sequence[tuple[ui.Row, float]], least: float, show: Callable[[float], ui.Row],
    smaller: str, totals: Sequence[ui.Row] = (), *, indent: str = "", is_bold: bool = True,
) -> ui.Table:  # fmt: skip
    """Return a line for each value of at least a size and one for all smaller ones, each with a
    bar; below them the totals, the last of them bold. `show` gives the cells of a value.
    """
    listed = [line for line in lines if line[1] >= least]
    if small := [value for _, value in lines if value < least]:
        blanks = [""] * (len(lines[0][0]) - 1)
        plural = "es" if smaller.endswith("s") else "s"
        name = indent + fmt.counted(len(small), smaller, plural)
        listed.append(((name, *blanks), sum(small)))
    rows = [*((*words, *show(value)) for words, value in listed), *totals]
    bars = [value for _, value in listed] + [0.0] * len(totals)
    styles = {len(rows) - 1: "bold"} if totals and is_bold else {}
    columns = (">" * len(show(0.0))).rjust(len(rows[0]), "<")
    return ui.Table(rows, columns, bars=bars, row_styles=styles)


def memory_ledger(plan: Plan, *, full: bool) -> list[ui.Part]:
    """Return the bytes of the largest phase, and the size of the next; or of all."""
    forecast = plan.forecast
    largest, *others = sorted(forecast.memory, key=lambda phase: -phase.bytes)

    def with_numbers(line: LedgerLine) -> str:
        """Return the formula with its numbers: `size x owned` is 4 x 1.13B."""
        numbers = {name: fmt.scaled(value) for name, value in line.inputs.items()}
        return re.sub(r"[a-z_]{2,}", lambda name: numbers.get(name[0], name[0]), line.formula)

    lines = [((line.name, with_numbers(line)), line.value) for line in largest.lines]
    least = 0 if full else _SMALL_BYTES * largest.bytes
    peak = (f"peak: {largest.name}", "", fmt.in_memory(largest.bytes))
    table = _ledger(lines, least, lambda size: (fmt.in_memory(size),), "smaller line", [peak])
    limit = f"the compiler allows {fmt.in_memory(forecast.hbm_bytes_per_device)}"
    listed, which = (others, "other phases") if full else (others[:1], "next phase")
    phases = ", ".join(f"{phase.name} {fmt.in_memory(phase.bytes)}" for phase in listed)
    parts: list[ui.Part] = [table, f"{limit}; {which}: {phases}"]
    if on_host := forecast.host_memory_bytes_per_chip:
        host = forecast.host_bytes_per_chip
        known = f"of {fmt.in_memory(host)}" if host else "of an unknown size"
        parts.append(f"host memory per chip: {fmt.in_memory(on_host)} {known}")
    return ui.section(f"memory per device{of_trainer(plan)}", parts)


def time_ledger(plan: Plan, *, full: bool) -> list[ui.Part]:
    """Return the seconds of a step, each line at its peak rate; a star marks the bottleneck."""
    forecast, step_s = plan.forecast, plan.forecast.step_s
    lines = []
    for line in forecast.time:
        name = resource_name(line.resource or "")
        mark = "*" if name == forecast.bound else " "
        lines.append(((f"{mark} {line.name}", name, amount(line)), line.value))
    totals = [
        ("  unoverlapped", "", "all lines", fmt.seconds(step_s.unoverlapped)),
        ("  lower bound", forecast.bound, "", fmt.seconds(step_s.lower)),
    ]
    ahead = _ahead_of_next(forecast)
    notes: list[ui.Part] = [f"* bottleneck: {ahead}" if ahead else "* bottleneck"]
    if step_s.expected is not None:
        totals.append(("  expected", "", "as real runs take it", fmt.seconds(step_s.expected)))
    if step_s.expected is not None and step_s.expected > step_s.unoverlapped:
        # Lines that real runs do not do at their peak rate, and what comes on top of all lines.
        text = "expected is above unoverlapped, which has each line at its peak rate."
        known = forecast.expected_time
        shares = [(line.name, line.inputs["share"]) for line in known if "share" in line.inputs]
        if reached := [f"{name} {fmt.percent(share)}" for name, share in shares if share < 1]:
            text += f" Of that rate real runs reach: {', '.join(reached)}."
        extra = [line for line in known if line.kind in _WITH_WORK]
        if more := ", ".join(f"{fmt.seconds(line.value)} {line.name}" for line in extra):
            text += f" Real runs also take {more}."
        notes.append(ui.Text(text, hang=2))
    least_s, is_bold = _SMALL_LINE * step_s.unoverlapped, step_s.expected is not None
    table = _ledger(
        lines, 0 if full else least_s, lambda s: (fmt.seconds(s),), "smaller line", totals,
        indent="  ", is_bold=is_bold,
    )  # fmt: skip
    title = ui.heading(f"time per step, each line at its peak rate{of_trainer(plan)}")
    return ui.indent([title, table, *ui.indent(notes)])


def expected_ledger(plan: Plan, *, full: bool) -> list[ui.Part]:
    """Return the parts of the expected step, largest first, and whose runs they come from."""
    lines = sorted(plan.forecast.expected_time, key=lambda line: -line.value)
    if not lines:
        return []
    total_s = sum(line.value for line in lines)
    named, least_s = [((line.name,), line.value) for line in lines], _SMALL_PART * total_s

    def cells(s: float) -> ui.Row:
        return fmt.seconds(s), fmt.percent(s / total_s)

    parts: list[ui.Part] = [_ledger(named, 0 if full else least_s, cells, "smaller part")]
    if known := plan.forecast.learned_from:
        text = f"as in {fmt.counted(known.reference.runs, 'published run')}"
        text += f" of {known.reference.software}"
        if longer := [other.longer for other in known.others]:
            names = ", ".join(other.software for other in known.others)
            took = fmt.span(fmt.percent(min(longer)), fmt.percent(max(longer)))
            text += f"; other software took {took} longer ({names})"
        parts.append(ui.Text(text, hang=2))
    for witness in plan.forecast.witnesses:
        says = f"{fmt.seconds(witness.expected_s)}, {_INTERVAL}"
        says += f" {fmt.span(fmt.seconds(witness.low_s), fmt.seconds(witness.high_s))}"
        text = f"{witness.name}: {says}; {fmt.percent(witness.weight)} of what is expected"
        parts.append(ui.Text(text, hang=2))
    interval = f"{_INTERVAL} {likely(plan.forecast.step_s, fmt.seconds)}"
    return ui.section(f"expected step: {fmt.seconds(total_s)}, {interval}{of_trainer(plan)}", parts)


def goodput_ledger(plan: Plan, *, full: bool) -> list[ui.Part]:
    """Return the time that trains nothing, the failures behind it, and what a save needs."""
    if not plan.ledger_describes_trainer:
        return []
    forecast = plan.forecast.goodput
    losses: list[tuple[ui.Row, float]] = []
    for loss in sorted(forecast.lines, key=lambda loss: -loss.share):
        rate = f"x {fmt.to_digits(loss.per_day, 3)} a day"
        losses.append(((_LOSSES[loss.kind], fmt.seconds(loss.each_s), rate), loss.share))
    known = f"{_INTERVAL} {fmt.span(fmt.percent(forecast.low), fmt.percent(forecast.high))}"
    if forecast.stated:
        losses, known = [], "of the spec"
    least, total = 0 if full else _SMALL_LOSS, fmt.percent(forecast.expected)
    totals = [("goodput", "", known, total)]
    parts: list[ui.Part] = [
        _ledger(losses, least, lambda share: (fmt.percent(share),), "smaller loss", totals)
    ]
    between_s, inputs = forecast.seconds_between_failures, forecast.inputs
    if between_s is not None:
        rates = "rates of another chip, assumed" if inputs.assumed else "rates"
        names = ", ".join(inputs.sources["failures_per_day"])
        parts.append(f"a failure every {fmt.elapsed(between_s)} ({rates}: {names})")
    save, every, best = inputs.save, forecast.every_steps, forecast.best_every_steps
    if save.write_s.value:
        # The bytes of a save, its times, and the best interval.
        size, of_chip = (fmt.with_unit(n, "B") for n in (save.bytes, save.host_bytes_per_chip))
        rate = fmt.with_unit(save.storage_bytes_per_s.value, "B/s")
        text = (
            f"a save every {fmt.count(every)} steps ({fmt.lasting(forecast.every_s / fmt.DAY_S)}):"
            f" {size}, of a chip {of_chip}; steps wait {fmt.seconds(save.blocking_s.value)}, the"
            f" storage takes {fmt.seconds(save.write_s.value)} at {rate} and needs"
            f" {fmt.with_unit(forecast.needed_bytes_per_s, 'B/s')}"
        )
        if every != best and not forecast.stated and between_s is not None:
            text += f"; best every {fmt.count(best)} steps ({fmt.percent(forecast.best)})"
        parts.append(text)
    return ui.section("goodput", parts)
