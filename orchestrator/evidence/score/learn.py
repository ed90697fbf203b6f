"""The constants that bring expected steps nearest to measured ones, and how sure they are. The
model is linear in its unknowns (the inverse of each efficiency, the exposed share, seconds), fitted
to relative errors by robust least squares, with bounds and priors; a chip's matmul efficiency has
that of chips with an equal matrix unit. Leaving out documents, sources or software one after
another shows how far unseen runs stray.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import expm1, log, log1p, sqrt
from operator import attrgetter
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.published import (
    OTHER,
    PER_CHIP,
    REFERENCE,
    UNKNOWN_TYPE,
    Efficiency,
    LearnedConstant,
    Range,
    chip_kind,
    range_kind,
)
from orchestrator.evidence.score.samples import IN_PIECES, Sample, Stray, flash_cost, unseen_spread
from orchestrator.planning.expected import AXES, skew_share
from orchestrator.planning.step_work import FORWARD_AND_BACKWARD
from orchestrator.planning.torus import Floats
from orchestrator.plugins import require
from orchestrator.values.codec import Value

# The relative error that weighs as much as one standard deviation of a prior. Runs of other
# software stray two to three times as far, for reasons that the ledger does not have.
_FIT_ERROR, _OTHERS_FIT_ERROR = 0.05, 0.15


class _Unknown(Value):
    """A number to learn: the mean and standard deviation of its prior, and its bounds."""

    name: str
    mean: float
    deviation: float
    least: float
    most: float
    inverse: bool = False


# Efficiencies are unknown as their inverses, which are at least one.
_ATTENTION = _Unknown(name="attention", mean=2.0, deviation=2.0, least=1.0, most=10.0, inverse=True)
_FLASH = _Unknown(
    name="flash_attention", mean=3.6, deviation=4.0, least=1.0, most=20.0, inverse=True
)
_SHARED = (
    _ATTENTION,
    _FLASH,
    _Unknown(name="exposed_gathers", mean=0.25, deviation=0.1, least=0.0, most=1.0),
    _Unknown(name="exposed_tensor", mean=0.5, deviation=0.1, least=0.0, most=1.0),
    _Unknown(name="slice_wait_s", mean=0.005, deviation=0.005, least=0.0, most=1.0),
    _Unknown(name="slice_hop_s", mean=0.001, deviation=0.001, least=0.0, most=1.0),
    _Unknown(name="run_overhead_s", mean=0.05, deviation=0.05, least=0.0, most=1.0),
    # Large runs publish that they compute for 93 to 97 % of their time.
    _Unknown(name="run_share", mean=0.05, deviation=0.03, least=0.0, most=0.5),
)
# Two pages time one model with both kernels; there the older one takes 1.6 and 2.4 times as long.
_FLASH_OVER_SPLASH, _FLASH_DEVIATION = 1.8, 0.5
# Other software is as far from the reference as its runs say, and each stays near their mean.
_OTHERS = _Unknown(name=OTHER, mean=0.04, deviation=0.04, least=0.0, most=0.5)
_DEVIATION = _Unknown(name="deviation", mean=0.0, deviation=0.06, least=-0.3, most=0.3)
_OF_COLLECTIVES = frozenset(
    {"microbatches", "data", "fsdp_dcn", "sequence", "tensor", "links_share"}
)
_UNITS = (128, 256)  # edges of matrix units
_MATMUL = _Unknown(name="matmul", mean=1.35, deviation=0.5, least=1.0, most=10.0)
_CHIP_DEVIATION = 0.08  # of a chip's matmul from that of its matrix unit
# Only mixtures show these. A transfer of a row takes tens of nanoseconds, however short the row is;
# a row of biases costs a gather, and a scatter that adds its gradient to what is there.
_OF_MIXTURES = (
    _Unknown(name="row_move_s", mean=15e-9, deviation=10e-9, least=0.0, most=1e-6),
    _Unknown(name="bias_row_s", mean=150e-9, deviation=75e-9, least=0.0, most=1e-5),
    _Unknown(name="mask_products", mean=1.0, deviation=0.3, least=0.2, most=1.5),
)


@dataclass(frozen=True)
class _Constants:
    """Learned rates and shares. A chip without rows has its matrix unit's rate."""

    matmul: dict[str, float]
    of_unit: dict[int, float]
    shared: dict[str, float]
    software: dict[str, float] = field(default_factory=dict)
    unsure: dict[str, float] = field(default_factory=dict)
    spread: float = 0.0
    reference_spread: float = 0.0
    ranges: dict[str, Range] = field(default_factory=dict)
    of_chip: dict[str, dict[str, Range]] = field(default_factory=dict)
    quantized: dict[str, float] = field(default_factory=dict)
    mixture_spread: float = 0.0

    def efficiency(self, chip: str, compute: str = "bf16") -> Efficiency:
        matmul = self.matmul.get(chip, self.of_unit[_unit_of(chip)])
        matmul = self.quantized.get(chip_kind(chip, compute), matmul)
        spreads = {
            "spread": self.spread,
            "reference_spread": self.reference_spread,
            "mixture_spread": self.mixture_spread,
        }
        known = self.shared | spreads | {"matmul": matmul}
        unsure = self.unsure | {"matmul": self.unsure.get(chip_kind(chip, compute), 0.0)}
        return Efficiency(
            **{
                name: LearnedConstant(value=value, unsure=unsure.get(name, 0.0))
                for name, value in known.items()
            },
            software={name: LearnedConstant(value=value) for name, value in self.software.items()},
            ranges=self.ranges
            | {
                axis: ranges[kind]
                for axis, ranges in self.of_chip.items()
                if (kind := range_kind(axis, chip, compute)) in ranges
            },
        )


