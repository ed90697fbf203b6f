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
from orchestrator.evidence.score.serving_runs import DISAGGREGATED
from orchestrator.formatting import percent
from tests.bench.marked_block import markdown, with_block
from tests.conftest import ROOT

DOCUMENT = ROOT / "docs" / "serving-evidence.md"
MARK = "make score: serving"
APART_MARK = "make score: disaggregated serving"
HEAD = """\
# What serving engines reach. Written by `make score` from serving_runs.csv and
# serving_disaggregated_runs.csv beside it: change the rows, never the numbers. docs/serving.md says
# what each constant means.
"""
TITLES = {
    "output_tokens": "output tokens/s",
    "tpot": "TPOT",
    "ttft": "TTFT",
    "cache_room": "room for the cache",
}


def text_of(found: dict[str, Any]) -> str:
    """Return the file catalog/serving.toml."""
    blocks = [HEAD]
    # Inline tables come before named ones.
    for table in ("constants", "disaggregated"):
        for engine, chips in sorted(found[table].items()):
            for chip, values in sorted(chips.items()):
                blocks.append(f'{table}."{engine}".{chip} = {{{_pairs(values)}}}')
    for engine, first in sorted(found["ttft"].items()):
        blocks.append(f'ttft."{engine}" = {list(first)}')
    blocks.append("")
    for name in ("spread", "baseline", "handover", "version", "disaggregated_version"):
        lines = [f'"{key}" = {value:.4g}' for key, value in sorted(found[name].items())]
        blocks.append("\n".join([f"[{name}]", *lines, ""]))
    return "\n".join(blocks)


def _pairs(values: dict[str, float]) -> str:
    return ", ".join(f"{name} = {value:.4g}" for name, value in values.items())


def rows_of(scores: dict[str, ServingScore]) -> list[tuple[str, ...]]:
    rows = []
    for left_out, score in scores.items():
        for part in score.summary:
            shares = (
                part.median_abs_error, part.p90_abs_error, part.inside_interval,
                part.baseline_median_abs_error, part.baseline_p90_abs_error,
            )  # fmt: skip
            said = ["" if share is None else percent(share) for share in shares]
            rows.append((TITLES[part.figure], left_out, part.engine, str(part.runs), *said))
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


def disaggregated_scores() -> dict[str, ServingScore]:
    return {
        "nothing: all rows seen": with_catalog_constants(DISAGGREGATED),
        "a document": cross_validated("document", DISAGGREGATED),
        "an engine": cross_validated("software", DISAGGREGATED),
    }


def main() -> None:
    (FOLDER / _LEARNED).write_text(text_of(learn()))
    learned.cache_clear()
    text = DOCUMENT.read_text()
    for mark, found in ((MARK, scores()), (APART_MARK, disaggregated_scores())):
        print(table(found))
        print("above what lower allows:", {name: each.above_bound for name, each in found.items()})
        text = with_block(text, mark, table(found))
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
