"""Reads files as text, parses YAML text into nodes that know their place, and reads single values.
The only file that knows PyYAML. Depth, number and aliases are refused before nodes are built, and
every value stays the text that was written.
"""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import yaml

from orchestrator.reading.problems import Problem, SpecPosition, SpecProblems, SpecText, shortened

_MOST_DEPTH = 16
_MOST_NODES = 2_000
_MOST_BYTES = 2**20
FLAG = "--set"  # the source of what was not read from a file
NULLS = frozenset({"~", "null", "Null", "NULL"})
NO_NAMES = NULLS | {"", "true", "True", "TRUE", "false", "False", "FALSE"}
_SYNTAX_HINTS = {
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
_WRITE_NAME = "write `name: value`"


@dataclass(frozen=True)
class Scalar:
    """One value as written; `plain` is without quotes."""

    place: SpecPosition
    text: str
    plain: bool

    @property
    def empty(self) -> bool:
        return self.plain and self.text in {"", *NULLS}


@dataclass(frozen=True)
class Broken:
    """A node whose problem has been reported."""

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


def unsets(node: Node) -> bool:
    """Return whether a value takes its key out of a file: `--set key=null`."""
    is_null = isinstance(node, Scalar) and node.plain and node.text in NULLS
    return is_null and node.place.source.name == FLAG


def parse(source: SpecText) -> tuple[Node, list[Problem]]:
    return parse_value(SpecPosition(source, 1, 1), "\n".join(source.lines), [])


def parse_value(place: SpecPosition, text: str, keys: list[str]) -> tuple[Node, list[Problem]]:
    """Return the value of a key, given by its path, whose text begins at `place`."""
    builder = _Builder(place, text, keys)
    try:
        return builder.document(), builder.problems
    except yaml.MarkedYAMLError as error:
        reason = error.problem or "unreadable"
        remedy = next((hint for part, hint in _SYNTAX_HINTS.items() if part in reason), "")
        if error.context:
            line = builder.place(error.context_mark).line
            reason += f", {error.context} that begins on line {line}"
        at = builder.place(error.problem_mark)
        raise SpecProblems([at.problem("syntax", "", f"is not YAML: {reason}", remedy)]) from None


class _Builder:
    """One pass over the events of one document, which begins at `origin`."""

    def __init__(self, origin: SpecPosition, text: str, keys: list[str]) -> None:
        self.problems: list[Problem] = []
        self._origin = origin
        self._keys = list(keys)
        self._lines = text.rstrip().split("\n")
        self._events: Iterator[Any] = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._count = 0

    def place(self, mark: Any) -> SpecPosition:
        """Return the position of a mark, which counts from zero and from the origin."""
        line, column = mark.line, mark.column
        if line >= len(self._lines):  # the end of a text is that of its last line
            line, column = len(self._lines) - 1, len(self._lines[-1])
        col = column + (self._origin.col if line == 0 else 1)
        return SpecPosition(self._origin.source, self._origin.line + line, col)

    def document(self) -> Node:
        next(self._events)
        start = next(self._events)
        if isinstance(start, yaml.StreamEndEvent):
            return Scalar(self._origin, "", plain=True)
        if start.version or start.tags:
            self._refuse(start, "directive", "has a directive (%), must be plain YAML", "remove it")
        root = self._node(next(self._events), 0)
        next(self._events)
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            message = "has a second document, must be one"
            self._refuse(after, "documents", message, "one file for each spec")
        return root

    def _node(self, event: Any, depth: int) -> Node:
        self._count += 1
        if depth > _MOST_DEPTH:
            self._refuse(event, "too-deep", TOO_DEEP)
        if self._count > _MOST_NODES:
            most = f"must be at most {_MOST_NODES:,} keys and values"
            self._refuse(event, "too-many", f"is too much, {most}")
        place = self.place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            message = f"is the alias *{shortened(str(event.anchor))}, must be a value"
            self._report(place, "alias", message, "write the value itself")
            return Broken(place)
        if event.anchor:
            name = shortened(event.anchor)
            message = f"has the anchor &{name}, must be a value"
            self._report(place, "anchor", message, f"remove &{name}")
        if event.tag:
            name = shortened(event.tag.replace("tag:yaml.org,2002:", "!!"))
            self._report(place, "tag", f"has the tag {name}, must be a value", f"remove {name}")
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(place, event.value, plain=not event.style)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(place, depth)
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return SequenceNode(place, items)

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
        """Return a key as text; None where it cannot be one, which is reported."""
        if isinstance(key, Broken):
            return None
        if not isinstance(key, Scalar):
            message = "has a mapping or list as a key, must have names as keys"
            self._report(key.place, "key-not-a-name", message, _WRITE_NAME)
        elif not key.text or (key.plain and key.text in NO_NAMES):
            message = f"has the key {key.text or repr('')}, must have names as keys"
            self._report(key.place, "empty-key", message, _WRITE_NAME)
        elif key.text == "<<":
            message = "has a merge key (<<), must have names as keys"
            self._report(key.place, "merge-key", message, "write the keys that it stands for")
        elif key.text in mapping.entries:
            message = f"has {shortened(key.text)} twice, must have it once"
            first = mapping.entries[key.text].key_place.line
            hint = f"keep this one or the one on line {first}"
            self._report(key.place, "duplicate-key", message, hint)
        else:
            return key.text
        return None

    def _report(self, place: SpecPosition, code: str, message: str, hint: str) -> None:
        key = ".".join(map(shortened, self._keys))
        self.problems.append(place.problem(code, key, message, hint))

    def _refuse(self, event: Any, code: str, message: str, hint: str = "") -> NoReturn:
        raise SpecProblems([self.place(event.start_mark).problem(code, "", message, hint)])


TOO_DEEP = f"is nested too deep, must have at most {_MOST_DEPTH} levels"


# Reads files as text.
_BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"\xef\xbb\xbf", "UTF-8 with a byte-order mark"),
)
# Control characters, byte-order marks, and the line ends that only some programs take for one.
_UNWRITABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_LINE_END = re.compile("\r\n|\r|\n")


