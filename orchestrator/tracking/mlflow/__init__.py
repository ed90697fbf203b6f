"""Records runs in MLflow. No other package imports MLflow."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.journal.run_journal import Journal
from orchestrator.tracking.mlflow import store
from orchestrator.tracking.mlflow.export import RunExport
from orchestrator.tracking.mlflow.store import SYNC_LIMIT_S, Store, deadline
from orchestrator.values.run import Destination, Run


class MLflowTracker:
    """One MLflow run for each run, with its attempts, metrics, params and files."""

    def __init__(self) -> None:
        self._stores: dict[Destination, Store] = {}
        self._exports: dict[tuple[Path, Destination], RunExport] = {}

    destination = staticmethod(store.destination)

    def sync(
        self, journal: Journal, run: Run, destination: Destination, on_steps: Callable[[int], None]
    ) -> None:
        """Send what MLflow lacks of a run. Each step is read once, however often this is called."""
        with deadline(destination, SYNC_LIMIT_S, "the sync"):
            if destination not in self._stores:
                self._stores[destination] = Store(destination)
            key = (journal.path, destination)
            if key not in self._exports:
                self._exports[key] = RunExport(journal, self._stores[destination])
            self._exports[key].catch_up(run, on_steps)
