"""A part of `make score`: learn the constants of serving engines, write them into the catalog, and
write the measured errors into docs/serving.md. tests/test_serving_score.py checks both.
"""

from collections.abc import Sequence
from math import exp
from typing import Any
from zlib import crc32

import numpy as np

from orchestrator.catalog.chips import FOLDER
from orchestrator.catalog.serving import _LEARNED, learned
from orchestrator.evidence.score.serving import (
    _BY_DOCUMENT,
    _BY_ENGINE,
    By,
    ServingScore,
    cross_validated,
    handover_of,
    held_out,
    own,
    waits_of,
    with_catalog_constants,
)
from orchestrator.evidence.score.serving_fit import (
    Fit,
    _Figures,
    expected,
    figures_of,
    first_tokens,
    fit,
    forecast,
    plain,
    strays,
)
from orchestrator.evidence.score.serving_runs import (
    DISAGGREGATED,
    SERVING,
    ServingRun,
    read,
    runs_of,
)
from orchestrator.formatting import percent
from orchestrator.values.serving import ANY_ENGINE
from tests.bench.marked_block import markdown, with_block
from tests.conftest import ROOT

DOCUMENT = ROOT / "docs" / "serving-evidence.md"
MARK = "make score: serving"
APART_MARK = "make score: disaggregated serving"
_INSIDE = 0.82  # the share of held-out figures that intervals are made to hold
_FOLDS = 5  # parts of the runs, each of which shows how far runs of a seen document stray
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


def _part(run: ServingRun) -> int:
    return crc32(run.id.encode()) % _FOLDS


def learn() -> dict[str, Any]:
    """Return the content of the catalog's `serving.toml`, learned from the project's own runs."""
    usable = [run for run in runs_of(read(SERVING))[0] if not run.weak]
    figures = figures_of(usable)
    made = fit(figures)
    apart = runs_of(read(DISAGGREGATED))[0]
    document, engine = _BY_DOCUMENT, _BY_ENGINE
    spreads = {
        "known": _spread(usable, document),
        "unknown": _spread(usable, engine, known=False),
        "seen": _spread(usable, _part),
        "disaggregated": _spread(apart, document, made),
        "disaggregated seen": _spread(apart, _part, made),
    }
    deviating = fit(figures_of(apart), made)
    return {
        "spread": spreads,
        "version": _rounded(made.versions),
        "baseline": best_shares(figures),
        "constants": _table(made, usable),
        "disaggregated": _table(deviating, apart),
        "disaggregated_version": _rounded(deviating.versions),
        "handover": handover_of(apart, deviating)._asdict(),
        "ttft": first_tokens(usable, waits_of(usable, made)),
    }


def _spread(
    runs: Sequence[ServingRun], by: By, base: Fit | None = None, *, known: bool = True
) -> float:
    """Return how far figures stray of runs that were left out, of known engines or of others."""
    off = list[float]()
    for made, train, left in held_out(runs, by, lambda _: base):
        handover = handover_of(train, made)
        for run in left:
            if (run.engine in made.engines) == known and run.tpot_limit_s is None:
                off += map(abs, strays(run, expected(run, *own(made, run), handover)))
    return float(np.quantile(off, _INSIDE))


def _rounded(versions: dict[str, float]) -> dict[str, float]:
    return {name: round(exp(value), 3) for name, value in versions.items()}


def _table(made: Fit, runs: Sequence[ServingRun]) -> dict[str, dict[str, dict[str, float | int]]]:
    """Return constants by engine and chip, of each engine on any chip, and of any engine."""
    pairs = sorted({(run.engine, run.chip) for run in runs if run.tpot_limit_s is None})
    chips = [*sorted({chip for _, chip in pairs}), ""]
    everywhere = [(engine, "") for engine in sorted({engine for engine, _ in pairs})]
    found: dict[str, dict[str, dict[str, float | int]]] = {}
    for engine, chip in [*pairs, *everywhere, *((ANY_ENGINE, chip) for chip in chips)]:
        values = {name: float(f"{value:.4g}") for name, value in made.of(engine, chip).items()}
        count = sum(run.engine == engine and chip in ("", run.chip) for run in runs)
        found.setdefault(engine, {})[chip or ANY_ENGINE] = {"runs": count} | values
    return found


def best_shares(figures: _Figures) -> dict[str, float]:
    """Return the one share of HBM bandwidth and the one MFU that all runs fit best."""
    shares = np.arange(0.1, 1.0, 0.02)
    errors = {
        (share, mfu): np.abs(np.log(forecast(figures, plain(share, mfu)) / figures.measured))
        for share in shares.tolist()
        for mfu in shares.tolist()
    }
    share, mfu = min(errors, key=lambda pair: float(np.median(errors[pair])))
    return {"bandwidth": round(share, 2), "mfu": round(mfu, 2)}


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
