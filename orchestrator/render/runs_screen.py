"""runs as a table, one run on a screen, the lines of its logs."""

from collections.abc import Sequence

from orchestrator.render.formatting import count, elapsed, percent
from orchestrator.render.layout import columns, page, tabulated, title
from orchestrator.types.run import Run
from orchestrator.types.study import StudyStatus

HEAD = ("RUN", "STATE", "STEPS", "MFU", "PODS", "SUBMITTED", "")
SIDES = "<<>>>><"


def runs_screen(runs: list[Run], storage: str, studies: Sequence[StudyStatus] = ()) -> str:
    """All runs, newest first; those of a study below it, where the newest of them would be."""
    if not runs and not studies:
        return f"No runs in {storage}\nNext: orch submit SPEC\n"
    known = {one.study: study_row(one) for one in studies}
    groups: dict[str, list[tuple[str, ...]]] = {}
    for run in runs:
        group = run.study if run.study in known else run.run
        groups.setdefault(group, [known[group]] if group in known else []).append(row(run))
    for key, head in known.items():
        groups.setdefault(key, [head])
    rows = [HEAD, *(one for group in groups.values() for one in group)]
    return "\n".join(columns(rows, SIDES)) + "\n"


def study_row(status: StudyStatus) -> tuple[str, ...]:
    done = f"{status.done} / {status.total} runs"
    began = f"{elapsed(status.read_at_s - status.submitted_at_s)} ago"
    return status.study, status.state, done, "", "", began, f"{status.scaling} scaling"


def study_runs_screen(status: StudyStatus) -> str:
    """A study and every run that was begun for it, in their order."""
    done = f"{status.done} of {status.total} runs done"
    head = title(f"{status.study}: {status.state}, {done}", f"{status.scaling} scaling")
    rows = [one[:-1] for one in (HEAD, *map(row, status.runs))] if status.runs else []
    return page([[head], tabulated(rows, SIDES[:-1])])


def row(run: Run) -> tuple[str, ...]:
    return (
        run.run,
        run.state,
        f"{count(run.steps_done)} / {count(run.steps)}",
        mfu(run),
        str(run.pods),
        f"{elapsed(run.read_at_s - run.submitted_at_s)} ago",
        "rehearsal" if run.rehearsal else "",
    )


def mfu(run: Run) -> str:
    return percent(run.recent.mfu) if run.recent and run.recent.mfu is not None else "-"
