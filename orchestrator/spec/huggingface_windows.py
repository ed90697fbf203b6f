"""Which layers of a Hugging Face config have a sliding window."""

from typing import Any

from orchestrator.spec.huggingface_families import Family

# Their kinds of layers → a letter of `window_pattern`.
LAYER_TYPES = {"sliding_attention": "L", "full_attention": "G"}
GLOBAL = "G"


def window_pattern(family: Family, values: dict[str, Any]) -> str | None:
    """The layers with the window, as the shortest pattern; None where a kind is not served."""
    kinds = values.get("layer_types")
    if kinds is not None:
        return pattern_of(kinds)
    if family.window_switch and not values.get(family.window_switch):
        return GLOBAL
    first, layers = values.get(family.window_first), values.get("num_hidden_layers")
    if isinstance(first, int) and isinstance(layers, int):
        return shortest((GLOBAL * min(first, layers) + "L" * (layers - first))[:LONGEST])
    every = values.get("sliding_window_pattern", values.get("_sliding_window_pattern"))
    if isinstance(every, int) and 0 < every < LONGEST:
        return "L" * (every - 1) + GLOBAL
    return family.window_pattern or GLOBAL


LONGEST = 1000  # layers that a pattern names


def pattern_of(kinds: Any) -> str | None:
    """The pattern of a list of layers."""
    if not isinstance(kinds, list) or not kinds:
        return None
    letters = [LAYER_TYPES.get(kind) if isinstance(kind, str) else None for kind in kinds]
    if None in letters or len(letters) > LONGEST:
        return None
    return shortest("".join(filter(None, letters)))


def shortest(row: str) -> str:
    """The shortest pattern that gives the row by repetition."""
    for length in range(1, len(row)):
        if (row[:length] * len(row))[: len(row)] == row:
            return row[:length]
    return row
