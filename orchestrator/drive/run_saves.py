"""The checkpoints of a run that count, for its trainer: those that its drivers have recorded."""

import time
from collections.abc import Callable, Sequence

from orchestrator.errors import CheckpointFailed
from orchestrator.journal import ClaimWatch
from orchestrator.journal.claim_watch import RENEWAL_LIMIT_S
from orchestrator.journal.heartbeat import HeartbeatWriter
from orchestrator.launch.backend import WorkerArgs
from orchestrator.types.run import SavedCheckpoint, checkpoint_folder

SETTLE_LIMIT_S = 5.0
POLL_S = 0.05


class RunSaves:
    """Reports whole checkpoints with the heartbeats of a rank, and sees which are recorded."""

    def __init__(self, args: WorkerArgs, beats: HeartbeatWriter, watch: ClaimWatch) -> None:
        self._args, self._beats, self._watch = args, beats, watch
        self._reported: SavedCheckpoint | None = None
        self.before_report: Callable[[], None] = lambda: None

    def recorded(self) -> Sequence[SavedCheckpoint]:
        """The newest checkpoints that count, the newest last."""
        return (*self._args.saves, *self._watch.saved)

    def folder(self, step: int) -> str:
        """The folder of a checkpoint that this attempt saves."""
        return checkpoint_folder(self._args.claim, self._args.attempt, step)

    def report(self, step: int, sha256: str) -> None:
        """Report that a checkpoint of this attempt is whole."""
        self.before_report()
        self._reported = SavedCheckpoint(
            claim=self._args.claim, attempt=self._args.attempt, step=step, sha256=sha256
        )
        self._beats.report_saved(self._reported)

    def begin_stage(self, step: int) -> None:
        """Wait until the checkpoint of so many steps counts: every rank begins a stage with it."""
        self._beats.start_again()
        deadline = time.monotonic() + RENEWAL_LIMIT_S
        while all(saved.step != step for saved in self.recorded()):
            if time.monotonic() > deadline:
                raise CheckpointFailed(f"the driver has not recorded the checkpoint of step {step}")
            time.sleep(POLL_S)

    def settle(self) -> None:
        """Wait a moment until the last report is recorded."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while self._reported and self._reported not in self._watch.saved:
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_S)
