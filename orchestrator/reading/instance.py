"""Reads nodes as JSON values by their schema, as an editor with the same schema does."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from orchestrator.reading import schema as schemas
from orchestrator.reading.expectations import (
    key_suggestion,
    likely,
    may_mean_either,
    meant_key,
    must,
    shown,
    suggestion,
)
from orchestrator.reading.nodes import (
    Broken,
    Mapping,
    Misread,
    Node,
    Scalar,
    SequenceNode,
    Value,
    ambiguous,
    as_written,
)
from orchestrator.reading.problems import Correction, Problem, SpecPosition, shortened
from orchestrator.reading.schema import Schema, meaning

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Field:
    """One key of a file: its place, its node, and the schema of its value (None: unknown)."""

    key_place: SpecPosition
    node: Node
    schema: Schema | None


@dataclass
class SpecInstance:
    """A file as JSON values; `rejected` are the paths whose values are wrong, and None here."""

    value: Any = None
    fields: dict[KeyPath, Field] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    rejected: set[KeyPath] = field(default_factory=set)

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


def instance_of(root: Node, root_schema: Schema | None = None) -> SpecInstance:
    """The values of a file, key by key; it is a spec unless another schema is given."""
    instance = SpecInstance()
    schema = schemas.spec_schema() if root_schema is None else root_schema
    instance.value = _value(instance, (), Field(root.place, root, schema))
    return instance


def _value(instance: SpecInstance, path: KeyPath, here: Field) -> Any:
    instance.fields[path] = here
    node, schema = here.node, here.schema
    if isinstance(node, Broken):
        instance.rejected.add(path)
    if isinstance(node, Broken) or schema is None:
        return None
    if isinstance(node, Scalar):
        return _scalar(instance, path, here, node)
    index = schemas.chosen(schema, node)
    if index is None:
        return [] if isinstance(node, SequenceNode) else {}
    inside = schemas.alternatives(schema)[index]
    if isinstance(node, Mapping):
        return _members(instance, path, node, inside)
    item = schemas.resolved(inside["items"])
    fields = [Field(one.place, one, item) for one in node.items]
    return [_value(instance, (*path, i), one) for i, one in enumerate(fields)]


def _members(
    instance: SpecInstance, path: KeyPath, node: Mapping, inside: Schema
) -> dict[str, Any]:
    return {
        key: _value(
            instance,
            (*path, key),
            Field(entry.key_place, entry.node, schemas.member(inside, key)),
        )
        for key, entry in node.entries.items()
    }


def _scalar(instance: SpecInstance, path: KeyPath, here: Field, node: Scalar) -> Value | None:
    schema = here.schema or {}
    types = schemas.scalar_types(schema)
    value = as_written(node.text, types) if node.plain else node.text
    if node.empty or not node.text.isprintable():
        code, fields = "empty-value" if node.empty else "unprintable", {}
        meant: Correction | None = suggestion(path, schema, node)
    elif node.plain and may_mean_either(types) and ambiguous(node.text, value):
        code, meant = "ambiguous", None
        alternative = "".join(f"{one}, or " for one in likely(schema, node)[:1])
        fields = {"value": shown(node, schema), "text": node.text, "alternative": alternative}
    else:
        return value
    problem = node.place.problem(code, dotted(path), meant, expected=must(schema), **fields)
    instance.reject(path, problem)
    return None


def dotted(path: KeyPath) -> str:
    """A path as people write it."""
    return ".".join(map(str, path))


# Validates a file against its schema, and places every problem in the text.


Located = tuple[KeyPath, Problem]

# Keys of earlier versions, with another way to do the same.
REMOVED = {("study", "draws"), ("study", "seed"), ("study", "stop")}


def validate(spec: SpecInstance, validator: Draft202012Validator | None = None) -> None:
    """Add every violation of the schema to the problems of a file."""
    for error in (validator or schemas.validator()).iter_errors(spec.value):
        for path, problem in _problems(spec, error):
            if not spec.is_rejected(path):
                spec.reject(path, problem)


def _problems(spec: SpecInstance, error: ValidationError) -> Iterator[Located]:
    path: KeyPath = tuple(error.absolute_path)
    here, instance, schema = spec.fields[path], _any(error.instance), _any(error.schema)
    if "propertyNames" in error.relative_schema_path:
        yield _illegal_name(spec, path, instance)
    elif error.validator == "anyOf":
        yield from _in_alternative(spec, path, error)
    elif error.validator == "additionalProperties":
        known = list(schema["properties"])
        yield from (_unknown(spec, path, key, known) for key in instance if key not in known)
    elif error.validator == "required":
        whole = schemas.resolved(_whole(here.schema or {}, schema))
        missing = _missing_keys(schema["required"], whole, instance)
        yield from (_missing(path, here, key, whole) for key in missing)
    elif error.validator == "uniqueItems":
        yield from _repeated(spec, path, instance)
    else:
        yield _illegal(path, here)


def _any(value: object) -> Any:
    """What `jsonschema` types as possibly unset, and always sets on the errors it finds."""
    return value


def _in_alternative(spec: SpecInstance, path: KeyPath, error: ValidationError) -> Iterator[Located]:
    """What is wrong with the alternative that was meant, when a mapping or list shows which."""
    here = spec.fields[path]
    index = schemas.chosen(here.schema or {}, here.node)
    if index is None:
        yield _illegal(path, here)
        return
    for inner in error.context or ():
        if inner.relative_schema_path[0] == index:
            yield from _problems(spec, inner)


def _illegal(path: KeyPath, here: Field) -> Located:
    schema = here.schema or {}
    # A file that holds one text is no spec, whatever it is: its text is not repeated.
    value = shown(here.node, schema) if path or not isinstance(here.node, Scalar) else "text"
    hint = suggestion(path, schema, here.node)
    brief = hint is not None and hint.kind == "meant"
    fields = {"value": value, "expected": must(schema, brief=brief)}
    if is_data(path):
        return path, here.node.place.problem("text-as-data", dotted(path), None, **fields)
    return path, here.node.place.problem("illegal-value", dotted(path), hint, **fields)


def is_data(path: KeyPath) -> bool:
    """Whether text may have been named there as what is trained on."""
    return path[:1] == ("experiment",) and (path[-1:] == ("data",) or path[-2:] == ("data", "kind"))


def _unknown(spec: SpecInstance, path: KeyPath, key: str, known: list[str]) -> Located:
    inside = (*path, key)
    place = spec.fields[inside].key_place
    name = dotted((*path, shortened(key)))
    if inside in REMOVED and key not in known:
        return inside, place.problem("removed-key", name, expected=", ".join(known))
    in_spec = spec.fields[()].schema is not schemas.chip_schema()
    hint = key_suggestion(key, known, in_spec=in_spec)
    return inside, place.problem("unknown-key", name, hint, expected=", ".join(known))


def _missing(path: KeyPath, here: Field, key: str, schema: schemas.Schema) -> Located:
    inside = (*path, key)
    expected = schemas.member(schema, key) or {}
    hint = suggestion(inside, expected)
    problem = here.key_place.problem("missing-key", dotted(inside), hint, expected=must(expected))
    return inside, problem


def _whole(here: schemas.Schema, demand: schemas.Schema) -> schemas.Schema:
    """The mapping's own schema, where the demand is a condition inside it."""
    return demand if "properties" in demand else here


