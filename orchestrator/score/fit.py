"""Learns the constants that bring the expected steps nearest to the measured ones.

The model is linear in its unknowns (the inverse of each efficiency, the exposed share, seconds).
Its relative errors are fitted by least squares with a robust loss, within physical bounds. Every
unknown has a prior, so few rows move it little; a chip's matmul efficiency has that of chips with a
matrix unit of the same size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log, sqrt

import numpy as np

from orchestrator import catalog
from orchestrator.catalog import Efficiency, LearnedConstant, Range
from orchestrator.extras import require
from orchestrator.plan.extrapolation import AXES
from orchestrator.plan.torus import Floats
from orchestrator.score.samples import Sample

FIT_ERROR = 0.05  # the relative error that weighs as much as one standard deviation of a prior
TINY = 1e-9
INTERVAL_SHARE = 0.80
UNKNOWN_SPREAD = log(2)  # if no other document is there to compare with
LEAST_SHARE = 0.01  # of a step; a row with less work of a kind does not inform its constant


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A number to learn: the mean and standard deviation of its prior, and its bounds."""

    name: str
    mean: float
    deviation: float
    least: float
    most: float


# Efficiencies are unknown as their inverses, which are at least one.
SHARED = (
    Unknown(name="attention", mean=2.0, deviation=2.0, least=1.0, most=10.0),
    Unknown(name="exposed_gathers", mean=0.25, deviation=0.1, least=0.0, most=1.0),
    Unknown(name="exposed_tensor", mean=0.5, deviation=0.1, least=0.0, most=1.0),
    Unknown(name="slice_wait_s", mean=0.005, deviation=0.005, least=0.0, most=1.0),
    Unknown(name="slice_hop_s", mean=0.001, deviation=0.001, least=0.0, most=1.0),
    Unknown(name="run_overhead_s", mean=0.05, deviation=0.05, least=0.0, most=1.0),
)
UNITS = (128, 256)  # edges of matrix units
MATMUL = Unknown(name="matmul", mean=1.35, deviation=0.5, least=1.0, most=10.0)
CHIP_DEVIATION = 0.08  # of a chip's matmul from that of its matrix unit


@dataclass(frozen=True)
class Constants:
    """What was learned, as rates and shares. A chip without rows has its matrix unit's rate."""

    matmul: dict[str, float]
    of_unit: dict[int, float]
    shared: dict[str, float]
    unsure: dict[str, float] = field(default_factory=dict)
    spread: float = 0.0
    ranges: dict[str, Range] = field(default_factory=dict)
    chips: dict[str, Range] = field(default_factory=dict)

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
            ranges=self.ranges | ({"chips": self.chips[chip]} if chip in self.chips else {}),
            **shared,
        )


def unit_of(chip: str) -> int:
    """The edge of a chip's matrix unit, as one of UNITS."""
    unit = catalog.chip(chip).matrix_unit
    assert unit is not None
    return min(UNITS, key=lambda known: abs(known - unit.value))


# --- one fit


def fit(samples: list[Sample]) -> Constants:
    """The constants of these rows, without a spread."""
    chips = sorted({sample.run.chip for sample in samples})
    unknowns = [*([MATMUL] * (len(UNITS) + len(chips))), *SHARED]
    rows, target = equations(samples, chips, len(unknowns))
    x = robust_least_squares(rows, target, *priors(chips, unknowns), unknowns)
    first = len(UNITS) + len(chips)
    shared = {one.name: float(x[first + i]) for i, one in enumerate(SHARED)}
    ranges, of_chips = reached(samples)
    return Constants(
        ranges=ranges,
        chips=of_chips,
        matmul={chip: 1 / float(x[len(UNITS) + i]) for i, chip in enumerate(chips)},
        of_unit={unit: 1 / float(x[i]) for i, unit in enumerate(UNITS)},
        shared=shared | {"attention": 1 / shared["attention"]},
    )


def reached(samples: list[Sample]) -> tuple[dict[str, Range], dict[str, Range]]:
    """The ranges of all rows by axis, and that of chips by kind of chip."""
    values = [sample.axis_values() for sample in samples]
    chips: dict[str, list[float]] = {s.run.chip: [] for s in samples}
    for sample, value in zip(samples, values, strict=True):
        chips[sample.run.chip].append(value["chips"])
    ranges = {axis: range_of([v[axis] for v in values]) for axis in AXES if axis != "chips"}
    return ranges, {chip: range_of(counts) for chip, counts in chips.items()}


def range_of(values: list[float]) -> Range:
    return Range(low=min(values), high=max(values))


def equations(samples: list[Sample], chips: list[str], width: int) -> tuple[Floats, Floats]:
    """A row for each sample: its work by unknown over its measured seconds, and what adds to 1."""
    rows, target = np.zeros((len(samples), width)), np.zeros(len(samples))
    for i, sample in enumerate(samples):
        todo = sample.todo
        rows[i, len(UNITS) + chips.index(sample.run.chip)] = todo.matmul_s
        gathers_s, overhead = todo.gathers_s + todo.dcn_s, float(sample.averages_run)
        shared = (
            todo.attention_s, gathers_s, todo.tensor_s, todo.reductions, todo.hops, overhead,
        )  # fmt: skip
        rows[i, len(UNITS) + len(chips) :] = shared
        rows[i] /= sample.measured_s
        target[i] = 1 - (todo.hbm_s + todo.passes_s + todo.serial_s) / sample.measured_s
    return rows, target


