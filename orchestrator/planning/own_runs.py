"""What own runs teach of a kind of chip: constants of `expected` that begin as the published ones
and are moved by the steps, and the lines of traces, that runs of one trainer measured.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import expm1, hypot, log, sqrt
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.published import Efficiency, LearnedConstant
from orchestrator.errors import SpecError
from orchestrator.planning import expected as pricing
from orchestrator.planning.plan_warnings import make_warning
from orchestrator.planning.step_work import StepWork, Transfers
from orchestrator.planning.time import busiest_line
from orchestrator.planning.witnesses import with_expected
from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.plan import LedgerLine, LineKind, Plan

OWN_SCHEMA = 1
# An own step, or a line of a trace, weighs as much as a prior that is as sure as this.
_ERROR = 0.03
# The constants, each with the line that has it and the name that it has there. Shares of a peak
# are learned as their inverses, in which the step is linear.
_CONSTANTS: dict[str, tuple[LineKind, str]] = {
    "matmul": ("matmul", "share"),
    "attention": ("attention", "share"),
    "exposed_gathers": ("exposed_gathers", "exposed"),
    "exposed_tensor": ("exposed_tensor", "exposed"),
    "slice_wait_s": ("slice_wait", "wait"),
    "slice_hop_s": ("slice_wait", "hop"),
    "row_move_s": ("row_moves", "move"),
}
_INVERSE = ("matmul", "attention")
_SHARES = (*_INVERSE, "exposed_gathers", "exposed_tensor")  # at most one


class OwnRun(Value):
    """An own run: what its step took, what `expected` said of it with published constants, and with
    those of the other own runs. `traced` has seconds of lines of `expected` that a trace shows.
    """

    run: str
    chips: int
    slices: int
    measured_s: float
    published_s: float
    own_s: float
    traced: dict[str, float]


class OwnConstants(Value):
    """Constants learned from own runs of a trainer on a kind of chip. Its digest is its name. Each
    has its published value as `was`; `spread` is as in the published constants.
    """

    schema: int = OWN_SCHEMA
    chip: str
    compute: str
    trainer: str
    runs: tuple[OwnRun, ...]
    constants: dict[str, LearnedConstant]
    was: dict[str, LearnedConstant]
    spread: float
    spread_was: float


Measured = tuple[str, Plan, float, dict[str, float]]  # run, plan, seconds of a step, and of lines


def learn(runs: Sequence[Measured]) -> OwnConstants:
    """Return what runs of one trainer on one kind of chip teach, each plan with its own work."""
    first = runs[0][1]
    published = _published(first)
    efficiency, spread = _fit(runs, published)
    rows = []
    for i, (run, plan, measured_s, traced) in enumerate(runs):
        others = [each for j, each in enumerate(runs) if j != i]
        known = _fit(others, published)[0] if others else published
        rows.append(
            OwnRun(
                run=run,
                chips=plan.chips,
                slices=plan.pods,
                measured_s=measured_s,
                published_s=_expected_s(plan, published),
                own_s=_expected_s(plan, known),
                traced=traced,
            )
        )
    return OwnConstants(
        chip=first.chip,
        compute=first.precision.compute,
        trainer=first.trainer,
        runs=tuple(rows),
        constants={name: replace(getattr(efficiency, name), rows=()) for name in _CONSTANTS},
        was={name: replace(getattr(published, name), rows=()) for name in _CONSTANTS},
        spread=spread,
        spread_was=_spread(first, published),
    )


def with_own_runs(plan: Plan, own: OwnConstants) -> Plan:
    """Return the plan with a forecast by constants of own runs, whose digest its warnings name."""
    wanted = own.chip, own.compute, own.trainer
    if wanted != (plan.chip, plan.precision.compute, plan.trainer):
        have = f"{own.chip} in {own.compute} with trainer {own.trainer}"
        raise SpecError(f"the own runs are of {have}: orch score --own lists what there is")
    if plan.stages or plan.forecast.step_s.expected is None:
        raise SpecError("own runs speak of plans of one stage that have an expected step")
    published, work, was = _published(plan), _work(plan), plan.forecast.step_s
    efficiency = _with(published, own.constants)
    expected = _expected_s(plan, efficiency)
    # The part of the interval that no published run shows stays as it is.
    scatter = hypot(expm1(own.spread_was), pricing.deviation(work, published))
    unseen = max((was.high or 0.0) / (was.expected or 1.0) - 1 - scatter, 0.0)
    factor = 1 + unseen + hypot(expm1(own.spread), pricing.deviation(work, efficiency))
    step_s = replace(
        was, expected=expected, low=max(expected / factor, was.lower), high=expected * factor
    )
    digest = codec.short(codec.digest(own))
    made = with_expected(plan, step_s, _lines(plan, efficiency, expected, digest))
    note = make_warning(
        "own_runs", runs=len(own.runs), chip=own.chip, trainer=own.trainer, digest=digest
    )
    forecast = replace(made.forecast, learned_from=None, own_runs=codec.digest(own))
    return replace(made, forecast=forecast, warnings=(*made.warnings, note))


def _published(plan: Plan) -> Efficiency:
    found = catalog.efficiency(plan.chip, plan.precision.compute)
    if found is None:
        raise SpecError(f"no run on {plan.chip} is published, so own runs have nothing to begin at")
    return found


def _with(efficiency: Efficiency, constants: dict[str, LearnedConstant]) -> Efficiency:
    changes: dict[str, Any] = {**constants}
    return replace(efficiency, **changes)


def _spread(plan: Plan, efficiency: Efficiency) -> float:
    return (efficiency.mixture_spread if plan.model.moe else efficiency.spread).value


def _inputs(plan: Plan) -> dict[str, LedgerLine]:
    return {line.kind: line for line in plan.forecast.expected_time}


def _work(plan: Plan) -> StepWork:
    """Return the work of a plan's step, from the inputs of its expected lines."""
    lines = _inputs(plan)

    def of(kind: LineKind, name: str) -> float:
        return lines[kind].inputs[name] if kind in lines else 0.0

    calls, slowest = of("slice_wait", "calls"), of("exposed_gathers", "slowest")
    # Expectations that the compiler's schedule has a part in are here without it.
    fixed = sum(
        lines[kind].value / lines[kind].inputs.get("runs", 1.0)
        for kind in ("elementwise", "offload")
        if kind in lines
    )
    return StepWork(
        matmul_s=of("matmul", "peak"),
        attention_s=of("attention", "peak"),
        hbm_s=of("weight_traffic", "peak"),
        passes_s=fixed,  # with what is left of transfers to the host
        row_moves=of("row_moves", "moves"),
        host=Transfers(0.0, (0.0, 0.0), (0.0, 0.0)),
        gathers_s=slowest,
        dcn_s=of("exposed_gathers", "links") - slowest,
        tensor_s=of("exposed_tensor", "links"),
        serial_s=of("serial_collectives", "links"),
        reductions=calls,
        reductions_by_layer=calls,
        slices=1 + of("slice_wait", "hops") / calls if calls else 1.0,
    )