def _unit_of(chip: str) -> int:
    """Return the edge of a chip's matrix unit, as one of the known ones."""
    unit = catalog.chip(chip).matrix_unit
    assert unit is not None
    return min(_UNITS, key=lambda known: abs(known - unit.value))


def _fit(samples: list[Sample]) -> _Constants:
    """Return the constants of these rows, without a spread."""
    chips = sorted({sample.run.chip for sample in samples})
    software = sorted({sample.run.software.name for sample in samples} - {REFERENCE})
    # How far other software is from the reference is unknown where the reference has no runs.
    others = [_OTHERS] if any(map(_is_reference, samples)) else []
    unknowns = {
        **{f"unit.{unit}": _MATMUL for unit in _UNITS},
        **{f"matmul.{chip}": _MATMUL for chip in chips},
        **{unknown.name: unknown for unknown in (*_SHARED, *others)},
        **{f"software.{name}": _DEVIATION for name in software},
    }
    x = _robust_least_squares(*_equations(samples, unknowns), len(samples), [*unknowns.values()])
    found = {name: float(value) for name, value in zip(unknowns, x, strict=True)}
    mean = found.get(OTHER, 0.0)

    # The ranges of all rows by axis. How well collectives hide is the software's own, so these axes
    # are those of the reference.
    values = [(sample, sample.axis_values) for sample in samples]
    every = [reached for _, reached in values]
    reference = [reached for sample, reached in values if _is_reference(sample)] or every

    return _Constants(
        ranges={
            axis: _range_of(axis, reference if axis in _OF_COLLECTIVES else every)
            for axis in AXES
            if axis not in PER_CHIP
        },
        of_chip=_ranges_of_chips(samples),
        matmul={chip: 1 / found[f"matmul.{chip}"] for chip in chips},
        of_unit={unit: 1 / found[f"unit.{unit}"] for unit in _UNITS},
        shared={
            unknown.name: 1 / found[unknown.name] if unknown.inverse else found[unknown.name]
            for unknown in _SHARED
        }
        | {unknown.name: unknown.mean for unknown in _OF_MIXTURES},
        software={REFERENCE: 0.0, OTHER: mean}
        | {name: mean + found[f"software.{name}"] for name in software},
    )


# By the rows; a fit takes a tenth of a second. Two documents are left out twice, in either order.
_FITTED: dict[tuple[str, ...], _Constants] = {}


def _range_of(axis: str, rows: list[dict[str, float]]) -> Range:
    return Range(low=min(row[axis] for row in rows), high=max(row[axis] for row in rows))


