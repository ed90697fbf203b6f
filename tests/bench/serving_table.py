"""A part of `make score`: learn the constants of serving engines, write them into the catalog, and
write the measured errors into docs/serving.md. tests/test_serving_score.py checks both.
"""

from typing import Any

from orchestrator.catalog.chips import FOLDER
from orchestrator.catalog.serving import _LEARNED, learned
from orchestrator.evidence.score.serving import (
    ServingScore,
    cross_validated,
    learn,
    with_catalog_constants,
)
from orchestrator.formatting import percent
from tests.bench.marked_block import markdown, with_block
from tests.conftest import ROOT

DOCUMENT = ROOT / "docs" / "serving-evidence.md"
MARK = "make score: serving"
HEAD = """\
# What serving engines reach. Written by `make score` from serving_runs.csv beside it: change the
# rows, never the numbers. docs/serving.md says what each constant means.
"""
TITLES = {"output_tokens": "output tokens/s", "tpot": "TPOT"}


def text_of(found: dict[str, Any]) -> str:
    """Return the file catalog/serving.toml."""
    blocks = [HEAD]
    for name in ("spread", "baseline", "version"):
        lines = [f'"{key}" = {value:.4g}' for key, value in sorted(found[name].items())]
        blocks.append("\n".join([f"[{name}]", *lines, ""]))
    for engine, chips in sorted(found["constants"].items()):
        for chip, values in sorted(chips.items()):
            numbers = ", ".join(f"{name} = {value:.4g}" for name, value in values.items())
            blocks.append(f'constants."{engine}".{chip} = {{{numbers}}}')
    # Inline tables come before named ones.
    head, *rest = blocks
    inline = [block for block in rest if block.startswith("constants")]
    named = [block for block in rest if not block.startswith("constants")]
    return "\n".join([head, *inline, "", *named])


def rows_of(scores: dict[str, ServingScore]) -> list[tuple[str, ...]]:
    rows = []
    for left_out, score in scores.items():
        for part in score.summary:
            shares = (
                part.median_abs_error, part.p90_abs_error, part.inside_interval,
                part.baseline_median_abs_error, part.baseline_p90_abs_error,
            )  # fmt: skip
            rows.append(
                (TITLES[part.figure], left_out, part.engine, str(part.runs), *map(percent, shares))
            )
    return rows


def table(scores: dict[str, ServingScore]) -> str:
    head = (
        "figure", "left out", "engine", "runs", "median", "p90", "inside 80 %",
        "baseline median", "baseline p90",
    )  # fmt: skip
    return markdown([head, *rows_of(scores)])


def scores() -> dict[str, ServingScore]:
    return {
        "nothing: all rows seen": with_catalog_constants(),
        "a document": cross_validated("document"),
        "an engine": cross_validated("software"),
    }


def main() -> None:
    (FOLDER / _LEARNED).write_text(text_of(learn()))
    learned.cache_clear()
    found = scores()
    print(table(found))
    print("above what lower allows:", {name: score.above_bound for name, score in found.items()})
    DOCUMENT.write_text(with_block(DOCUMENT.read_text(), MARK, table(found)))


if __name__ == "__main__":
    main()
