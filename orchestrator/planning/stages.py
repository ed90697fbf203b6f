"""A run in stages: a spec for each, and the plan of the whole from the plans of all."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.errors import SpecError
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.outlook import StagePart, change_s, over_stages
from orchestrator.planning.forecast import add, plus, typical
from orchestrator.planning.plan_warnings import interval_warnings, run_warnings
from orchestrator.values.plan import (
    Forecast,
    Plan,
    PlanWarning,
    StageSpan,
    experiment_digest,
    plan_digest,
)
from orchestrator.values.spec import Spec, TrainingStage


def stage_specs(spec: Spec) -> list[Spec]:
    """A spec for each stage: the same resources, and an experiment of its own."""
    return [_stage_spec(spec, stage) for stage in spec.experiment.stages]


def stage_spec(spec: Spec, number: int) -> Spec:
    """The stage with that number as a spec."""
    specs = stage_specs(spec)
    if not 1 <= number <= len(specs):
        known = f"stages 1 to {len(specs)}" if specs else "no stages"
        raise SpecError(f"stage {number}: {spec.name} has {known}")
    return specs[number - 1]


def explained_stage(spec: Spec, number: int | None) -> Spec:
    """A stage as a spec, with its number in its name: that with most tokens where none is given.
    A spec without stages is itself.
    """
    specs = stage_specs(spec)
    if number is None and not specs:
        return spec
    if number is None:
        most = max(range(len(specs)), key=lambda place: specs[place].experiment.tokens)
        number = most + 1
    return replace(stage_spec(spec, number), name=f"{spec.name}, stage {number} of {len(specs)}")


def _stage_spec(spec: Spec, stage: TrainingStage) -> Spec:
    experiment = replace(
        spec.experiment,
        tokens=stage.tokens,
        batch=stage.batch,
        optimizer=stage.optimizer,
        data=stage.data,
        remat=stage.remat or spec.experiment.remat,
        stages=(),
    )
    resources = replace(spec.resources, mesh=stage.mesh or spec.resources.mesh)
    run = replace(spec.run, steps=None)
    return replace(spec, experiment=experiment, resources=resources, run=run)


def whole_plan(spec: Spec, plans: Sequence[Plan]) -> Plan:
    """The plan of a run in stages, from one for each as if it ran alone."""
    return joined(spec, placed(spec, plans))


def placed(spec: Spec, plans: Sequence[Plan]) -> list[Plan]:
    """The plans of all stages with their places in the run."""
    spans = stage_spans(spec.experiment.stages, plans)
    identity = experiment_digest(spec.experiment)
    stages = [
        replace(plan, spec_digest=identity, stage=span, warnings=own_warnings(plan))
        for plan, span in zip(plans, spans, strict=True)
    ]
    return [replace(one, digest=plan_digest(one)) for one in stages]


def joined(spec: Spec, stages: Sequence[Plan]) -> Plan:
    """The plan of the whole run from those of its stages, each in its place."""
    whole = replace(
        stages[0],
        stage=None,
        stages=tuple(stages),
        tokens=sum(one.tokens for one in stages),
        run_steps=spec.run.steps,
        forecast=total_forecast(stages),
        warnings=(),
    )
    of_stages = [warning for one in stages for warning in one.warnings]
    of_run = (*interval_warnings(whole), *run_warnings(whole))
    warnings = (*clearest(of_stages), *of_run)
    return replace(whole, digest=plan_digest(whole), warnings=warnings)


def stage_spans(stages: Sequence[TrainingStage], plans: Sequence[Plan]) -> list[StageSpan]:
    """Where each stage lies in the run."""
    ends = [0]
    for plan in plans:
        ends.append(ends[-1] + plan.total_steps)
    begins = [n for n, stage in enumerate(stages) if n == 0 or stage.restarts_schedule]
    spans = []
    for n, plan in enumerate(plans):
        schedule = max(begin for begin in begins if begin <= n)
        after = min((begin for begin in begins if begin > n), default=len(plans))
        same = [one for one in plans[:n] if one.data.path == plan.data.path]
        spans.append(
            StageSpan(
                number=n + 1,
                of=len(plans),
                first_step=ends[n],
                steps=plan.total_steps,
                schedule_first_step=ends[schedule],
                schedule_steps=ends[after] - ends[schedule],
                first_token=sum(one.total_steps * one.batch.tokens for one in same),
            )
        )
    return spans


def total_forecast(stages: Sequence[Plan]) -> Forecast:
    """The forecast of the first stage, with the time and the money of all, and with what binds the
    longest.

    What is unknown about one stage is unknown about all: ends of intervals add up.
    """
    first, all_of = stages[0].forecast, [one.forecast for one in stages]
    longest = max(all_of, key=lambda one: one.days.likeliest)
    goodput = over_stages(
        [
            StagePart(goodput=one.goodput, steps_s=plan.total_steps * typical(one.step_s))
            for plan, one in zip(stages, all_of, strict=True)
        ]
    )
    changes_s = sum(change_s(one.goodput) for one in all_of[1:])
    chips = stages[0].chips * first.goodput.inputs.rented
    chip_hours = plus(add([one.chip_hours for one in all_of]), changes_s / HOUR_S * chips)
    price, paid = first.dollars_per_chip_hour, [one.dollars for one in all_of if one.dollars]
    dollars = None
    if price is not None and len(paid) == len(stages):
        dollars = plus(add(paid), changes_s / HOUR_S * chips * price)
    return replace(
        first,
        fits=all(one.fits for one in all_of),
        bound=longest.bound,
        bound_by=longest.bound_by,
        goodput=goodput,
        days=plus(add([one.days for one in all_of]), changes_s / DAY_S),
        chip_hours=chip_hours,
        dollars=dollars,
    )


def own_warnings(plan: Plan) -> tuple[PlanWarning, ...]:
    """The warnings of a stage that do not depend on how long the run is."""
    of_run = run_warnings(plan)
    return tuple(one for one in plan.warnings if one not in of_run)


def clearest(warnings: Sequence[PlanWarning]) -> list[PlanWarning]:
    """Each warning once, and an axis as far beyond as it gets. The interval between saves is one
    for all stages: the run itself has that warning.
    """
    kept: dict[object, PlanWarning] = {}
    for one in warnings:
        if one.code == "checkpoint_interval":
            continue
        key = said_once(one)
        if key not in kept or weight(one) > weight(kept[key]):
            kept[key] = one
    return list(kept.values())


def said_once(warning: PlanWarning) -> object:
    if warning.code == "extrapolation":
        return warning.code, warning.figures["axis"]
    return warning.code, tuple(warning.figures.items())


def weight(warning: PlanWarning) -> float:
    figures = warning.figures
    if warning.code == "extrapolation":
        value, low, high = (float(figures[key]) for key in ("value", "low", "high"))
        return value / high if value > high else low / value
    return 0.0
