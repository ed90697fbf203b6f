"""Where a key of a spec stands: in its file, or among the overrides."""

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.spec.nodes import Mapping, Node, parse
from orchestrator.spec.overrides import apply
from orchestrator.spec.source import read


def places(path: Path, overrides: Sequence[str] = ()) -> Callable[[str], str]:
    """The place of a key by its path, such as a.yaml:7:3; of its section where it is absent."""
    root, _ = parse(read(path))
    apply(root, overrides)

    def place_of(key: str) -> str:
        node: Node = root
        place = root.place
        for name in key.split("."):
            if not isinstance(node, Mapping) or name not in node.entries:
                break
            place, node = node.entries[name].key_place, node.entries[name].node
        return place.text

    return place_of
