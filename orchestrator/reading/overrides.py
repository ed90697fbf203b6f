"""Puts `--set key=value` into the nodes of a file before anything is checked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UnknownName
from orchestrator.reading.expectations import must, plain, shown
from orchestrator.reading.nodes import (
    Broken,
    Entry,
    Mapping,
    Node,
    Scalar,
    parse,
    parse_value,
    read,
)
from orchestrator.reading.nodes import SequenceNode as Items
from orchestrator.reading.problems import Problem, SpecPosition, SpecProblems, SpecText
from orchestrator.reading.schema import (
    Schema,
    alternatives,
    member,
    properties,
    resolved,
    spec_schema,
)

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


# Where a key of a spec stands: in its file, or among the overrides.


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


# What the keys of a spec mean, must be, and are when left out.


@dataclass(frozen=True, kw_only=True)
class KeyHelp:
    """A key with its dots, what it is, what it must be, and its default as it is written."""

    key: str
    about: str
    must: str
    default: str | None
    required: bool


def keys_of_specs() -> list[KeyHelp]:
    """Every key of a spec, in order."""
    return list(dict.fromkeys(_keys(spec_schema())))


def help_about(key: str) -> list[KeyHelp]:
    """A key and those below it; `UnknownName` for another name."""
    every = keys_of_specs()
    found = [one for one in every if one.key == key or one.key.startswith((f"{key}.", f"{key}["))]
    if not found:
        raise UnknownName("key", key, [*dict.fromkeys(one.key.split(".")[0] for one in every)])
    return found


def _keys(schema: Schema, prefix: str = "") -> Iterator[KeyHelp]:
    """Each key that holds a value. The keys of a section stand for it."""
    for one in alternatives(schema):
        for key in properties(one):
            inside = member(one, key) or {}
            if inside.get("type") != "object" or "default" in inside:
                demands = (*one.get("required", ()), *one.get("then", {}).get("required", ()))
                yield _help(prefix + key, inside, key in demands)
            yield from _keys(inside, f"{prefix}{key}.")
            if inside.get("type") == "array" and "$ref" in inside.get("items", {}):
                yield from _keys_of_entries(resolved(inside["items"]), f"{prefix}{key}[]")


def _keys_of_entries(entry: Schema, prefix: str) -> Iterator[KeyHelp]:
    """Each key of the entries of a list; sections are as in the experiment."""
    for key, inside in properties(entry).items():
        if resolved(inside).get("type") != "object":
            yield _help(f"{prefix}.{key}", resolved(inside), key in entry.get("required", ()))


def _help(key: str, schema: Schema, required: bool) -> KeyHelp:
    default = plain(schema["default"]) if "default" in schema else None
    return KeyHelp(
        key=key, about=schema["description"], must=must(schema), default=default, required=required
    )
