"""Score room: the constants that make the expected step nearest to the measured one.

The model is linear in what is sought (the inverse of each efficiency, the exposed share, seconds),
so this is least squares on relative errors, made robust by weights that a row loses when it is far
off, and kept within what physics allows. Every constant has a guess and how far it may stray
unasked, so that few rows move it little; a kind of chip starts from the others whose matrix unit
has the same size. The same rows give the same constants to the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log, sqrt

import numpy as np

from orchestrator import catalog
from orchestrator.catalog import Efficiency, LearnedConstant
from orchestrator.plan.expected import doubt
from orchestrator.plan.torus import Floats
from orchestrator.score.samples import Sample

FIT_ERROR = 0.05  # relative error that weighs as much as straying by one guess
ROUNDS = 20
TINY = 1e-9
INTERVAL = 0.80
UNKNOWN_SPREAD = log(2)  # where no rows of another key can be held against
TRACE = 0.01  # a constant is learned from the rows in whose step its work is more than this


@dataclass(frozen=True, kw_only=True)
class Sought:
    """A number to learn: its guess, how far it strays unasked, and the least and most it can be."""

    name: str
    guess: float
    strays: float
    least: float
    most: float


# Efficiencies are sought as their inverses, which are at least one.
SHARED = (
    Sought(name="attention", guess=2.0, strays=2.0, least=1.0, most=10.0),
    Sought(name="exposed", guess=0.3, strays=0.3, least=0.0, most=1.0),
    Sought(name="slice_wait_s", guess=0.005, strays=0.005, least=0.0, most=1.0),
    Sought(name="slice_hop_s", guess=0.001, strays=0.001, least=0.0, most=1.0),
    Sought(name="between_steps_s", guess=0.05, strays=0.05, least=0.0, most=1.0),
)
UNITS = (128, 256)
OF_A_UNIT = Sought(name="matmul", guess=1.35, strays=0.5, least=1.0, most=10.0)
CHIP_STRAYS = 0.08  # from the mean of its matrix unit's size


@dataclass(frozen=True)
class Constants:
    """What was learned, as rates and shares; chips that no row is of have their unit's mean."""

    matmul: dict[str, float]
    of_unit: dict[int, float]
    shared: dict[str, float]
    unsure: dict[str, float] = field(default_factory=dict)
    spread: float = 0.0

    def efficiency(self, chip: str) -> Efficiency:
        """As plans use it."""
        matmul = self.matmul.get(chip, self.of_unit[unit_of(chip)])
        shared = {
            name: LearnedConstant(value=value, unsure=self.unsure.get(name, 0.0))
            for name, value in self.shared.items()
        }
        return Efficiency(
            matmul=LearnedConstant(value=matmul),
            spread=LearnedConstant(value=self.spread),
            **shared,
        )


def unit_of(chip: str) -> int:
    """The edge of a chip's matrix unit, as one of UNITS."""
    unit = catalog.chip(chip).matrix_unit
    assert unit is not None
    return min(UNITS, key=lambda known: abs(known - unit.value))


def fit(samples: list[Sample]) -> Constants:
    """The constants of these rows, without a spread."""
    chips = sorted({sample.run.chip for sample in samples})
    sought = [*([OF_A_UNIT] * len(UNITS)), *([OF_A_UNIT] * len(chips)), *SHARED]
    rows, known = equations(samples, chips, len(sought))
    x = bounded(rows, known, *guesses(chips, sought), sought)
    first = len(UNITS) + len(chips)
    shared = {one.name: float(x[first + i]) for i, one in enumerate(SHARED)}
    return Constants(
        matmul={chip: 1 / float(x[len(UNITS) + i]) for i, chip in enumerate(chips)},
        of_unit={unit: 1 / float(x[i]) for i, unit in enumerate(UNITS)},
        shared=shared | {"attention": 1 / shared["attention"]},
    )


def equations(samples: list[Sample], chips: list[str], width: int) -> tuple[Floats, Floats]:
    """A row each: seconds by what they are sought for, over the measured; and what is left to 1."""
    rows, known = np.zeros((len(samples), width)), np.zeros(len(samples))
    for i, sample in enumerate(samples):
        todo = sample.todo
        rows[i, len(UNITS) + chips.index(sample.run.chip)] = todo.matmul_s
        shared = (todo.attention_s, todo.links_s, todo.reductions, todo.hops, 1.0)
        rows[i, len(UNITS) + len(chips) :] = shared
        rows[i] /= sample.measured_s
        known[i] = 1 - (todo.hbm_s + todo.passes_s) / sample.measured_s
    return rows, known


def guesses(chips: list[str], sought: list[Sought]) -> tuple[Floats, Floats]:
    """The same in rows of their own: each unknown near its guess, each chip near its unit."""
    rows, known = np.diag([1 / one.strays for one in sought]), np.zeros(len(sought))
    known[:] = [one.guess / one.strays for one in sought]
    for i, chip in enumerate(chips, start=len(UNITS)):
        rows[i] = known[i] = 0.0
        rows[i, i], rows[i, UNITS.index(unit_of(chip))] = 1 / CHIP_STRAYS, -1 / CHIP_STRAYS
    return rows, known


