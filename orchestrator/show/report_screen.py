"""Show what was measured against what was forecast: of runs, and of published runs (a score)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator import formatting as fmt
from orchestrator.evidence.report import HostHeat
from orchestrator.journal.run_state import first_line
from orchestrator.show import parts as ui
from orchestrator.show.plan_text import resource_name
from orchestrator.values.report import Badput, Gap, Goodput, NotCompared, Ratio, Report, Spread
from orchestrator.values.slowdowns import worst_slowdowns
from orchestrator.values.study import key_names, settings_text

if TYPE_CHECKING:
    from orchestrator.evidence.score.gpu import GpuScore, GpuScoredRow
    from orchestrator.evidence.score.samples import Score, ScoredRow, Summary

_ENDS = ("value", "low", "high")
_PODS = "resources.pods"
_MEMORY = ("forecast", "compiled", "measured", "hbm")
_SMALL = 0.01  # of the largest part of a gap: smaller parts are left out
_SLOWDOWNS = 20  # are listed
# From how many times as long as the others a host has the next color.
SLOW_TIMES = (1.03, 1.1, 1.25, 1.5)
_SAME = 0.01  # rates this close are equal
_PARTS = {
    "devices": "on the devices",
    "slow steps": "in slow steps",
    "waiting for data": "waiting for data",
    "saving": "saving",
}
NOT_COMPARED: dict[NotCompared, str] = {
    "cpu_rehearsal": "a rehearsal measures this machine's CPU and its forecast is for chips, so"
    " they are not compared"
}
CAUSES: dict[Badput, str] = {
    "tpu_initialization": "starting processes",
    "training_prep": "creating the first state",
    "program_startup": "compiling and the first step",
    "data_loading_sync": "waiting for data",
    "unproductive_checkpoint_save_time": "saving checkpoints",
    "unproductive_checkpoint_restore_time": "restoring checkpoints",
    "evaluation": "evaluating held-out text",
    "wasted_progress_from_disruption": "repeated steps",
    "infrastructure_recovery_from_disruption": "recovering from disruptions",
    "other": "everything else",
}
STAGE_HEAD = ("stage", "steps", "tokens", "batch", "length", "step", "MFU", "over predicted",
              "time", "dollars")  # fmt: skip


def report_screen(
    report: Report, page: str, next_command: str, detail: ui.Detail,
    serving: tuple[str, str] | None = None,
) -> ui.Screen:  # fmt: skip
    """Return the verdict; unless that is enough its figures, and in full where the time went."""
    ending = [ui.paragraph(f"wrote {page}"), *ui.next_step(next_command)]
    first = [ui.heading(f"{report.run}: {run_verdict(report)}")]
    if detail == "brief":
        return ui.screen(first, ending)
    more: list[list[ui.Part]] = []
    if detail == "full":
        lost = [ui.Table(goodput_rows(report.goodput))] if report.goodput else []
        stages = ui.table(STAGE_HEAD, stage_rows(report))
        more = [ui.section("stages", stages), ui.section("where the time went", lost)]
    texts = [gap_text(report.gap)] if report.gap else []
    texts += [goodput_text(report.goodput)] if report.goodput else []
    texts += slowdown_texts(report)[: None if detail == "full" else 1]
    figures = ui.section("figures", [ui.Table([*main_figures(report)], "<>w")])
    served: list[ui.Part] = []
    if serving:
        served = [ui.paragraph(f"{serving[0]}:"), ui.Command(f"  {serving[1]}")]
    return ui.screen(first, figures, *more, ui.indent(texts), served, ending)


def run_verdict(report: Report) -> str:
    """Return how the run ended, how fast it was, and how that compares with the forecast."""
    steps = f"{fmt.count(report.steps_done)} of {fmt.count(report.steps)} steps"
    if report.state == "succeeded":
        ended = f"{'Rehearsal succeeded' if report.rehearsal else 'Succeeded'}: {steps}."
    else:
        why = f": {first_line(report.detail).rstrip('.')}" if report.detail else ""
        state = f"Rehearsal {report.state}" if report.rehearsal else report.state.capitalize()
        ended = f"{state} after {steps}{why}."
    return f"{ended} {_speed(report)}"


def _speed(report: Report) -> str:
    measured = report.measured
    if measured is None:
        return "No step was measured after warm-up."
    step = f"A step took {fmt.seconds(measured.step_s.median)}"
    if report.not_compared:
        cpu = " on this machine's CPU, which says nothing about chips"
        return f"{step}{cpu if report.rehearsal else ''}."
    mfu = f"; MFU {fmt.percent(measured.mfu.median)}" if measured.mfu else ""
    ratios = {ratio.against: ratio for ratio in report.ratios}
    if expected := ratios.get("expected"):
        measured_s = expected.step_s * expected.measured_over_predicted
        text = fmt.off(measured_s, expected.step_s, f"the {fmt.seconds(expected.step_s)} expected")
        if report.rehearsal:
            text += " from this machine's chip profile"
        if report.inside_interval is not None:
            text += f", {'inside' if report.inside_interval else 'outside'} the 80 % interval"
        return f"{step}, {text}{mfu}."
    if mfu:
        mfu += f" of at most {fmt.percent(report.forecast.mfu.lower)}"
    times = fmt.to_digits(ratios["lower"].measured_over_predicted, 3)
    return f"{step}, {times} times the lower bound{mfu}."


def gap_text(gap: Gap) -> str:
    """Return where the time beyond the prediction went, and what could have taken it."""
    least = _SMALL * max(abs(part.s) for part in gap.parts)
    parts = [
        f"{'+' if part.s >= 0 else '-'}{fmt.seconds(abs(part.s))} {_PARTS[part.name]}"
        for part in gap.parts
        if abs(part.s) >= least
    ]
    than = "the lower bound" if gap.against == "lower" else "expected"
    more = "more" if gap.s >= 0 else "less"
    text = f"The mean step took {fmt.seconds(abs(gap.s))} {more} than {than}: {', '.join(parts)}."
    if gap.exposed is not None and 0 < gap.exposed <= 1:
        share = fmt.percent(gap.exposed)
        text += f" At peak rates, {share} of the communication that could overlap did not."
    elif gap.exposed is not None and gap.exposed > 1:
        text += " It is slower than without any overlap, so some rate is below its peak."
    # The resource that most likely set the pace.
    for suspect in gap.suspects[:1]:
        rate = fmt.percent(suspect.rate_if_alone)
        name = resource_name(suspect.resource)
        text += f" If {name} alone set the pace, it ran at {rate} of its peak."
    return text


def goodput_text(goodput: Goodput) -> str:
    total = fmt.elapsed(goodput.total_s)
    text = f"{fmt.percent(goodput.goodput)} of {total} went into steps that count"
    name, lost_s = max(goodput.badput_s.items(), key=lambda pair: pair[1])
    if lost_s:
        text += f"; most of the rest went into {CAUSES[name]}, {fmt.elapsed(lost_s)}"
    return f"{text}."


def slowdown_texts(report: Report) -> list[str]:
    """Return a sentence for each of the worst slowdowns, and for the newest check of the hosts."""
    worst = worst_slowdowns(report.slowdowns)
    texts = [f"{slowdown.text[0].upper()}{slowdown.text[1:]}." for slowdown in worst[:_SLOWDOWNS]]
    if more := worst[_SLOWDOWNS:]:
        lost_s = sum(slowdown.lost_s for slowdown in more)
        texts.append(f"{len(more)} other slowdowns cost {fmt.elapsed_or_ms(lost_s)}.")
    return [*texts, *(f"Hosts: {check.text}." for check in report.host_checks[-1:])]


def hosts_text(heat: HostHeat) -> str:
    slowest = heat.slowest
    others = f"{fmt.counted(heat.hosts, 'process', 'es')}, compared by what each measures of itself"
    if (times := slowest.times[-1]) < SLOW_TIMES[0]:
        return f"{others}: none is slower than the rest at the last steps."
    return f"{others}: at the last steps {slowest.name} takes {fmt.to_digits(times, 3)} x as long."


def main_figures(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield the main numbers: name, value, and a note."""
    if measured := report.measured:
        steps = fmt.counted(measured.steps, "step")
        yield "step", fmt.seconds(measured.step_s.median), f"{spread(measured.step_s)}, {steps}"
        if mfu := measured.mfu:
            interval = fmt.span(fmt.percent(mfu.low), fmt.percent(mfu.high))
            most = f", at most {fmt.percent(report.forecast.mfu.lower)}" if report.ratios else ""
            yield "MFU", fmt.percent(mfu.median), f"{interval}{most}"
        chip = "emulated chip" if report.rehearsal else "chip"
        total = f"{fmt.scaled(measured.tokens_per_s)} in total"
        yield f"tokens/s per {chip}", fmt.scaled(measured.tokens_per_s_per_chip), total
    if ratio := _main_ratio(report):
        name = "over the lower bound" if ratio.against == "lower" else "over expected"
        times = fmt.to_digits(ratio.measured_over_predicted, 3)
        yield name, f"{times} x", fmt.seconds(ratio.step_s)
    if report.goodput:
        total = f"of {fmt.elapsed(report.goodput.total_s)}"
        yield "goodput", fmt.percent(report.goodput.goodput), total
    if outlook := report.outlook:
        value, low, high = (fmt.lasting(getattr(outlook.days_left, at)) for at in _ENDS)
        yield "left", value, f"80 % interval {fmt.span(low, high)}"
        if dollars := outlook.dollars_left:
            so_far = f"so far {fmt.dollars(outlook.dollars_so_far or 0.0)}"
            interval = fmt.span(fmt.dollars(dollars.low), fmt.dollars(dollars.high))
            yield "still to pay", fmt.dollars(dollars.value), f"{interval}, {so_far}"
        if outlook.odds is not None:
            yield "deadline", fmt.percent(outlook.odds), "likely to hold"
    if report.first_loss is not None and report.last_loss is not None:
        yield "loss", f"{report.last_loss:.3f}", f"from {report.first_loss:.3f}"
    if evaluation := report.evaluation:
        best = f"{evaluation.best.loss:.3f} after step {fmt.count(evaluation.best.steps_done)}"
        yield "held-out loss", f"{evaluation.last.loss:.3f}", f"best {best}"
        perplexity = fmt.to_digits(evaluation.last.perplexity, 4)
        yield "perplexity", perplexity, f"of {fmt.scaled(evaluation.last.tokens)} held-out tokens"