def read(path: Path) -> SpecText:
    """Return the text of a file; `SpecProblems` has the one reason why it cannot be read."""

    def refuse(
        code: str, message: str, hint: str = "", before: str | None = None, text: str = ""
    ) -> NoReturn:
        """Refuse the file, or the character of its text that follows `before`."""
        lines = [] if before is None else _LINE_END.split(before)
        source = SpecText(str(path), tuple(_LINE_END.split(text)) if text else ())
        place = SpecPosition(source, len(lines), len(lines[-1]) + 1 if lines else 0)
        raise SpecProblems([place.problem(code, "", message, hint)]) from None

    try:
        if path.is_dir():
            config = path / "config.json"  # the file that is usually meant by its folder
            hint = f"did you mean {config}?" if config.is_file() else ""
            refuse("folder", "is a folder, must be a file", hint)
        if path.exists() and not path.is_file():  # it may never end
            refuse("not-a-file", "is a device, pipe or socket, must be a file")
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        hint = ""
        with suppress(OSError, ValueError):  # equal endings make no two names alike
            files = {file.stem: file for file in sorted(path.parent.iterdir()) if file.exists()}
            near = get_close_matches(path.stem, files, 1)
            hint = "".join(f"did you mean {files[stem]}?" for stem in near)
        reason = getattr(error, "strerror", None) or str(error)
        refuse("unreadable", f"cannot be read: {reason}", hint)
    if len(raw) > _MOST_BYTES:
        refuse("too-large", f"is larger than {_MOST_BYTES:,} bytes")
    for mark, encoding in _BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            message = f"is {encoding}, must be UTF-8 without a byte-order mark"
            refuse("encoding", message, "save it as plain UTF-8", before="")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte, before = raw[error.start], raw[: error.start].decode()
        message = f"has the byte 0x{byte:02x}, must be UTF-8"
        hint = f"save it as UTF-8; as Latin-1 this would be {chr(byte)!r}"
        refuse("undecodable", message, hint, before, raw.decode(errors="replace"))
    if character := _UNWRITABLE.search(text):
        is_null = character[0] == "\0"
        message = f"has the character U+{ord(character[0]):04X}, must be plain text"
        hint = "it looks like UTF-16 or no text: save it as UTF-8" if is_null else "remove it"
        refuse("control-character", message, hint, text[: character.start()], text)
    return SpecText(str(path), tuple(_LINE_END.split(text)))


