"""Writes the learned constants as the catalog's file, each with the rows it was learned from."""

from orchestrator.catalog import Range
from orchestrator.score.fit import Constants, informative_rows
from orchestrator.score.samples import Sample

HEAD = """\
# What real runs reach. Written by `make score` from published_runs.csv: change the rows, never the
# numbers. docs/score.md says what each constant means; `rows` are those that it was learned from.
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
    rows = informative_rows(samples, constants) | {"spread": tuple(s.run.id for s in samples)}
    blocks = [HEAD]
    for name, value in [*constants.shared.items(), ("spread", constants.spread)]:
        unsure = constants.unsure.get(name, 0.0)
        blocks.append(entry(f"shared.{name}", value, unsure, rows[name]))
    for chip, value in constants.matmul.items():
        of_chip = tuple(s.run.id for s in samples if s.run.chip == chip)
        blocks.append(entry(f"matmul.{chip}", value, 0.0, of_chip))
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
