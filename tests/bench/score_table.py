"""`make score`: learn the constants, write them into the catalog, print and write the scores.

tests/test_score.py checks that the catalog, the README and docs/score.md have the computed numbers.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median

from orchestrator.catalog.efficiency import LEARNED
from orchestrator.catalog.tables import FOLDER
from orchestrator.plan import flops
from orchestrator.render import score_screen as render
from orchestrator.score import cross_validated, with_catalog_constants
from orchestrator.score.constants_file import text
from orchestrator.score.evaluate import HeldOut, published
from orchestrator.score.learn import learn
from orchestrator.types.score import Score
from tests.bench.marked_block import with_block
from tests.conftest import ROOT

README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "score.md"
MARK = "make score"
SEEN, DOCUMENTS, GROUPS = (
    "nothing: all rows seen",
    "a document of runs",
    "all a source's runs on that chip",
)
SMALL_PARAMETERS = 1.5e9


def learned() -> str:
    """The text of the catalog's file of constants."""
    samples, _ = published()
    return text(samples, learn(samples))


def scores(say: Callable[[str], None] = lambda _: None) -> dict[str, Score]:
    """The scores by what was held out when the constants were learned."""
    by_name = {SEEN: with_catalog_constants()}
    keys: tuple[tuple[str, HeldOut], ...] = ((DOCUMENTS, "document"), (GROUPS, "group"))
    for name, key in keys:
        say(f"learning without {name}, one after another …")
        by_name[name] = cross_validated(key)
    return by_name


def goals(by_name: dict[str, Score]) -> str:
    """The table of docs/score.md: the goals, and the results."""
    ways = [by_name[name] for name in (DOCUMENTS, GROUPS)]
    rows = [
        ("goal", "a document left out", "a source and chip left out"),
        ("median error at most 4 %", *(share(s.summary.median_abs_error) for s in ways)),
        ("p90 at most 10 %", *(share(s.summary.p90_abs_error) for s in ways)),
        ("75 to 90 % inside the interval", *(share(s.summary.inside_interval) for s in ways)),
        ("none faster than the lower bound", *(str(s.summary.below_lower_bound) for s in ways)),
        ("models up to 1.5B within 20 %", *(share(worst_of_small(s)) for s in ways)),
        ("retention within 2 points", *map(retained, ways)),
    ]
    return render.markdown(rows)


def share(fraction: float | None) -> str:
    return render.share(fraction)


def worst_of_small(scored: Score) -> float:
    samples, _ = published()
    small = {s.run.id for s in samples if flops.parameters(s.run.model) < SMALL_PARAMETERS}
    return max(abs(row.error) for row in scored.rows if row.id in small)


def retained(scored: Score) -> str:
    off = [abs(one.expected - one.measured) for one in scored.retention]
    return f"{sum(points <= 0.02 for points in off)} of {len(off)}, median {share(median(off))}"


def pages(by_name: dict[str, Score]) -> dict[Path, str]:
    """The table of each page."""
    return {README: render.score_markdown(by_name), DOCUMENT: goals(by_name)}


def written(page: str, table: str) -> str:
    """The page with that table."""
    return with_block(page, MARK, table)


def main() -> None:
    """Write the constants first: the scores are computed with them."""
    write(FOLDER / LEARNED, learned())
    by_name = scores(print)
    for page, table in pages(by_name).items():
        write(page, written(page.read_text(encoding="utf-8"), table))
    print(f"\n{render.score_markdown(by_name)}\n{goals(by_name)}")


def write(path: Path, new: str) -> None:
    changed = path.read_text(encoding="utf-8") != new
    path.write_text(new, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {'written' if changed else 'unchanged'}")


if __name__ == "__main__":
    main()
