"""Show what own runs teach: their steps as expected and as measured, and the constants."""

from typing import TYPE_CHECKING

from orchestrator import formatting as fmt
from orchestrator.show import parts as ui
from orchestrator.values.codec import short

if TYPE_CHECKING:
    from orchestrator.run.own_runs import OwnScore


def own_score_screen(score: "OwnScore") -> ui.Screen:
    blocks: list[list[ui.Part]] = []
    for own, digest in zip(score.learned, score.digests, strict=True):
        rows: list[ui.Row] = [
            (
                run.run, fmt.count(run.chips), fmt.seconds(run.measured_s),
                fmt.seconds(run.published_s), fmt.seconds(run.own_s),
                "+".join(run.traced) or "-",
            )
            for run in own.runs
        ]  # fmt: skip
        head = ("run", "chips", "measured", "expected", "by the others", "traced")
        constants: list[ui.Row] = []
        for name, value in own.constants.items():
            was = own.was[name]
            cells = (f"{fmt.to_digits(c.value, 3)} ± {fmt.percent(c.unsure)}" for c in (was, value))
            constants.append((name.replace("_", " "), *cells))
        ends = (f"± {fmt.percent(spread)}" for spread in (own.spread_was, own.spread))
        constants.append(("spread of runs", *ends))
        blocks += [
            [ui.Title(f"{own.chip} in {own.compute}, trainer {own.trainer}", short(digest))],
            ui.section("steps", ui.table(head, rows, "<>>>><")),
            ui.section("constants", ui.table(("", "published", "own"), constants)),
        ]
    left_out = ui.indent(ui.labelled("left out:", f"{r.id}: {r.reason}") for r in score.left_out)
    if not score.learned:
        return ui.screen(left_out, ui.closing("Own runs: none was measured on chips."))
    runs = fmt.counted(sum(len(own.runs) for own in score.learned), "run")
    following = f"orch plan --profile {short(score.digests[0])} SPEC"
    return ui.screen(*blocks, left_out, ui.closing(f"Own runs: learned from {runs}.", following))
