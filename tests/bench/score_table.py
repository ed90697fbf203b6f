"""`make score`: learn the constants, write them into the catalog, print and write the scores.

tests/test_score.py and tests/test_score_learn.py check that the catalog, the README and
docs/score-evidence.md have the computed numbers.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from orchestrator.catalog.chips import FOLDER
from orchestrator.catalog.published import _LEARNED, OTHER, REFERENCE
from orchestrator.evidence.score.evaluate import (
    DENSE,
    OTHERS,
    _HeldOut,
    _software_summaries,
    cross_validated,
    dense_rows,
    published_samples,
    with_catalog_constants,
)
from orchestrator.evidence.score.learn import _Constants, _dense_of, learn
from orchestrator.evidence.score.published_runs import PUBLISHED, read
from orchestrator.evidence.score.samples import (
    IN_PIECES,
    Sample,
    Score,
    SoftwareSummary,
    Summary,
    summary,
)
from orchestrator.formatting import seconds, signed_percent
from orchestrator.planning import flops
from orchestrator.show import report_screen as render
from tests.bench.marked_block import markdown, with_block
from tests.conftest import ROOT

README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "score-evidence.md"
MARK, SOFTWARE_MARK = "make score", "make score: software"
MIXTURE_MARK, NARROW_MARK = "make score: mixtures", "make score: int8 and fp8"
SEEN, DOCUMENTS, GROUPS, SOFTWARE = (
    "nothing: all rows seen",
    "a document of runs",
    "all a source's runs on that chip",
    "all runs of a software",
)
SMALL_PARAMETERS = 1.5e9
HEAD = """\
# What real runs reach. Written by `make score` from the published runs beside it: change the rows,
# never the numbers. docs/score.md says what each constant means; `rows` are those behind it.
"""


def learned() -> str:
    """The text of the catalog's file of constants."""
    samples = [*published_samples(*DENSE)[0], *published_samples(*OTHERS)[0]]
    return text_of(samples, learn(samples))


def text_of(samples: list[Sample], constants: _Constants) -> str:
    """Return the file catalog/efficiency.toml."""

    dense = _dense_of(samples)

    def informed(
        seconds: Callable[[Sample], float], among: list[Sample] = dense
    ) -> tuple[str, ...]:
        """Return the rows with at least a percent of such work in their step."""
        return tuple(s.run.id for s in among if seconds(s) > 0.01 * s.measured_s)

    def is_flash(sample: Sample) -> bool:
        return sample.run.software.kernel == "flash"

    shared = constants.shared
    rows = {
        "attention": informed(lambda s: s.todo.attention_s * (not is_flash(s))),
        "flash_attention": informed(lambda s: s.todo.attention_s * is_flash(s)),
        "exposed_gathers": informed(lambda s: s.todo.gathers_s + s.todo.dcn_s),
        "exposed_tensor": informed(lambda s: s.todo.tensor_s * (s.run.software.name in IN_PIECES)),
        "slice_wait_s": informed(lambda s: s.todo.reductions * shared["slice_wait_s"]),
        "slice_hop_s": informed(lambda s: s.todo.hops * shared["slice_hop_s"]),
        "run_overhead_s": informed(lambda s: s.averages_run * shared["run_overhead_s"]),
        "run_share": informed(lambda s: s.averages_run * s.measured_s),
        "row_move_s": informed(lambda s: float(s.todo.row_moves) * shared["row_move_s"], samples),
        "bias_row_s": informed(lambda s: s.bias_rows * shared["bias_row_s"], samples),
        "mask_products": informed(lambda s: s.masks_s, samples),
    }
    every = tuple(s.run.id for s in dense)
    others = tuple(s.run.id for s in dense if s.run.software.name != REFERENCE)
    of_mixtures = tuple(s.run.id for s in samples if s.run.model.moe)
    blocks = [HEAD]
    for name, value in shared.items():
        blocks.append(entry(f"shared.{name}", value, rows[name], constants.unsure.get(name, 0.0)))
    blocks.append(entry("shared.spread", constants.spread, every))
    blocks.append(entry("shared.reference_spread", constants.reference_spread, every))
    blocks.append(entry("shared.mixture_spread", constants.mixture_spread, of_mixtures))
    for chip, value in constants.matmul.items():
        of_chip = tuple(s.run.id for s in dense if s.run.chip == chip)
        blocks.append(entry(f"matmul.{chip}", value, of_chip))
    for name, value in constants.quantized.items():
        of_type = tuple(s.run.id for s in samples if f"{s.run.chip}-{s.run.compute}" == name)
        blocks.append(entry(f"quantized.{name}", value, of_type, constants.unsure[name]))
    for name, value in constants.software.items():
        of_software = tuple(s.run.id for s in dense if s.run.software.name == name)
        blocks.append(entry(f"software.{name}", value, others if name == OTHER else of_software))
    # What these rows had at least and at most. Outside `expected` extrapolates, and plans say so.
    for name, ranges in (("", constants.ranges), *sorted(constants.of_chip.items())):
        ends = "".join(
            f"{axis} = [{rounded(reached.low)}, {rounded(reached.high)}]\n"
            for axis, reached in sorted(ranges.items())
        )
        blocks.append(f"[range{name and '.'}{name}]\n{ends}")
    return "\n".join(blocks)


