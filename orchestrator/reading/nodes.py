"""Parses YAML text into nodes that know their place. The only file that knows PyYAML.

Nodes are built from the stream of events: what could grow (depth, number, aliases) is refused
before anything is built from it, and every value stays the text that was written.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import yaml

from orchestrator.reading.problems import (
    Problem,
    SpecPosition,
    SpecProblems,
    SpecText,
    shortened,
    whole,
)

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
class SequenceNode:
    place: SpecPosition
    items: list["Node"]


Node = Scalar | Mapping | SequenceNode | Broken


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
            return SequenceNode(place, list(self._items(depth)))
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


# Reads files as text. Knows sizes and encodings, and nothing of what the text means.


MOST_BYTES = 2**20
BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"\xef\xbb\xbf", "UTF-8 with a byte-order mark"),
)
# Control characters, byte-order marks, and the line ends that only some programs take for one.
UNWRITABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
LINE_END = re.compile("\r\n|\r|\n")


def read(path: Path) -> SpecText:
    """The text of a file, or the one reason why it has none."""
    raw = _bytes(path)
    name = str(path)
    for mark, encoding in BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            raise SpecProblems([_encoded(name, encoding)])
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise SpecProblems([_undecodable(name, raw, error.start)]) from None
    if character := UNWRITABLE.search(text):
        raise SpecProblems([_unwritable(name, text, character.start())])
    return SpecText(name, tuple(LINE_END.split(text)))


def _bytes(path: Path) -> bytes:
    """The content of a file of legal size; pipes and devices may never end, and are no files."""
    name = str(path)
    try:
        if path.is_dir():
            raise SpecProblems([whole(name, "folder", inside=_inside(path))])
        if path.exists() and not path.is_file():
            raise SpecProblems([whole(name, "not-a-file")])
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecProblems(
            [whole(name, "unreadable", reason=reason, sibling=_sibling(path))]
        ) from None
    if len(raw) > MOST_BYTES:
        raise SpecProblems([whole(name, "too-large", most=MOST_BYTES)])
    return raw


def _inside(folder: Path) -> str:
    """The file that is usually meant by its folder."""
    meant = folder / "config.json"
    return f"did you mean {meant}?" if meant.is_file() else ""


def _sibling(path: Path) -> str:
    """The file that was probably meant. Endings make no two names alike."""
    try:
        names = {
            other.stem: other.name for other in sorted(path.parent.iterdir()) if other.exists()
        }
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.stem, names, 1)
    return f"did you mean {path.parent / names[close[0]]}?" if close else ""


def _encoded(name: str, encoding: str) -> Problem:
    start = SpecPosition(SpecText(name, ()), 1, 1)
    return start.problem("encoding", encoding=encoding)


def _undecodable(name: str, raw: bytes, start: int) -> Problem:
    place = _place(name, raw.decode(errors="replace"), len(raw[:start].decode()))
    return place.problem("undecodable", byte=raw[start], latin=chr(raw[start]))


def _unwritable(name: str, text: str, start: int) -> Problem:
    is_null = text[start] == "\0"
    remedy = "it looks like UTF-16 or no text: save it as UTF-8" if is_null else "remove it"
    place = _place(name, text, start)
    return place.problem("control-character", character=ord(text[start]), remedy=remedy)


def _place(name: str, text: str, start: int) -> SpecPosition:
    lines = LINE_END.split(text[:start])
    source = SpecText(name, tuple(LINE_END.split(text)))
    return SpecPosition(source, len(lines), len(lines[-1]) + 1)


# Reads single values, from what was written to what is meant.


Value = bool | int | float | str

NUMBER = re.compile(
    r"[-+]?((0|[1-9][0-9]{0,29})([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][-+]?[0-9]{1,3})?"
)
INTEGER = re.compile(r"[-+]?[0-9]+")
MOST = 10**18
BOOLEANS = {"true": True, "false": False}
TRUE_WORDS = frozenset({"y", "yes", "on", "true"})
FALSE_WORDS = frozenset({"n", "no", "off", "false"})
# What one program takes for a number or a truth value, and the next one for text.
AMBIGUOUS = re.compile(
    r"[-+]?([0-9][0-9_]*(:[0-9_.]+)+|[0-9][0-9_]*|0[xob][0-9a-f_]+|[.]?(inf|nan))"
    r"|y|yes|on|true|n|no|off|false",
    re.IGNORECASE,
)
BINARY = {"K": 2**10, "M": 2**20, "B": 2**30, "T": 2**40}


class Misread(ValueError):
    """A value of legal form that means nothing legal: the code of the problem and its fields."""

    def __init__(self, code: str, **fields: Value) -> None:
        self.code, self.fields = code, fields
        super().__init__(code)


def as_written(text: str, types: set[str]) -> Value:
    """A value without quotes as JSON has it, where a field may have those types."""
    if "boolean" in types and text in BOOLEANS:
        return BOOLEANS[text]
    if types & {"integer", "number"} and NUMBER.fullmatch(text):
        return _number(text, types)
    return text


def _number(text: str, types: set[str]) -> Value:
    """A number, exact when it is whole; still text when no number can hold it."""
    exact = Fraction(text)
    whole = exact.denominator == 1 and abs(exact) <= MOST
    if whole and "integer" in types and (INTEGER.fullmatch(text) or "number" not in types):
        return int(exact)
    rounded = float(text)
    return rounded if math.isfinite(rounded) and bool(rounded) == bool(exact) else text


def ambiguous(text: str, value: Value) -> bool:
    """Whether text without quotes might be meant as something else."""
    looks_otherwise = AMBIGUOUS.fullmatch(text) or NUMBER.fullmatch(text)
    return isinstance(value, str) and looks_otherwise is not None


def respellings(text: str) -> Iterator[str]:
    """What may have been meant by a value that is not legal, the likeliest first."""
    yield text
    if text.lower() in TRUE_WORDS | FALSE_WORDS:
        yield str(text.lower() in TRUE_WORDS).lower()
    bare = re.sub("[_, ]", "", text)
    yield bare
    yield bare.upper()
    yield bare.lstrip("0")
    if re.fullmatch("0[xob][0-9a-f]{1,16}", bare):
        yield from _from_other_radix(bare)
    if re.fullmatch(r"[0-9]{1,9}([.][0-9]{1,9})?[kKmMbBtT]", bare):
        yield str(int(Fraction(bare[:-1]) * BINARY[bare[-1].upper()]))
    if re.fullmatch(r"[0-9]{1,9}([.][0-9]{1,9})?%", bare):
        yield str(float(Fraction(bare.rstrip("%")) / 100))
    yield f"{bare}%"
    yield from _durations(bare)
    if not text.lower().islower():
        return
    yield re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def _from_other_radix(text: str) -> Iterator[str]:
    try:
        yield str(int(text, 0))
    except ValueError:
        return


def _durations(text: str) -> Iterator[str]:
    if clock := re.fullmatch("([0-9]{1,3}):([0-9]{2})", text):
        yield f"{int(clock[1]) * 60 + int(clock[2])}s"
    if match := re.fullmatch("([0-9]{1,9})([smhd])[a-z]*", text):
        days = match[2] == "d"
        yield f"{int(match[1]) * 24}h" if days else f"{match[1]}{match[2]}"
    yield f"{text}s"


def is_positive(value: object) -> bool:
    """Whether a value of JSON is a number above zero; `true` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
