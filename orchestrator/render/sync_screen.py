"""what of runs is recorded in MLflow."""

from collections.abc import Sequence

from orchestrator.render.formatting import count
from orchestrator.render.layout import columns, indent
from orchestrator.types.tracking import SyncResult, ViewLink


def sync_screen(tried: Sequence[SyncResult], storage: str, next_command: str) -> str:
    """Each run and what MLflow has of it; at the end, whether anything is missing."""
    if not tried:
        return f"No runs in {storage}\nNext: orch submit SPEC\n"
    head = ("RUN", "STATE", "STEPS", "MLFLOW RUN")
    rows = [head, *(row(one) for one in tried if one.recorded)]
    lines = [*columns(rows, "<<><"), ""] if len(rows) > 1 else []
    lines += [f"warning: {one.run}: {one.problem}" for one in tried if one.problem]
    lines += [f"{one.run}: recorded by its own driver" for one in tried if one.by_driver]
    missing = sum(one.problem is not None for one in tried)
    where = ", ".join(places([one for one in tried if one.recorded or one.by_driver]))
    if missing:
        kept = "Nothing is lost: the journals have it all, and orch sync sends it."
        lines.append(f"Sync: {missing} of {len(tried)} runs not recorded. {kept}")
    else:
        every = "1 run" if len(tried) == 1 else f"{len(tried)} runs"
        lines += [f"Sync: {every} recorded in {where}.", f"Next: {next_command}"]
    return "\n".join(lines) + "\n"


def places(tried: Sequence[SyncResult]) -> list[str]:
    """Each database or server once, with its experiments."""
    experiments: dict[str, dict[str, None]] = {}
    for one in tried:
        experiments.setdefault(one.destination.label, {})[one.destination.experiment] = None
    return [f"{label} ({', '.join(names)})" for label, names in experiments.items()]


def row(tried: SyncResult) -> tuple[str, ...]:
    assert tried.recorded
    state = tried.recorded.state
    return tried.run, state, count(tried.recorded.steps), tried.run_id or ""


def mlflow_links(
    address: str, what: str, experiments: Sequence[tuple[str, Sequence[ViewLink]]]
) -> str:
    """Where the MLflow UI shows what is recorded, and its comparisons."""
    lines = [f"MLflow at {address}, showing {what}"]
    for name, views in experiments:
        rows = [(view.name, view.url) for view in views]
        lines += ["", f"  experiment {name}", *indent(columns(rows, "<<"), "    ")]
    return "\n".join([*lines, ""]) + "\n"
