"""Checkpoint room: whether a saved state is one of this program. Knows trees of arrays.

Orbax casts a saved type to the wanted one without a word, so this is asked first.
"""

from typing import Any

import jax

Tree = Any
Shapes = dict[str, str]


def shapes_of(tree: Tree) -> Shapes:
    """Type and shape of each leaf by its name, as `float32[4, 8]`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): _shown(leaf) for path, leaf in leaves}


def shapes_saved(metadata: Any) -> Shapes:
    """The same of Orbax's description of a step, which turns tuples into lists."""
    return {leaf.name: _shown(leaf) for leaf in jax.tree.leaves(metadata.item_metadata.tree)}


def difference(saved: Shapes, wanted: Shapes) -> str | None:
    """The first leaf that is not the same in both, put into words."""
    for name in sorted({*saved, *wanted}):
        was, now = saved.get(name, "absent"), wanted.get(name, "absent")
        if was != now:
            return f"{name} was {was} when saved, against {now} in the program"
    return None


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shown(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
