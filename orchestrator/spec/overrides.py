"""Puts `--set key=value` into the nodes of a file before anything is checked."""

from collections.abc import Sequence

from orchestrator.spec.expectations import shown
from orchestrator.spec.nodes import Broken, Entry, Mapping, Node, Scalar, parse_value
from orchestrator.spec.nodes import Sequence as Items
from orchestrator.spec.problem import Problem, SpecPosition, SpecProblems, SpecText

FLAG = "--set"


def apply(root: Node, overrides: Sequence[str]) -> list[Problem]:
    """Set each override in turn. Together they are one source, a line for each."""
    source = SpecText(FLAG, tuple(overrides))
    problems: list[Problem] = []
    for line in range(1, len(overrides) + 1):
        try:
            problems += _set(root, SpecPosition(source, line, 1))
        except SpecProblems as error:
            problems += error.problems
    return problems


def _set(root: Node, start: SpecPosition) -> list[Problem]:
    text = start.source.lines[start.line - 1]
    path, equals, value = text.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        return [start.problem("override-form")]
    if not text.isprintable():
        return [start.problem("override-text")]
    node, problems = parse_value(_at(start, len(path) + 1), value, keys)
    return problems or put(root, keys, start, node)


def put(root: Node, keys: Sequence[str], start: SpecPosition, value: Node) -> list[Problem]:
    """Put a value under a dotted key, which is written from `start` on."""
    inside, place = root, start
    for depth, key in enumerate(keys):
        if isinstance(inside, Broken):
            return []
        entered = value if depth == len(keys) - 1 else None
        if isinstance(inside, Items) and key.isdigit() and int(key) < len(inside.items):
            inside = _enter_item(inside, int(key), entered)
            continue
        if not isinstance(inside, Mapping):
            return [_no_mapping(place, keys[:depth], inside)]
        place = _at(start, len(".".join(keys[:depth])) + (depth > 0))
        inside = _enter(inside, key, place, entered)
    return []


def _enter_item(items: Items, number: int, value: Node | None) -> Node:
    """Put the value in place of an entry of a list, counted from 0, or go on to the one there."""
    node = value or items.items[number]
    items.items[number] = node
    return node


def _enter(mapping: Mapping, key: str, place: SpecPosition, value: Node | None) -> Node:
    """Put the value under a key, or go on to the mapping there; `auto` gives way to one."""
    there = mapping.entries[key].node if key in mapping.entries else None
    gives_way = there is None or (isinstance(there, Scalar) and there.text == "auto")
    node = value or (Mapping(place) if there is None or gives_way else there)
    if node is not there:
        mapping.entries[key] = Entry(place, node)
    return node


def _no_mapping(place: SpecPosition, keys: Sequence[str], node: Node) -> Problem:
    key = ".".join(keys)
    return place.problem("override-inside-value", key, name=key, value=shown(node, {}))


def _at(start: SpecPosition, offset: int) -> SpecPosition:
    return SpecPosition(start.source, start.line, start.col + offset)
