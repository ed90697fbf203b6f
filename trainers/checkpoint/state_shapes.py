"""Whether a saved state belongs to this program, by the types and shapes of its leaves.

Orbax casts a saved type to the requested one silently, so this is checked first.
"""

from typing import Any

import jax

Tree = Any
Shapes = dict[str, str]


def shapes_of(tree: Tree) -> Shapes:
    """Type and shape of each leaf by its name, as `float32[4, 8]`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): _shown(leaf) for path, leaf in leaves}


def saved_shapes(metadata: Any) -> Shapes:
    """The same from Orbax's description of a step, which turns tuples into lists."""
    return {leaf.name: _shown(leaf) for leaf in jax.tree.leaves(metadata.item_metadata.tree)}


def difference(saved: Shapes, expected: Shapes) -> str | None:
    """The first leaf that differs, as text; None if all are the same."""
    for name in sorted({*saved, *expected}):
        was, now = saved.get(name, "absent"), expected.get(name, "absent")
        if was != now:
            return f"{name} was {was} when saved, against {now} in the program"
    return None


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shown(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
