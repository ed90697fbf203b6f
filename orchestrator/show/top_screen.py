"""The screen of runs that go on, for a terminal: figures with their curves, and where time went."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from orchestrator import formatting as fmt
from orchestrator.evidence.report import RunReading
from orchestrator.journal.run_state import first_line
from orchestrator.journal.steps import Floats
from orchestrator.run.progress import run_command
from orchestrator.show import charts
from orchestrator.show import drawings as draw
from orchestrator.show import parts as ui
from orchestrator.show.report_screen import SLOW_TIMES, hosts_text, main_figures, slowdown_texts
from orchestrator.show.terminal import keep_showing
from orchestrator.show.watch import LOOK_EVERY_S, Watch, WatchedRun

_CURVE_COLUMNS, _STRIP_COLUMNS = 16, 48
_MOST_ATTEMPTS, _MOST_HOSTS = 3, 6
_SHORT = ("step", "MFU", "over expected", "goodput", "left", "loss")  # of each of several runs
# A letter for each thing that time goes into; steps are drawn as a bar.
_LETTERS = {
    "starting processes": "s",
    "compiling": "c",
    "first state or restore": "r",
    "steps": "█",
    "repeated steps": "x",
    "waiting for data": "d",
    "saving": "w",
    "evaluating": "e",
    "not training": "-",
}


def show_top(runs: Sequence[str], storage: Path) -> None:
    """Show runs on a terminal until q or Ctrl-C; elsewhere once."""
    watch = Watch(runs, storage)
    following = run_command("report", runs[0], storage, *runs[1:], "--watch")
    keep_showing(lambda: _top_screen(watch.look(), following), LOOK_EVERY_S)


def _top_screen(runs: Sequence[WatchedRun], following: str) -> ui.Screen:
    """Return all runs, one below the other: one in full, of several the main figures."""
    blocks = list[Sequence[ui.Part]]()
    for run in runs:
        if run.reading:
            blocks += _run_blocks(run.reading, in_full=len(runs) == 1)
        else:
            blocks.append([ui.heading(run.key), ui.warning(first_line(run.problem))])
    return ui.screen(*blocks, ui.next_step(following))


def _run_blocks(reading: RunReading, *, in_full: bool) -> Iterator[Sequence[ui.Part]]:
    run, report, steps = reading.run, reading.report, reading.steps
    done = f"{fmt.count(run.steps_done)} of {fmt.count(run.steps)} steps"
    lasts = fmt.elapsed((run.ended_at_s or run.read_at_s) - run.submitted_at_s)
    state = f"{run.state}{', a rehearsal' if run.rehearsal else ''} for {lasts}"
    attempt = f"attempt {max(len(run.attempts), 1)}"
    yield [ui.heading(run.run), *ui.indent([f"{state}: {done}, {attempt}"])]
    warm = steps.rows(steps.warm)
    curves: dict[str, Floats] = {"step": warm.step_s, "MFU": warm.mfu, "loss": steps.loss}
    rows = [
        (name, value, _curve(curves.get(name), None if name == "loss" else 0.0), remark)
        for name, value, remark in main_figures(report)
        if in_full or name in _SHORT
    ]
    if in_full and len(steps):
        rates = steps.learning_rate
        rows.append(("learning rate", f"{rates[-1]:.3g}", _curve(rates), ""))
    memory = report.memory
    if in_full and memory.measured_bytes is not None:
        forecast = f"forecast {fmt.in_memory(memory.forecast_bytes)}"
        rows.append(("memory", fmt.in_memory(memory.measured_bytes), "", forecast))
    yield ui.indent([ui.Table(rows, "<><w")] if rows else ["no step was measured yet"])
    strips, used = _strips(reading)
    yield ui.indent([ui.Table(strips, "<<")] if strips else [])
    if in_full:
        key = ", ".join(f"{_LETTERS[name]} {name}" for name in _LETTERS if name in used)
        yield ui.indent([key] if key else [])
        yield ui.indent(slowdown_texts(report))
        if heat := reading.hosts:
            slowest = sorted(heat.rows, key=lambda row: -max(row.times))[:_MOST_HOSTS]
            lines = [
                (row.name, ui.curve(row.times, low=1.0, high=SLOW_TIMES[-1])) for row in slowest
            ]
            yield ui.indent([hosts_text(heat), ui.Table(lines, "<<")])
        yield list(map(ui.warning, report.problems))


def _curve(values: Floats | None, low: float | None = None) -> str:
    if values is None:
        return ""
    known = values[np.isfinite(values)]
    places = charts.thinned(np.arange(len(known), dtype=float), known, _CURVE_COLUMNS)
    return ui.curve([median for _, _, median, _ in places], low) if len(places) > 1 else ""


def _strips(reading: RunReading) -> tuple[list[ui.Row], set[str]]:
    """Return the newest attempts as strips on one axis of time, and what is on them."""
    attempts = charts.attempt_parts(reading)[-_MOST_ATTEMPTS:]
    if not attempts:
        return [], set()
    (_, first_s, _), (_, last_s, parts) = attempts[0], attempts[-1]
    total_s = last_s - first_s + sum(part.value for part in parts)
    rows, used = list[ui.Row](), set[str]()
    for attempt, start_s, parts in attempts:
        strip = _strip(parts, start_s - first_s, total_s or 1.0)
        used |= {part.name for part in parts if _LETTERS[part.name] in strip}
        how = attempt.reason or reading.run.state
        rows.append((f"attempt {attempt.number}, {how}", strip))
    return rows, used


def _strip(parts: Sequence[draw.BarPart], start_s: float, total_s: float) -> str:
    """Return the part that each column's middle lies in."""
    ends = start_s + np.cumsum([part.value for part in parts])
    middles = (np.arange(_STRIP_COLUMNS) + 0.5) / _STRIP_COLUMNS * total_s
    at = np.searchsorted(ends, middles)
    letters = [*(_LETTERS[part.name] for part in parts), " "]
    return "".join(
        letters[number] if middle >= start_s else " "
        for number, middle in zip(at, middles, strict=True)
    )
