"""The goodput of a plan, worked out from failures and saves as docs/goodput.md has it."""

from orchestrator.explain.formula import Formula, Worksheet
from orchestrator.goodput.inputs import SPEC
from orchestrator.types.explanation import DerivationSection, Input
from orchestrator.types.goodput import EvaluationCost, GoodputForecast
from orchestrator.types.plan import Plan

TITLE = "Goodput: the share of time that trains"
FORMULAS = (
    Formula("seconds between failures", "M", "86400 / failures", "s"),
    Formula("a recovery", "R", "detection + waiting + restart + restore", "s"),
    Formula("steps wait for a save", "w", "blocking + max(write - every, 0)", "s"),
    Formula("Young's interval", "young", "sqrt(2 * w * M)", "s"),
    Formula(
        "share of time in steps",
        "stepping",
        "every / M * exp(0 - (R + write) / M) / (exp((every + w) / M) - 1)",
        "",
    ),
    Formula("share of time in recoveries", "recovering", "1 - exp(0 - R / M)", ""),
    Formula("share of time in saves", "saving", "stepping * w / every", ""),
    Formula("goodput", "goodput", "stepping * (1 - missing)", ""),
)
WITH_EVALUATION = (
    *FORMULAS[:-1],
    Formula(
        "share of steps and evaluations in steps",
        "training",
        "every_steps / (every_steps + as_steps)",
        "",
    ),
    Formula("goodput", "goodput", "stepping * training * (1 - missing)", ""),
)


def goodput_section(plan: Plan) -> DerivationSection | None:
    """The derivation; None where the spec states the goodput, or nothing fails."""
    forecast = plan.forecast.goodput
    if forecast.stated or forecast.seconds_between_failures is None:
        return None
    formulas = WITH_EVALUATION if forecast.inputs.evaluation else FORMULAS
    return Worksheet(goodput_inputs(forecast)).section(TITLE, formulas)


def goodput_inputs(forecast: GoodputForecast) -> tuple[Input, ...]:
    """The symbols of the formulas, with the first source of each."""
    inputs, save = forecast.inputs, forecast.inputs.save
    rows = (
        ("failures", inputs.failures_per_day.value, "a day", "failures_per_day"),
        ("detection", inputs.detection_s.value, "seconds", "detection_s"),
        ("waiting", inputs.waiting_s.value, "seconds for a slice", "waiting_s"),
        ("restart", inputs.restart_s.value, "seconds", "restart_s"),
        ("restore", inputs.restore_s.value, "seconds", "storage_bytes_per_s"),
        ("blocking", save.blocking_s.value, "seconds", ""),
        ("write", save.write_s.value, "seconds", "storage_bytes_per_s"),
        ("every", forecast.every_s, "seconds between saves", ""),
        ("missing", inputs.missing_pods.value, "share of pods", "waiting_s"),
        *evaluation_rows(inputs.evaluation),
    )
    return tuple(
        Input(symbol=symbol, value=value, meaning=meaning, source=source_of(forecast, key))
        for symbol, value, meaning, key in rows
    )


def evaluation_rows(cost: EvaluationCost | None) -> tuple[tuple[str, float, str, str], ...]:
    if cost is None:
        return ()
    return (
        ("every_steps", cost.every_steps, "steps between evaluations", ""),
        ("as_steps", cost.in_steps, "steps that would take as long as an evaluation", ""),
    )


def source_of(forecast: GoodputForecast, key: str) -> str | None:
    """A key of the catalog; None for what the spec says."""
    return next((one for one in forecast.inputs.sources.get(key, ()) if one != SPEC), None)
