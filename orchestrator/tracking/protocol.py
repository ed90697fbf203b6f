"""The protocol that every tracker implements, and how a tracker is found by its name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.journal.run_journal import Journal
from orchestrator.values.run import Destination, Run
from orchestrator.values.run_options import TrackingOptions


class NotRecorded(OrchError):
    """The tracker cannot be reached, or refuses. `orch sync` sends what is missing later."""


class RunNotRecorded(NotRecorded):
    """This run cannot be recorded now; other runs of the same tracker can."""


class RecordedElsewhere(RunNotRecorded):
    """Another process records this run now."""


class Tracker(Protocol):
    """Brings an outside record of runs up to date with their journals."""

    def destination(
        self, options: TrackingOptions, storage: Path, environment: Mapping[str, str]
    ) -> Destination:
        """Where runs in a storage directory are recorded. `SpecError` refuses what is unusable."""
        ...

    def sync(
        self,
        journal: Journal,
        run: Run,
        destination: Destination,
        on_steps: Callable[[int], None],
    ) -> None:
        """Send what the record lacks of a run, and note its id with `journal.track`.

        A sync may be interrupted anywhere and repeated any number of times: nothing is missing or
        doubled afterwards. `on_steps` hears how many steps are recorded. `NotRecorded` says why
        nothing more can be sent now.
        """
        ...


def find_tracker(name: str) -> Tracker:
    """A new tracker of that name: built in, an entry point, or `package.module:class`."""
    tracker: Tracker = plugins.load("tracker", name, plugins.TRACKERS)()
    return tracker


def destination(
    options: TrackingOptions, storage: Path, environment: Mapping[str, str]
) -> Destination:
    """Where runs in a storage directory are recorded, by the tracker that the options name."""
    return find_tracker(options.tracker).destination(options, storage, environment)
