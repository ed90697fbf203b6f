"""A file as values: reads its nodes by a schema, and places all that is wrong in the text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jsonschema import ValidationError

from orchestrator.reading import expectations, nodes
from orchestrator.reading import schema as schemas
from orchestrator.reading.nodes import JsonScalar, Mapping, Node, Scalar, SequenceNode, ambiguous
from orchestrator.reading.problems import Correction, Problem, SpecPosition, shortened
from orchestrator.reading.schema import Schema

KeyPath = tuple[str | int, ...]
_Located = tuple[KeyPath, Problem]
_ABSENT = object()
# Keys of earlier versions, with another way to do the same.
_REMOVED = {("study", "draws"), ("study", "seed"), ("study", "stop")}


@dataclass(frozen=True)
class _Field:
    """One key of a file: its place, its node, and the schema of its value (None: unknown)."""

    key_place: SpecPosition
    node: Node
    schema: Schema | None


class SpecInstance:
    """A file as JSON values (`value`), and as what they mean (`values`): base units, and without
    what is wrong. `rejected` are the paths whose values are wrong, and None in `value`.
    """

    def __init__(self, root: Node, document: Callable[[], Schema]) -> None:
        self.fields: dict[KeyPath, _Field] = {}
        self.problems: list[Problem] = []
        self.rejected: set[KeyPath] = set()
        self.value = self._value((), _Field(root.place, root, document()))
        for error in schemas.validator(document).iter_errors(self.value):
            for path, problem in self._violation(error):
                if not self.is_rejected(path):
                    self.reject(path, problem)
        self.values = self._meanings(self.value, ())

    def __getitem__(self, key: str) -> Any:
        """Return what a dotted key means, or its default; None where it is wrong or has neither."""
        path = tuple(key.split("."))
        if self.is_rejected(path):
            return None
        value = self.values
        for part in path:
            value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
        if value is not _ABSENT:
            return value
        return schemas.default_of(schemas.schema_field(*path, within=self.fields[()].schema))

    def is_rejected(self, path: KeyPath) -> bool:
        return any(path[:length] in self.rejected for length in range(len(path) + 1))

    def reject(self, path: KeyPath, problem: Problem) -> None:
        """Report what is wrong with a value, which counts as absent from then on."""
        self.rejected.add(path)
        here = self.fields.get(path)
        if here and isinstance(here.node, Scalar) and (here.schema or {}).get("writeOnly"):
            place, quotes = here.node.place, 0 if here.node.plain else 2
            place.source.hidden.append((place.line, place.col, len(here.node.text) + quotes))
        self.problems.append(problem)

    def report(
        self, key: str, code: str, message: str, hint: str | Correction = "", **fields: Any
    ) -> None:
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        self.reject(path, self.place(key).problem(code, key, message, hint, **fields))

    def place(self, key: str) -> SpecPosition:
        """Return where the value of a dotted key stands, or else the nearest key above it."""
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        if path in self.fields:
            return self.fields[path].node.place
        above = next(path[:n] for n in range(len(path) - 1, -1, -1) if path[:n] in self.fields)
        return self.fields[above].key_place

    # The JSON values.

    def _value(self, path: KeyPath, here: _Field) -> Any:
        self.fields[path] = here
        node, schema = here.node, here.schema
        if isinstance(node, nodes.Broken):
            self.rejected.add(path)
        if isinstance(node, nodes.Broken) or schema is None:
            return None
        if isinstance(node, Scalar):
            return self._scalar(path, node, schema)
        index = schemas.chosen(schema, node)
        if index is None:
            return [] if isinstance(node, SequenceNode) else {}
        inside = schemas.alternatives(schema)[index]
        if isinstance(node, Mapping):
            known = {
                key: _Field(entry.key_place, entry.node, schemas.member(inside, key))
                for key, entry in node.entries.items()
                if not (schemas.member(inside, key) and nodes.unsets(entry.node))
            }
            return {key: self._value((*path, key), known[key]) for key in known}
        item = schemas.resolved(inside.get("items", {}))
        listed = [_Field(inner.place, inner, item) for inner in node.items]
        return [self._value((*path, index), inner) for index, inner in enumerate(listed)]

    def _scalar(self, path: KeyPath, node: Scalar, schema: Schema) -> JsonScalar | None:
        types = schemas.scalar_types(schema)
        value = nodes.as_written(node.text, types) if node.plain else node.text
        if node.empty:
            code, what = "empty-value", "is empty"
        elif not node.text.isprintable():
            code, what = "unprintable", "has line breaks or unprintable characters"
        elif node.plain and expectations.may_mean_either(types) and ambiguous(node.text, value):
            text = expectations.shown(node, schema)
            code, what = "ambiguous", f"is {text}, which may be read in two ways"
        else:
            return value
        hint: str | Correction | None = expectations.suggestion(path[-1:], schema, node)
        if code == "ambiguous":
            other = "".join(f"{text}, or " for text in expectations.likely(schema, node)[:1])
            hint = f'write {other}"{node.text}" if it is text'
        message = f"{what}, must be {expectations.must(schema)}"
        self.reject(path, node.place.problem(code, dotted(path), message, hint))
        return None

    # What violates the schema.

    def _violation(self, error: ValidationError) -> Iterator[_Located]:
        path: KeyPath = tuple(error.absolute_path)
        here = self.fields[path]
        # jsonschema types these as possibly unset, and always sets them on the errors it finds
        value: Any = error.instance
        schema: Any = error.schema
        if "propertyNames" in error.relative_schema_path:
            expected = schemas.resolved((self.fields[path].schema or {})["propertyNames"])
            place = self.fields[*path, value].key_place
            hint = expectations.suggestion((), expected, Scalar(place, value, plain=True))
            message = f"is not a valid key, must be {expectations.must(expected)}"
            key = dotted((*path, shortened(value)))
            yield ((*path, value), place.problem("illegal-key", key, message, hint))
        elif error.validator == "anyOf":
            index = schemas.chosen(here.schema or {}, here.node)
            if index is None:
                yield _illegal(path, here)
            for inner in error.context or ():  # the alternative that a mapping or list shows
                if inner.relative_schema_path[0] == index:
                    yield from self._violation(inner)
        elif error.validator == "additionalProperties":
            known = list(schema["properties"])
            yield from (self._unknown((*path, key), known) for key in value if key not in known)
        elif error.validator == "required":
            # a condition inside a mapping demands keys without their schemas
            whole = schema if "properties" in schema else here.schema or {}
            whole = schemas.alternatives(whole)[schemas.chosen(whole, here.node) or 0]
            yield from _missing(path, here, schema["required"], whole, value)
        elif error.validator == "uniqueItems":
            yield from self._repeated(path, value)
        else:
            yield _illegal(path, here)

    def _unknown(self, path: KeyPath, known: list[str]) -> _Located:
        root = self.fields[()].schema
        in_spec = root is not schemas.chip_schema() and root is not schemas.serving_schema()
        hint: str | Correction = expectations.key_suggestion(str(path[-1]), known, in_spec=in_spec)
        if path in _REMOVED:
            hint = "docs/studies.md shows random values and early stops with Optuna"
        code = "removed-key" if path in _REMOVED else "unknown-key"
        name = dotted((*path[:-1], shortened(str(path[-1]))))
        message = f"is unknown, must be one of {', '.join(known)}"
        return path, self.fields[path].key_place.problem(code, name, message, hint)

    def _repeated(self, path: KeyPath, items: list[object]) -> Iterator[_Located]:
        for index, item in enumerate(items):
            if item in items[:index]:
                inside = (*path, index)
                here = self.fields[inside]
                text = expectations.shown(here.node, here.schema or {})
                problem = here.node.place.problem(
                    "repeated-value", dotted(inside), f"is {text}, must be given once", "remove it"
                )
                yield inside, problem

    # What the values mean.

    def _meanings(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {
                key: self._meanings(value[key], (*path, key))
                for key in value
                if not self.is_rejected((*path, key))
            }
        if isinstance(value, list):
            return [self._meanings(item, (*path, i)) for i, item in enumerate(value)]
        here = self.fields[path]
        schema = here.schema or {}
        try:
            return schemas.meaning(value, schema)
        except schemas.Misread as error:
            hint = expectations.suggestion(path[-1:], schema)
            place = here.node.place
            self.reject(path, place.problem(error.code, dotted(path), error.message, hint))
            return None


def dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _illegal(path: KeyPath, here: _Field) -> _Located:
    schema = here.schema or {}
    # The text of a file that holds only text is not repeated: it may be any file.
    is_text = not path and isinstance(here.node, Scalar)
    value = "text" if is_text else expectations.shown(here.node, schema)
    hint = expectations.suggestion(path[-1:], schema, here.node)
    expected = expectations.must(schema, brief=hint is not None and hint.kind == "meant")
    message = f"is {value}, must be {expected}"
    code: str = "illegal-value"
    advice: str | Correction | None = hint
    if path[:1] == ("experiment",) and (
        path[-1:] == ("data",) or path[-2:] == ("data", "kind")
    ):  # text may have been named there as what is trained on
        code, message = "text-as-data", f"{message}: text is packed into tokens before a run"
        pack = "orch data pack tokens FILES --tokenizer tokenizer.json packs it"
        advice = f"{pack}; then write kind: tokens and path: tokens/manifest.json"
    return path, here.node.place.problem(code, dotted(path), message, advice)


def _missing(
    path: KeyPath, here: _Field, required: list[str], schema: Schema, value: dict[str, Any]
) -> Iterator[_Located]:
    """Yield the missing keys, but for those that an unknown key was meant to be."""
    known = list(schemas.properties(schema))
    misspelt = {expectations.meant_key(key, known) for key in value if key not in known}
    for key in required:
        if key not in value and key not in misspelt:
            inside, expected = (*path, key), schemas.member(schema, key) or {}
            message = f"is missing, must be {expectations.must(expected)}"
            hint = expectations.suggestion((key,), expected)
            yield inside, here.key_place.problem("missing-key", dotted(inside), message, hint)
