"""Checkpoint room: the checkpoints of one run, saved while it trains, restored if they are whole.

Every process of the run makes one `Checkpoints` and calls the same methods in the same order. The
primary process alone creates, deletes and moves directories.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import msgspec

from orchestrator.errors import CheckpointFailed
from orchestrator.types.run import SkippedCheckpoint
from trainers.checkpoint import checksums, state_shapes, summed_orbax
from trainers.checkpoint.step_folders import StepFolders
from trainers.multihost import barrier, first_message

Tree = Any
Identity = Mapping[str, str | int]
IDENTITY_FILE = "identity.json"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A state, after how many steps it was saved, and the later ones that were not whole."""

    step: int
    state: Tree
    skipped: tuple[SkippedCheckpoint, ...]


class Checkpoints:
    """The last `keep` states of a run. `identity` is what must stay the same when it resumes."""

    def __init__(self, folder: Path, *, keep: int, identity: Identity) -> None:
        self._shelf, self._keep = StepFolders(folder.absolute()), keep
        self._mark = self._shelf.folder / IDENTITY_FILE
        self._primary = jax.process_index() == 0
        self.latest: int | None = None  # the newest step restored or saved
        self._saving: int | None = None
        self._checkpointer = summed_orbax.checkpointer()
        with self._named("cannot be opened"):
            if self._primary:
                self._open(identity)
            barrier("checkpoints are open")
            self._compare(identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the save under way end, whatever else went wrong; the first error is the one told."""
        try:
            self.finish()
            self._checkpointer.close()
        except CheckpointFailed as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def restore(self, target: Tree) -> Restored | None:
        """The newest whole state, as `target` shapes and shards it; None if none was ever saved.

        A step that is not whole is skipped, and set aside once an earlier one is restored.
        """
        with self._named("cannot be restored"):
            step, skipped = self._newest_whole()
            if step is None:
                return None
            state, self.latest = self._read(step, target), step
            if self._primary:
                for skip in skipped:
                    self._shelf.set_aside(skip.step)
            return Restored(step=step, state=state, skipped=tuple(skipped))

    def save(self, step: int, state: Tree) -> None:
        """Copy the state off the devices, and write it in the background."""
        self.finish()
        with self._writing(step):
            self._mark.stat()  # Orbax would make a lost folder anew, and start a second history
            self._checkpointer.save(self._shelf.path(step), args=summed_orbax.Save(state))
        self.latest = self._saving = step

    def check(self) -> None:
        """Raise what the writing has met in the background; never waits for it."""
        with self._writing(self._saving):
            self._checkpointer.check_for_errors()

    def finish(self) -> None:
        """Wait until the last save is on disk, see that it is, and delete what is too old."""
        if self._saving is None:
            return
        with self._writing(self._saving):
            self._checkpointer.wait_until_finished()
            # An error told once is forgotten by Orbax, so its word is not enough.
            self._shelf.path(self._saving).joinpath(checksums.FILE_NAME).stat()
        self._saving = None
        if self._primary:
            for step in self._shelf.steps()[: -self._keep]:
                self._shelf.delete(step)

    def _open(self, identity: Identity) -> None:
        self._shelf.folder.mkdir(parents=True, exist_ok=True)
        self._shelf.sweep()
        if not self._mark.exists():
            partial = self._mark.with_suffix(".partial")
            partial.write_bytes(msgspec.json.encode(identity, order="sorted"))
            partial.rename(self._mark)

    def _compare(self, identity: Identity) -> None:
        found = msgspec.json.decode(self._mark.read_bytes(), type=dict[str, str | int])
        for name in sorted({*found, *identity}):
            was, now = found.get(name), identity.get(name)
            if was != now:
                raise CheckpointFailed(
                    f"{self._shelf.folder}: holds another run: {name} was {was}, against {now}"
                )

    def _newest_whole(self) -> tuple[int | None, list[SkippedCheckpoint]]:
        skipped: list[SkippedCheckpoint] = []
        for step in reversed(self._shelf.steps()):
            why = self._fault(step)
            if why is None:
                return step, skipped
            skipped.append(SkippedCheckpoint(step=step, why=why))
        if not skipped:
            return None, skipped
        found = "; ".join(f"step {skip.step}: {skip.why}" for skip in skipped)
        raise CheckpointFailed(f"{self._shelf.folder}: no checkpoint is whole: {found}")

    def _fault(self, step: int) -> str | None:
        """What is wrong with a step: each process verifies its share, and all learn the result."""
        mine, readers = jax.process_index(), jax.process_count()
        return first_message(checksums.fault(self._shelf.path(step), share=mine, of=readers))

    def _read(self, step: int, target: Tree) -> Tree:
        path = self._shelf.path(step)
        saved = state_shapes.shapes_saved(self._checkpointer.metadata(path))
        if differs := state_shapes.difference(saved, state_shapes.shapes_of(target)):
            raise CheckpointFailed(f"{path}: is of another model or optimizer: {differs}")
        return self._checkpointer.restore(path, args=summed_orbax.Restore(target))

    @contextmanager
    def _writing(self, step: int | None) -> Iterator[None]:
        """A save that fails gives back the disk it took, where no thread writes on."""
        try:
            with self._named(f"step {step} cannot be saved"):
                yield
        except CheckpointFailed:
            self._saving = None
            if self._primary:
                with suppress(OSError):  # opening sweeps what is still written to
                    self._shelf.sweep()
            raise

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Orbax and what it stores on raise anything; the first line of it says why."""
        try:
            yield
        except CheckpointFailed:
            raise
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CheckpointFailed(f"{self._shelf.folder}: {what}: {reason}") from error
