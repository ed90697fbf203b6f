"""Show the difference of two plans, or of two proofs, on one screen."""

from collections.abc import Sequence

from orchestrator import formatting as fmt
from orchestrator.planning.diff_plans import SUM, LineDiff, PlanDiff
from orchestrator.proving.compare import ProofDiff, ProofFigure
from orchestrator.show import parts as ui
from orchestrator.show.plan_text import resource_name
from orchestrator.show.proof_screen import short_line
from orchestrator.values.codec import short

_SAME = 0.001  # a ratio this close to one is no difference
_FEW_TIMES = 1.5  # smaller ratios are shown as percent
_SMALL = 0.002  # of the larger total: smaller lines are shown as one
_ENDS = ("", "first", "second", "change")
_HEAD = ("", *_ENDS)
_FIGURES: tuple[tuple[str, str, ui.Show], ...] = (
    ("MFU", "mfu", fmt.percent),
    ("tokens/s", "tokens_per_s", fmt.scaled),
    ("all tokens", "days", fmt.lasting),
    ("cost", "dollars", fmt.dollars),
    ("goodput", "goodput", fmt.percent),
)


def plan_diff_screen(diff: PlanDiff, next_command: str) -> ui.Screen:
    first, second = diff.plans
    figures: list[ui.Row] = []
    has_estimate = any(_figure(diff, "days.expected"))
    for name, key, show in _FIGURES:
        for estimate in ("lower", "expected", "unoverlapped") if has_estimate else ("lower",):
            figures += _figure_row(diff, f"{key}.{estimate}", show, f"{name}, {_named(estimate)}")
    times = _ledger(diff.time, fmt.seconds) if diff.time else []
    for estimate in ("unoverlapped", "lower", "expected") if diff.time else ():
        times += _figure_row(diff, f"step_s.{estimate}", fmt.seconds, _named(estimate), "")
    compared = [
        ui.section("memory per device", ui.table(_HEAD, _memory_rows(diff), "<<>>>")),
        ui.section("time per step", ui.table(_HEAD, times, "<<>>>")),
        ui.section("stages", _stages(diff)),
        ui.section("figures", ui.table(_ENDS, figures)),
    ]
    rows: list[ui.Row] = []
    memory = _figure(diff, "memory_bytes_per_device")
    limits = _figure(diff, "hbm_bytes_per_device")
    if any(memory):
        fits = (
            f"{'yes' if size <= limit else 'no'}: {fmt.percent(size / limit)} of HBM"
            for size, limit in zip(memory, limits, strict=True)
        )
        rows.append(("fits", *fits, _change(*memory)))
    at = _estimate(diff)
    shows: dict[str, ui.Show] = {"days": fmt.lasting, "dollars": fmt.dollars, "mfu": fmt.percent}
    for name, (key, show) in zip(("time", "cost", "MFU"), shows.items(), strict=True):
        for row in _figure_row(diff, f"{key}.{at}", show, name):
            ends = (_with_interval(diff, side, key, show) for side in (0, 1))
            rows.append((name, *ends, row[-1]))
    if not _is_staged(diff):
        rows.append(("bound by", *diff.bounds, ""))
    interval = ", 80 % interval" if at == "expected" else ""
    head = ("", f"first{interval}", f"second{interval}", "change")
    bold = dict.fromkeys(range(1, len(rows) + 1), "bold")
    verdict_table = [ui.Table([head, *rows], row_styles=bold)]
    if first.digest == second.digest:
        compared, verdict_table = ([] if _is_same(diff) else compared[-1:]), []
    names = []
    for plan in diff.plans:
        changes = f" with {' '.join(plan.overrides)}" if plan.overrides else ""
        names.append(f"{plan.name} ({short(plan.digest)}){changes}")
    differences = ui.table(("", "first", "second", ""), _differences(diff), "<>><")
    verdict = _verdict(diff)
    return ui.screen(
        [ui.heading(" and ".join(names))],
        ui.indent(verdict_table),
        ui.indent([ui.heading(verdict)]),
        ui.section("differences", differences),
        *compared,
        ui.closing(verdict, next_command),
    )


def _is_same(diff: PlanDiff) -> bool:
    return all(pair.first == pair.second for pair in diff.figures)


def _with_interval(diff: PlanDiff, side: int, key: str, show: ui.Show) -> str:
    """Return what is expected of a plan with its 80 % interval; without one, the least."""
    low, middle, high, lower = (
        _figure(diff, f"{key}.{name}")[side] for name in ("low", "expected", "high", "lower")
    )
    if not middle:
        word = "at most" if show is fmt.percent else "at least"
        return f"{word} {show(lower)}" if lower else "-"
    if not (low and high):
        return show(middle)
    # An interval has its unit once: `30.1-39.9 days`.
    least, most = show(low), show(high)
    number, _, unit = least.partition(" ")
    ends = f"{number}-{most}" if unit and most.endswith(f" {unit}") else f"{least}-{most}"
    return f"{show(middle)} ({ends})"


