"""Show a plan: the verdict first, then its decisions, its ledgers, its figures, its runners-up."""

from collections.abc import Callable, Sequence

from orchestrator.formatting import count, counted, dollars, lasting, percent, scaled
from orchestrator.network.mesh_axes import in_use
from orchestrator.network.rematerialization import text_of
from orchestrator.render.goodput_part import goodput_part
from orchestrator.render.plan_ledgers import expected_parts, memory, time
from orchestrator.render.plan_text import INTERVAL, headline, likely
from orchestrator.render.plan_verdict import verdict, verdict_lines
from orchestrator.render.screen_parts import (
    Detail,
    Part,
    Screen,
    Table,
    Title,
    closing,
    indent,
    next_step,
    screen,
    warning,
)
from orchestrator.render.warning_text import warning_texts
from orchestrator.types.codec import short
from orchestrator.types.offers import DeadlineOdds
from orchestrator.types.plan import (
    Estimate,
    MeshAxis,
    Plan,
    PlanWarning,
    SearchSummary,
    WarningCode,
)

SAID_FIRST: tuple[WarningCode, ...] = ("other_trainer",)  # no figure below is about that program
REDUCTIONS = {"per_layer": "layer by layer", "at_end": "at the end"}


def plan_screen(
    plan: Plan,
    next_command: str | None,
    compiled: str = "",
    runners_up: Sequence[Plan] = (),
    detail: Detail = "usual",
    odds: DeadlineOdds | None = None,
) -> Screen:
    """Return what the plan should reach and cost, what will be done, and what to do next.

    `compiled` is the summary of an earlier proof of this plan.
    """
    first = [one for one in plan.warnings if one.code in SAID_FIRST]
    others = [one for one in plan.warnings if one.code not in SAID_FIRST]
    top: list[list[Part]] = [
        [
            Title(left=headline(plan), right=f"plan {short(plan.digest)}"),
            *(warning(text) for text in warning_texts(first)),
        ],
        indent(verdict_lines(plan, compiled, odds)),
    ]
    table = alternatives(plan, runners_up)
    if detail == "brief":
        return screen(*top, table, [*unsaid(others), *next_step(next_command)])
    return screen(
        *top,
        *ledgers(plan, full=detail == "full"),
        table,
        [warning(text) for text in warning_texts(others)],
        closing(verdict(plan), next_command),
    )


def alternatives(plan: Plan, runners_up: Sequence[Plan]) -> list[Part]:
    if not runners_up:
        return []
    from orchestrator.render.runners_up import runners_up_table  # noqa: PLC0415  most have none

    return runners_up_table([plan, *runners_up])


def ledgers(plan: Plan, *, full: bool) -> list[list[Part]]:
    """Return all that the verdict follows from."""
    return [
        indent(decisions(plan, full=full)),
        memory(plan, full=full),
        time(plan, full=full),
        expected_parts(plan, full=full),
        goodput_part(plan, full=full),
        indent(figures(plan, full=full)),
    ]


def unsaid(warnings: Sequence[PlanWarning]) -> list[Part]:
    """Return how many warnings a brief screen leaves out."""
    if not warnings:
        return []
    number = len(warning_texts(warnings))
    return [warning(f"{counted(number, 'warning')}, shown without --brief")]


def decisions(plan: Plan, *, full: bool) -> list[Part]:
    """Return the request and the decisions, a line each."""
    shown = in_use(plan.mesh, plan.mesh)
    inside = ", ".join(
        axis_text(axis) for axis in plan.axes if axis.link == "ici" and axis.name in shown
    )
    rows = [
        ("model", model(plan)),
        ("mesh", f"{slices_text(plan)} dcn | {inside}"),
        ("batch", batch(plan)),
        ("step", step(plan)),
    ]
    if full:
        rows.append(("search", searched(plan.search)))
    if plan.chip_profile is not None:
        rows.append(("rates", f"measured on these chips, profile {short(plan.chip_profile)}"))
    if plan.overrides:
        rows.append(("set", " ".join(plan.overrides)))
    return [Table(rows=rows, columns="<w")]


def model(plan: Plan) -> str:
    parameters, active = plan.model.parameters, plan.model.active_parameters
    of_token = f", {scaled(active, 4)} of them active" if active != parameters else ""
    return f"{plan.model.name}, {scaled(parameters, 4)} parameters{of_token}"


def slices_text(plan: Plan) -> str:
    """Return the axes between slices; an axis over which weights are shared where it is used."""
    between = [axis for axis in plan.axes if axis.link == "dcn"]
    shown = [axis for axis in between if axis.size > 1] or between[:1]
    return ", ".join(f"{axis.name} {axis.size}" for axis in shown)


def searched(search: SearchSummary) -> str:
    realizable, priced = count(search.realizable), count(search.priced)
    return f"{count(search.enumerated)} placements, {realizable} realizable, {priced} priced"


def axis_text(axis: MeshAxis) -> str:
    """Return an axis with its torus axes: `tensor 8 (x)`, `data 35 (y/4 z/4)` when strided."""
    where = axis.torus_text
    return f"{axis.name} {axis.size}" + (f" ({where})" if where else "")


def batch(plan: Plan) -> str:
    size = plan.batch
    text = (
        f"{count(size.sequences)} sequences x {count(size.length)} = {scaled(size.tokens)} tokens"
    )
    if size.sequences == size.requested_sequences:
        return text
    change = size.sequences / size.requested_sequences - 1
    verb = "raised" if change > 0 else "lowered"
    requested = count(size.requested_sequences)
    return f"{text} ({verb} {percent(abs(change))} from {requested} to divide evenly)"


def step(plan: Plan) -> str:
    precision = plan.precision
    return (
        f"{counted(plan.batch.microbatches, 'microbatch', 'es')}, remat {text_of(plan.remat)},"
        f" {precision.compute} on {precision.parameters} parameters,"
        f" gradients reduced {REDUCTIONS[plan.gradient_reduction]}"
    )


def figures(plan: Plan, *, full: bool) -> list[Part]:
    """Return MFU, throughput, days and money as a table."""
    forecast = plan.forecast
    rows = [
        ("MFU", *estimate_cells(forecast.mfu, percent)),
        *([("MFU, 6 x params", *estimate_cells(forecast.mfu_6p, percent))] if full else []),
        ("tokens/s", *estimate_cells(forecast.tokens_per_s, scaled)),
        (f"{scaled(plan.tokens)} tokens", *estimate_cells(forecast.days, lasting)),
        ("chip-hours", *estimate_cells(forecast.chip_hours, scaled)),
    ]
    if forecast.dollars is not None:
        price = f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"
        rows.append((price, *estimate_cells(forecast.dollars, dollars)))
    known = forecast.step_s.expected is not None
    head = ("", "lower bound", "expected", INTERVAL, "unoverlapped") if known else ("", "at best")
    return [Table(rows=[head, *rows], columns="<" + ">" * (len(head) - 1))]


def estimate_cells(estimate: Estimate, show: Callable[[float], str]) -> tuple[str, ...]:
    """Return the bounds with the expected value and its interval; or the best alone."""
    if estimate.expected is None:
        return (show(estimate.lower),)
    expected = show(estimate.expected), likely(estimate, show)
    return (show(estimate.lower), *expected, show(estimate.unoverlapped))