def goodput_rows(goodput: Goodput) -> list[ui.Row]:
    lost = sorted(goodput.badput_s.items(), key=lambda pair: -pair[1])
    rows = [(f"{name}: {CAUSES[name]}", s, s / goodput.total_s) for name, s in lost if s > 0]
    rows = [("goodput", goodput.goodput_s, goodput.goodput), *rows]
    return [(name, fmt.elapsed_or_ms(s), fmt.percent(share)) for name, s, share in rows]


def stage_rows(report: Report) -> list[ui.Row]:
    """Return a row for each stage, next to its forecast, and one for all of them."""
    totals = report.stage_totals
    if not report.stages or totals is None:
        return []

    def ends(over: float | None, steps_s: float, cost: float | None) -> ui.Row:
        return (
            "-" if over is None else f"{fmt.to_digits(over, 3)} x",
            fmt.elapsed(steps_s) if steps_s else "-",
            "-" if cost is None else fmt.dollars(cost),
        )

    rows: list[ui.Row] = []
    for stage in report.stages:
        measured = stage.measured
        steps = f"{fmt.count(stage.steps_done)} of {fmt.count(stage.steps)}"
        tokens = fmt.scaled(stage.tokens_done) if stage.tokens_done else "0"
        sizes = fmt.count(stage.sequences), fmt.count(stage.length)
        step = fmt.seconds(measured.step_s.median) if measured else "-"
        mfu = fmt.percent(measured.mfu.median) if measured and measured.mfu else "-"
        last = ends(stage.measured_over_predicted, stage.steps_s, stage.dollars)
        rows.append((str(stage.number), steps, tokens, *sizes, step, mfu, *last))
    tokens = fmt.scaled(totals.tokens_done) if totals.tokens_done else "0"
    over = totals.steps_s / totals.predicted_s if totals.predicted_s else None
    last = ends(over, totals.steps_s, totals.dollars)
    return [*rows, ("all", fmt.count(totals.steps_done), tokens, *[""] * 4, *last)]


