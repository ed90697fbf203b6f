"""Score room: a file of runs to its Score, by the shipped constants or by what other rows teach."""

from functools import cache
from pathlib import Path

from orchestrator import catalog
from orchestrator.catalog import Efficiency
from orchestrator.errors import SpecError
from orchestrator.score.fit import baseline, by_document, by_group
from orchestrator.score.judge import score, score_left_out
from orchestrator.score.runs import PUBLISHED, read
from orchestrator.score.samples import Sample, samples
from orchestrator.types.score import HeldOutRow, Score

KEYS = {"document": by_document, "group": by_group}
SAID = {"document": "each document in turn", "group": "each source and chip in turn"}


def as_shipped(path: Path = PUBLISHED) -> Score:
    """Every row of a file by the constants of the catalog; the baseline knows the same rows."""
    good, left_out = samples(read(path))
    known = [sample for sample in good if catalog.efficiency(sample.run.chip)]
    unknown = [
        HeldOutRow(
            id=sample.run.id,
            reason=f"no run of {sample.run.chip} was learned from: `expected` is unknown",
        )
        for sample in good
        if not catalog.efficiency(sample.run.chip)
    ]
    return score(
        known,
        [*left_out, *unknown],
        shipped,
        baseline(published()[0]),
        "learned on the project's own file",
    )


def shipped(sample: Sample) -> Efficiency:
    known = catalog.efficiency(sample.run.chip)
    assert known is not None
    return known


@cache
def published() -> tuple[list[Sample], list[HeldOutRow]]:
    """The project's own file, made ready once."""
    return samples(read(PUBLISHED))


def without(key: str, path: Path = PUBLISHED) -> Score:
    """Every row of a file by constants learned on its rows of other documents, or groups, alone."""
    good, left_out = published() if path == PUBLISHED else samples(read(path))
    chips = {sample.run.chip for sample in good if catalog.chip(sample.run.chip).matrix_unit}
    tpus = [sample for sample in good if sample.run.chip in chips]
    others = [
        HeldOutRow(id=s.run.id, reason=f"{s.run.chip} has no matrix unit to learn about")
        for s in good
        if s.run.chip not in chips
    ]
    if len(set(map(KEYS[key], tpus))) < 2:
        raise SpecError(f"{path}: nothing to learn from: all its runs are of one {key}")
    return score_left_out(tpus, [*left_out, *others], KEYS[key], f"without {SAID[key]}")
