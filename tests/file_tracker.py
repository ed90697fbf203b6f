"""A tracker that appends to a file: a second one beside MLflow, for tests.

Each line of `runs.jsonl` is a step of a run, or its end. Lines are only ever appended.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator import journal as journals
from orchestrator.journal.run_journal import Journal
from orchestrator.values.run import LIVE, Destination, Run, TrackedRun
from orchestrator.values.spec import TrackingOptions

NAME = "tests.file_tracker:FileTracker"


class FileTracker:
    """Appends what the file lacks of a run."""

    def destination(
        self, options: TrackingOptions, storage: Path, _: Mapping[str, str]
    ) -> Destination:
        """A file beside the runs."""
        uri = str(storage.absolute() / "runs.jsonl")
        return Destination(tracker=NAME, uri=uri, experiment=options.experiment, artifacts=None)

    def sync(
        self, journal: Journal, run: Run, destination: Destination, on_steps: Callable[[int], None]
    ) -> None:
        """Append the steps that the file lacks, and the end of the run."""
        path = Path(destination.uri)
        lines = [line for line in read_lines(path) if line["run"] == run.run]
        steps = sum("step" in line for line in lines)
        new: list[dict[str, object]] = [
            {"run": run.run, "step": timed.step.index, "loss": timed.step.loss}
            for timed in journal.steps(run)
            if timed.step.index >= steps
        ]
        if run.state not in LIVE and not any("state" in line for line in lines):
            new.append({"run": run.run, "state": run.state})
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(event) + "\n" for event in new)
        journals.track(journal, TrackedRun(tracker=NAME, uri=destination.uri, run_id=run.run))
        on_steps(steps + len(new))


def read_lines(path: Path) -> list[dict[str, object]]:
    """Every line of the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