def loss_text(loss: float) -> str:
    return f"{loss:#.4g}"


def spread(steps: Spread) -> str:
    return fmt.span(fmt.seconds(steps.low), fmt.seconds(steps.high))


def _main_ratio(report: Report) -> Ratio | None:
    against = report.gap.against if report.gap else None
    return next((ratio for ratio in report.ratios if ratio.against == against), None)


def compare_screen(reports: Sequence[Report], next_command: str) -> ui.Screen:
    # The settings of trials, but the number of pods, which every run has.
    keys = dict.fromkeys(key for report in reports for key in report.settings if key != _PODS)
    names = [name.upper() for name in key_names(keys, keys)]
    # Losses are compared only between experiments with one model and the same data.
    if len({report.spec_digest for report in reports}) > 1 and not _apart(reports):
        names.append("LOSS")
    speeds: list[ui.Row] = [("RUN", *names, "PODS", "STEPS", "STEP TIME", "P10 TO P90",
                             "TOKENS/S/CHIP", "MFU", "PREDICTED", "RATIO")]  # fmt: skip
    sizes: list[ui.Row] = [("RUN", "FORECAST", "COMPILED", "MEASURED", "LIMIT")]
    times: list[ui.Row] = [("RUN", "STATE", "ATTEMPTS", "TIME", "GOODPUT", "LARGEST LOSS")]
    remarks = set()  # what PREDICTED is, or why nothing is compared
    for report in reports:
        ratio = _main_ratio(report)
        cells: ui.Row = ("-",) * 6
        if measured := report.measured:
            cells = (
                fmt.seconds(measured.step_s.median),
                spread(measured.step_s),
                fmt.scaled(measured.tokens_per_s_per_chip),
                fmt.percent(measured.mfu.median) if measured.mfu else "-",
                fmt.seconds(ratio.step_s) if ratio else "-",
                f"{fmt.to_digits(ratio.measured_over_predicted, 3)} x" if ratio else "-",
            )
        loss = "-" if report.last_loss is None else loss_text(report.last_loss)
        chosen = [*(report.settings.get(key, "-") for key in keys), loss][: len(names)]
        counts = str(report.pods), fmt.count(report.steps_done)
        speeds.append((report.run, *chosen, *counts, *cells))
        # The peak as forecast, as compiled and as measured by the devices.
        peaks = (getattr(report.memory, f"{name}_bytes") for name in _MEMORY)
        shown = ("-" if size is None else fmt.in_memory(size) for size in peaks)
        sizes.append((report.run, *shown))
        spent: ui.Row = ("-", "-", "")
        if goodput := report.goodput:
            cause, lost_s = max(goodput.badput_s.items(), key=lambda pair: pair[1])
            largest = f"{CAUSES[cause]} {fmt.percent(lost_s / goodput.total_s)}" if lost_s else ""
            spent = fmt.elapsed(goodput.total_s), fmt.percent(goodput.goodput), largest
        times.append((report.run, report.state, str(report.attempts), *spent))
        if report.not_compared:
            remarks.add(NOT_COMPARED[report.not_compared])
        elif ratio:
            what = "the lower bound" if ratio.against == "lower" else "the expected step"
            here = ", from this machine's chip profile" if report.rehearsal else ""
            remarks.add(f"PREDICTED is {what}{here}, and RATIO the step time over it")
    texts = sorted(remarks)
    if any(report.measured and report.memory.measured_bytes is None for report in reports):
        texts.append("MEASURED is - where devices do not report memory, as those of a CPU")
    if any(report.memory.hbm_bytes is None for report in reports):
        texts.append("LIMIT is - in a rehearsal, whose devices share this machine's memory")
    return ui.screen(
        [ui.heading(f"{fmt.counted(len(reports), 'run')}, measured against predicted")],
        ui.indent([ui.heading(_compare_verdict(reports))]),
        ui.section("speed", [ui.Table(speeds)]),
        ui.section("memory per device", [ui.Table(sizes)]),
        ui.section("where the time went", [ui.Table(times, "<<>>><")]),
        ui.notes(texts),
        ui.next_step(next_command),
    )