def _ranges_of_chips(samples: list[Sample]) -> dict[str, dict[str, Range]]:
    ranges: dict[str, dict[str, Range]] = {}
    for axis in PER_CHIP:
        rows: dict[str, list[dict[str, float]]] = {}
        for sample in samples:
            values = sample.axis_values
            kind = range_kind(axis, sample.run.chip, sample.run.compute)
            if values[axis] or not axis.endswith("mfu"):
                rows.setdefault(kind, []).append(values)
        ranges[axis] = {kind: _range_of(axis, found) for kind, found in rows.items()}
    return ranges


def _is_reference(sample: Sample) -> bool:
    return sample.run.software.name == REFERENCE


def _weight(sample: Sample) -> float:
    error = _FIT_ERROR if _is_reference(sample) else _OTHERS_FIT_ERROR
    return 1 / (error * sample.measured_s)


def _equations(samples: list[Sample], unknowns: dict[str, _Unknown]) -> tuple[Floats, Floats]:
    """Return a row per sample: its work by unknown and the rest of its time, over its error; then
    one per unknown, which holds it near its mean, its matrix unit, or its kernel.
    """
    column = {name: i for i, name in enumerate(unknowns)}
    rows, target = np.zeros((len(samples), len(column))), np.zeros(len(samples))
    for i, sample in enumerate(samples):
        weight, (by_unknown, given_s) = _weight(sample), _seconds_of(sample)
        for name, seconds in by_unknown.items():
            if name in column:
                rows[i, column[name]] = seconds * weight
        target[i] = (sample.measured_s - given_s) * weight

    priors, means = _priors(unknowns)
    # What is held near a multiple of another unknown: the other, the multiple, the deviation.
    ties = {_FLASH.name: (_ATTENTION.name, _FLASH_OVER_SPLASH, _FLASH_DEVIATION * _ATTENTION.mean)}
    for name in unknowns:
        if name.startswith("matmul."):
            unit = _unit_of(name.removeprefix("matmul."))
            ties[name] = f"unit.{unit}", 1.0, _CHIP_DEVIATION
    for name, (other, ratio, deviation) in ties.items():
        i = column[name]
        priors[i] = means[i] = 0.0
        priors[i, i], priors[i, column[other]] = 1 / deviation, -ratio / deviation
    return np.concatenate([rows, priors]), np.concatenate([target, means])


def _priors(unknowns: dict[str, _Unknown]) -> tuple[Floats, Floats]:
    """Return a row per unknown that holds it near its mean, over its deviation."""
    priors = np.diag([1 / unknown.deviation for unknown in unknowns.values()])
    return priors, np.array([unknown.mean / unknown.deviation for unknown in unknowns.values()])


def _seconds_of(sample: Sample) -> tuple[dict[str, float], float]:
    """Return what each unknown multiplies, and the seconds in which nothing is unknown."""
    run, todo = sample.run, sample.todo
    flash, averages_run = run.software.kernel == "flash", float(sample.averages_run)
    # The constants are not known yet: the device's own work, and how fast its passes are, are those
    # of the priors.
    compute_s = todo.matmul_s * _MATMUL.mean + todo.attention_s * _ATTENTION.mean
    waited = skew_share(todo, float(compute_s + todo.hbm_s + todo.passes_s))
    pace = 1 / _MATMUL.mean, 1 / _ATTENTION.mean, float(todo.passes_s) / FORWARD_AND_BACKWARD
    in_pieces = run.software.name in IN_PIECES
    seconds: dict[str, Any] = {
        f"matmul.{run.chip}": todo.matmul_s,
        "attention": 0.0 if flash else todo.attention_s,
        "flash_attention": todo.attention_s * flash_cost(run) if flash else 0.0,
        "exposed_gathers": todo.gathers_s + todo.dcn_s,
        "exposed_tensor": todo.tensor_s if in_pieces else 0.0,
        "slice_wait_s": todo.reductions * waited,
        "slice_hop_s": todo.hops * waited,
        "run_overhead_s": averages_run,
        "run_share": averages_run * sample.measured_s,
    }
    if not _is_reference(sample):
        seconds |= {OTHER: sample.measured_s, f"software.{run.software.name}": sample.measured_s}
    whole_s, host_s = 0.0 if in_pieces else todo.tensor_s, todo.host.exposed_s(*pace)
    given_s = float(todo.hbm_s + todo.passes_s + todo.serial_s + whole_s + host_s)
    return {name: float(value) for name, value in seconds.items()}, given_s