def _expected_s(plan: Plan, efficiency: Efficiency) -> float:
    parts = pricing.step_parts(_work(plan), efficiency)
    return max(float(sum(parts.values())), plan.forecast.step_s.lower)


def _fit(runs: Sequence[Measured], published: Efficiency) -> tuple[Efficiency, float]:
    """Return the constants nearest to the published ones and to these runs, each weighted by how
    sure it is, and the spread of runs around them. The published spread counts as one run.
    """
    names = list(_CONSTANTS)
    prior = {name: getattr(published, name) for name in names}
    means = np.array([_unknown(name, prior[name].value) for name in names])
    unsure = np.array([max(prior[name].unsure, _ERROR) for name in names])
    rows, target, zero = list[list[float]](), list[float](), dict.fromkeys(names, 0.0)
    for _, plan, measured_s, traced in runs:
        parts = pricing.step_parts(_work(plan), published)
        work = {name: _coefficient(plan, name) for name in names}
        learned = sum(work[name] * mean for name, mean in zip(names, means, strict=True))
        given_s = float(sum(parts.values())) - learned
        found = [(work, measured_s - given_s, measured_s)]
        for name, (kind, _) in _CONSTANTS.items():
            if kind in traced and traced[kind] > 0:
                found.append((zero | {name: work[name]}, traced[kind], traced[kind]))
        for coefficients, seconds, scale_s in found:
            rows.append([coefficients[name] / (_ERROR * scale_s) for name in names])
            target.append(seconds / (_ERROR * scale_s))
    weights = np.diag(1 / (unsure * means))
    matrix = np.concatenate([np.array(rows), weights])
    wanted = np.concatenate([np.array(target), 1 / unsure])
    covariance = np.linalg.inv(matrix.T @ matrix)
    x = covariance @ matrix.T @ wanted
    constants = {}
    for name, value, variance in zip(names, x, np.diag(covariance), strict=True):
        known = _unknown(name, max(float(value), 1e-12))
        known = min(known, 1.0) if name in _SHARES else known
        constants[name] = LearnedConstant(value=known, unsure=sqrt(variance) / float(value))
    efficiency = _with(published, constants)
    spread = _spread(runs[0][1], published)
    squares = [log(s / _expected_s(plan, efficiency)) ** 2 for _, plan, s, _ in runs]
    squared = spread**2 + pricing.STANDARD_DEVIATIONS**2 * sum(squares)
    return efficiency, sqrt(squared / (1 + len(runs)))


def _unknown(name: str, value: float) -> float:
    return 1 / value if name in _INVERSE else value


def _coefficient(plan: Plan, name: str) -> float:
    kind, _ = _CONSTANTS[name]
    if (line := _inputs(plan).get(kind)) is None:
        return 0.0
    inputs = line.inputs
    if kind == "slice_wait":
        return inputs["calls" if name == "slice_wait_s" else "hops"] * inputs["skew"]
    return inputs["peak" if name in _INVERSE else "moves" if kind == "row_moves" else "links"]


def _lines(
    plan: Plan, efficiency: Efficiency, expected_s: float, digest: str
) -> tuple[LedgerLine, ...]:
    """Return the lines of `expected` with own constants in place of the published ones."""
    parts = pricing.step_parts(_work(plan), efficiency)
    made = []
    for line in plan.forecast.expected_time:
        own = {name: key for name, (kind, key) in _CONSTANTS.items() if kind == line.kind}
        value = float(parts[line.kind]) if own else line.value
        inputs = line.inputs | {key: getattr(efficiency, name).value for name, key in own.items()}
        sources = (f"own runs {digest}",) if own else line.sources
        if line.kind != "busiest_resource":
            made.append(replace(line, value=value, inputs=inputs, sources=sources))
    if expected_s - (above_s := sum(line.value for line in made)) > 1e-9 * expected_s:
        made.append(busiest_line(expected_s, above_s, pricing.SOURCE))
    return tuple(sorted(made, key=lambda line: -line.value))
