"""Spec room: the contract, schema.json, and how the rest of the room walks it."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from orchestrator.spec.nodes import Mapping, Node, Sequence

Schema = dict[str, Any]

FILE = Path(__file__).with_name("schema.json")
STUDY_FILE = Path(__file__).with_name("study.schema.json")
DEFS = "#/$defs/"


@cache
def schema_text() -> str:
    """The contract as editors read it."""
    return FILE.read_text(encoding="utf-8")


@cache
def study_schema_text() -> str:
    """The contract of a study, as editors read it."""
    return STUDY_FILE.read_text(encoding="utf-8")


@cache
def contract() -> Schema:
    loaded: Schema = json.loads(schema_text())
    return loaded


@cache
def study_contract() -> Schema:
    """What a study may hold. It refers to nothing in the contract of specs."""
    loaded: Schema = json.loads(study_schema_text())
    return loaded


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(contract())


@cache
def study_validator() -> Draft202012Validator:
    return Draft202012Validator(study_contract())


def definition(name: str) -> Schema:
    found: Schema = contract()["$defs"][name]
    return resolved(found)


def resolved(schema: Schema) -> Schema:
    """The schema with its reference filled in; `$ref` stays, as the name of its kind."""
    reference = schema.get("$ref")
    return schema if reference is None else definition(reference.removeprefix(DEFS)) | schema


def kind(schema: Schema) -> str:
    """The name of the definition that a schema refers to; empty when it refers to none."""
    return str(schema.get("$ref", "")).removeprefix(DEFS)


def alternatives(schema: Schema) -> list[Schema]:
    """What a value may be: the branches of `anyOf`, or the schema alone."""
    return [resolved(branch) for branch in resolved(schema).get("anyOf", [schema])]


def chosen(schema: Schema, node: Node) -> int | None:
    """The alternative that a mapping or list is meant to be; None when there is none."""
    wanted = {Mapping: "object", Sequence: "array"}.get(type(node))
    fits = [i for i, one in enumerate(alternatives(schema)) if one.get("type") == wanted]
    if wanted is None or not fits:
        return None
    keys = set(node.entries) if isinstance(node, Mapping) else set()
    return max(fits, key=lambda i: len(keys & set(properties(alternatives(schema)[i]))))


def properties(schema: Schema) -> dict[str, Schema]:
    """The keys of a mapping that have a name in the contract."""
    found: dict[str, Schema] = resolved(schema).get("properties", {})
    return found


def member(schema: Schema, key: str) -> Schema | None:
    """What stands under a key of a mapping; None when the key is unknown."""
    others = schema.get("additionalProperties")
    found = properties(schema).get(key, others if isinstance(others, dict) else None)
    return None if found is None else resolved(found)


def field(path: tuple[str, ...]) -> Schema | None:
    """The schema of a key by its path, through whichever alternative has it."""
    schema: Schema | None = contract()
    for key in path:
        inside = [member(one, key) for one in alternatives(schema or {})]
        schema = next((found for found in inside if found is not None), None)
    return schema


def homes(key: str) -> list[str]:
    """Where in a spec a key of that name belongs, as dotted paths."""
    return [".".join(path) for path in _paths(contract()) if path[-1] == key]


def _paths(schema: Schema) -> Iterator[tuple[str, ...]]:
    for one in alternatives(schema):
        for key, inside in properties(one).items():
            yield (key,)
            yield from ((key, *path) for path in _paths(inside))


def scalar_types(schema: Schema) -> set[str]:
    """The JSON types that a single value may have."""
    found: set[str] = set()
    for one in alternatives(schema):
        types = one.get("type", [])
        found |= {types} if isinstance(types, str) else set(types)
        found |= {"string" if isinstance(value, str) else "integer" for value in constants(one)}
    return found - {"object", "array"}


def constants(schema: Schema) -> list[Any]:
    """The values that a schema lists."""
    listed: list[Any] = schema.get("enum", [])
    return [schema["const"]] if "const" in schema else listed
