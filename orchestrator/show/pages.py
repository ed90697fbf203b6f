"""Write HTML pages: of a run or a study, of the schedule of a proof, of offers."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from orchestrator import formatting as fmt
from orchestrator.errors import JournalUnreadable, OrchError, SpecError
from orchestrator.evidence.report import RunReader, RunReading
from orchestrator.evidence.studies import read_trial_runs, report_of_study
from orchestrator.journal import boundary, files
from orchestrator.journal.listing import StudyJournal, find_run_or_study
from orchestrator.journal.run_journal import Journal
from orchestrator.planning.offers import Offers
from orchestrator.proving.verdict import ProofResult
from orchestrator.run.profile import measure_traces
from orchestrator.run.progress import RUNS
from orchestrator.run.records import record_files
from orchestrator.serving.frontier import ServingFrontier
from orchestrator.serving.planner import make_serving_plan, serving_of
from orchestrator.show import charts, plan_text, profile_screen, report_screen, status_screen
from orchestrator.show import drawings as draw
from orchestrator.show import study_screens as studies
from orchestrator.show.plan_pages import offers_page, schedule_page
from orchestrator.show.serving_screen import frontier_rows, serving_text
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.tracking.mlflow.store import run_link
from orchestrator.values import study as reports
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Report
from orchestrator.values.serving import ServingPlan

_PAGE = "report.html"


class Page(Value):
    """Where a page was written, the report that it shows, and what is wrong with its sources.
    `serving` is how the model of a run that succeeded is served, where its slice holds it.
    """

    path: Path
    report: Report | reports.ScalingReport | reports.SweepReport
    problems: tuple[str, ...] = ()
    serving: ServingPlan | None = None


def write_report(run: str, storage: str | Path = RUNS, *, out: str | Path | None = None) -> Page:
    """Write the report of a run or a study as `report.html` in its directory, or in this one."""
    record = find_run_or_study(folder(storage), run)
    path = Path(out) if out else Path(f"{record.key}-{_PAGE}")
    if not out:
        with suppress(OSError):  # only a folder that is the user's own, and not read-only
            boundary.check_own(boundary.settled(record.path))
            path = record.path / _PAGE if os.access(record.path, os.W_OK) else path
    if isinstance(record, StudyJournal):
        runs = read_trial_runs(record)
        study = report_of_study(record, runs)
        if isinstance(study, reports.SweepReport):
            text = _sweep_page(study)
        else:
            text = _scaling_page(study, {trial.trial: trial.predicted for trial in runs})
        page = Page(path=_write(path, text), report=study)
        for start in record.trial_starts()[-1:]:
            record_files(record.trial_journal(start))
        return page
    proof, problem = proof_of(record)
    text, report, serving = page_of(record, proof)
    problems = report.problems + ((problem,) if problem else ())
    page = Page(path=_write(path, text), report=report, problems=problems, serving=serving)
    record_files(record)
    return page


def write_schedule(result: ProofResult, path: str | Path) -> Path:
    """Write the page of a proof's schedule: a layer in time, and a flame graph by source line."""
    if result.proof.schedule is None:
        raise OrchError(f"--html: no schedule: the catalog has no clock_hz for {result.plan.chip}")
    return _write(Path(path), schedule_page(result.plan, result.proof.schedule))


def write_offers(offers: Offers, path: str | Path) -> Path:
    """Write the page of offers: the frontier as a picture, and the table."""
    return _write(Path(path), offers_page(offers))


def write_frontier(frontier: ServingFrontier, path: str | Path) -> Path:
    """Write the page of a serving spec's frontier: throughput against latency, and the table."""
    head, *rows = frontier_rows(frontier)
    # Each mode as a line of dots: TPOT across, output tokens/s of a chip up.
    curves = []
    for color, mode in (("measured", "interleaved"), ("expected", "disaggregated")):
        own = [point for point in frontier.points if point.mode == mode]
        places = tuple((point.tpot_s * 1e3, point.output_tokens_per_s_chip) for point in own)
        curves.append(draw.Curve(mode, color, places, dots=True))
    x, y = zip(*(place for curve in curves for place in curve.points), strict=True)
    flags = []
    if frontier.best is not None:
        best = frontier.points[frontier.best]
        place = best.tpot_s * 1e3, best.output_tokens_per_s_chip
        flags = [draw.Flag("meets the wishes", "measured", *place)]
    plot = draw.Plot(
        x=draw.logarithmic(x, 1.1), y=draw.from_zero(y), x_name="milliseconds between tokens",
        y_name="output tokens/s per chip", show_x=lambda value: f"{value:.3g}", show_y=fmt.scaled,
        curves=curves, flags=flags,
    )  # fmt: skip
    text = draw.filled(
        "frontier.html", title=frontier.name, headline=f"{frontier.chip} {frontier.topology}",
        verdict="Throughput against latency", plot=plot, head=head, rows=rows,
    )  # fmt: skip
    return _write(Path(path), text)