# Reads single values, from what was written to what is meant.
JsonScalar = bool | int | float | str

NUMBER = re.compile(
    r"[-+]?((0|[1-9][0-9]{0,29})([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][-+]?[0-9]{1,3})?"
)
_INTEGER = re.compile(r"[-+]?[0-9]+")
MOST = 10**18
_BOOLEANS = {"true": True, "false": False}
_TRUE_WORDS = frozenset({"y", "yes", "on", "true"})
_FALSE_WORDS = frozenset({"n", "no", "off", "false"})
# Text that some programs read as a number or a truth value.
_AMBIGUOUS = re.compile(
    r"[-+]?([0-9][0-9_]*(:[0-9_.]+)+|[0-9][0-9_]*|0[xob][0-9a-f_]+|[.]?(inf|nan))"
    r"|y|yes|on|true|n|no|off|false",
    re.IGNORECASE,
)
_BINARY = {"K": 2**10, "M": 2**20, "B": 2**30, "T": 2**40}


def as_written(text: str, types: set[str]) -> JsonScalar:
    """Return a value without quotes as JSON has it, where a field may have those types. Whole
    numbers are exact; what no number can hold stays text.
    """
    if "boolean" in types and text in _BOOLEANS:
        return _BOOLEANS[text]
    if not types & {"integer", "number"} or not NUMBER.fullmatch(text):
        return text
    exact = Fraction(text)
    is_whole = exact.denominator == 1 and abs(exact) <= MOST
    if is_whole and "integer" in types and (_INTEGER.fullmatch(text) or "number" not in types):
        return int(exact)
    rounded = float(text)
    return rounded if math.isfinite(rounded) and bool(rounded) == bool(exact) else text


def ambiguous(text: str, value: JsonScalar) -> bool:
    """Return whether text without quotes might be meant as something else."""
    looks_otherwise = _AMBIGUOUS.fullmatch(text) or NUMBER.fullmatch(text)
    return isinstance(value, str) and looks_otherwise is not None


def respellings(text: str) -> Iterator[str]:
    """Yield what an illegal value may have meant, the likeliest first."""
    yield text
    if text.lower() in _TRUE_WORDS | _FALSE_WORDS:
        yield str(text.lower() in _TRUE_WORDS).lower()
    bare = re.sub("[_, ]", "", text)
    yield bare
    yield bare.upper()
    yield bare.lstrip("0")
    if re.fullmatch("0(x[0-9a-f]{1,16}|o[0-7]{1,16}|b[01]{1,16})", bare):
        yield str(int(bare, 0))
    if re.fullmatch(r"[0-9]{1,9}([.][0-9]{1,9})?[kKmMbBtT]", bare):
        yield str(int(Fraction(bare[:-1]) * _BINARY[bare[-1].upper()]))
    if re.fullmatch(r"[0-9]{1,9}([.][0-9]{1,9})?%", bare):
        yield str(float(Fraction(bare.rstrip("%")) / 100))
    yield f"{bare}%"
    if clock := re.fullmatch("([0-9]{1,3}):([0-9]{2})", bare):
        yield f"{int(clock[1]) * 60 + int(clock[2])}s"
    if match := re.fullmatch("([0-9]{1,9})([smhd])[a-z]*", bare):
        days = match[2] == "d"
        yield f"{int(match[1]) * 24}h" if days else f"{match[1]}{match[2]}"
    yield f"{bare}s"
    if text.lower().islower():
        yield re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
