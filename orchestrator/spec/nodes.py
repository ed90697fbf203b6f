"""Parses YAML text into nodes that know their place. The only file that knows PyYAML.

Nodes are built from the stream of events: what could grow (depth, number, aliases) is refused
before anything is built from it, and every value stays the text that was written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from orchestrator.spec.problem import Problem, SpecPosition, SpecProblems, SpecText, shortened

MOST_DEPTH = 16
MOST_NODES = 2_000
NULLS = frozenset({"", "~", "null", "Null", "NULL"})
NO_NAMES = NULLS | {"true", "True", "TRUE", "false", "False", "FALSE"}
SYNTAX_HINTS = {
    "mapping values": "indent the keys of a mapping alike, and quote a value that contains ': '",
    "expected ':'": "write `key: value`, with a space after the colon",
    "',' or '}'": "close { with }, with commas between the values",
    "',' or ']'": "close [ with ], with commas between the values",
    "cannot start any token": "put the value in quotes, and indent with spaces, not tabs",
    "tab character": "indent with spaces",
    "end of stream": "close the quote",
    "expected key": "indent the keys of a mapping alike",
    "block mapping": "indent the keys of a mapping alike",
}


@dataclass(frozen=True)
class Scalar:
    """One value as written; `plain` is without quotes."""

    place: SpecPosition
    text: str
    plain: bool

    @property
    def empty(self) -> bool:
        return self.plain and self.text in NULLS


@dataclass(frozen=True)
class Broken:
    """Something whose problem has been reported."""

    place: SpecPosition


@dataclass(frozen=True)
class Entry:
    key_place: SpecPosition
    node: "Node"


@dataclass(frozen=True)
class Mapping:
    place: SpecPosition
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class Sequence:
    place: SpecPosition
    items: list["Node"]


Node = Scalar | Mapping | Sequence | Broken


def parse(source: SpecText) -> tuple[Node, list[Problem]]:
    """The root of a file, and what its notation has that a spec may not have."""
    return _Builder(SpecPosition(source, 1, 1), "\n".join(source.lines), []).root()


def parse_value(place: SpecPosition, text: str, keys: list[str]) -> tuple[Node, list[Problem]]:
    """The value of a key by its path, which stands on one line from `place` on."""
    return _Builder(place, text, keys).root()


class _Builder:
    """One pass over the events of one document, which begins at `origin`."""

    def __init__(self, origin: SpecPosition, text: str, keys: list[str]) -> None:
        self._origin = origin
        self._keys = list(keys)
        self._lines = text.rstrip().split("\n")
        self._events: Iterator[Any] = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._problems: list[Problem] = []
        self._count = 0

    def root(self) -> tuple[Node, list[Problem]]:
        try:
            root = self._document()
        except yaml.MarkedYAMLError as error:
            self._refuse_syntax(error)
        return root, self._problems

    def _document(self) -> Node:
        next(self._events)
        start = next(self._events)
        if isinstance(start, yaml.StreamEndEvent):
            return Scalar(self._origin, "", plain=True)
        if start.version or start.tags:
            self._refuse(start, "directive")
        root = self._node(next(self._events), 0)
        next(self._events)
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._refuse(after, "documents")
        return root

    def _node(self, event: Any, depth: int) -> Node:
        self._hold_bounds(event, depth)
        place = self._place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            self._report(place, "alias", name=shortened(str(event.anchor)))
            return Broken(place)
        if event.anchor:
            self._report(place, "anchor", name=shortened(event.anchor))
        if event.tag:
            tag = shortened(event.tag.replace("tag:yaml.org,2002:", "!!"))
            self._report(place, "tag", name=tag)
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(place, event.value, plain=not event.style)
        if isinstance(event, yaml.SequenceStartEvent):
            return Sequence(place, list(self._items(depth)))
        return self._mapping(place, depth)

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _mapping(self, place: SpecPosition, depth: int) -> Mapping:
        mapping = Mapping(place)
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            name = self._name(key, mapping)
            self._keys.append(name or "?")
            value = self._node(next(self._events), depth + 1)
            self._keys.pop()
            if name:
                mapping.entries[name] = Entry(key.place, value)
        return mapping

    def _name(self, key: Node, mapping: Mapping) -> str | None:
        """The name that a key is; None, with its problem reported, when it is none."""
        if isinstance(key, Broken):
            return None
        if not isinstance(key, Scalar):
            self._report(key.place, "key-not-a-name")
        elif not key.text or (key.plain and key.text in NO_NAMES):
            self._report(key.place, "empty-key", name=key.text or repr(""))
        elif key.text == "<<":
            self._report(key.place, "merge-key")
        elif key.text in mapping.entries:
            first = mapping.entries[key.text].key_place.line
            self._report(key.place, "duplicate-key", name=shortened(key.text), first=first)
        else:
            return key.text
        return None

    def _hold_bounds(self, event: Any, depth: int) -> None:
        self._count += 1
        if depth > MOST_DEPTH:
            self._refuse(event, "too-deep", most=MOST_DEPTH)
        if self._count > MOST_NODES:
            self._refuse(event, "too-many", most=MOST_NODES)

    def _place(self, mark: Any) -> SpecPosition:
        """Marks count from zero, from the origin on; the end of a text is that of its last line."""
        line, column = mark.line, mark.column
        if line >= len(self._lines):
            line, column = len(self._lines) - 1, len(self._lines[-1])
        col = column + (self._origin.col if line == 0 else 1)
        return SpecPosition(self._origin.source, self._origin.line + line, col)

    def _report(self, place: SpecPosition, code: str, **fields: Any) -> None:
        key = ".".join(map(shortened, self._keys))
        self._problems.append(place.problem(code, key, **fields))

    def _refuse(self, event: Any, code: str, **fields: Any) -> NoReturn:
        raise SpecProblems([self._place(event.start_mark).problem(code, **fields)])

    def _refuse_syntax(self, error: yaml.MarkedYAMLError) -> NoReturn:
        reason = error.problem or "unreadable"
        remedy = next((hint for part, hint in SYNTAX_HINTS.items() if part in reason), "")
        if error.context:
            line = self._place(error.context_mark).line
            reason += f", {error.context} that begins on line {line}"
        problem = self._place(error.problem_mark).problem("syntax", reason=reason, remedy=remedy)
        raise SpecProblems([problem]) from None