def _compare_verdict(reports: Sequence[Report]) -> str:
    if not reports:
        return "Compare: the study has no run yet."
    measured = [(report, report.measured) for report in reports if report.measured]
    missing = len(reports) - len(measured)
    if missing:
        return f"Compare: {missing} of {len(reports)} runs have no step after warm-up."
    if len(reports) == 1:
        return "Compare: one run; name another to compare it with."
    if len({report.rehearsal for report in reports}) > 1:
        return "Compare: rehearsals and real runs cannot be compared."
    if len({report.spec_digest for report in reports}) > 1:
        # The speeds of different experiments say nothing of each other; their losses do.
        text = "Compare: these are different experiments; compare each with its own forecast."
        if why := _apart(reports):
            return f"{text} {why}"
        losses = [(run.last_loss, run) for run in reports if run.last_loss is not None]
        if len(losses) < len(reports) or not all(report.settings for report in reports):
            return text  # only trials differ in nothing but their settings
        lowest, best = min(losses, key=lambda pair: pair[0])
        named = f"{best.run} ({settings_text(best.settings, best.settings)})"
        return f"{text} {named} ends with the lowest loss, {loss_text(lowest)}."
    ordered = sorted(measured, key=lambda pair: -pair[1].tokens_per_s_per_chip)
    (best, most), (_, least) = ordered[0], ordered[-1]
    ratio = most.tokens_per_s_per_chip / least.tokens_per_s_per_chip
    if ratio < 1 + _SAME:
        return "Compare: all have the same tokens per second and chip, within 1 %."
    times = f"{fmt.to_digits(ratio, 3)} times the fewest"
    return f"Compare: {best.run} has the most tokens per second and chip, {times}."


