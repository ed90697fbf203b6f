"""Two witnesses of one step: published runs, and the compiler's schedule of the plan's program."""

from dataclasses import replace
from math import exp, hypot, log

from orchestrator import catalog
from orchestrator.catalog.published import schedule_score
from orchestrator.planning.calibrated import layout_of
from orchestrator.planning.forecast import Terms, write_forecast
from orchestrator.values.plan import Estimate, LedgerLine, Plan, Witness
from orchestrator.values.proof import Schedule

# The interval of a schedule of a kind that no measured step has judged is so many times as wide.
_NEVER_JUDGED = 2.0
_SOURCE = "libtpu-cycles"


def with_schedule(plan: Plan, schedule: Schedule | None) -> Plan:
    """Return the plan with what the compiler's schedule adds to its forecast. Where it lies outside
    the published runs, `expected` is the mean of both witnesses, each weighted by how well it is
    known. Everywhere it is at least what the compiler's program computes without waiting, and the
    fast end of the interval at least its products and kernels.
    """
    was = plan.forecast.step_s
    if catalog.chip_of(plan).switched:
        return plan  # no schedule of a GPU's program has been held to a measured step
    if schedule is None or was.expected is None or was.low is None or was.high is None:
        return plan
    runs_width = log(was.high / was.low) / 2
    own_width = schedule_score().spread * (_NEVER_JUDGED if schedule.never_judged else 1.0)
    is_unseen, low, high = bool(plan.forecast.extrapolations), was.low, was.high
    weight = runs_width**2 / (runs_width**2 + own_width**2) if is_unseen else 0.0
    expected = (1 - weight) * was.expected + weight * schedule.total_s
    if is_unseen:
        # Both together know more than each; but not if they contradict each other.
        apart = abs(log(schedule.total_s / was.expected)) / hypot(runs_width, own_width)
        width = max(apart, 1.0) / hypot(1 / runs_width, 1 / own_width)
        low, high = expected / exp(width), expected * exp(width)
    work_s = schedule.total_s - schedule.exposed_s
    lines = _lines(plan, weight, schedule.total_s, work_s - expected)
    expected = max(expected, work_s)
    low = max(low, schedule.products_s + schedule.kernels_s, was.lower)
    step_s = replace(was, expected=expected, low=min(low, expected), high=max(high, expected))
    witnesses = (
        Witness(name="published runs", weight=1 - weight, expected_s=was.expected,
                low_s=was.low, high_s=was.high),
        Witness(name="the compiler", weight=weight, expected_s=schedule.total_s,
                low_s=schedule.total_s / exp(own_width), high_s=schedule.total_s * exp(own_width)),
    )  # fmt: skip
    made = with_expected(plan, step_s, lines)
    return replace(made, forecast=replace(made.forecast, witnesses=witnesses))


def _lines(
    plan: Plan, weight: float, scheduled_s: float, missing_s: float
) -> tuple[LedgerLine, ...]:
    """Return the lines of `expected`, which the schedule shares, and what its work is beyond it."""
    lines = list(plan.forecast.expected_time)
    if weight:
        lines = [
            replace(
                line,
                value=(1 - weight) * line.value,
                formula=f"runs * ({line.formula})",
                inputs={**line.inputs, "runs": 1 - weight},
            )
            for line in lines
        ]
        inputs = {"weight": weight, "scheduled": scheduled_s}
        value = weight * scheduled_s
        lines.append(_line("compiler's schedule", "weight * scheduled", value, inputs))
    if missing_s > 0:
        above = sum(line.value for line in lines)
        inputs = {"computed": above + missing_s, "above": above}
        name = "more work in the compiled program"
        lines.append(_line(name, "computed - above", missing_s, inputs))
    return tuple(sorted(lines, key=lambda line: -line.value))


def _line(name: str, formula: str, value: float, inputs: dict[str, float]) -> LedgerLine:
    return LedgerLine(
        kind="scheduled", name=name, value=value, unit="s", formula=formula, inputs=inputs,
        sources=(_SOURCE,),
    )  # fmt: skip


def with_expected(plan: Plan, step_s: Estimate, lines: tuple[LedgerLine, ...]) -> Plan:
    was = plan.forecast
    made = write_forecast(
        layout_of(plan, catalog.chip_of(plan)),
        Terms(plan.tokens, was.goodput.inputs, was.dollars_per_chip_hour),
        memory=was.memory,
        time=was.time,
        step_s=step_s,
        hidden_s=was.hidden_s,
        never_hidden_s=was.never_hidden_s,
        bottleneck=(was.bound, was.bound_by),
        expected_time=lines,
        extrapolated=was.extrapolations,
    )
    return replace(plan, forecast=replace(made, fits=was.fits))
