"""Learns the constants that bring the expected steps nearest to the measured ones.

The model is linear in its unknowns (the inverse of each efficiency, the exposed share, seconds).
Its relative errors are fitted by least squares with a robust loss, within physical bounds. Every
unknown has a prior, so few rows move it little; a chip's matmul efficiency has that of chips with a
matrix unit of the same size.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.published import OTHER, REFERENCE, Efficiency, LearnedConstant, Range
from orchestrator.evidence.score.samples import IN_PIECES, Sample, flash_cost
from orchestrator.planning.expected import AXES, skew_share
from orchestrator.planning.step_work import FORWARD_AND_BACKWARD, StepWork
from orchestrator.planning.torus import Floats
from orchestrator.plugins import require

# The relative error that weighs as much as one standard deviation of a prior. Runs of other
# software stray two to three times as far, for reasons that the ledger does not have.
FIT_ERROR, OTHERS_FIT_ERROR = 0.05, 0.15


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A number to learn: the mean and standard deviation of its prior, and its bounds."""

    name: str
    mean: float
    deviation: float
    least: float
    most: float


# Efficiencies are unknown as their inverses, which are at least one.
ATTENTION = Unknown(name="attention", mean=2.0, deviation=2.0, least=1.0, most=10.0)
FLASH = Unknown(name="flash_attention", mean=3.6, deviation=4.0, least=1.0, most=20.0)
SHARED = (
    ATTENTION,
    FLASH,
    Unknown(name="exposed_gathers", mean=0.25, deviation=0.1, least=0.0, most=1.0),
    Unknown(name="exposed_tensor", mean=0.5, deviation=0.1, least=0.0, most=1.0),
    Unknown(name="slice_wait_s", mean=0.005, deviation=0.005, least=0.0, most=1.0),
    Unknown(name="slice_hop_s", mean=0.001, deviation=0.001, least=0.0, most=1.0),
    Unknown(name="run_overhead_s", mean=0.05, deviation=0.05, least=0.0, most=1.0),
    # Large runs publish that they compute for 93 to 97 % of their time.
    Unknown(name="run_share", mean=0.05, deviation=0.03, least=0.0, most=0.5),
)
INVERSE = frozenset({"attention", "flash_attention"})
# Two pages time one model with both kernels; there the older one takes 1.6 and 2.4 times as long.
FLASH_OVER_SPLASH, FLASH_DEVIATION = 1.8, 0.5
# Other software is as far from the reference as its runs say, and each stays near their mean.
OTHERS = Unknown(name=OTHER, mean=0.04, deviation=0.04, least=0.0, most=0.5)
DEVIATION = Unknown(name="deviation", mean=0.0, deviation=0.06, least=-0.3, most=0.3)
OF_COLLECTIVES = frozenset(
    {"microbatches", "data", "fsdp_dcn", "sequence", "tensor", "links_share"}
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
    software: dict[str, float] = field(default_factory=dict)
    unsure: dict[str, float] = field(default_factory=dict)
    spread: float = 0.0
    reference_spread: float = 0.0
    ranges: dict[str, Range] = field(default_factory=dict)
    chips: dict[str, Range] = field(default_factory=dict)

    def efficiency(self, chip: str) -> Efficiency:
        """As plans use it."""
        matmul = self.matmul.get(chip, self.of_unit[unit_of(chip)])
        shared = {
            name: LearnedConstant(value=value, unsure=self.unsure.get(name, 0.0))
            for name, value in self.shared.items()
        }
        software = {name: LearnedConstant(value=value) for name, value in self.software.items()}
        return Efficiency(
            matmul=LearnedConstant(value=matmul),
            spread=LearnedConstant(value=self.spread),
            reference_spread=LearnedConstant(value=self.reference_spread),
            software=software,
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
    unknowns = unknowns_of(samples)
    rows, target = equations(samples, list(unknowns))
    x = robust_least_squares(rows, target, *priors(unknowns), list(unknowns.values()))
    found = {name: float(value) for name, value in zip(unknowns, x, strict=True)}
    ranges, of_chips = reached(samples)
    mean = found.get(OTHER, 0.0)
    return Constants(
        ranges=ranges,
        chips=of_chips,
        matmul={chip: 1 / found[f"matmul.{chip}"] for chip in chips_of(samples)},
        of_unit={unit: 1 / found[f"unit.{unit}"] for unit in UNITS},
        shared={
            one.name: 1 / found[one.name] if one.name in INVERSE else found[one.name]
            for one in SHARED
        },
        software={REFERENCE: 0.0, OTHER: mean}
        | {name: mean + found[f"software.{name}"] for name in software_of(samples)},
    )


def chips_of(samples: list[Sample]) -> list[str]:
    return sorted({sample.run.chip for sample in samples})


def software_of(samples: list[Sample]) -> list[str]:
    """The software with runs, without the reference."""
    return sorted({sample.run.software.name for sample in samples} - {REFERENCE})


def others_of(samples: list[Sample]) -> list[Unknown]:
    """How far other software is from the reference; unknown where the reference has no runs."""
    return [OTHERS] if any(map(is_reference, samples)) else []


def unknowns_of(samples: list[Sample]) -> dict[str, Unknown]:
    """All that is learned, by name; the same in every column."""
    return {
        **{f"unit.{unit}": MATMUL for unit in UNITS},
        **{f"matmul.{chip}": MATMUL for chip in chips_of(samples)},
        **{one.name: one for one in (*SHARED, *others_of(samples))},
        **{f"software.{name}": DEVIATION for name in software_of(samples)},
    }


def reached(samples: list[Sample]) -> tuple[dict[str, Range], dict[str, Range]]:
    """The ranges of all rows by axis, and that of chips by kind of chip.

    How well collectives hide is the software's own, so these axes are those of the reference.
    """
    values = [sample.axis_values() for sample in samples]
    own = [sample.axis_values() for sample in samples if is_reference(sample)] or values
    chips: dict[str, list[float]] = {s.run.chip: [] for s in samples}
    for sample, value in zip(samples, values, strict=True):
        chips[sample.run.chip].append(value["chips"])
    ranges = {
        axis: range_of([value[axis] for value in (own if axis in OF_COLLECTIVES else values)])
        for axis in AXES
        if axis != "chips"
    }
    return ranges, {chip: range_of(counts) for chip, counts in chips.items()}


def range_of(values: list[float]) -> Range:
    return Range(low=min(values), high=max(values))


def equations(samples: list[Sample], names: list[str]) -> tuple[Floats, Floats]:
    """A row for each sample: its work by unknown and the rest of its time, over its error."""
    rows, target = np.zeros((len(samples), len(names))), np.zeros(len(samples))
    for i, sample in enumerate(samples):
        error = FIT_ERROR if is_reference(sample) else OTHERS_FIT_ERROR
        weight = 1 / (error * sample.measured_s)
        for name, seconds in seconds_of(sample).items():
            if name in names:
                rows[i, names.index(name)] = seconds * weight
        target[i] = (sample.measured_s - given_s(sample)) * weight
    return rows, target


def is_reference(sample: Sample) -> bool:
    return sample.run.software.name == REFERENCE


def seconds_of(sample: Sample) -> dict[str, float]:
    """What each unknown multiplies."""
    run, todo = sample.run, sample.todo
    flash, averages_run = run.software.kernel == "flash", float(sample.averages_run)
    waited = skew_share(todo, own_s(todo))
    seconds: dict[str, Any] = {
        f"matmul.{run.chip}": todo.matmul_s,
        "attention": 0.0 if flash else todo.attention_s,
        "flash_attention": todo.attention_s * flash_cost(run) if flash else 0.0,
        "exposed_gathers": todo.gathers_s + todo.dcn_s,
        "exposed_tensor": todo.tensor_s if run.software.name in IN_PIECES else 0.0,
        "slice_wait_s": todo.reductions * waited,
        "slice_hop_s": todo.hops * waited,
        "run_overhead_s": averages_run,
        "run_share": averages_run * sample.measured_s,
    }
    if not is_reference(sample):
        seconds |= {OTHER: sample.measured_s, f"software.{run.software.name}": sample.measured_s}
    return {name: float(value) for name, value in seconds.items()}


def given_s(sample: Sample) -> float:
    """Seconds in which nothing is unknown."""
    todo = sample.todo
    whole = 0.0 if sample.run.software.name in IN_PIECES else todo.tensor_s
    host_s = todo.host.exposed_s(*pace(todo))
    return float(todo.hbm_s + todo.passes_s + todo.serial_s + whole + host_s)


def own_s(todo: StepWork) -> float:
    """The device's own work by the priors; the constants themselves are not known yet."""
    compute_s = todo.matmul_s * MATMUL.mean + todo.attention_s * ATTENTION.mean
    return float(compute_s + todo.hbm_s + todo.passes_s)


def pace(todo: StepWork) -> tuple[float, float, float]:
    """How fast passes are, likewise."""
    return 1 / MATMUL.mean, 1 / ATTENTION.mean, float(todo.passes_s) / FORWARD_AND_BACKWARD


def priors(unknowns: dict[str, Unknown]) -> tuple[Floats, Floats]:
    """Equations that hold each unknown near its mean, each chip near its matrix unit, and the older
    kernel near a multiple of the newer.
    """
    names = list(unknowns)
    rows = np.diag([1 / one.deviation for one in unknowns.values()])
    target = np.array([one.mean / one.deviation for one in unknowns.values()])

    def tie(name: str, to: str, ratio: float, deviation: float) -> None:
        i = names.index(name)
        rows[i] = target[i] = 0.0
        rows[i, i], rows[i, names.index(to)] = 1 / deviation, -ratio / deviation

    for name in names:
        if name.startswith("matmul."):
            unit = unit_of(name.removeprefix("matmul."))
            tie(name, f"unit.{unit}", 1.0, CHIP_DEVIATION)
    tie(FLASH.name, ATTENTION.name, FLASH_OVER_SPLASH, FLASH_DEVIATION * ATTENTION.mean)
    return rows, target


def robust_least_squares(
    rows: Floats, target: Floats, prior: Floats, prior_target: Floats, unknowns: list[Unknown]
) -> Floats:
    """The solution within bounds. Samples have a soft L1 loss, priors the square."""
    require("score")
    from scipy.optimize import least_squares  # noqa: PLC0415  only learning needs it

    matrix = np.concatenate([rows, prior])
    constant = np.concatenate([target, prior_target])

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
