"""What a row states of its software, its attention kernel and its figure, and what is assumed.

A file may lack these columns, and a cell may be empty. Then the row's source, its other cells or
the practice of the field decide, and the row lists what was assumed.
"""

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from orchestrator.score.cells import Unscorable

Kernel = Literal["flash", "splash", "splash-fused", "fused", "none"]
Averages = Literal["steps", "run"]
SOFTWARE, KERNEL, AVERAGES = COLUMNS = ("software", "kernel", "averages")
UNKNOWN_SOFTWARE = "not stated"
NAME = re.compile(r"[a-z0-9][a-z0-9._/+-]*")


@dataclass(frozen=True, kw_only=True)
class RunSoftware:
    """What a run's program was. `assumed` names the columns that its row does not state.

    `kernel` is that of attention: `splash-fused` with one backward kernel, `fused` where the source
    does not name it, `none` where scores go through HBM. A figure averages steady `steps`, or a
    whole `run` with its evaluations and saves.
    """

    name: str
    kernel: Kernel
    averages: Averages
    assumed: tuple[str, ...] = ()


# Projects whose pages are about runs of their own trainer; the first that matches decides.
OF_SOURCE = (
    (r"pytorch|torch[-_]?xla|torchprime|optimum-tpu", "pytorch-xla"),
    (r"maxtext", "maxtext"),
    (r"axlearn", "axlearn"),
    (r"marin|levanter", "levanter"),
    (r"easylm|openllama|open_llama", "easylm"),
    (r"t5x|2204\.02311", "t5x"),
    (r"tpu-recipes training/ironwood/", "maxtext"),  # its other pages name MaxText
)
# Words of a source about its attention.
OF_WORDS: tuple[tuple[str, Kernel], ...] = (
    (r"\b(no|none|not|without)\b|unfused|einsum|dot_product|eager", "none"),
    (r"tokamax", "splash-fused"),
    (r"splash", "splash"),
    (r"flash", "flash"),
)
# MaxText says flash of any kernel. The first one is of pallas; since January 2024 it is splash.
MAXTEXT_FLASH = "flash"


def software_of(row: dict[str, str]) -> RunSoftware:
    """The three cells of a row, or what is assumed for them."""
    stated = {column: stated_cell(row, column) for column in COLUMNS}
    stated[KERNEL] = stated[KERNEL] or kernel_of_words(row)
    return RunSoftware(
        name=stated[SOFTWARE] or software_of_source(row),
        kernel=cast(Kernel, stated[KERNEL] or assumed_kernel(row)),
        averages=cast(Averages, stated[AVERAGES] or averages_of_notes(row)),
        assumed=tuple(column for column in COLUMNS if not stated[column]),
    )


def stated_cell(row: dict[str, str], column: str) -> str:
    """The cell in lower case; an error names the line, the column and what may stand there."""
    text = row.get(column, "").lower()
    known = {KERNEL: get_args(Kernel), AVERAGES: get_args(Averages)}.get(column)
    if not text or (NAME.fullmatch(text) if known is None else text in known):
        return text
    wanted = f"one of {', '.join(known)}" if known else "a name such as maxtext or pytorch-xla"
    line = row["line"]
    why = f"line {line}, column {column}: {text!r} is not {wanted}"
    raise Unscorable(why, line=int(line), column=column)


def software_of_source(row: dict[str, str]) -> str:
    source = f"{row['source_repo']} {row['source_path']}".lower()
    return next((name for words, name in OF_SOURCE if re.search(words, source)), UNKNOWN_SOFTWARE)


def kernel_of_words(row: dict[str, str]) -> str:
    """The kernel that the source's own words mean; empty where they say nothing known."""
    words = row.get("attention_kernel", "").lower()
    if words == MAXTEXT_FLASH and software_of_source(row) == "maxtext":
        return "splash"
    return next((kernel for pattern, kernel in OF_WORDS if re.search(pattern, words)), "")


def assumed_kernel(row: dict[str, str]) -> Kernel:
    """None where the file has a column of kernels and the cell is empty."""
    return "none" if row.get("attention_kernel") == "" else "fused"


def averages_of_notes(row: dict[str, str]) -> Averages:
    return "run" if re.search(r"whole[- ]run", row["notes"]) else "steps"
