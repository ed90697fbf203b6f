"""A run in stages: a spec for each, and the plan of the whole from the plans of all."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.errors import SpecError
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.outlook import StagePart, change_s, over_stages
from orchestrator.planning.forecast import add, plus, typical
from orchestrator.planning.plan_warnings import interval_warnings, run_warnings
from orchestrator.values.plan import Plan, PlanWarning, StageSpan, experiment_digest, plan_digest
from orchestrator.values.spec import Spec, TrainingStage


def stage_specs(spec: Spec) -> list[Spec]:
    """Return a spec for each stage: the same resources, and an experiment of its own."""

    def stage_spec_of(stage: TrainingStage) -> Spec:
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

    return [stage_spec_of(stage) for stage in spec.experiment.stages]


def stage_spec(spec: Spec, number: int) -> Spec:
    """Return the stage with that number as a spec."""
    specs = stage_specs(spec)
    if not 1 <= number <= len(specs):
        known = f"stages 1 to {len(specs)}" if specs else "no stages"
        raise SpecError(f"stage {number}: {spec.name} has {known}")
    return specs[number - 1]


def explained_stage(spec: Spec, number: int | None) -> Spec:
    """Return a stage, that with most tokens by default, as a spec; a spec without any is itself."""
    specs = stage_specs(spec)
    if number is None and not specs:
        return spec
    if number is None:
        number = 1 + max(range(len(specs)), key=lambda place: specs[place].experiment.tokens)
    return replace(stage_spec(spec, number), name=f"{spec.name}, stage {number} of {len(specs)}")


def placed(spec: Spec, plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans of all stages with their places in the run, from plans of each by itself."""
    identity = experiment_digest(spec.experiment)
    placed_plans = []
    for plan, span in zip(plans, _stage_spans(spec.experiment.stages, plans), strict=True):
        # Warnings that depend on the length of the run belong to the whole run.
        of_run = run_warnings(plan)
        own = tuple(warning for warning in plan.warnings if warning not in of_run)
        stage = replace(plan, spec_digest=identity, stage=span, warnings=own)
        placed_plans.append(replace(stage, digest=plan_digest(stage)))
    return placed_plans


def joined(spec: Spec, stages: Sequence[Plan]) -> Plan:
    """Return the plan of the whole run from those of its stages, each in its place."""
    # The forecast of the first stage, with the time and the money of all, and with what binds the
    # longest. What is unknown about one stage is unknown about all: ends of intervals add up.
    forecasts = [stage.forecast for stage in stages]
    first, longest = forecasts[0], max(forecasts, key=lambda forecast: forecast.days.likeliest)
    goodput = over_stages(
        [
            StagePart(goodput=each.goodput, steps_s=stage.total_steps * typical(each.step_s))
            for stage, each in zip(stages, forecasts, strict=True)
        ]
    )
    changes_s = sum(change_s(forecast.goodput) for forecast in forecasts[1:])
    chips = stages[0].chips * first.goodput.inputs.rented
    price, paid = first.dollars_per_chip_hour, [each.dollars for each in forecasts if each.dollars]
    dollars = None
    if price is not None and len(paid) == len(stages):
        dollars = plus(add(paid), changes_s / HOUR_S * chips * price)
    whole = replace(
        stages[0],
        stage=None,
        stages=tuple(stages),
        tokens=sum(stage.tokens for stage in stages),
        run_steps=spec.run.steps,
        forecast=replace(
            first,
            fits=all(forecast.fits for forecast in forecasts),
            bound=longest.bound,
            bound_by=longest.bound_by,
            goodput=goodput,
            days=plus(add([forecast.days for forecast in forecasts]), changes_s / DAY_S),
            chip_hours=plus(
                add([forecast.chip_hours for forecast in forecasts]), changes_s / HOUR_S * chips
            ),
            dollars=dollars,
        ),
        warnings=(),
    )
    of_stages = [warning for stage in stages for warning in stage.warnings]
    # Each warning once, and an axis as far beyond as it gets. The interval between saves is one for
    # all stages: the run itself has that warning.
    clearest: dict[object, tuple[float, PlanWarning]] = {}
    for warning in of_stages:
        figures, beyond = warning.figures, 0.0
        key: object = (warning.code, tuple(figures.items()))
        if warning.code == "extrapolation":
            value, low, high = (float(figures[name]) for name in ("value", "low", "high"))
            key, beyond = figures["axis"], value / high if value > high else low / value
        if warning.code != "checkpoint_interval" and (
            key not in clearest or beyond > clearest[key][0]
        ):
            clearest[key] = (beyond, warning)
    warnings = (
        *[warning for _, warning in clearest.values()],
        *interval_warnings(whole),
        *run_warnings(whole),
    )
    return replace(whole, digest=plan_digest(whole), warnings=warnings)


def _stage_spans(stages: Sequence[TrainingStage], plans: Sequence[Plan]) -> list[StageSpan]:
    """Return where each stage lies in the run."""
    ends = [0]
    for plan in plans:
        ends.append(ends[-1] + plan.total_steps)
    begins = [n for n, stage in enumerate(stages) if n == 0 or stage.restarts_schedule]
    spans = []
    for n, plan in enumerate(plans):
        schedule = max(begin for begin in begins if begin <= n)
        after = min((begin for begin in begins if begin > n), default=len(plans))
        same_data = [other for other in plans[:n] if other.data.path == plan.data.path]
        spans.append(
            StageSpan(
                number=n + 1,
                of=len(plans),
                first_step=ends[n],
                steps=plan.total_steps,
                schedule_first_step=ends[schedule],
                schedule_steps=ends[after] - ends[schedule],
                first_token=sum(other.total_steps * other.batch.tokens for other in same_data),
            )
        )
    return spans