def entry(name: str, value: float, rows: tuple[str, ...], unsure: float = 0.0) -> str:
    listed = "".join(f'    "{row}",\n' for row in rows)
    figures = f"value = {rounded(value)}\nunsure = {rounded(unsure)}"
    return f"[{name}]\n{figures}\nrows = [\n{listed}]\n"


def rounded(value: float) -> float:
    """Return four digits, so that the file is the same on every machine."""
    return float(f"{value:.3e}")


def scores(say: Callable[[str], None] = lambda _: None) -> dict[str, Score]:
    """The scores by what was left out when the constants were learned."""
    by_name = {SEEN: with_catalog_constants()}  # of dense models and of mixtures
    keys: tuple[tuple[str, _HeldOut], ...] = (
        (DOCUMENTS, "document"),
        (GROUPS, "group"),
        (SOFTWARE, "software"),
    )
    for name, key in keys:
        say(f"learning without {name}, one after another …")
        by_name[name] = cross_validated(key)
    return by_name


def dense(scored: Score) -> Score:
    """The part of a score that is about dense models in the types of activations."""
    rows = dense_rows(scored.rows)
    return replace(
        scored,
        rows=tuple(rows),
        software=tuple(_software_summaries(rows)),
        summary=scored.dense,
    )


def not_dense(by_name: dict[str, Score], mixtures: bool) -> str:
    """Return a table of docs/score-evidence.md: runs of mixtures, or of int8 and fp8, with totals.

    The errors are those of all constants, and of constants learned without the run's document.
    """
    kind = "mixture of experts" if mixtures else "dense, in int8 or fp8"
    rows: list[tuple[str, ...]] = [(kind, "measured", "expected", "error", "without its document")]
    ways = [by_name[name] for name in (SEEN, DOCUMENTS)]
    chosen = [
        [r for r in way.rows if r not in dense_rows(way.rows) and r.mixture == mixtures]
        for way in ways
    ]
    for seen, unseen in zip(*chosen, strict=True):
        times = seconds(seen.measured_step_s), seconds(seen.expected_step_s)
        rows.append((seen.id, *times, signed_percent(seen.error), signed_percent(unseen.error)))
    parts = [way.mixtures if mixtures else way.quantized for way in ways]
    for title, name in (
        ("median of absolute errors", "median_abs_error"),
        ("p90", "p90_abs_error"),
        ("inside the 80 % interval", "inside_interval"),
    ):
        rows.append((title, "", "", *(share(getattr(part, name)) for part in parts)))
    return markdown(rows)