def write_forecast(
    forecast: reports.ScalingForecast | reports.SweepForecast, path: str | Path
) -> Path:
    """Write the page of a study as planned: its scaling, or its times, as a picture."""
    headline, verdict, remark = studies.forecast_texts(forecast)
    plots, bars = list[draw.Plot](), list[draw.Bar]()
    if isinstance(forecast, reports.ScalingForecast):
        # Tokens per second over chips, with their interval, and efficiency, of each series.
        groups: dict[str, list[reports.PlannedTrial]] = {}
        for scaled in forecast.trials:
            if scaled.planned:
                name = reports.settings_text(scaled.series, forecast.vary, " ")
                groups.setdefault(f", {name}" if name else "", []).append(scaled.planned)
        sizes = sorted({float(plan.chips) for plans in groups.values() for plan in plans})
        speeds, shares, bands = list[draw.Curve](), list[draw.Curve](), list[draw.Band]()
        kinds = cycle(("expected", *_KINDS[1:]))
        for kind, (name, plans) in zip(kinds, groups.items(), strict=False):
            plans.sort(key=lambda plan: plan.chips)
            rates = [(float(plan.chips), plan.tokens_per_s_per_chip.likeliest) for plan in plans]
            speed = tuple((chips, chips * rate) for chips, rate in rates)
            ideal = tuple((chips, chips * rates[0][1]) for chips in (rates[0][0], sizes[-1]))
            share = tuple((float(plan.chips), plan.efficiency.likeliest) for plan in plans)
            is_expected = all(plan.step_s.expected for plan in plans)
            said = f"{'expected' if is_expected else 'at best'}{name}"
            speeds.append(draw.Curve(f"ideal{name}", "ideal", ideal))
            speeds.append(draw.Curve(said, kind, speed, dots=True))
            shares.append(draw.Curve(said, kind, share, dots=True))
            # A step at an end of its interval has the same tokens.
            ends = [(plan.step_s.low, plan.step_s.expected, plan.step_s.high) for plan in plans]
            area = tuple(
                (chips, tokens_per_s * middle / high, tokens_per_s * middle / low)
                for (chips, tokens_per_s), (low, middle, high) in zip(speed, ends, strict=True)
                if low and middle and high
            )
            bands.append(draw.Band(kind, area))
        if sizes:
            level = draw.Curve("ideal", "ideal", ((sizes[0], 1.0), (sizes[-1], 1.0)))
            plots = _over_chips(sizes, speeds, [level, *shares], speed_bands=bands)
    else:
        for trial in forecast.trials:
            if plan := trial.planned:
                part = draw.BarPart("", plan.days.likeliest)
                name = reports.settings_text(trial.settings, forecast.vary)
                bars.append(draw.Bar(name, "expected", (part,)))
    head, *rows = studies.planned_trials(forecast).rows
    text = draw.filled(
        "forecast.html",
        title=forecast.name,
        verdict=verdict,
        headline=headline,
        plots=plots,
        times=draw.BarChart(bars=bars, show=fmt.lasting) if bars else None,
        head=["trial", *(name if name == "MFU" else name.lower() for name in head[1:])],
        rows=rows,
        remark=remark,
        warnings=studies.trial_warnings(forecast),
    )
    return _write(Path(path), text)


def keep_report(journal: Journal) -> None:
    """Write the page of a run that has ended into its directory; its recorder sends it on."""
    _write(journal.path / _PAGE, page_of(journal, proof_of(journal)[0])[0])


def page_of(journal: Journal, proof: Proof | None) -> tuple[str, Report, ServingPlan | None]:
    """Return the page of a run, as its journal stands, and the report and serving it shows."""
    measure_traces(journal)
    reading = RunReader(journal).read()
    run = reading.run
    plan, full = journal.current_plan(run), journal.full_plan(run) if run.rehearses else None
    serving = None  # of a finished run; `orch plan RUN --serve` says why there is none
    if run.state == "succeeded":
        with suppress(SpecError):
            serving = make_serving_plan(serving_of(full or plan))
    text = _run_page(reading, plan, rehearsed=full, proof=proof, serving=serving)
    return text, reading.report, serving


