"""a study as tables: its predicted scaling."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.render.formatting import count, dollars, percent, seconds, span
from orchestrator.render.layout import fit, indent, page, tabulated
from orchestrator.types.plan import Estimate
from orchestrator.types.study import PlannedTrial, Study, StudyForecast, Trial, TrialForecast

SCALINGS = {
    "strong": "strong scaling: every trial has the same batch",
    "weak": "weak scaling: the batch grows with the pods",
}


def study_screen(found: StudyForecast, next_command: str = "") -> str:
    """Every trial in a row: what it takes, what that is worth beside the smallest, what binds."""
    count_ = len(found.trials)
    trials = f"{count_} trial{'s' * (count_ != 1)}"
    rows = [head(found), *(row(found, one) for one in found.trials)]
    blocks = [
        [f"{found.name}: {trials}, {SCALINGS[found.scaling]}"],
        tabulated(rows, alignment(found)),
        indent(legend(found)),
        [*refusals(found), *warnings(found)],
        [verdict(found), *([f"Next: {next_command}"] if next_command else [])],
    ]
    return page(blocks)


def study_intro(study: Study) -> str:
    """What comes before everything else, where the trials are rehearsed."""
    runs = len(study.trials) * study.repeats
    return fit(
        f"{study.name}: a rehearsal of {runs} run{'s' * (runs != 1)}. No cluster is named, so this"
        " machine runs small copies, one after another; no chip is asked for.\n"
    )


def trial_line(study: Study, trial: Trial, repeat: int) -> str:
    """Which run comes now."""
    of = f" (repeat {repeat} of {study.repeats})" if study.repeats > 1 else ""
    settings = " ".join(f"{key}={text}" for key, text in trial.settings.items())
    return fit(f"trial {trial.number} of {len(study.trials)}{of}: {settings}\n")


def head(found: StudyForecast) -> tuple[str, ...]:
    names = tuple(title(key, found.vary) for key in found.vary)
    return ("", *names, "CHIPS", "BATCH", "STEP", "MFU", "EFFICIENCY", "BINDS", "DOLLARS")


def title(key: str, keys: Iterable[str]) -> str:
    """The last part of a key, and more of it where two end alike."""
    last = key.rpartition(".")[2]
    alike = sum(one.rpartition(".")[2] == last for one in keys) > 1
    return (key if alike else last).upper()


def alignment(found: StudyForecast) -> str:
    return ">" + ">" * len(found.vary) + ">>>>><>"


def row(found: StudyForecast, trial: TrialForecast) -> tuple[str, ...]:
    start = (str(trial.number), *(trial.settings[key] for key in found.vary))
    if trial.planned is None:
        return (*start, "-", "-", "-", "-", "-", "no plan", "-")
    return (*start, *cells(trial.planned))


def cells(plan: PlannedTrial) -> tuple[str, ...]:
    money = both(plan.dollars, dollars) if plan.dollars else "-"
    mfu = Estimate(
        lower=plan.mfu.lower, unoverlapped=plan.mfu.unoverlapped, expected=plan.mfu.expected
    )
    return (
        count(plan.chips),
        count(plan.sequences),
        both(plan.step_s, seconds),
        both(mfu, percent),
        both(plan.efficiency, percent),
        plan.bound,
        money,
    )


def both(bounds: Estimate, show: Callable[[float], str]) -> str:
    """What is expected; where no run was learned from, from the bound to nothing overlapped."""
    if bounds.expected is not None:
        return show(bounds.expected)
    return span(show(bounds.lower), show(bounds.unoverlapped))


def legend(found: StudyForecast) -> list[str]:
    """What the columns are."""
    known = [one.planned.step_s.expected is not None for one in found.trials if one.planned]
    what = "What is expected" if all(known) else "From the lower bound to nothing overlapped"
    return [
        f"{what}. Efficiency is tokens per second and chip",
        "over those of the smallest trial.",
    ]


def refusals(found: StudyForecast) -> list[str]:
    """Why trials have no plan; trials that are refused alike are told together."""
    reasons = ((one.number, one.infeasible) for one in found.trials if one.infeasible)
    return [f"warning: no plan for trial {numbers}: {why}" for why, numbers in alike(reasons)]


def warnings(found: StudyForecast) -> list[str]:
    """What the plans warn of; trials that warn alike are told together, or not at all where all
    do.
    """
    planned = [(one.number, one.planned) for one in found.trials if one.planned]
    said = ((number, text) for number, plan in planned for text in plan.warnings)
    every = ", ".join(str(number) for number, _ in planned)
    return [
        f"warning: {text}" if numbers == every else f"warning: trial {numbers}: {text}"
        for text, numbers in alike(said)
    ]


def alike(said: Iterable[tuple[int, str]]) -> list[tuple[str, str]]:
    """Each sentence with the numbers of its trials."""
    numbers: dict[str, list[str]] = {}
    for number, text in said:
        numbers.setdefault(text, []).append(str(number))
    return [(text, ", ".join(of)) for text, of in numbers.items()]


@dataclass(frozen=True)
class Kept:
    """The efficiency of a trial: where it stands among others, and as it is shown."""

    chips: int
    fraction: float
    shown: str
    series: Mapping[str, str]


def verdict(found: StudyForecast) -> str:
    """The largest trial that has a plan, beside the smallest."""
    planned = [(one, one.planned) for one in found.trials if one.planned]
    missing = len(found.trials) - len(planned)
    parts = [f"{missing} of {len(found.trials)} trials cannot be served"] if missing else []
    if planned:
        kept = [
            Kept(plan.chips, kept_at(plan.efficiency), both(plan.efficiency, percent), one.series)
            for one, plan in planned
        ]
        parts.append(scaling_efficiency(kept, found.vary, "chips"))
    return f"Study: {', '.join(parts)}."


def kept_at(efficiency: Estimate) -> float:
    return efficiency.lower if efficiency.expected is None else efficiency.expected


def scaling_efficiency(found: Sequence[Kept], vary: Sequence[str], what: str) -> str:
    """That of the largest trial; of several series, that which keeps least and that which keeps
    most.
    """
    largest: dict[str, Kept] = {}
    for one in found:
        name = ", ".join(f"{title(key, vary).lower()} {one.series[key]}" for key in one.series)
        if name not in largest or one.chips > largest[name].chips:
            largest[name] = one
    said = {name: f"{one.shown} on {count(one.chips)} {what}" for name, one in largest.items()}
    if len(said) == 1:
        return f"scaling efficiency is {next(iter(said.values()))}"
    least, *_, most = sorted(largest, key=lambda name: largest[name].fraction)
    ends = (f"{said[name]} ({name})" for name in (least, most))
    return f"scaling efficiency is between {' and '.join(ends)}"
