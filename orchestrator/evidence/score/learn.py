"""How sure the learned constants are, and how far runs stray that nothing was learned from.

Documents, sources or software are left out one after another.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import expm1, log, log1p, sqrt

import numpy as np

from orchestrator.catalog.published import OTHER, REFERENCE, Range
from orchestrator.evidence.score.fit import Constants, fit, is_reference
from orchestrator.evidence.score.samples import IN_PIECES, Sample

TINY = 1e-9
INTERVAL_SHARE = 0.80
UNKNOWN_SPREAD = log(2)  # if no other document is there to compare with
LEAST_SHARE = 0.01  # of a step; a row with less work of a kind does not inform its constant

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


@dataclass(frozen=True)
class Fold:
    """The rows to learn from, and those of the key that is held out."""

    key: str
    train: list[Sample]
    test: list[Sample]


def held_out(samples: list[Sample], key: Key) -> list[Fold]:
    """One fold for each key."""
    return [
        Fold(
            name,
            [s for s in samples if key(s) != name],
            [s for s in samples if key(s) == name],
        )
        for name in sorted(set(map(key, samples)))
    ]


def learn(samples: list[Sample], key: Key = by_document) -> Constants:
    """The constants of these rows, how sure they are, and how far rows of other keys stray: those
    of REFERENCE, and those of other software, which a new software is like.
    """
    constants = fit(samples)
    folds = held_out(samples, key)
    if len(folds) < 2:
        return replace(constants, spread=UNKNOWN_SPREAD, reference_spread=UNKNOWN_SPREAD)
    without = [fit(fold.train) for fold in folds]
    constants = replace(constants, unsure=jackknife(constants, without))
    rows = strayed(constants, without, folds)
    of_reference = spread([one for one in rows if is_reference(one.sample)])
    of_others = spread([one for one in rows if not is_reference(one.sample)])
    return replace(
        constants,
        reference_spread=of_reference or of_others,
        spread=max(of_others, of_reference),
    )


@dataclass(frozen=True)
class Strayed:
    """How far a row strays from what was learned without its key, and its weight."""

    sample: Sample
    key: str
    log_factor: float
    weight: float


def strayed(constants: Constants, without: list[Constants], folds: list[Fold]) -> list[Strayed]:
    """Every row; the rows of a key weigh as much as those of another, however many they are."""
    return [
        Strayed(sample, fold.key, unexplained(sample, fitted, constants), 1 / len(fold.test))
        for fitted, fold in zip(without, folds, strict=True)
        for sample in fold.test
    ]


def unexplained(sample: Sample, without: Constants, constants: Constants) -> float:
    """How far a row strays beyond the constants' own uncertainty, as the log of a factor: with this
    spread its interval would end at the measured step.
    """
    chip = sample.run.chip
    strayed = abs(log(sample.measured_s / sample.expected_s(without.efficiency(chip))))
    of_constants, unseen = sample.uncertainty(constants.efficiency(chip))
    beyond = max(expm1(strayed) - unseen, 0.0)
    return log1p(sqrt(max(beyond**2 - of_constants**2, 0.0)))


def jackknife(constants: Constants, without: list[Constants]) -> dict[str, float]:
    """The standard deviation of each shared constant, over its value."""
    count = len(without)
    return {
        name: float(
            np.sqrt((count - 1) * np.var([one.shared[name] for one in without])) / max(value, TINY)
        )
        for name, value in constants.shared.items()
    }


def spread(rows: list[Strayed]) -> float:
    """The factor within which 80 % of runs lie that are predicted from other keys, as a log.

    A table of one model on more and more slices is one experience. The next run has one more key,
    which n keys cover to (n + 1) / n.
    """
    if not rows:
        return 0.0
    keys = len({one.key for one in rows})
    weighted = [(one.log_factor, one.weight) for one in rows]
    return weighted_quantile(weighted, min(INTERVAL_SHARE * (1 + 1 / keys), 1.0))


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
        "attention": rows(lambda s: s.todo.attention_s * (s.run.software.kernel != "flash")),
        "flash_attention": rows(lambda s: s.todo.attention_s * (s.run.software.kernel == "flash")),
        "exposed_gathers": rows(lambda s: s.todo.gathers_s + s.todo.dcn_s),
        "exposed_tensor": rows(lambda s: s.todo.tensor_s * (s.run.software.name in IN_PIECES)),
        "slice_wait_s": rows(lambda s: s.todo.reductions * shared["slice_wait_s"]),
        "slice_hop_s": rows(lambda s: s.todo.hops * shared["slice_hop_s"]),
        "run_overhead_s": rows(lambda s: s.averages_run * shared["run_overhead_s"]),
        "run_share": rows(lambda s: s.averages_run * s.measured_s),
    }


# Writes the learned constants as the catalog's file, each with the rows it was learned from.


HEAD = """\
# What real runs reach. Written by `make score` from the published runs beside it: change the rows,
# never the numbers. docs/score.md says what each constant means; `rows` are those behind it.
"""
# What these rows had at least and at most. Outside `expected` extrapolates, and plans say so.
RANGES = """\
[range]
{axes}
[range.chips]
{chips}"""
DIGITS = 4


def text(samples: list[Sample], constants: Constants) -> str:
    """The file catalog/efficiency.toml."""
    every = tuple(s.run.id for s in samples)
    rows = informative_rows(samples, constants) | {"spread": every, "reference_spread": every}
    others = tuple(s.run.id for s in samples if s.run.software.name != REFERENCE)
    spreads = {"spread": constants.spread, "reference_spread": constants.reference_spread}
    blocks = [HEAD]
    for name, value in (constants.shared | spreads).items():
        unsure = constants.unsure.get(name, 0.0)
        blocks.append(entry(f"shared.{name}", value, unsure, rows[name]))
    for chip, value in constants.matmul.items():
        of_chip = tuple(s.run.id for s in samples if s.run.chip == chip)
        blocks.append(entry(f"matmul.{chip}", value, 0.0, of_chip))
    for name, value in constants.software.items():
        of_it = tuple(s.run.id for s in samples if s.run.software.name == name)
        blocks.append(entry(f"software.{name}", value, 0.0, others if name == OTHER else of_it))
    blocks.append(ranges(constants))
    return "\n".join(blocks)


def entry(name: str, value: float, unsure: float, rows: tuple[str, ...]) -> str:
    """One table, with so few digits that the file is the same on every machine."""
    listed = "".join(f'    "{row}",\n' for row in rows)
    return f"[{name}]\nvalue = {rounded(value)}\nunsure = {rounded(unsure)}\nrows = [\n{listed}]\n"


def ranges(constants: Constants) -> str:
    """The least and the most of all rows by axis, and of chips by kind."""
    return RANGES.format(axes=listed(constants.ranges), chips=listed(constants.chips))


def listed(of: dict[str, Range]) -> str:
    return "".join(
        f"{name} = [{rounded(of[name].low)}, {rounded(of[name].high)}]\n" for name in sorted(of)
    )


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")
