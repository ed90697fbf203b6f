"""Show the plan of a run in stages on one screen: a row for each, then what all take together."""

from collections.abc import Callable, Sequence

from orchestrator.formatting import (
    at_least,
    count,
    dollars,
    in_memory,
    lasting,
    percent,
    scaled,
    seconds,
    span,
)
from orchestrator.network.mesh_axes import in_use
from orchestrator.network.rematerialization import summary_of
from orchestrator.planning.odds import DeadlineOdds
from orchestrator.planning.plan_warnings import warning_texts
from orchestrator.show.parts import (
    Detail,
    Part,
    Screen,
    Table,
    Title,
    indent,
    next_step,
    paragraph,
    screen,
    section,
    warning,
)
from orchestrator.show.plan_screen import estimate_cells, goodput_part, model, unsaid
from orchestrator.show.plan_text import (
    INTERVAL,
    cost_text,
    deadline_text,
    headline,
    in_microbatches,
    in_words,
    of_trainer,
    shorter_run,
    time_text,
    verdict,
)
from orchestrator.values.codec import short
from orchestrator.values.plan import Estimate, Plan

HEAD = ("", "tokens", "steps", "batch", "length", "step", "MFU", "time", "dollars")
MESH_HEAD = ("", "mesh inside a pod", "batch", "remat", "memory", "bound")


def stages_screen(
    plan: Plan,
    next_command: str | None,
    compiled: Sequence[str] = (),
    detail: Detail = "usual",
    odds: DeadlineOdds | None = None,
) -> Screen:
    """Return what the run takes, then what each stage is and takes. `compiled` are the summaries of
    earlier proofs, a line each.
    """
    top: list[list[Part]] = [
        [Title(left=headline(plan), right=f"plan {short(plan.digest)}")],
        indent(whole_lines(plan, odds)),
        section(f"stages{of_trainer(plan)}", [stages_table(plan)]),
    ]
    if detail == "brief":
        return screen(*top, [*unsaid(plan.warnings), *next_step(next_command)])
    return screen(
        *top,
        indent([meshes_table(plan), *schedules(plan), *compiled], 4),
        goodput_part(plan, full=detail == "full"),
        indent(totals(plan)),
        [warning(text) for text in warning_texts(plan.warnings)],
        [paragraph(verdict(plan), "bold"), *next_step(next_command)],
    )


def whole_lines(plan: Plan, odds: DeadlineOdds | None) -> list[Part]:
    """Return the verdict on the run: whether all stages fit, and what they take together."""
    forecast = plan.forecast
    rows = []
    if plan.ledger_describes_trainer:
        rows += [
            ("fits", "yes, every stage" if forecast.fits else "no"),
            ("time", time_text(forecast, plan.tokens)),
            ("cost", cost_text(forecast)),
            ("MFU", mfu_range(plan.stages)),
            ("bound by", f"{forecast.bound}: {in_words(forecast.bound)}, in the longest stage"),
        ]
    styles = dict.fromkeys(range(1, len(rows)), "bold")
    if styles:
        styles[0] = "green" if forecast.fits else "red"
    if odds:
        rows.append(("deadline", deadline_text(odds)))
    if plan.run_share < 1:
        rows.append(("this run", shorter_run(plan)))
    if plan.overrides:
        rows.append(("set", " ".join(plan.overrides)))
    rows.append(("model", model(plan)))
    return [Table(rows=rows, columns="<w", row_styles=styles)]


def mfu_range(stages: Sequence[Plan]) -> str:
    """Return the least and the greatest MFU of a stage, as it should be, or at most."""
    each = [one.forecast.mfu.likeliest for one in stages]
    known = all(one.forecast.mfu.expected is not None for one in stages)
    return f"{'' if known else 'at most '}{span(percent(min(each)), percent(max(each)))}, by stage"


def stages_table(plan: Plan) -> Part:
    """Return a row for each stage, as it should be, or at best where nothing is expected."""
    rows = [HEAD, *(stage_row(one) for one in plan.stages)]
    return Table(rows=rows, columns="<" + ">" * (len(HEAD) - 1))


def stage_row(stage: Plan) -> tuple[str, ...]:
    forecast, price = stage.forecast, stage.forecast.dollars
    return (
        f"stage {stage.stage.number if stage.stage else ''}",
        scaled(stage.tokens),
        count(stage.total_steps),
        count(stage.batch.sequences),
        count(stage.batch.length),
        shown(forecast.step_s, seconds),
        percent(forecast.mfu.likeliest),
        shown(forecast.days, lasting),
        "" if price is None else shown(price, dollars),
    )


def shown(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return what is expected; the bound says that it is one."""
    text = show(estimate.likeliest)
    return text if estimate.expected is not None else at_least(text)


def meshes_table(plan: Plan) -> Part:
    """Return how each stage is placed."""
    rows = [MESH_HEAD, *(mesh_row(one) for one in plan.stages)]
    return Table(rows=rows, columns="<<><><")


def mesh_row(stage: Plan) -> tuple[str, ...]:
    used = in_use(stage.mesh, stage.mesh)
    axes = [axis for axis in stage.axes if axis.link == "ici" and axis.name in used]
    return (
        f"stage {stage.stage.number if stage.stage else ''}",
        ", ".join(f"{axis.name} {axis.size}" for axis in axes if axis.size > 1) or "one device",
        in_microbatches(stage.batch),
        summary_of(stage.remat),
        in_memory(stage.forecast.memory_bytes_per_device),
        stage.forecast.bound,
    )


def schedules(plan: Plan) -> list[str]:
    """Return the schedules of the learning rate, a line each."""
    begins = [one for one in plan.stages if one.schedule_span[0] == one.first_step]
    lines = []
    for one in begins:
        same = [other for other in plan.stages if other.schedule_span == one.schedule_span]
        first, last = (other.stage.number for other in (same[0], same[-1]) if other.stage)
        which = f"stage {first}" if first == last else f"stages {first} to {last}"
        lines.append(f"learning rate in {which}: {schedule(one)}")
    return lines


def schedule(stage: Plan) -> str:
    options, (_, steps) = stage.optimizer, stage.schedule_span
    warmup = f"{count(options.warmup_steps)} steps of warm-up to " if options.warmup_steps else ""
    if options.decay == "constant":
        return f"{warmup}{options.peak_lr:g}, constant"
    falls = f"{options.peak_lr:g}, {options.decay} to {options.end_lr:g}"
    return f"{warmup}{falls} after {count(steps)} steps"


def totals(plan: Plan) -> list[Part]:
    """Return days and money of all stages as a table."""
    forecast = plan.forecast
    rows = [
        (f"{scaled(plan.tokens)} tokens", *estimate_cells(forecast.days, lasting)),
        ("chip-hours", *estimate_cells(forecast.chip_hours, scaled)),
    ]
    if forecast.dollars is not None:
        price = f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"
        rows.append((price, *estimate_cells(forecast.dollars, dollars)))
    known = forecast.days.expected is not None
    columns = ("lower bound", "expected", INTERVAL, "unoverlapped") if known else ("at best",)
    head = ("all stages", *columns)
    return [Table(rows=[head, *rows], columns="<" + ">" * (len(head) - 1))]