def _robust_least_squares(
    matrix: Floats, constant: Floats, samples: int, unknowns: list[_Unknown]
) -> Floats:
    """Return the solution within bounds. The first rows, samples, have a soft L1 loss."""
    require("score")
    from scipy.optimize import least_squares  # noqa: PLC0415  only learning needs it

    def loss(squares: Floats) -> Floats:
        """Return the loss and its first two derivatives, as scipy wants them."""
        values = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1 + squares[:samples])
        values[:, :samples] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return values

    solution = least_squares(
        lambda x: matrix @ x - constant,
        [unknown.mean for unknown in unknowns],
        jac=lambda _: matrix,
        bounds=([u.least for u in unknowns], [u.most for u in unknowns]),
        loss=loss,
        xtol=1e-12,
        ftol=1e-15,
        gtol=1e-12,
    )
    return np.asarray(solution.x)


_TINY = 1e-9
_UNKNOWN_SPREAD = log(2)  # if no other document is there to compare with

Key = Callable[[Sample], str]
by_group: Key = attrgetter("run.group")
by_document: Key = attrgetter("run.document")
by_software: Key = attrgetter("run.software.name")


def held_out(samples: list[Sample], key: Key) -> Iterator[tuple[str, list[Sample], list[Sample]]]:
    for name in sorted(set(map(key, samples))):
        yield name, [s for s in samples if key(s) != name], [s for s in samples if key(s) == name]


def _is_narrow(sample: Sample) -> bool:
    """Whether its products are in a type that no activation has."""
    return sample.run.compute != sample.layout.activation_type


def _dense_of(samples: list[Sample]) -> list[Sample]:
    """Return the dense runs in the types of activations, or all runs if none is dense."""
    return [s for s in samples if not (s.run.model.moe or _is_narrow(s))] or samples


def learn(samples: list[Sample], key: Key = by_document) -> _Constants:
    """Return the constants of these rows, how sure they are, and how far other keys stray. Dense
    runs in activations' types come first; mixtures and narrow types are learned from the rest.
    """
    dense = _dense_of(samples)
    ids = {sample.run.id for sample in dense}
    rest = [sample for sample in samples if sample.run.id not in ids]
    cached = tuple(sample.run.id for sample in dense), key
    if cached not in _LEARNED:
        _LEARNED[cached] = _learn_dense(dense, key)
    constants = replace(_LEARNED[cached], of_chip=_ranges_of_chips(samples))
    found, folds = _fit_rest(rest, constants), list(held_out(rest, key))
    without = [_fit_rest(train, constants) for _, train, _ in folds]
    names = (*(unknown.name for unknown in _OF_MIXTURES), *found.quantized)
    unsure = dict.fromkeys(names, UNKNOWN_TYPE)
    if len(folds) > 1:
        unsure = _jackknife(found, without, names)
    found = replace(found, unsure=constants.unsure | unsure)
    strays = [
        (name, _stray(sample, fitted, found), 1 / len(test))
        for fitted, (name, _, test) in zip(without, folds, strict=True)
        for sample in test
        if sample.run.model.moe
    ]
    return replace(found, mixture_spread=max(_spread(strays), found.mixture_spread))


_LEARNED: dict[tuple[tuple[str, ...], Key], _Constants] = {}  # of rows whose fit took seconds


def _learn_dense(samples: list[Sample], key: Key) -> _Constants:
    constants = _fit(samples)
    folds = list(held_out(samples, key))
    if len(folds) < 2:
        return replace(
            constants,
            spread=_UNKNOWN_SPREAD,
            reference_spread=_UNKNOWN_SPREAD,
            mixture_spread=_UNKNOWN_SPREAD,
        )
    without = []
    for _, train, _ in folds:
        rows = tuple(sample.run.id for sample in train)
        if rows not in _FITTED:
            _FITTED[rows] = _fit(train)
        without.append(_FITTED[rows])
    constants = replace(constants, unsure=_jackknife(constants, without, tuple(constants.shared)))
    strays: dict[bool, list[Stray]] = {True: [], False: []}
    for fitted, (name, _, test) in zip(without, folds, strict=True):
        for sample in test:
            strays[_is_reference(sample)].append(
                (name, _stray(sample, fitted, constants), 1 / len(test))
            )
    of_reference, of_others = _spread(strays[True]), _spread(strays[False])
    spread = max(of_others, of_reference)
    return replace(
        constants,
        reference_spread=of_reference or of_others,
        spread=spread,
        mixture_spread=spread,
    )


