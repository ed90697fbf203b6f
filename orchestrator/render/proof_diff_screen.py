"""Show two proofs side by side on one screen."""

from orchestrator.formatting import in_memory, percent, seconds, with_unit
from orchestrator.render.plan_diff_verdict import change
from orchestrator.render.schedule_screen import short_line
from orchestrator.render.screen_parts import (
    Part,
    Screen,
    Table,
    closing,
    heading,
    indent,
    paragraph,
    screen,
    section,
)
from orchestrator.types.codec import short
from orchestrator.types.proof import Proof
from orchestrator.types.proof_diff import LineSeconds, ProofDiff, ProofFigure
from orchestrator.types.schedule import Schedule

MOST = 10  # lines; --json has all
SMALL = 0.001  # of a step: lines that differ by less are left to --json
NAMES = {
    "peak_hbm": "peak memory",
    "host": "on the host",
    "flops": "FLOPs",
    "ici": "sent over ici",
    "dcn": "sent over dcn",
    "products_s": "products",
    "kernels_s": "kernels",
    "copies_s": "copies",
    "other_s": "other",
    "exposed_s": "exposed",
    "total_s": "scheduled",
}
Row = tuple[str, ...]


def proof_diff_screen(diff: ProofDiff, names: tuple[str, str]) -> Screen:
    """Return the figures of both, and the lines whose seconds differ."""
    first, second = diff.proofs
    return screen(
        [heading(f"{reference(names[0], first)} and {reference(names[1], second)}")],
        indent([paragraph(verdict(diff), "bold")]),
        section("per device and step", figures(diff)),
        section("lines whose seconds differ most", lines(diff)),
        closing(verdict(diff)),
    )


def reference(name: str, proof: Proof) -> str:
    return f"{name} ({short(proof.plan_digest)}, trainer {proof.trainer})"


def figures(diff: ProofDiff) -> list[Part]:
    rows: list[Row] = [("", "first", "second", "change")]
    rows += [
        (NAMES[one.name], *(shown(one, value) for value in pair), change(*pair))
        for one in diff.figures
        if any(pair := (one.first, one.second))
    ]
    return [Table(rows=rows, columns="<>>>")]


def shown(figure: ProofFigure, value: float) -> str:
    if figure.unit == "s":
        return seconds(value)
    if figure.unit == "flops":
        return with_unit(value, "FLOP", 4)
    is_memory = figure.name in {"peak_hbm", "host"}
    return in_memory(value) if is_memory else with_unit(value, "B", 4)


def lines(diff: ProofDiff) -> list[Part]:
    least = SMALL * max((one.total_s for one in schedules(diff)), default=0.0)
    rows = [line_row(one) for one in diff.lines[:MOST] if abs(one.more_s) >= least]
    head = ("first", "second", "more", "")
    return [Table(rows=[head, *rows], columns=">>><")] if rows else []


def line_row(one: LineSeconds) -> Row:
    sign = "+" if one.more_s > 0 else "-"
    more = f"{sign}{seconds(abs(one.more_s))}"
    return part(one.first_s), part(one.second_s), more, short_line(one.line)


def part(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def schedules(diff: ProofDiff) -> list[Schedule]:
    return [proof.schedule for proof in diff.proofs if proof.schedule]


def verdict(diff: ProofDiff) -> str:
    """Return which schedule is shorter, and whether both fit."""
    both = schedules(diff)
    if len(both) < 2:
        return "There is no schedule of both: the catalog has no clock for a chip."
    ratio = both[1].total_s / both[0].total_s
    word = "longer" if ratio > 1 else "shorter"
    text = f"The second is scheduled {percent(abs(ratio - 1))} {word}"
    unfit = [name for name, proof in zip(("first", "second"), diff.proofs, strict=True)
             if not proof.fits]  # fmt: skip
    return f"{text}{''.join(f'; the {name} does not fit' for name in unfit)}."