def _verdict(diff: PlanDiff) -> str:
    first, second = diff.plans
    if first.digest == second.digest:
        return f"Both are one plan; its figures {'are the same' if _is_same(diff) else 'differ'}."
    at = _estimate(diff)

    def ratio(key: str) -> float:
        before, after = _figure(diff, f"{key}.{at}")
        return after / before

    is_staged, (before, after) = _is_staged(diff), diff.bounds
    text = f"The second takes {_time(1 / ratio('days'))}"
    if all(_figure(diff, "dollars.lower")):
        text += f" and costs {_costs(ratio('dollars'))}"
    text += ", both at best." if at == "lower" else "."
    if is_staged:
        return text
    return f"{text} It is bound by {after}{f', not {before}' if before != after else ''}."


def _estimate(diff: PlanDiff) -> str:
    return "expected" if all(_figure(diff, "days.expected")) else "lower"


def _is_staged(diff: PlanDiff) -> bool:
    return not any(_figure(diff, "tokens_per_s.lower"))


def _time(speed: float) -> str:
    """Return the time that a ratio of speeds means: `half the time`, `9.4 % more time`."""
    if speed >= _FEW_TIMES:
        share = fmt.whole_percent(1 / speed)
        return "half the time" if share == "50 %" else f"{share} of the time"
    if speed <= 1 / _FEW_TIMES:
        return f"{fmt.to_digits(1 / speed, 2)} times as long"
    return f"{_costs(1 / speed)} time"


def _costs(ratio: float) -> str:
    if abs(ratio - 1) < _SAME:
        return "the same"
    if not 1 / _FEW_TIMES < ratio < _FEW_TIMES:
        return f"{fmt.to_digits(ratio, 2)} times as much"
    return f"{fmt.percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'}"


def _figure(diff: PlanDiff, key: str) -> tuple[float, float]:
    pair = next((pair for pair in diff.figures if pair.key == key), None)
    return (float(pair.first or 0), float(pair.second or 0)) if pair else (0.0, 0.0)


def _figure_row(diff: PlanDiff, key: str, show: ui.Show, *names: str) -> list[ui.Row]:
    first, second = values = _figure(diff, key)
    change = fmt.signed_points(second - first) if show is fmt.percent else _change(*values)
    shown = (show(value) if value else "-" for value in values)
    return [(*names, *shown, change)] if any(values) else []


def _change(first: float, second: float) -> str:
    if first == second:
        return "same"
    if not first or not second:
        return "new" if second else "gone"
    return fmt.change_by(second / first)


def _differences(diff: PlanDiff) -> list[ui.Row]:
    """Return the keys that differ in the specs, then those that differ in the plans."""

    def as_written(value: bool | float | str | None) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return str(value).lower()
        return value if isinstance(value, str) else f"{value:,}"

    rows: list[ui.Row] = [
        (pair.key, as_written(pair.first), as_written(pair.second), "spec")
        for pair in diff.requested
    ]
    where: dict[ui.Row, list[int]] = {}
    for pair in diff.decided:
        stage, key = _of_stage(pair.key)
        where.setdefault((key, as_written(pair.first), as_written(pair.second)), []).append(stage)
    every = len({_of_stage(pair.key)[0] for pair in diff.figures}) - 1
    for (key, first, second), stages in where.items():
        which = f" in stage {', '.join(map(str, stages))}" if any(stages) else ""
        if which and len(stages) == every:
            which = " in every stage"
        rows.append((key + which, first, second, "plan"))
    return rows


def _memory_rows(diff: PlanDiff) -> list[ui.Row]:
    """Return the lines of the phases that are largest in either plan."""
    sums = [line for line in diff.memory if line.name == SUM]
    if not sums:
        return []
    in_first = max(sums, key=lambda line: line.first or 0.0)
    largest = {in_first.part, max(sums, key=lambda line: line.second or 0.0).part}
    rows: list[ui.Row] = []
    for whole in sums:
        if whole.part in largest:
            lines = [line for line in diff.memory if line.part == whole.part and line.name != SUM]
            rows += _ledger(lines, fmt.in_memory)
            rows.append(_line_row(f"phase: {whole.part}", "", whole, fmt.in_memory))
    for name, key in (("peak", "memory_bytes_per_device"), ("limit", "hbm_bytes_per_device")):
        values = _figure(diff, key)
        rows.append((name, "", *map(fmt.in_memory, values), _change(*values)))
    return rows


