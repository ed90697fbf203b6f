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


def checkpointer() -> Any:
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


# --- shapes of a state


def shapes_of(tree: Tree) -> Shapes:
    """The shapes of a state."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): _shape(leaf) for path, leaf in leaves}


def saved_shapes(metadata: Any) -> Shapes:
    """The same from Orbax's description of a step, which turns tuples into lists."""
    return {leaf.name: _shape(leaf) for leaf in jax.tree.leaves(metadata.item_metadata.tree)}


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


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shape(leaf: Any) -> Shape:
    return str(leaf.dtype), tuple(leaf.shape)


def _shown(shape: Shape | None) -> str:
    return f"{shape[0]}{list(shape[1])}" if shape else "absent"