def _run_page(
    reading: RunReading, plan: Plan, *, rehearsed: Plan | None = None, proof: Proof | None = None,
    serving: ServingPlan | None = None,
) -> str:  # fmt: skip
    report, full, comparable_s = reading.report, rehearsed or plan, None
    if report.measured and report.ratios and not report.rehearsal:
        comparable_s = report.measured.step_s.median
    return draw.filled(
        "run.html",
        **run_values(reading, plan, rehearsed, proof),
        title=report.run,
        headline=plan_text.headline(full),
        serving=serving_text(serving, report.run) if serving else None,
        roofline=charts.roofline(full, comparable_s),
        profiles=profile_screen,
        text=plan_text,
    )


def run_values(
    reading: RunReading, plan: Plan, rehearsed: Plan | None, proof: Proof | None
) -> dict[str, object]:
    """Return what the templates of a run show. `plan` ran; it may be a small copy of `rehearsed`,
    the plan for chips, to which `proof` belongs.
    """
    run, report = reading.run, reading.report
    return {
        "verdict": report_screen.run_verdict(report),
        "reading": reading,
        "run": run,
        "report": report,
        "plan": plan,
        "full": rehearsed or plan,
        "proof": proof,
        "steps": reading.steps,
        "mlflow": run_link(run.tracking) if run.tracking else None,
        "charts": charts,
        "screens": report_screen,
        "status": status_screen,
    }


def proof_of(journal: Journal) -> tuple[Proof | None, str | None]:
    try:
        return journal.proof(journal.full_plan(journal.run()).digest), None
    except JournalUnreadable as error:
        return None, str(error)


def _write(path: Path, text: str) -> Path:
    """Write a page, whole or not at all; one that was there before is replaced."""
    if is_copy(path):
        files.replace(path, text.encode())
        return path
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8") as file:  # not through a link
            file.write(text)
        partial.replace(path)
        return path
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


# The page of a scaling study: its curves, its trials, and what they say.

# The colors of several series; a single one has the first.
_KINDS = ("measured", "matmul", "hbm", "ici", "dcn", "host")
_MOST_BARS = 12  # trials whose ledgers are drawn


class _Series(NamedTuple):
    """Trials that differ only in size, the smallest first; an end of the names of its curves."""

    name: str
    kind: str
    trials: list[reports.TrialReport]


def _scaling_page(report: reports.ScalingReport, plans: Mapping[int, Plan]) -> str:
    """Return the page as HTML; `plans` has the plan of each trial by its number."""
    # The series with a measured trial, each with its color.
    groups: dict[str, list[reports.TrialReport]] = {}
    for trial in report.trials:
        if trial.measured:
            name = reports.settings_text(trial.series, report.vary, " ")
            groups.setdefault(name, []).append(trial)
    series = [
        _Series(f", {name}" if name else "", kind, sorted(trials, key=lambda trial: trial.chips))
        for kind, (name, trials) in zip(cycle(_KINDS), groups.items(), strict=False)
    ]
    throughput, efficiency = _scaling_plots(series) if series else (None, None)
    # The ledger of each comparable trial as one bar, with its measured step below.
    bars: list[draw.Bar] = []
    for trial in report.trials:
        if trial.measured is None or trial.not_compared or trial.number not in plans:
            continue
        name = reports.settings_text(trial.settings, report.vary)
        # The parts of the expected step end to end, or the resources of the unoverlapped.
        trial_plan = plans[trial.number]
        ends, ledger = trial_plan.forecast.step_s, charts.expected_bars(trial_plan)
        what = "expected" if ledger else "predicted, unoverlapped"
        if not ledger or ends.expected == ends.unoverlapped:
            resources = charts.resource_bars(trial_plan)
            parts = tuple(draw.BarPart(bar.name, bar.value, kind=bar.kind) for bar in resources)
            ledger = [draw.Bar("", "latency", parts)]
        step = draw.BarPart("median step", trial.measured.step_s.median)
        bars.append(replace(ledger[0], name=f"{name}: {what}"))
        bars.append(draw.Bar(f"{name}: measured", "measured", (step,)))
    # The predictions for chips, where the trials themselves were rehearsed.
    chip_rows = []
    for trial in report.trials:
        if (plan := trial.predicted) and trial.not_compared:
            settings, step_s = (trial.settings[key] for key in report.vary), plan.step_s
            expected = "-" if step_s.expected is None else fmt.seconds(step_s.expected)
            shares = (
                f"{fmt.percent(share.likeliest)}{' at best' if share.expected is None else ''}"
                for share in (plan.mfu, plan.efficiency)
            )
            times = fmt.seconds(step_s.lower), expected
            chip_rows.append((*settings, fmt.count(plan.chips), *times, *shares, plan.bound))
    columns = ("chips", "at best", "expected", "MFU", "efficiency", "bottleneck")
    head, rows = studies.scaling_table(report)
    trials = f"{len(report.trials)} trials, {studies.SCALINGS[report.scaling]}"
    return draw.filled(
        "study.html",
        title=report.study,
        verdict=draw.sentence(studies.scaling_verdict(report)),
        headline=f"{report.name}: {trials}",
        report=report,
        throughput=throughput,
        efficiency=efficiency,
        trial_head=head,
        trial_rows=rows,
        notes=[f"{draw.sentence(note)}." for note in studies.scaling_notes(report)],
        compared=draw.BarChart(bars=bars[: 2 * _MOST_BARS], show=fmt.seconds) if bars else None,
        explanation=studies.gap_explanation(report.explanations),
        chip_head=(*reports.key_names(report.vary, report.vary), *columns),
        chip_rows=chip_rows,
        unfinished=[pair for trial in report.trials for pair in trial.unfinished.items()],
    )


