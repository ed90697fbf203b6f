"""The checkpoints of one run: saved while it trains, restored if they count and are whole. Every
process calls the same methods in the same order; only the primary changes directories.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import msgspec
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator.errors import CheckpointFailed
from orchestrator.storage.addresses import address
from orchestrator.values import codec
from orchestrator.values.run import SavedCheckpoint, SkippedCheckpoint
from trainers.checkpoint import step_folders
from trainers.checkpoint.objects import ObjectSaver, StepObjects, step_objects
from trainers.checkpoint.step_folders import NO_TABLES, OrbaxSaver, Rows, StepFolders, owner_of
from trainers.multihost import barrier, first_message

_Tree = Any
_Identity = Mapping[str, str | int]
_ADVICE = "; put one back that is whole, or submit the run anew"


# Checkpoints of one mesh on another: a pipeline stores layers by its stages and chunks. A stack of
# L layers is [L, ...], or [chunks, places, ...] for a pipeline. Flat, both have layers in order;
# the last places of a pipeline may be empty. So only the shape of an array differs.

_Layers = Mapping[str, int]  # by the name of the part of a state that stacks them
_NO_LAYERS: _Layers = {}
_Shape = tuple[int, ...]


class _Stacks(NamedTuple):
    """How an array is stacked in a checkpoint and in a program: by one dimension or two."""

    layers: int
    saved: int
    wanted: int


def _stacks_of(name: str, saved: _Shape, wanted: _Shape, layers: _Layers) -> _Stacks | None:
    """Return how a leaf is stacked, if the checkpoint and the program stack it differently."""
    count = next((layers[part] for part in name.split(".") if part in layers), None)
    more = len(wanted) - len(saved)
    if count is None or saved == wanted or abs(more) > 1:
        return None
    return _Stacks(count, 1 if more > 0 else 2, 1 if more < 0 else 2)


def _restacked(name: str, saved: _Shape, wanted: _Shape, layers: _Layers) -> _Shape:
    """Return the shape that a saved leaf has in the program's stacks."""
    stacks = _stacks_of(name, saved, wanted, layers)
    if stacks is None or prod(saved[: stacks.saved]) < stacks.layers:
        return saved
    return *wanted[: stacks.wanted], *saved[stacks.saved :]


class _Restacked(NamedTuple):
    """A leaf to be read as it was saved, on the devices that want it."""

    stacks: _Stacks
    saved: _Shape
    wanted: jax.ShapeDtypeStruct

    def target(self) -> jax.ShapeDtypeStruct:
        """Return what to read: its layers are split where the program splits them."""
        sharding = self.wanted.sharding
        entries = [*sharding.spec, *[None] * len(self.wanted.shape)][: len(self.wanted.shape)]
        entry = entries[self.stacks.wanted - 1]
        names = (entry,) if isinstance(entry, str) else entry or ()
        ways = prod(sharding.mesh.shape[name] for name in names)
        shape, last = list(self.saved), self.stacks.saved - 1
        shape[last] += -shape[last] % ways  # what is beyond the saved ones is zero
        spec = P(*[None] * last, entry, *entries[self.stacks.wanted :])
        return jax.ShapeDtypeStruct(
            tuple(shape), self.wanted.dtype, sharding=NamedSharding(sharding.mesh, spec)
        )

    def converted(self, array: jax.Array) -> jax.Array:
        """Return the leaf as the program stacks it."""
        stacks, wanted = self.stacks, self.wanted
        places, rest = wanted.shape[: stacks.wanted], wanted.shape[stacks.wanted :]

        def convert(array: jax.Array) -> jax.Array:
            saved = array[tuple(map(slice, self.saved[: stacks.saved]))]
            flat = saved.reshape(-1, *rest)[: stacks.layers]
            more = [(0, prod(places) - stacks.layers)] + [(0, 0)] * len(rest)
            return jnp.pad(flat, more).reshape(wanted.shape)

        converted = jax.jit(convert, out_shardings=wanted.sharding)(array)
        array.delete()  # there may be no room for both
        return converted


class _ListedSave(NamedTuple):
    """A checkpoint that counts, of which nobody recorded the sum of its sums."""

    step: int
    folder: str
    sha256: None = None


class SaveLog(Protocol):
    def recorded(self) -> Sequence[SavedCheckpoint | _ListedSave]:
        """Return the newest checkpoints that count, the newest last."""

    def folder(self, step: int) -> str:
        """Return the name of the folder of a checkpoint that this attempt saves."""

    def report(self, step: int, sha256: str) -> None:
        """Report that a checkpoint of this attempt is whole."""

    def settle(self) -> None:
        """Wait a moment until the last report is recorded."""