def priors(chips: list[str], unknowns: list[Unknown]) -> tuple[Floats, Floats]:
    """Equations that hold each unknown near its mean, and each chip near its matrix unit."""
    rows = np.diag([1 / one.deviation for one in unknowns])
    target = np.array([one.mean / one.deviation for one in unknowns])
    for i, chip in enumerate(chips, start=len(UNITS)):
        rows[i] = target[i] = 0.0
        rows[i, i], rows[i, UNITS.index(unit_of(chip))] = 1 / CHIP_DEVIATION, -1 / CHIP_DEVIATION
    return rows, target


def robust_least_squares(
    rows: Floats, target: Floats, prior: Floats, prior_target: Floats, unknowns: list[Unknown]
) -> Floats:
    """The solution within bounds. Samples have a soft L1 loss, priors the square."""
    require("score")
    from scipy.optimize import least_squares  # noqa: PLC0415  only learning needs it

    matrix = np.concatenate([rows / FIT_ERROR, prior])
    constant = np.concatenate([target / FIT_ERROR, prior_target])

    def loss(squares: Floats) -> Floats:
        """The loss and its first two derivatives, as scipy wants them."""
        values = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1 + squares[: len(rows)])
        values[:, : len(rows)] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return values

    solution = least_squares(
        lambda x: matrix @ x - constant,
        [one.mean for one in unknowns],
        jac=lambda _: matrix,
        bounds=([one.least for one in unknowns], [one.most for one in unknowns]),
        loss=loss,
        xtol=1e-12,
        ftol=1e-15,
        gtol=1e-12,
    )
    return np.asarray(solution.x)


# --- constants with their uncertainty, by holding documents out


Key = Callable[[Sample], str]


def by_group(sample: Sample) -> str:
    """One source and kind of chip."""
    return sample.run.group


def by_document(sample: Sample) -> str:
    """One document, such as a page with a table, and kind of chip."""
    return sample.run.document


def by_software(sample: Sample) -> str:
    """What the run's trainer was written with."""
    return sample.run.software.name


def held_out(samples: list[Sample], key: Key) -> list[tuple[list[Sample], list[Sample]]]:
    """For each key: the rows to learn from, and the rows held out."""
    return [
        ([s for s in samples if key(s) != name], [s for s in samples if key(s) == name])
        for name in sorted(set(map(key, samples)))
    ]


def learn(samples: list[Sample], key: Key = by_document) -> Constants:
    """The constants of these rows, how sure they are, and how far rows of other keys stray."""
    constants = fit(samples)
    folds = held_out(samples, key)
    if len(folds) < 2:
        return replace(constants, spread=UNKNOWN_SPREAD)
    without = [fit(train) for train, _ in folds]
    constants = replace(constants, unsure=jackknife(constants, without))
    strayed = [
        (unexplained(sample, fitted, constants), 1 / len(test))
        for fitted, (_, test) in zip(without, folds, strict=True)
        for sample in test
    ]
    return replace(constants, spread=spread(strayed, len(folds)))


def unexplained(sample: Sample, without: Constants, constants: Constants) -> float:
    """How far a row strays beyond the constants' own uncertainty, as the log of a factor."""
    chip = sample.run.chip
    strayed = log(sample.measured_s / sample.expected_s(without.efficiency(chip)))
    explained = sample.uncertainty(constants.efficiency(chip))
    return sqrt(max(strayed**2 - explained**2, 0.0))


def jackknife(constants: Constants, without: list[Constants]) -> dict[str, float]:
    """The standard deviation of each shared constant, over its value."""
    count = len(without)
    return {
        name: float(
            np.sqrt((count - 1) * np.var([one.shared[name] for one in without])) / max(value, TINY)
        )
        for name, value in constants.shared.items()
    }


def spread(strayed: list[tuple[float, float]], keys: int) -> float:
    """The factor within which 80 % of runs lie that are predicted from other keys, as a log.

    Every key weighs the same, however many rows it has: a table of one model on more and more
    slices is one experience. The next run has one more key, which n keys cover to (n + 1) / n.
    """
    return weighted_quantile(strayed, min(INTERVAL_SHARE * (1 + 1 / keys), 1.0))


def weighted_quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """The value below which that share of the weight lies, between the two values next to it."""
    values, weights = np.array(sorted(weighted)).T
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    return float(np.interp(share, middles, values))


def baseline(samples: list[Sample]) -> Callable[[Sample], float]:
    """A simple baseline: one MFU for each kind of chip, the median of its rows."""
    every = float(np.median([sample.mfu for sample in samples]))
    of_chip = {
        chip: float(np.median([s.mfu for s in samples if s.run.chip == chip]))
        for chip in {s.run.chip for s in samples}
    }

    def step_s(sample: Sample) -> float:
        return sample.measured_s * sample.mfu / of_chip.get(sample.run.chip, every)

    return step_s


def informative_rows(samples: list[Sample], constants: Constants) -> dict[str, tuple[str, ...]]:
    """The rows that each shared constant was learned from: those with such work in their step."""
    shared = constants.shared

    def rows(seconds: Callable[[Sample], float]) -> tuple[str, ...]:
        return tuple(s.run.id for s in samples if seconds(s) > LEAST_SHARE * s.measured_s)

    return {
        "attention": rows(lambda s: s.todo.attention_s / shared["attention"]),
        "exposed_gathers": rows(lambda s: s.todo.gathers_s + s.todo.dcn_s),
        "exposed_tensor": rows(lambda s: s.todo.tensor_s),
        "slice_wait_s": rows(lambda s: s.todo.reductions * shared["slice_wait_s"]),
        "slice_hop_s": rows(lambda s: s.todo.hops * shared["slice_hop_s"]),
        "run_overhead_s": rows(lambda s: s.averages_run * shared["run_overhead_s"]),
    }
