"""Orbax with two checks of its own: checksums, and the shapes of a state.

Each process sums the shards that it wrote; the sums of all are written into a step before the
step becomes visible. Shapes are compared before a
state is restored, because Orbax casts a saved type to the requested one silently.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import options

from trainers.checkpoint.step_folders import sum_shards, write_checksums

Tree = Any
Shape = tuple[str, tuple[int, ...]]  # the type of a leaf, and its shape
Shapes = dict[str, Shape]  # by the names of leaves
Rows = Mapping[str, int]  # rows of a table, by the last part of its name
NO_TABLES: Rows = {}
TIMEOUT_S = 600
# Orbax logs its own steps there; they would hide those of the run.
logging.getLogger("absl").setLevel(logging.WARNING)


class Summed(ocp.StandardCheckpointHandler):  # type: ignore[misc]
    """Orbax's handler of a tree of arrays. The primary finalizes once all have written."""

    async def async_save(self, directory: Any, *args: Any, **named: Any) -> list[Any]:
        """Write the shards of this process and then sum them: each process reads its own alone."""
        written = await super().async_save(directory, *args, **named)
        return [_SummedShards(written or [], directory)]

    def finalize(self, directory: Any) -> None:
        """Complete the hidden directory of a step; Orbax renames it afterwards."""
        super().finalize(directory)
        write_checksums(Path(directory), jax.process_count())


class _SummedShards:
    """Orbax waits for this future of a process before it tells the others that it has written."""

    def __init__(self, written: Sequence[Any], directory: Any) -> None:
        self._written, self._directory = written, directory

    def result(self, timeout: float | None = None) -> None:
        """Wait until the shards are written, and sum them."""
        for future in self._written:
            future.result(timeout)
        # Orbax may pass a directory that it is still creating; it exists once shards are written.
        directory = getattr(self._directory, "path", self._directory)
        sum_shards(Path(directory), jax.process_index())


@ocp.args.register_with_handler(Summed, for_save=True)
class Save(ocp.args.StandardSave):  # type: ignore[misc]
    """A state to save."""


@ocp.args.register_with_handler(Summed, for_restore=True)
class Restore(ocp.args.StandardRestore):  # type: ignore[misc]
    """Shapes and shardings to restore into."""


def _checkpointer() -> Any:
    """An asynchronous checkpointer whose processes meet at the coordination service.

    Naming the processes keeps Orbax's threads from meeting in collectives on the devices, which
    would fall between those of the step.
    """
    everyone = options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
    return ocp.AsyncCheckpointer(
        Summed(multiprocessing_options=everyone),
        timeout_secs=TIMEOUT_S,
        multiprocessing_options=everyone,
    )


class OrbaxSaver:
    """Saves one state at a time in the background, into a folder below one of a file system."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._checkpointer = folder, _checkpointer()

    def save(self, name: str, state: Tree) -> None:
        """Copy the state off the devices, and write it in the background."""
        self._checkpointer.save(self._folder / name, args=Save(state))

    def check(self) -> None:
        """Raise what failed; never waits."""
        self._checkpointer.check_for_errors()

    def wait(self) -> None:
        """Wait until the last save has ended; raise what failed."""
        self._checkpointer.wait_until_finished()

    def close(self) -> None:
        self._checkpointer.close()

    def shapes(self, name: str) -> Shapes:
        """The type and shape of each leaf of a step, whose tuples Orbax describes as lists."""
        tree = self._checkpointer.metadata(self._folder / name).item_metadata.tree
        return {leaf.name: _shape(leaf) for leaf in jax.tree.leaves(tree)}

    def restore(self, name: str, target: Tree, table_rows: Rows = NO_TABLES) -> Tree:
        """A state as `target` shapes and shards it; rows of a table that it lacks are zeros."""
        how = Restore(target, strict=not table_rows)
        return self._checkpointer.restore(self._folder / name, args=how)


# --- shapes of a state


def shapes_of(tree: Tree) -> Shapes:
    """The shapes of a state."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {leaf_name(path): _shape(leaf) for path, leaf in leaves}


def difference(saved: Shapes, expected: Shapes, table_rows: Rows = NO_TABLES) -> str | None:
    """The first leaf that differs, as text; None if all are the same.

    Leaves of `table_rows` may differ in the rows beyond these.
    """
    for name in sorted({*saved, *expected}):
        was, now = saved.get(name), expected.get(name)
        rows = table_rows.get(name.rpartition(".")[2])
        if was != now and not (was and now and rows and _differ_in_padding(was, now, rows)):
            return f"{name} was {_shown(was)} when saved, against {_shown(now)} in the program"
    return None


def _differ_in_padding(was: Shape, now: Shape, rows: int) -> bool:
    """Whether two shapes of a table are alike but for rows beyond so many."""
    (was_type, (was_rows, *was_rest)), (now_type, (now_rows, *now_rest)) = was, now
    return (was_type, was_rest) == (now_type, now_rest) and min(was_rows, now_rows) >= rows


def leaf_name(path: tuple[Any, ...]) -> str:
    """The name of a leaf, from its path in a tree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shape(leaf: Any) -> Shape:
    return str(leaf.dtype), tuple(leaf.shape)


def _shown(shape: Shape | None) -> str:
    return f"{shape[0]}{list(shape[1])}" if shape else "absent"