def goals(by_name: dict[str, Score]) -> str:
    """The table of docs/score-evidence.md: the goals for `published_runs.csv`, and the results."""
    ways = [of_file(by_name[name], PUBLISHED) for name in (DOCUMENTS, GROUPS)]
    rows = [
        ("goal", "a document left out", "a source and chip left out"),
        ("median error at most 4 %", *(share(s.summary.median_abs_error) for s in ways)),
        ("p90 at most 10 %", *(share(s.summary.p90_abs_error) for s in ways)),
        ("75 to 90 % inside the interval", *(share(s.summary.inside_interval) for s in ways)),
        ("none faster than the lower bound", *(str(s.summary.below_lower_bound) for s in ways)),
        ("models up to 1.5B within 20 %", *(share(worst_of_small(s)) for s in ways)),
        ("retention within 2 points", *map(retained, ways)),
    ]
    return markdown(rows)


def of_file(scored: Score, path: Path) -> Score:
    """The part of a score that is about the runs of one file."""
    ids = {row["id"] for row in read(path)}
    rows = tuple(row for row in scored.rows if row.id in ids)
    return replace(
        scored,
        rows=rows,
        retention=tuple(row for row in scored.retention if row.id in ids),
        summary=summary(list(rows), 0),
    )


def by_software(by_name: dict[str, Score]) -> str:
    """Return the table of software: with a document left out, and with all of its runs."""
    documents, software = by_name[DOCUMENTS].software, by_name[SOFTWARE].software
    head = ("software", "runs", *("median", "p90", "inside 80 %") * 2, "bias")
    rows: list[tuple[str, ...]] = [head]
    for one, other in zip(documents, software, strict=True):
        figures = [share(figure) for s in (one, other) for figure in figures_of(s)]
        rows.append((one.software, str(one.rows), *figures, signed_percent(other.median_error)))
    total = figures_of(by_name[DOCUMENTS].summary), figures_of(by_name[SOFTWARE].summary)
    rows.append(("all", str(by_name[SOFTWARE].summary.rows), *map(share, sum(total, ())), ""))
    return markdown(rows)


def figures_of(of: SoftwareSummary | Summary) -> tuple[float | None, ...]:
    return of.median_abs_error, of.p90_abs_error, of.inside_interval


def share(fraction: float | None) -> str:
    return render._share(fraction)


def score_markdown(scores: dict[str, Score]) -> str:
    """Return the README's table: this model and the baseline, for each way of leaving rows out."""
    head = ("learned without", "runs", "median", "p90", "inside 80 %", "one MFU: median", "p90")
    return markdown([head, *(markdown_row(name, one.summary) for name, one in scores.items())])


def markdown_row(name: str, summary: Summary) -> tuple[str, ...]:
    return (
        name,
        str(summary.rows),
        share(summary.median_abs_error),
        share(summary.p90_abs_error),
        share(summary.inside_interval),
        share(summary.baseline_median_abs_error),
        share(summary.baseline_p90_abs_error),
    )


def worst_of_small(scored: Score) -> float:
    samples, _ = published_samples(*DENSE)
    small = {s.run.id for s in samples if flops.parameters(s.run.model) < SMALL_PARAMETERS}
    return max(abs(row.error) for row in scored.rows if row.id in small)


def retained(scored: Score) -> str:
    off = [abs(row.expected - row.measured) for row in scored.retention]
    return f"{sum(points <= 0.02 for points in off)} of {len(off)}, median {share(median(off))}"


def tables(by_name: dict[str, Score]) -> list[tuple[Path, str, str]]:
    """Each table with its page and its mark."""
    every, by_name = by_name, {name: dense(one) for name, one in by_name.items()}
    return [
        (DOCUMENT, MIXTURE_MARK, not_dense(every, mixtures=True)),
        (DOCUMENT, NARROW_MARK, not_dense(every, mixtures=False)),
        (README, MARK, score_markdown(by_name)),
        (DOCUMENT, MARK, goals(by_name)),
        (DOCUMENT, SOFTWARE_MARK, by_software(by_name)),
    ]


def main() -> None:
    """Write the constants first: the scores are computed with them."""
    write(FOLDER / _LEARNED, learned())
    by_name = scores(print)
    for page, mark, table in tables(by_name):
        write(page, with_block(page.read_text(encoding="utf-8"), mark, table))
        print(f"\n{table}")


def write(path: Path, new: str) -> None:
    changed = path.read_text(encoding="utf-8") != new
    path.write_text(new, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {'written' if changed else 'unchanged'}")


if __name__ == "__main__":
    main()
