"""A part of `make score`: learn the constants of GPUs, write them into the catalog, and measured
errors into docs/score-gpus.md. tests/test_score_gpus.py checks both.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal

from orchestrator.catalog.chips import FOLDER
from orchestrator.catalog.published import _GPU_LEARNED, GpuConstants, gpu_constants
from orchestrator.evidence.score.gpu import (
    GpuScore,
    cross_validated,
    learn,
    published_gpus,
    with_catalog_constants,
)
from orchestrator.formatting import percent
from tests.bench.marked_block import markdown, with_block
from tests.conftest import ROOT

DOCUMENT = ROOT / "docs" / "score-gpus.md"
MARK, CONSTANTS, RETENTION, WEAK = (
    "make score: gpus", "make score: constants of gpus", "make score: nodes of gpus",
    "make score: weak rows of gpus",
)  # fmt: skip
HEAD = """\
# What real runs on GPUs reach. Written by `make score` from gpu_runs.csv beside it: change rows,
# never numbers. docs/score-gpus.md says what each constant means.
"""
LEFT_OUT: dict[str, Literal["document", "software"] | None] = {
    "nothing: all rows seen": None, "a document": "document", "a software": "software",
}  # fmt: skip
WEAK_ERROR = 0.25


def text_of(found: GpuConstants) -> str:
    """Return the file catalog/gpu_efficiency.toml."""
    blocks, plain = [], []
    for name, value in asdict(found).items():
        if isinstance(value, Mapping):
            lines = [f'"{key}" = {rounded(each)}' for key, each in sorted(value.items())]
            blocks.append("\n".join([f"[{name}]", *lines, ""]))
        else:
            plain.append(f"{name} = {rounded(value)}")
    return "\n".join([HEAD, *plain, "", *blocks])


def rounded(value: object) -> str:
    if isinstance(value, Mapping):  # a range
        return "{ " + ", ".join(f"{end} = {rounded(each)}" for end, each in value.items()) + " }"
    assert isinstance(value, int | float)
    return f"{value:.3e}" if abs(value) < 1e-2 and value else f"{value:.4g}"


def totals(scores: Mapping[str, GpuScore]) -> str:
    rows: list[tuple[str, ...]] = [
        ("left out", "rows", "runs", "jobs", "median", "p90", "inside 80 %",
         "one MFU: median", "p90")
    ]  # fmt: skip
    for name, score in scores.items():
        rows += [(name, *row) for row in rows_of(score)]
    return markdown(rows)


def rows_of(score: GpuScore) -> list[tuple[str, ...]]:
    rows = []
    for part in score.parts:
        figures = (
            part.summary.median_abs_error, part.summary.p90_abs_error, part.summary.inside_interval,
            part.summary.baseline_median_abs_error, part.summary.baseline_p90_abs_error,
        )  # fmt: skip
        shares = (percent(figure or 0.0) for figure in figures)
        rows.append((part.part, str(part.summary.rows), str(part.jobs), *shares))
    return rows


def constants(found: GpuConstants) -> str:
    rows: list[tuple[str, ...]] = [("constant", "value")]
    for chip, value in sorted(found.chips.items()):
        rows.append((f"share of the peak in fp8 of {chip}", percent(value)))
    rows += [(f"{name} over fp8", f"{value:.2f}") for name, value in sorted(found.types.items())]
    rows += [
        (f"attention, compute capability {name}", percent(value))
        for name, value in sorted(found.attention.items())
    ]
    for name, value in found.shared.items():
        text = f"{1e3 * value:.3g} ms" if name.endswith("_s") else f"{value:.2f}"
        rows.append((f"`{name}`", text))
    rows += [(f"software {n}", f"x {value:.2f}") for n, value in sorted(found.software.items())]
    rows.append(("mixtures gain in a month of software", percent(found.months)))
    return markdown(rows)


def retention(score: GpuScore) -> str:
    rows = [("run", "nodes", "measured", "expected")]
    rows += [
        (each.id, str(each.slices), percent(each.measured), percent(each.expected))
        for each in score.retention
    ]
    return markdown(rows)


def weak(score: GpuScore) -> str:
    """Return the rows that their forecast misses by the most, without their document."""
    rows = [("run", "error")]
    far = [row for row in score.rows if abs(row.error) > WEAK_ERROR]
    rows += [(row.id, percent(row.error)) for row in sorted(far, key=lambda row: row.error)]
    return markdown(rows)


def main() -> None:
    (FOLDER / _GPU_LEARNED).write_text(text_of(learn(published_gpus()[0])))
    gpu_constants.cache_clear()
    scores = {
        name: cross_validated(without) if without else with_catalog_constants()
        for name, without in LEFT_OUT.items()
    }
    print(totals(scores))
    text, by_document = DOCUMENT.read_text(), scores["a document"]
    for mark, block in (
        (MARK, totals(scores)),
        (CONSTANTS, constants(gpu_constants())),
        (RETENTION, retention(by_document)),
        (WEAK, weak(by_document)),
    ):
        text = with_block(text, mark, block)
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