def _ledger(lines: Sequence[LineDiff], show: ui.Show) -> list[ui.Row]:
    """Return a row for each line that matters in either plan, and one for all small lines."""
    totals = [sum(line.first or 0 for line in lines), sum(line.second or 0 for line in lines)]
    least = _SMALL * max(*totals, 1e-30)
    large = [line for line in lines if max(line.first or 0, line.second or 0) >= least]
    rows = []
    for line in large:
        part = resource_name(line.part) if show is fmt.seconds else ""
        rows.append(_line_row(line.name, part, line, show))
    if small := [line for line in lines if line not in large]:
        first = sum(line.first or 0.0 for line in small)
        second = sum(line.second or 0.0 for line in small)
        name = fmt.counted(len(small), "smaller line")
        rows.append((name, "", show(first), show(second), _change(first, second)))
    return rows


def _line_row(name: str, part: str, line: LineDiff, show: ui.Show) -> ui.Row:
    values = ["-" if value is None else show(value) for value in (line.first, line.second)]
    return name, part, *values, _change(line.first or 0.0, line.second or 0.0)


def _named(estimate: str) -> str:
    return "lower bound" if estimate == "lower" else estimate


def _stages(diff: PlanDiff) -> list[ui.Part]:
    """Return the figures of each stage that differ: what is expected, or the lower bound."""
    stages = [stage for pair in diff.figures if (stage := _of_stage(pair.key)[0])]
    at = "expected" if any(_figure(diff, "days.expected")) else "lower"
    memory = ("memory", "memory_bytes_per_device", fmt.in_memory)
    step, days = ("step", f"step_s.{at}", fmt.seconds), ("days", f"days.{at}", fmt.lasting)
    figures: tuple[tuple[str, str, ui.Show], ...] = (memory, step, days)
    rows: list[ui.Row] = []
    for stage in dict.fromkeys(stages):
        for name, key, show in figures:
            before, after = _figure(diff, in_stage := f"stages.{stage - 1}.{key}")
            if before != after:
                rows += _figure_row(diff, in_stage, show, f"stage {stage}", name)
    if stages and not rows:
        return ["the figures of every stage are the same"]
    return ui.table(_HEAD, rows, "<<>>>")


def _of_stage(key: str) -> tuple[int, str]:
    """Return the number of the stage that a key is about, 0 for none, and the rest of the key."""
    first, _, rest = key.partition(".")
    place, _, inner = rest.partition(".")
    return (int(place) + 1, inner) if first == "stages" else (0, key)


# Two proofs side by side.

_MOST = 10  # lines; --json has all
_SMALL_LINE = 0.001  # of a step: lines that differ by less are left to --json
_NAMES = {
    "peak_hbm": "peak memory",
    "host": "on the host",
    "flops": "FLOPs",
    "ici": "sent over ici",
    "dcn": "sent over dcn",
    "products_s": "products",
    "kernels_s": "kernels",
    "copies_s": "copies",
    "other_s": "other",
    "exposed_s": "exposed",
    "total_s": "scheduled",
}


def proof_diff_screen(diff: ProofDiff, names: tuple[str, str]) -> ui.Screen:
    schedules = [proof.schedule for proof in diff.proofs if proof.schedule]
    verdict = "One has no schedule: the catalog lacks the clock of its chip."
    if len(schedules) == 2:
        ratio = schedules[1].total_s / schedules[0].total_s
        word = "longer" if ratio > 1 else "shorter"
        both = zip(("first", "second"), diff.proofs, strict=True)
        unfit = "".join(f"; the {end} does not fit" for end, proof in both if not proof.fits)
        verdict = f"The second is scheduled {fmt.percent(abs(ratio - 1))} {word}{unfit}."

    def shown(figure: ProofFigure, value: float) -> str:
        if figure.unit == "s":
            return fmt.seconds(value)
        if figure.name in {"peak_hbm", "host"}:
            return fmt.in_memory(value)
        return fmt.with_unit(value, "FLOP" if figure.unit == "flops" else "B", 4)

    figures = [
        (_NAMES[figure.name], *(shown(figure, value) for value in pair), _change(*pair))
        for figure in diff.figures
        if any(pair := (figure.first, figure.second))
    ]
    least_s = _SMALL_LINE * max((schedule.total_s for schedule in schedules), default=0.0)
    lines = []
    for line in diff.lines[:_MOST]:
        if abs(line.more_s) >= least_s:
            ends = ("-" if s is None else fmt.seconds(s) for s in (line.first_s, line.second_s))
            more = f"{'+' if line.more_s > 0 else '-'}{fmt.seconds(abs(line.more_s))}"
            lines.append((*ends, more, short_line(line.line)))
    references = (
        f"{name} ({short(proof.plan_digest)}, trainer {proof.trainer})"
        for name, proof in zip(names, diff.proofs, strict=True)
    )
    differing = ui.table(("first", "second", "more", ""), lines, ">>><")
    return ui.screen(
        [ui.heading(" and ".join(references))],
        ui.indent([ui.heading(verdict)]),
        ui.section("per device and step", [ui.Table([_ENDS, *figures])]),
        ui.section("lines whose seconds differ most", differing),
        ui.closing(verdict),
    )