def _scaling_plots(series: Sequence[_Series]) -> list[draw.Plot]:
    """Return tokens per second over chips, and efficiency: measured, predicted, and ideal."""
    sizes = sorted({float(trial.chips) for group in series for trial in group.trials})
    speeds, bands = list[draw.Curve](), list[draw.Band]()
    shares = [draw.Curve("ideal", "ideal", ((sizes[0], 1.0), (sizes[-1], 1.0)))]
    for group in series:
        measured = [(float(run.chips), run.measured) for run in group.trials if run.measured]
        speed = tuple((x, found.tokens_per_s_per_chip.median * x) for x, found in measured)
        first, tokens_per_s = speed[0]
        ideal = tuple((x, x * tokens_per_s / first) for x in (first, max(first, sizes[-1])))
        speeds += [
            draw.Curve(f"ideal{group.name}", "ideal", ideal),
            *_predictions(group, lambda p, at: getattr(p.tokens_per_s_per_chip, at) * p.chips),
            draw.Curve(f"measured{group.name}", group.kind, speed, dots=True),
        ]
        share = tuple((x, found.efficiency.median) for x, found in measured)
        shares += _predictions(group, lambda p, at: float(getattr(p.efficiency, at)))
        shares.append(draw.Curve(f"measured{group.name}", group.kind, share, dots=True))
        area = tuple((x, found.efficiency.low, found.efficiency.high) for x, found in measured)
        bands.append(draw.Band(group.kind, area))
    return _over_chips(sizes, speeds, shares, efficiency_bands=bands)


def _over_chips(
    sizes: Sequence[float], speeds: Sequence[draw.Curve], shares: Sequence[draw.Curve],
    speed_bands: Sequence[draw.Band] = (), efficiency_bands: Sequence[draw.Band] = (),
) -> list[draw.Plot]:  # fmt: skip

    def all_y(curves: Sequence[draw.Curve], bands: Sequence[draw.Band]) -> list[float]:
        heights = [y for curve in curves for _, y in curve.points]
        return heights + [y for band in bands for _, *ends in band.points for y in ends]

    x, tokens = draw.logarithmic(sizes, 1.25), all_y(speeds, speed_bands)
    tops = draw.from_zero(all_y(shares, efficiency_bands), 1.1)
    return [
        draw.Plot(x, y, "chips", name, fmt.count, show, curves, areas, x_ticks=sizes)
        for name, y, show, curves, areas in (
            ("tokens per second", draw.logarithmic(tokens, 1.4), fmt.scaled, speeds, speed_bands),
            ("efficiency", tops, fmt.whole_percent, shares, efficiency_bands),
        )
    ]