@dataclass(frozen=True)
class _ListedSaves:
    """Every checkpoint in a folder counts: one attempt at a time uses it, and nobody records."""

    steps: StepFolders | StepObjects

    def recorded(self) -> Sequence[_ListedSave]:
        return [_ListedSave(int(name), name) for name in self.steps.names() if name.isdecimal()]

    def folder(self, step: int) -> str:
        return str(step)

    def report(self, step: int, sha256: str) -> None:
        """Do nothing: its folder says that it is there."""

    def settle(self) -> None:
        """Do nothing: nobody records."""


def newest_step(folder: Path, saves: SaveLog | None = None) -> int:
    """Return the steps of the newest checkpoint that counts, whole or not; 0 if none was saved."""
    steps = _steps_in(folder)
    log = saves or _ListedSaves(steps)
    recorded = log.recorded() if isinstance(steps, StepObjects) or folder.is_dir() else ()
    return recorded[-1].step if recorded else 0


def _steps_in(folder: Path) -> StepFolders | StepObjects:
    return step_objects(folder.absolute()) or StepFolders(folder.absolute())


class _Restored(NamedTuple):
    step: int  # steps done by then
    state: _Tree
    skipped: tuple[SkippedCheckpoint, ...]  # later checkpoints that are not whole


class Checkpoints:
    """The last `keep` states of a run. `identity` must stay the same when a stage resumes."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        identity: _Identity,
        saves: SaveLog | None = None,
        stage: int | None = None,
    ) -> None:
        self._steps, self._keep = _steps_in(folder), keep
        self._folder = address(self._steps.folder)
        self._saves: SaveLog = saves or _ListedSaves(self._steps)
        self._owner = owner_of(self._saves.folder(0))
        self._identity_file = "identity.json" if stage is None else f"identity-stage-{stage}.json"
        self._primary = jax.process_index() == 0
        self.latest: int | None = None  # the newest step restored or saved
        self._saving: int | None = None
        self._reported: int | None = None
        self._saver: ObjectSaver | OrbaxSaver = (
            ObjectSaver(self._steps)
            if isinstance(self._steps, StepObjects)
            else OrbaxSaver(self._steps.folder)
        )
        with self._errors_as("cannot be opened"):
            if self._primary:
                self._open(identity)
            barrier("checkpoints are open")
            try:
                content = self._steps.read_small(self._identity_file)
                saved = codec.from_json(content, dict[str, str | int])
            except (OSError, msgspec.DecodeError) as error:
                where = f"{self._folder}/{self._identity_file}"
                raise CheckpointFailed(f"{where}: cannot be read: {error}") from error
            for name in sorted({*saved, *identity}):
                was, now = saved.get(name, "none"), identity.get(name, "none")
                if was != now:
                    fault = f"holds another run: {name} was {was}, against {now}"
                    raise CheckpointFailed(f"{self._folder}: {fault}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Let the running save end, whatever else fails; only the first error is raised."""
        try:
            self.finish()
            self._saver.close()
            if self._primary and error is None:
                self._saves.settle()
                with suppress(OSError):  # the next attempt deletes what stays
                    self._prune()
        except CheckpointFailed as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def restore(
        self, target: _Tree, table_rows: Rows = NO_TABLES, layers: _Layers = _NO_LAYERS
    ) -> _Restored | None:
        """Return the newest whole state, as `target` shapes and shards it; None if none was saved.
        Leaves of `table_rows` have these rows, then zeros; those below `layers` may be stacked
        otherwise. A step that is not whole is skipped, and set aside once an earlier one is
        restored.
        """
        with self._errors_as("cannot be restored"):
            faults: dict[str, SkippedCheckpoint] = {}  # newer than the whole one
            for save in reversed(self._saves.recorded()):
                # Each process verifies its share; all get the result.
                mine, readers = jax.process_index(), jax.process_count()
                fault = self._steps.fault(save.folder, sha256=save.sha256, share=mine, of=readers)
                if (why := first_message(fault)) is None:
                    break
                faults[save.folder] = SkippedCheckpoint(step=save.step, why=why)
            else:
                if not faults:
                    return None
                reasons = "; ".join(f"step {skip.step}: {skip.why}" for skip in faults.values())
                fault = f"no checkpoint is whole: {reasons}{_ADVICE}"
                raise CheckpointFailed(f"{self._folder}: {fault}")
            saved, expected = self._saver.shapes(save.folder), step_folders.shapes_of(target)
            as_stacked = {
                name: (kind, _restacked(name, shape, expected[name][1], layers))
                for name, (kind, shape) in saved.items()
                if name in expected
            }
            if differs := step_folders.difference(saved | as_stacked, expected, table_rows):
                where = f"{self._folder}/{save.folder}"
                raise CheckpointFailed(f"{where}: is of another model or optimizer: {differs}")
            stacks = {
                name: _Restacked(stacks, saved[name][1], leaf)
                for name, leaf in step_folders.named_leaves(target)
                if (stacks := _stacks_of(name, saved[name][1], leaf.shape, layers))
            }

            def as_saved(path: Any, leaf: Any) -> Any:
                stack = stacks.get(step_folders.leaf_name(path))
                return stack.target() if stack else leaf

            def as_wanted(path: Any, array: jax.Array) -> jax.Array:
                stack = stacks.get(step_folders.leaf_name(path))
                return stack.converted(array) if stack else array

            to_read = jax.tree_util.tree_map_with_path(as_saved, target)
            state = self._saver.restore(save.folder, to_read, table_rows)
            state = jax.tree_util.tree_map_with_path(as_wanted, state)
            self.latest = save.step
            if self._primary:
                for folder in faults:
                    self._steps.set_aside(folder)
            return _Restored(step=save.step, state=state, skipped=tuple(faults.values()))

    def save(self, step: int, state: _Tree) -> None:
        """Copy the state off the devices, and write it in the background."""
        self.finish()
        with self._writing(step):
            # Orbax would create a lost folder, as a second history.
            self._steps.read_small(self._identity_file)
            self._saver.save(self._saves.folder(step), state)
        self.latest = self._saving = step

    def check(self) -> None:
        """Raise what failed in the background, and report a save that is whole, without waiting."""
        with self._writing(self._saving):
            self._saver.check()
            step = self._saving
            if step is None or step == self._reported or not self._primary:
                return
            if self._steps.is_whole(self._saves.folder(step)):
                self._report(step)

    def finish(self) -> None:
        """Wait until the last save is on disk, check that it is, and delete old steps."""
        if self._saving is None:
            return
        with self._writing(self._saving):
            self._saver.wait()
            # Orbax raises an error once and forgets it, so a silent return proves nothing.
            if not self._steps.is_whole(self._saves.folder(self._saving)):
                raise FileNotFoundError("its sums are missing")
            if self._primary:
                self._report(self._saving)
        self._saving = None
        if self._primary:
            self._prune()

    def _report(self, step: int) -> None:
        if self._reported != step:
            self._saves.report(step, self._steps.sums_digest(self._saves.folder(step)))
            self._reported = step

    def _prune(self) -> None:
        """Delete what no later attempt can need: steps before the newest recorded ones."""
        # Unrecorded steps of others stay: another attempt may have taken over.
        recorded = self._saves.recorded()
        old = {save.folder for save in recorded[: -self._keep]}
        mine = [save.step for save in recorded if owner_of(save.folder) == self._owner]
        known, newest = {save.folder for save in recorded}, max(mine, default=0)
        for name in self._steps.names():
            step, owner = step_folders.age(name)
            passed = owner == self._owner and step < newest
            if name in old or (passed and name not in known):
                self._steps.delete(name)

    def _open(self, identity: _Identity) -> None:
        self._steps.prepare()
        self._steps.sweep(self._owner)
        recorded = {save.folder for save in self._saves.recorded()}
        for name in self._steps.names():
            if name not in recorded and owner_of(name) < self._owner:
                self._steps.delete(name)  # its attempt was superseded before it counted
        content = msgspec.json.encode(identity, order="sorted")
        self._steps.create_small(self._identity_file, content)

    @contextmanager
    def _writing(self, step: int | None) -> Iterator[None]:
        """Free the disk that a failed save took, unless a thread still writes there."""
        try:
            with self._errors_as(f"step {step} cannot be saved"):
                yield
        except CheckpointFailed:
            self._saving = None
            if self._primary:
                with suppress(OSError):  # the next attempt sweeps what is still written to
                    self._steps.sweep(self._owner)
            raise

    @contextmanager
    def _errors_as(self, what: str) -> Iterator[None]:
        """Turn whatever Orbax and its storage raise into CheckpointFailed, with its first line."""
        try:
            yield
        except CheckpointFailed:
            raise
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CheckpointFailed(f"{self._folder}: {what}: {reason}") from error
