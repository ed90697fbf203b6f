"""Writes the learned constants as the catalog's file, each with the rows it was learned from."""

from orchestrator.catalog import Range
from orchestrator.catalog.efficiency import OTHER, REFERENCE
from orchestrator.score.fit import Constants
from orchestrator.score.learn import informative_rows
from orchestrator.score.samples import Sample

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