def _predictions(
    series: _Series, figure: Callable[[reports.PlannedTrial, str], float]
) -> list[draw.Curve]:
    """Return what was predicted, where it can be compared with the measurement."""
    known = [(t, t.predicted) for t in series.trials if t.predicted and not t.not_compared]
    if not known:
        return []
    lines = [("unoverlapped", "unoverlapped", "unoverlapped"), ("lower bound", "lower", "lower")]
    if known[0][0].expected_s is not None:
        at = "expected" if known[0][1].efficiency.expected is not None else "unoverlapped"
        lines = [("expected", "expected", at)]
    curves = []
    for name, kind, at in lines:
        points = tuple((float(trial.chips), figure(plan, at)) for trial, plan in known)
        curves.append(draw.Curve(f"{name}{series.name}", kind, points))
    return curves


# The page of a sweep: losses over steps and over settings.

# The colors of a few trials; of many, only the best has a color.
_SWEEP_KINDS = ("matmul", "hbm", "ici", "dcn", "host")
_BEST, _OTHER = "measured", "ideal"
_MOST_PLOTS = 4
_WIDE = 10.0  # values that differ by this factor have a logarithmic axis


def _sweep_page(report: reports.SweepReport) -> str:
    known = [trial for trial in report.trials if trial.losses]
    # The loss of each trial over its steps, the best on top.
    are_few = len(known) <= len(_SWEEP_KINDS) + 1
    kinds, curves, is_named = iter(_SWEEP_KINDS), list[draw.Curve](), False
    for trial in sorted(known, key=lambda trial: trial.number == report.best):
        settings = reports.settings_text(trial.settings, report.vary)
        points = tuple((float(step), loss) for step, loss in trial.losses)
        if trial.number == report.best:
            kind, name = _BEST, f"{settings} (best)"
        elif are_few:
            kind, name = next(kinds, _OTHER), settings
        else:  # one name for all others
            kind, name, is_named = _OTHER, "" if is_named else "other trials", True
        curves.append(draw.Curve(name, kind, points, dots=len(points) == 1))
    over_steps = None
    if known:
        x = draw.Axis(0.0, float(max(trial.steps for trial in known)), whole=True)
        y = draw.around([loss for trial in known for _, loss in trial.losses])
        show = report_screen.loss_text
        over_steps = draw.Plot(x, y, "steps", "loss", fmt.count, show, curves)
    plots = [plot for key in report.vary if (plot := _over_setting(report, key))]
    head, rows = studies.sweep_table(report)
    verdict = draw.sentence(studies.sweep_verdict(report))
    return draw.filled(
        "sweep.html",
        title=report.study,
        verdict=re.sub(r"(?<=\de)-", "-\N{WORD JOINER}", verdict),  # 1e-2 stays on a line
        headline=f"{report.name}: a sweep of {len(report.trials)} trials",
        report=report,
        over_steps=over_steps,
        over_settings=plots[:_MOST_PLOTS],
        trial_head=head,
        trial_rows=rows,
        words=2 + len(report.vary),
        notes=[f"{draw.sentence(note)}." for note in studies.sweep_notes(report)],
    )


def _over_setting(report: reports.SweepReport, key: str) -> draw.Plot | None:
    """Return the last loss over a setting that is a number and differs; None for others."""
    known = [(trial, trial.loss) for trial in report.trials if trial.loss is not None]
    try:
        values = [float(trial.settings[key]) for trial, _ in known]
    except ValueError:
        return None
    if len(set(values)) < 2:
        return None
    loss_text, curves = report_screen.loss_text, []
    for name, kind in (("best", _BEST), ("others", "matmul")):
        points, labels = list[tuple[float, float]](), list[str]()
        for value, (trial, loss) in zip(values, known, strict=True):
            if (trial.number == report.best) == (name == "best"):
                points.append((value, loss))
                labels.append(f"trial {trial.number}: {loss_text(loss)}")
        dots = draw.Curve(name, kind, tuple(points), dots=True, joined=False, labels=tuple(labels))
        curves += [dots] if points else []
    is_wide = min(values) > 0 and max(values) / min(values) >= _WIDE
    x = draw.logarithmic(values, 1.4) if is_wide else draw.around(values)
    y = draw.around([loss for _, loss in known])

    def show(value: float) -> str:
        return f"{value:g}" if value < 1 else fmt.scaled(value)

    return draw.Plot(x, y, key, "loss", show, loss_text, curves)
