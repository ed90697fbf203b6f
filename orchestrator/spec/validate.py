"""Validates a file against its schema, and places every problem in the text."""

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from orchestrator.spec import schema as schemas
from orchestrator.spec.expectations import key_suggestion, meant_key, must, shown, suggestion
from orchestrator.spec.instance import Field, Path, SpecInstance, dotted
from orchestrator.spec.nodes import Scalar
from orchestrator.spec.problem import Problem, shortened

Located = tuple[Path, Problem]

# Keys of earlier versions, with another way to do the same.
REMOVED = {("study", "draws"), ("study", "seed"), ("study", "stop")}


def validate(spec: SpecInstance, validator: Draft202012Validator | None = None) -> None:
    """Add every violation of the schema to the problems of a file."""
    for error in (validator or schemas.validator()).iter_errors(spec.value):
        for path, problem in _problems(spec, error):
            if not spec.is_rejected(path):
                spec.reject(path, problem)


def _problems(spec: SpecInstance, error: ValidationError) -> Iterator[Located]:
    path: Path = tuple(error.absolute_path)
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


def _in_alternative(spec: SpecInstance, path: Path, error: ValidationError) -> Iterator[Located]:
    """What is wrong with the alternative that was meant, when a mapping or list shows which."""
    here = spec.fields[path]
    index = schemas.chosen(here.schema or {}, here.node)
    if index is None:
        yield _illegal(path, here)
        return
    for inner in error.context or ():
        if inner.relative_schema_path[0] == index:
            yield from _problems(spec, inner)


def _illegal(path: Path, here: Field) -> Located:
    schema = here.schema or {}
    # A file that holds one text is no spec, whatever it is: its text is not repeated.
    value = shown(here.node, schema) if path or not isinstance(here.node, Scalar) else "text"
    hint = suggestion(path, schema, here.node)
    brief = hint is not None and hint.kind == "meant"
    fields = {"value": value, "expected": must(schema, brief=brief)}
    if is_data(path):
        return path, here.node.place.problem("text-as-data", dotted(path), None, **fields)
    return path, here.node.place.problem("illegal-value", dotted(path), hint, **fields)


def is_data(path: Path) -> bool:
    """Whether text may have been named there as what is trained on."""
    return path[:1] == ("experiment",) and (path[-1:] == ("data",) or path[-2:] == ("data", "kind"))


def _unknown(spec: SpecInstance, path: Path, key: str, known: list[str]) -> Located:
    inside = (*path, key)
    place = spec.fields[inside].key_place
    name = dotted((*path, shortened(key)))
    if inside in REMOVED and key not in known:
        return inside, place.problem("removed-key", name, expected=", ".join(known))
    in_spec = spec.fields[()].schema is not schemas.chip_schema()
    hint = key_suggestion(key, known, in_spec=in_spec)
    return inside, place.problem("unknown-key", name, hint, expected=", ".join(known))


def _missing(path: Path, here: Field, key: str, schema: schemas.Schema) -> Located:
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


def _illegal_name(spec: SpecInstance, path: Path, name: str) -> Located:
    inside = (*path, name)
    expected = schemas.resolved((spec.fields[path].schema or {})["propertyNames"])
    place = spec.fields[inside].key_place
    hint = suggestion((), expected, Scalar(place, name, plain=True))
    key = dotted((*path, shortened(name)))
    return inside, place.problem("illegal-key", key, hint, expected=must(expected))


def _repeated(spec: SpecInstance, path: Path, items: list[object]) -> Iterator[Located]:
    for index, item in enumerate(items):
        inside = (*path, index)
        if item in items[:index]:
            here = spec.fields[inside]
            value = shown(here.node, here.schema or {})
            yield inside, here.node.place.problem("repeated-value", dotted(inside), value=value)