def _fit_rest(samples: list[Sample], constants: _Constants) -> _Constants:
    """Return the constants with those of mixtures and of narrower types, which these rows show."""
    unknowns = {unknown.name: unknown for unknown in _OF_MIXTURES}
    for sample in filter(_is_narrow, samples):
        name, known = _type_of(sample), constants.efficiency(sample.run.chip).matmul.value
        deviation = UNKNOWN_TYPE / known
        unknowns[name] = _Unknown(
            name=name, mean=1 / known, deviation=deviation, least=1.0, most=10.0, inverse=True
        )
    rows, target = np.zeros((len(samples), len(unknowns))), np.zeros(len(samples))
    for i, sample in enumerate(samples):
        # The expected step is linear in these constants: what it is with the priors, and what each
        # of them multiplies.
        efficiency = constants.efficiency(sample.run.chip)
        seconds = {
            "row_move_s": float(sample.todo.row_moves),
            "bias_row_s": sample.bias_rows,
            "mask_products": sample.masks_s / efficiency.matmul.value,
            _type_of(sample): float(sample.todo.matmul_s),
        }
        others = 1 - sample.added_share(efficiency)
        rows[i] = [seconds.get(name, 0.0) / others for name in unknowns]
        priors_s = float(rows[i] @ [unknown.mean for unknown in unknowns.values()])
        weight = _weight(sample)
        rows[i] *= weight
        target[i] = (sample.measured_s - sample.expected_s(efficiency) + priors_s) * weight
    priors, means = _priors(unknowns)
    x = _robust_least_squares(
        np.concatenate([rows, priors]),
        np.concatenate([target, means]),
        len(samples),
        [*unknowns.values()],
    )
    values = {
        name: 1 / float(value) if unknowns[name].inverse else float(value)
        for name, value in zip(unknowns, x, strict=True)
    }
    of_mixtures = {unknown.name: values.pop(unknown.name) for unknown in _OF_MIXTURES}
    return replace(constants, shared=constants.shared | of_mixtures, quantized=values)


def _type_of(sample: Sample) -> str:
    return chip_kind(sample.run.chip, sample.run.compute)


def _jackknife(
    constants: _Constants, without: list[_Constants], names: tuple[str, ...]
) -> dict[str, float]:
    """Return the standard deviation of each constant as keys are left out, over its value."""

    def value_of(fitted: _Constants, name: str) -> float:
        return fitted.shared.get(name, fitted.quantized.get(name, np.nan))

    unsure = {}
    for name in names:
        values = [value for f in without if not np.isnan(value := value_of(f, name))]
        variance = (len(values) - 1) * np.var(values)
        unsure[name] = float(np.sqrt(variance) / max(value_of(constants, name), _TINY))
    return unsure


def _stray(sample: Sample, fitted: _Constants, constants: _Constants) -> float:
    """Return the log of a factor, beyond constants' uncertainty, that reaches the measured step."""
    chip, compute = sample.run.chip, sample.run.compute
    strayed = abs(log(sample.measured_s / sample.expected_s(fitted.efficiency(chip, compute))))
    of_constants, unseen = sample.uncertainty(constants.efficiency(chip, compute))
    beyond = max(expm1(strayed) - unseen, 0.0)
    return log1p(sqrt(max(beyond**2 - of_constants**2, 0.0)))


def _spread(strays: list[Stray]) -> float:
    """Return `unseen_spread`. Keys weigh alike, whatever the number of their rows: a table of one
    model on more and more slices is one experience.
    """
    return unseen_spread(strays) if strays else 0.0


def baseline(samples: list[Sample]) -> Callable[[Sample], float]:
    """Return a simple baseline: one MFU for each kind of chip, the median of its dense rows."""
    dense = _dense_of(samples)
    every = float(np.median([sample.mfu for sample in dense]))
    of_chip = {
        chip: float(np.median([s.mfu for s in dense if s.run.chip == chip]))
        for chip in {s.run.chip for s in dense}
    }
    return lambda s: s.measured_s * s.mfu / of_chip.get(s.run.chip, every)