def _apart(reports: Sequence[Report]) -> str:
    """Return why the losses of runs say nothing of each other; an empty text where they do."""
    models = [report.model for report in reports]
    if any(replace(model, name=models[0].name) != models[0] for model in models):
        names = ", ".join(dict.fromkeys(model.name for model in models))
        return f"Losses of different models ({names}) are not compared."
    if any(report.data != reports[0].data for report in reports):
        return "Losses on different data are not compared."
    return ""


def score_screen(score: "Score", next_command: str) -> ui.Screen:
    verdict = _verdict(score.summary)
    groups = {
        "outside the 80 % interval": [run.id for run in score.rows if not run.inside_interval],
        "faster than the lower bound": [
            f"{run.id} (at least {fmt.seconds(run.lower_step_s)})"
            for run in score.rows
            if run.below_lower_bound
        ],
    }
    # What the rows do not state of their software, and what was assumed instead.
    assumptions = []
    names = {"software": "software", "kernel": "attention kernel", "averages": "averages"}
    for column, name in names.items():
        counts = Counter(getattr(row, column) for row in score.rows if column in row.assumed)
        assumed = ", ".join(f"{value} in {number}" for value, number in counts.most_common())
        assumptions += [f"{name} not stated: assumed {assumed}"] if counts else []
    title = f"{_runs(score.summary.rows)} against their forecasts"
    return ui.screen(
        [ui.Title(title, score.learned_on)],
        ui.indent([ui.heading(verdict)]),
        ui.indent(_steps_table(score.rows)),
        ui.indent(f"{name}: {', '.join(ids)}" for name, ids in groups.items() if ids),
        *map(ui.indent, _score_tables(score)),
        ui.indent(assumptions),
        ui.indent(ui.labelled("left out:", f"{run.id}: {run.reason}") for run in score.left_out),
        ui.closing(verdict, next_command),
    )


def gpu_score_screen(score: "GpuScore", next_command: str) -> ui.Screen:
    faster = [run.id for run in score.rows if run.below_lower_bound]
    totals: list[ui.Row] = [
        ("", "runs", "jobs", "median", "p90", "inside 80 %", "one MFU: median", "p90")
    ]
    for part in score.parts:
        figures = (
            part.summary.median_abs_error, part.summary.p90_abs_error, part.summary.inside_interval,
            part.summary.baseline_median_abs_error, part.summary.baseline_p90_abs_error,
        )  # fmt: skip
        counts = str(part.summary.rows), str(part.jobs)
        totals.append((part.part, *counts, *map(_share, figures)))
    kept = [
        (each.id, str(each.slices), fmt.percent(each.measured), fmt.percent(each.expected))
        for each in score.retention
    ]
    verdict = _verdict(score.parts[0].summary) if score.parts else "Score: no run can be priced."
    return ui.screen(
        [ui.Title(f"{_runs(len(score.rows))} against their forecasts", score.learned_on)],
        ui.indent([ui.heading(verdict)]),
        ui.indent(_steps_table(score.rows)),
        ui.indent([f"faster than the lower bound: {', '.join(faster)}"] if faster else []),
        ui.indent([ui.Table(totals, gap=2)]),
        ui.indent(ui.table(("speed of a GPU on", "nodes", "measured", "expected"), kept)),
        ui.indent(ui.labelled("left out:", f"{run.id}: {run.reason}") for run in score.left_out),
        ui.closing(verdict, next_command),
    )


