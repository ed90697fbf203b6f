"""Show runs and studies as a table."""

from collections.abc import Sequence

from orchestrator.formatting import age, count, percent, scaled
from orchestrator.render.screen_parts import (
    Command,
    Screen,
    Table,
    Title,
    indent,
    next_step,
    screen,
)
from orchestrator.types.run import Run
from orchestrator.types.study import StudyStatus, kind_text

HEAD = ("RUN", "STATE", "STEPS", "MFU", "PODS", "AGE", "")
COLUMNS = "<<>>>><"
SPARE = tuple(map(HEAD.index, ("PODS", "AGE", "MFU")))  # a narrow terminal may lack them
FEW = 10_000  # smaller numbers are written out

Row = tuple[str, ...]


def runs_screen(
    runs: list[Run], storage: str, studies: Sequence[StudyStatus] = (), following: str | None = None
) -> Screen:
    """Return all runs, newest first; a study comes above its runs. `following` is the command for
    one of them.
    """
    if not runs and not studies:
        return screen([Command(text=f"No runs in {storage}"), *next_step("orch submit SPEC")])
    heads = {one.study: study_row(one) for one in studies}
    groups: dict[str, list[Row]] = {}
    for run in runs:
        group = run.study if run.study in heads else run.run
        groups.setdefault(group, [heads[group]] if group in heads else []).append(run_row(run))
    for key, head in heads.items():
        groups.setdefault(key, [head])
    rows = [HEAD, *(row for group in groups.values() for row in group)]
    table = Table(rows=rows, columns=COLUMNS, row_styles={0: "bold"}, spare=SPARE)
    return screen([table], next_step(following))


def study_row(status: StudyStatus) -> Row:
    done = f"{status.done} / {status.total} runs"
    submitted = age(status.read_at_s - status.submitted_at_s)
    return status.study, status.state, done, "", "", submitted, kind_text(status.scaling)


def study_runs_screen(status: StudyStatus) -> Screen:
    """Return a study and its runs, in their order."""
    done = f"{status.done} of {status.total} runs done"
    title = Title(left=f"{status.study}: {status.state}, {done}", right=kind_text(status.scaling))
    rows = [row[:-1] for row in (HEAD, *map(run_row, status.runs))] if status.runs else []
    return screen([title], indent([Table(rows=rows, columns=COLUMNS[:-1])]) if rows else [])


def short_count(number: int) -> str:
    """Return a number in a few columns: 9,999, 1M."""
    return count(number) if number < FEW else scaled(number)


def run_row(run: Run) -> Row:
    return (
        run.run,
        run.state,
        f"{short_count(run.steps_done)} / {short_count(run.steps)}",
        mfu(run),
        str(run.pods),
        age(run.read_at_s - run.submitted_at_s),
        "rehearsal" if run.rehearsal else "",
    )


def mfu(run: Run) -> str:
    return percent(run.recent.mfu) if run.recent and run.recent.mfu is not None else "-"