def bounded(
    rows: Floats, known: Floats, near: Floats, near_known: Floats, sought: list[Sought]
) -> Floats:
    """Least squares within bounds; a row's weight falls with its own error."""
    weights = np.ones(len(rows))
    x = np.array([one.guess for one in sought])
    for _ in range(ROUNDS):
        scale = np.sqrt(weights) / FIT_ERROR
        matrix = np.concatenate([rows * scale[:, None], near])
        x = within(matrix, np.concatenate([known * scale, near_known]), sought)
        errors = (rows @ x - known) / FIT_ERROR
        weights = 1 / np.sqrt(1 + errors**2)
    return x


def within(matrix: Floats, target: Floats, sought: list[Sought]) -> Floats:
    """The solution with what exceeds its bounds held at them, one after another."""
    least, most = (np.array([getattr(s, end) for s in sought]) for end in ("least", "most"))
    x, free = np.zeros(len(sought)), np.ones(len(sought), bool)
    while free.any():
        rest = target - matrix[:, ~free] @ x[~free]
        x[free] = np.linalg.lstsq(matrix[:, free], rest, rcond=None)[0]
        over = np.where(free, np.maximum(least - x, x - most), 0.0)
        if over.max() <= 0:
            break
        worst = int(over.argmax())
        x[worst] = np.clip(x[worst], least[worst], most[worst])
        free[worst] = False
    return x


Key = Callable[[Sample], str]


def by_group(sample: Sample) -> str:
    """One source and kind of chip."""
    return sample.run.group


def by_document(sample: Sample) -> str:
    """One document, such as a page with a table, and kind of chip."""
    return sample.run.document


def left_out(samples: list[Sample], key: Key) -> list[tuple[list[Sample], list[Sample]]]:
    """Every way to leave out what shares a key: the rows to learn on, the rows left out."""
    return [
        ([s for s in samples if key(s) != name], [s for s in samples if key(s) == name])
        for name in sorted(set(map(key, samples)))
    ]


def learn(samples: list[Sample], key: Key = by_document) -> Constants:
    """The constants of these rows, how sure they are, and how far rows of other keys stray."""
    found = fit(samples)
    divided = left_out(samples, key)
    if len(divided) < 2:
        return replace(found, spread=UNKNOWN_SPREAD)
    without = [fit(learned_on) for learned_on, _ in divided]
    found = replace(found, unsure=jackknife(found, without))
    strayed = [
        (beyond(sample, constants, found), 1 / len(others))
        for constants, (_, others) in zip(without, divided, strict=True)
        for sample in others
    ]
    return replace(found, spread=spread(strayed, len(divided)))


def beyond(sample: Sample, without: Constants, found: Constants) -> float:
    """By how much a row strays, as the log of a factor, beyond what doubt in constants explains."""
    chip = sample.run.chip
    strayed = log(sample.measured_s / sample.expected_s(without.efficiency(chip)))
    known = found.efficiency(chip)
    explained = doubt(sample.todo, known)
    return sqrt(max(strayed**2 - explained**2, 0.0))


def jackknife(found: Constants, without: list[Constants]) -> dict[str, float]:
    """The standard deviation of each shared constant, from leaving keys out, over its value."""
    count = len(without)
    return {
        name: float(
            np.sqrt((count - 1) * np.var([one.shared[name] for one in without])) / max(value, TINY)
        )
        for name, value in found.shared.items()
    }


def spread(strayed: list[tuple[float, float]], keys: int) -> float:
    """The factor within which 80 % of runs are, each predicted by rows of other keys, as a log.

    Every key weighs the same, however many rows it has: a table of one model on ever more slices
    is one experience, not twelve. The next run is one more key, of which n leave (n + 1) / n.
    """
    return weighted_quantile(strayed, min(INTERVAL * (1 + 1 / keys), 1.0))


def weighted_quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """The value below which that share of the weight lies, between the two values next to it."""
    values, weights = np.array(sorted(weighted)).T
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    return float(np.interp(share, middles, values))


def baseline(samples: list[Sample]) -> Callable[[Sample], float]:
    """The dumbest honest model: one MFU for each kind of chip, the median of its rows."""
    every = float(np.median([sample.mfu for sample in samples]))
    of_chip = {
        chip: float(np.median([s.mfu for s in samples if s.run.chip == chip]))
        for chip in {s.run.chip for s in samples}
    }

    def step_s(sample: Sample) -> float:
        return sample.measured_s * sample.mfu / of_chip.get(sample.run.chip, every)

    return step_s


def traced(samples: list[Sample], constants: Constants) -> dict[str, tuple[str, ...]]:
    """The rows that each shared constant was learned from: those in which its work is seen."""
    shared = constants.shared

    def seen(seconds: Callable[[Sample], float]) -> tuple[str, ...]:
        return tuple(s.run.id for s in samples if seconds(s) > TRACE * s.measured_s)

    return {
        "attention": seen(lambda s: s.todo.attention_s / shared["attention"]),
        "exposed": seen(lambda s: s.todo.links_s),
        "slice_wait_s": seen(lambda s: s.todo.reductions * shared["slice_wait_s"]),
        "slice_hop_s": seen(lambda s: s.todo.hops * shared["slice_hop_s"]),
        "between_steps_s": seen(lambda _: shared["between_steps_s"]),
    }
