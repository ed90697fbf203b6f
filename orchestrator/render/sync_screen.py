"""Show which runs MLflow has, and where to look at them."""

from collections.abc import Sequence

from orchestrator.formatting import count, counted
from orchestrator.render.screen_parts import (
    Command,
    Part,
    Screen,
    Table,
    next_step,
    screen,
    section,
    warning,
)
from orchestrator.types.tracking import SyncResult, ViewLink


def sync_screen(results: Sequence[SyncResult], storage: str, next_command: str) -> Screen:
    """Return each run with its steps in MLflow, and whether any is missing."""
    if not results:
        nothing = f"No runs in {storage} that are this user's"
        return screen([Command(text=nothing), *next_step("orch submit SPEC")])
    rows = [
        (one.run, one.recorded.state, count(one.recorded.steps), one.run_id or "")
        for one in results
        if one.recorded
    ]
    table = Table(rows=[("RUN", "STATE", "STEPS", "MLFLOW RUN"), *rows], columns="<<><")
    return screen([table] if rows else [], [*problems(results), *verdict(results, next_command)])


def problems(results: Sequence[SyncResult]) -> list[Part]:
    return [
        *(warning(f"{one.run}: {one.problem}") for one in results if one.problem),
        *(f"{one.run}: recorded by its own driver" for one in results if one.by_driver),
    ]


def verdict(results: Sequence[SyncResult], next_command: str) -> list[Part]:
    missing = sum(one.problem is not None for one in results)
    if missing:
        lost = "Nothing is lost: the journals have what was trained. orch sync tries again."
        return [f"Sync: {missing} of {len(results)} runs not recorded. {lost}"]
    where = ", ".join(destinations([one for one in results if one.recorded or one.by_driver]))
    recorded = f"Sync: {counted(len(results), 'run')} recorded in {where}."
    return [Command(text=recorded), *next_step(next_command)]


def destinations(results: Sequence[SyncResult]) -> list[str]:
    """Return each database or server once, with its experiments."""
    experiments: dict[str, dict[str, None]] = {}
    for one in results:
        if where := one.destination:
            experiments.setdefault(where.label, {})[where.experiment] = None
    return [f"{label} ({', '.join(names)})" for label, names in experiments.items()]


def mlflow_links(
    address: str, shown: str, experiments: Sequence[tuple[str, Sequence[ViewLink]]]
) -> Screen:
    """Return where the MLflow UI shows the runs and their comparisons."""
    return screen(
        [Command(text=f"MLflow at {address}, showing {shown}", style="bold")],
        *(
            section(f"experiment {name}", [Table(rows=links(views), columns="<<")])
            for name, views in experiments
        ),
    )


def links(views: Sequence[ViewLink]) -> list[tuple[str, str]]:
    return [(view.name, view.url) for view in views]