def _missing_keys(
    required: list[str], schema: schemas.Schema, instance: dict[str, Any]
) -> list[str]:
    """The keys that are missing, but for those that an unknown key was meant to be."""
    known = list(schema["properties"])
    misspelt = {meant_key(key, known) for key in instance if key not in known}
    return [key for key in required if key not in instance and key not in misspelt]


def _illegal_name(spec: SpecInstance, path: KeyPath, name: str) -> Located:
    inside = (*path, name)
    expected = schemas.resolved((spec.fields[path].schema or {})["propertyNames"])
    place = spec.fields[inside].key_place
    hint = suggestion((), expected, Scalar(place, name, plain=True))
    key = dotted((*path, shortened(name)))
    return inside, place.problem("illegal-key", key, hint, expected=must(expected))


def _repeated(spec: SpecInstance, path: KeyPath, items: list[object]) -> Iterator[Located]:
    for index, item in enumerate(items):
        inside = (*path, index)
        if item in items[:index]:
            here = spec.fields[inside]
            value = shown(here.node, here.schema or {})
            yield inside, here.node.place.problem("repeated-value", dotted(inside), value=value)


# What a spec means, key by key: base units, defaults filled in, wrong values absent.


ABSENT = object()


class ResolvedSpec:
    """A validated spec, in meanings. Checks read it, and report problems at their place."""

    def __init__(self, spec: SpecInstance) -> None:
        self._spec = spec
        self.values = _meanings(spec, spec.value, ())

    def __getitem__(self, key: str) -> Any:
        """The value of a dotted key, or its default; None where it is wrong or has neither."""
        path = tuple(key.split("."))
        if self._spec.is_rejected(path):
            return None
        value = self.values
        for part in path:
            value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
        return default(schemas.schema_field(path) or {}) if value is ABSENT else value

    def report(self, key: str, code: str, **fields: Any) -> None:
        """Add a problem of a dotted key."""
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        self._spec.reject(path, self.place(path).problem(code, key, **fields))

    def place(self, path: KeyPath) -> SpecPosition:
        """Where a value stands, or would stand: at the nearest key above it."""
        fields = self._spec.fields
        if path in fields:
            return fields[path].node.place
        above = next(path[:n] for n in range(len(path) - 1, -1, -1) if path[:n] in fields)
        return fields[above].key_place


def default(schema: Schema) -> Any:
    """What a key means that is left out; None when it has no default."""
    value = schema.get("default")
    return meaning(value, schemas.kind(schema)) if isinstance(value, str) else value


def _meanings(spec: SpecInstance, value: Any, path: KeyPath) -> Any:
    """A value without its rejected parts, every number and share as a number."""
    if isinstance(value, dict):
        inside = {key: (*path, key) for key in value}
        return {
            key: _meanings(spec, value[key], inside[key])
            for key in value
            if not spec.is_rejected(inside[key])
        }
    if isinstance(value, list):
        return [_meanings(spec, one, (*path, i)) for i, one in enumerate(value)]
    return _meaning(spec, value, path)


def _meaning(spec: SpecInstance, value: Any, path: KeyPath) -> Any:
    here = spec.fields[path]
    schema = here.schema or {}
    try:
        return meaning(value, schemas.kind(schema))
    except Misread as error:
        hint = suggestion(path, schema)
        problem = here.node.place.problem(error.code, dotted(path), hint, **error.fields)
        spec.reject(path, problem)
        return None
