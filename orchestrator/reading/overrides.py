"""Puts `--set key=value` into the nodes of a file before anything is checked."""

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.reading.expectations import shown
from orchestrator.reading.nodes import (
    Broken,
    Entry,
    Mapping,
    Node,
    Scalar,
    SequenceNode,
    parse,
    parse_value,
    read,
)
from orchestrator.reading.problems import Problem, SpecPosition, SpecProblems, SpecText

FLAG = "--set"
_EXAMPLE = "for example --set experiment.batch.sequences=2048"


def apply(root: Node, overrides: Sequence[str]) -> list[Problem]:
    """Set each override in turn. Together they are one source, one per line."""
    source = SpecText(FLAG, tuple(overrides))
    problems: list[Problem] = []
    for line, text in enumerate(overrides, start=1):
        start = SpecPosition(source, line, 1)
        path, equals, value = text.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            message = "must be KEY=VALUE, with dots between the keys"
            problems.append(start.problem("override-form", "", message, _EXAMPLE))
        elif not text.isprintable():
            message = "is not plain text, must be on one line and printable"
            problems.append(start.problem("override-text", "", message, _EXAMPLE))
        else:
            try:
                node, wrong = parse_value(SpecPosition(source, line, len(path) + 2), value, keys)
                problems += wrong or put(root, keys, start, node)
            except SpecProblems as error:
                problems += error.problems
    return problems


def put(root: Node, keys: Sequence[str], start: SpecPosition, value: Node) -> list[Problem]:
    """Put a value under a dotted key, which is written from `start` on."""
    inside, place = root, start
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(inside, Broken):
            return []
        if isinstance(inside, SequenceNode) and key.isdigit() and int(key) < len(inside.items):
            if last:
                inside.items[int(key)] = value
            inside = inside.items[int(key)]
            continue
        if not isinstance(inside, Mapping):
            name = ".".join(keys[:depth])
            message = f"is {shown(inside, {})}, must be a mapping for a key of it to be set"
            hint = f"set the whole: --set '{name}={{...}}'"
            return [place.problem("override-inside-value", name, message, hint)]
        offset = len(".".join(keys[:depth])) + (depth > 0)
        place = SpecPosition(start.source, start.line, start.col + offset)
        found = inside.entries.get(key)
        is_auto = found and isinstance(found.node, Scalar) and found.node.text == "auto"
        if last:
            inside.entries[key] = Entry(place, value)
        elif found is None or is_auto:  # `auto` gives way to a mapping
            inside.entries[key] = Entry(place, Mapping(place))
        inside = inside.entries[key].node
    return []


def places(path: Path, overrides: Sequence[str] = ()) -> Callable[[str], str]:
    """Return a function that says where a key or its section stands, such as a.yaml:7:3."""
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
