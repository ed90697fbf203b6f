"""Records runs with Weights & Biases: in a folder that `wandb sync` sends, or on a server."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import journal as journals
from orchestrator.evidence.report import make_report
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepReader
from orchestrator.tracking.destinations import NotRecorded
from orchestrator.tracking.mlflow import metrics
from orchestrator.values import codec
from orchestrator.values.run import LIVE, Destination, Run, TrackedRun
from orchestrator.values.spec import TrackingOptions

TRACKER, _FOLDER = "wandb", "wandb-offline"


class _Sent(msgspec.Struct, frozen=True):
    """How much of a run is in a folder, noted when its files are complete."""

    steps: int = 0
    ended: bool = False


class WandbTracker:
    """One W&B run for each run, with the metrics that MLflow has."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenRun] = {}

    def destination(
        self, options: TrackingOptions, storage: Path, _: Mapping[str, str]
    ) -> Destination:
        """Return the server that `tracking.uri` names, or the folder of offline runs."""
        uri = options.uri
        if "://" not in uri:  # nothing is sent anywhere unless a spec says where
            uri = str(storage.absolute() / _FOLDER if uri == "auto" else Path(uri).absolute())
        return Destination(tracker=TRACKER, uri=uri, experiment=options.experiment, artifacts=None)

    def sync(
        self, journal: Journal, run: Run, destination: Destination, on_steps: Callable[[int], None]
    ) -> None:
        """Log the steps that are missing. W&B knows rows by run and step: repeats are harmless."""
        try:
            opened = self._open.get(run.id) or _OpenRun(journal, run, destination)
            self._open[run.id] = opened
            opened.catch_up(run, on_steps)
            if run.state not in LIVE:
                self._open.pop(run.id).close(run)
        except NotRecorded:
            raise
        except Exception as error:  # its own, of HTTP and of the disk
            self._open.pop(run.id, None)
            raise NotRecorded(f"{destination.label}: {error}") from error
        journals.track(journal, TrackedRun(tracker=TRACKER, uri=destination.uri, run_id=run.id))


class _OpenRun:
    def __init__(self, journal: Journal, run: Run, where: Destination) -> None:
        self._journal, self._readers = journal, dict[int, StepReader]()
        is_offline = "://" not in where.uri
        folder = Path(where.uri) if is_offline else journal.path.absolute().parent / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._note = folder / f"{run.id}.json"
        self._sent = _Sent()
        if self._note.exists():
            self._sent = codec.from_json(self._note.read_bytes(), _Sent)
        self._steps = self._sent.steps
        self._run: Any = None
        if self._sent.ended and run.state not in LIVE:
            return
        try:
            import wandb  # noqa: PLC0415  a long import, and an extra
        except ImportError:
            raise NotRecorded("wandb is not installed: pip install 'orch[wandb]'") from None
        more = {} if is_offline else {"base_url": where.uri}
        self._run = wandb.init(
            project=where.experiment,
            id=run.id,
            name=run.run,
            group=run.study,
            job_type="rehearsal" if run.rehearsal else "run",
            dir=folder,
            mode="offline" if is_offline else "online",
            resume="allow",
            config=msgspec.to_builtins(journal.spec()),
            settings=wandb.Settings(silent=True, console="off", disable_git=True, **more),
        )

    def catch_up(self, run: Run, on_steps: Callable[[int], None]) -> None:
        for attempt in run.attempts if self._run else ():
            plan = self._journal.plan(attempt.plan_digest)
            reader = StepReader(self._journal.path, attempt.number)
            for steps in self._readers.setdefault(attempt.number, reader).in_parts():
                for timed in steps:
                    index = timed.step.index
                    if index < self._steps:
                        continue
                    points = metrics.of_step(timed, plan.stage_of(index))
                    self._run.log({point.name: point.value for point in points}, step=index)
                    self._steps = index + 1
                on_steps(self._steps)

    def close(self, run: Run) -> None:
        """Finish the files, and then note what they have."""
        if self._run is None:
            return
        ending = metrics.of_ending(make_report(self._journal), 0.0)
        self._run.summary.update({point.name: point.value for point in ending})
        self._run.summary.update({"orch.state": run.state, "orch.journal": run.journal})
        self._run.finish(exit_code=0 if run.state == "succeeded" else 1)
        self._note.write_bytes(codec.to_json(_Sent(steps=self._steps, ended=True)))
