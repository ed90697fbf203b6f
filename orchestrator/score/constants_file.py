"""Writes the learned constants as the catalog's file, each with the rows it was learned from."""

from orchestrator.score.fit import Constants, informative_rows
from orchestrator.score.samples import Sample

HEAD = """\
# What real runs reach. Written by `make score` from published_runs.csv: change the rows, never the
# numbers. docs/score.md says what each constant means; `rows` are those that it was learned from.
"""
# The shortest step and the most chips in these rows; plans beyond them warn that they extrapolate.
REACH = """\
[reach]
step_s = {step_s}

[reach.chips]
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
    blocks.append(reach(samples))
    return "\n".join(blocks)


def entry(name: str, value: float, unsure: float, rows: tuple[str, ...]) -> str:
    """One table, with so few digits that the file is the same on every machine."""
    listed = "".join(f'    "{row}",\n' for row in rows)
    return f"[{name}]\nvalue = {rounded(value)}\nunsure = {rounded(unsure)}\nrows = [\n{listed}]\n"


def reach(samples: list[Sample]) -> str:
    """The shortest step of all rows, and the most chips of each kind."""
    most = {s.run.chip: 0 for s in samples}
    for sample in samples:
        most[sample.run.chip] = max(most[sample.run.chip], sample.run.chips)
    chips = "".join(f"{name} = {most[name]}\n" for name in sorted(most))
    return REACH.format(step_s=rounded(min(s.measured_s for s in samples)), chips=chips)


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")
