"""What the screens of all studies share: names of keys, lines of trials, their warnings."""

from collections.abc import Iterable

from orchestrator.formatting import counted
from orchestrator.planning.plan_warnings import warning_texts
from orchestrator.show.parts import Part, fit, warning
from orchestrator.values.study import ScalingForecast, Study, SweepForecast, Trial

StudyForecast = ScalingForecast | SweepForecast


def study_intro(study: Study) -> str:
    runs = counted(len(study.trials) * study.repeats, "run")
    return fit(
        f"{study.name}: a rehearsal of {runs}. No cluster is configured, so this machine runs small"
        " copies, one after another; no chip is reserved.\n"
    )


def trial_line(study: Study, trial: Trial, repeat: int) -> str:
    repeats = f" (repeat {repeat} of {study.repeats})" if study.repeats > 1 else ""
    settings = " ".join(f"{key}={text}" for key, text in trial.settings.items())
    return fit(f"trial {trial.number} of {len(study.trials)}{repeats}: {settings}\n")


def key_title(key: str, keys: Iterable[str]) -> str:
    """Return the last part of a key, or the whole key where two end alike."""
    last = key.rpartition(".")[2]
    alike = sum(one.rpartition(".")[2] == last for one in keys) > 1
    return (key if alike else last).upper()


def refusals(forecast: StudyForecast) -> list[Part]:
    """Return why trials have no plan; trials with the same reason share a warning."""
    reasons = ((one.number, one.infeasible) for one in forecast.trials if one.infeasible)
    return [
        warning(f"no plan for trial {', '.join(numbers)}: {why}")
        for why, numbers in grouped(reasons).items()
    ]


def warnings(forecast: StudyForecast) -> list[Part]:
    """Return the warnings of the plans; those of all plans name no trial."""
    planned = [(one.number, one.planned) for one in forecast.trials if one.planned]
    texts = (
        (number, text)
        for number, plan in planned
        for text in warning_texts(plan.warnings, values=False)
    )
    return [
        warning(
            text
            if len(numbers) == len(planned)
            else f"{'trial' if len(numbers) == 1 else 'trials'} {', '.join(numbers)}: {text}"
        )
        for text, numbers in grouped(texts).items()
    ]


def grouped(texts: Iterable[tuple[int, str]]) -> dict[str, list[str]]:
    """Return each text with the numbers of its trials."""
    numbers: dict[str, list[str]] = {}
    for number, text in texts:
        numbers.setdefault(text, []).append(str(number))
    return numbers


def loss_text(loss: float) -> str:
    return f"{loss:#.4g}"