def _steps_table(runs: "Sequence[ScoredRow | GpuScoredRow]") -> list[ui.Part]:
    rows = []
    for run in runs:
        expected, low, high, measured = map(fmt.seconds, (
            run.expected_step_s, run.low_step_s, run.high_step_s, run.measured_step_s,
        ))  # fmt: skip
        rows.append(
            (run.id, expected, fmt.span(low, high), measured, fmt.signed_percent(run.error))
        )
    head = ("run", "expected", "80 % interval", "measured", "error")
    return [ui.Table([head, *rows], spare=(2, 1))] if rows else []


def _score_tables(score: "Score") -> Iterator[list[ui.Part]]:
    """Yield errors, by software too, then the other predictions: retention, goodput, recovery."""
    # The errors of the model, those of mixtures of experts apart, and a simple baseline's.
    named, summary = {"this model": score.summary}, score.summary
    apart = {"mixtures of experts": score.mixtures, "dense in int8 or fp8": score.quantized}
    if known := {label: part for label, part in apart.items() if part.rows}:
        named |= {"dense models": score.dense} | known
    columns = ("median", "mean", "p90", "worst")
    rows: list[ui.Row] = [("error", "runs", *columns)]
    for label, part in named.items():
        errors = (_share(getattr(part, f"{name}_abs_error")) for name in columns)
        rows.append((label, str(part.rows), *errors))
    median, p90 = summary.baseline_median_abs_error, summary.baseline_p90_abs_error
    baseline = ("" if error is None else _share(error) for error in (median, None, p90, None))
    rows.append(("baseline: one MFU per chip", "", *baseline))
    yield [ui.Table(rows, gap=3)] if summary.rows else []
    rows = []
    for tool in score.software if len(score.software) > 1 else ():
        shares = map(_share, (tool.median_abs_error, tool.p90_abs_error, tool.inside_interval))
        bias = fmt.signed_percent(tool.median_error)
        rows.append((tool.software, str(tool.rows), *shares, bias))
    yield ui.table(("software", "runs", "median", "p90", "inside 80 %", "bias"), rows)
    rows = []  # tokens per second and chip on several slices over those on one
    for pair in score.retention:
        shares = map(fmt.percent, (pair.measured, pair.expected))
        points = fmt.signed_points(pair.expected - pair.measured)
        rows.append((pair.id, str(pair.slices), *shares, points))
    yield ui.table(("rate per chip, over one slice", "slices", "measured", "expected", ""), rows)
    rows = []
    for job in score.goodput:
        value, low, high = (fmt.percent(getattr(job.predicted, at)) for at in _ENDS)
        over = "over " if job.reported_is == "at_least" else ""
        rows.append((job.id, value, fmt.span(low, high), f"{over}{fmt.percent(job.reported)}"))
    yield ui.table(("share of time that trains", "predicted", "80 % interval", "reported"), rows)
    rows = [
        (fault.id, fmt.seconds(fault.predicted_s), fmt.seconds(fault.recorded_s))
        for fault in score.recoveries
    ]
    yield ui.table(("seconds until a step was done again", "predicted", "recorded"), rows)


def _runs(number: int) -> str:
    return fmt.counted(number, "published run")


def _share(fraction: float | None) -> str:
    return "-" if fraction is None else fmt.percent(fraction)


def _verdict(summary: "Summary") -> str:
    out = f"{summary.left_out} left out"
    if not summary.rows:
        return f"Score: no run that can be planned and converted, {out}."
    faster = f"{summary.below_lower_bound or 'none'} faster than the lower bound"
    return (
        f"Score: {_runs(summary.rows)}, median error {_share(summary.median_abs_error)}, p90"
        f" {_share(summary.p90_abs_error)}, {_share(summary.inside_interval)} inside the 80 %"
        f" interval, {faster}, {out}."
    )
