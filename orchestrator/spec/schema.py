"""The JSON Schema of specs and studies, generated from their types, and how to walk it."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from orchestrator.catalog import Chip
from orchestrator.spec.nodes import Mapping, Node, Sequence
from orchestrator.spec.notation import NOTATIONS, Notation
from orchestrator.types.spec import Spec

Schema = dict[str, Any]

VERSION = 1
DEFS = "#/$defs/"
# Where a file and its value use another key.
KEYS_IN_FILES = {"hang_limit_s": "hang_limit", "restart_s": "restart", "repair_s": "repair"}
ANNOTATIONS = ("description", "title", "examples")
HIDDEN = ("notation", "unless")
INNER = ("additionalProperties", "items")
NULL: Schema = {"type": "null"}
VERSION_KEY: Schema = {
    "description": "Version of this schema that the file was written for.",
    "title": f"a version of the schema that is known: {VERSION}",
    "enum": [VERSION],
    "default": VERSION,
}


@cache
def spec_schema() -> Schema:
    """The schema of a spec."""
    return _document(Spec, "spec", NOTATIONS)


@cache
def study_schema() -> Schema:
    """The schema of a study. A spec is loaded without its types."""
    from orchestrator.spec.study_file import StudyFile  # noqa: PLC0415

    return _document(StudyFile, "study", {})


@cache
def chip_schema() -> Schema:
    """The schema of a chip's file."""
    return _document(Chip, "chip", {})


@cache
def schema_text() -> str:
    """The schema of a spec, as editors read it."""
    return _text(spec_schema())


@cache
def study_schema_text() -> str:
    """The schema of a study, as editors read it."""
    return _text(study_schema())


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(spec_schema())


@cache
def study_validator() -> Draft202012Validator:
    return Draft202012Validator(study_schema())


@cache
def chip_validator() -> Draft202012Validator:
    return Draft202012Validator(chip_schema())


def _text(schema: Schema) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _document(root: type, name: str, notations: dict[str, Notation]) -> Schema:
    """The schema of a file: its root's keys, and a definition for each section and notation."""
    forms = [form for one in notations.values() for form in one.forms]
    types = [root, *(form for form in forms if not isinstance(form, tuple))]
    schemas, sections = msgspec.json.schema_components(types, ref_template=DEFS + "{name}")
    of_types = iter(schemas[1:])
    defs = {key: _section(section) for key, section in sections.items()}
    for key, notation in notations.items():
        defs[key] = _choice(notation, of_types)
    top = defs.pop(root.__name__)
    text = json.dumps([top, defs])
    defs = {key: one for key, one in defs.items() if f'"{DEFS}{key}"' in text}
    if root is not Chip:
        top["properties"] = {"schema": VERSION_KEY} | top["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:orch:schema:{name}:{VERSION}",
        **top,
        "$defs": defs,
    }


def _section(generated: Schema) -> Schema:
    """The keys of a mapping as a file has them."""
    keys = {
        KEYS_IN_FILES.get(key, key): _key(schema)
        for key, schema in generated["properties"].items()
        if "computed" not in schema
    }
    required = [
        key for key in generated.get("required", ()) if key in keys and "default" not in keys[key]
    ]
    spared = {
        key: s["unless"] for key in required if "unless" in (s := generated["properties"][key])
    }
    always = [key for key in required if key not in spared]
    return {
        "description": " ".join(generated["description"].split()),
        "type": "object",
        "additionalProperties": False,
        **({"required": always} if always else {}),
        **_required_unless(spared),
        "properties": keys,
    }


def _required_unless(spared: dict[str, str]) -> Schema:
    """That some keys are needed where another one is not there."""
    if not spared:
        return {}
    [other] = set(spared.values())
    return {"if": {"not": {"required": [other]}}, "then": {"required": list(spared)}}


def _key(generated: Schema) -> Schema:
    """What a file may hold under a key: in its notation, and never null."""
    schema = {key: value for key, value in generated.items() if key not in HIDDEN}
    if "notation" in generated:
        schema = {key: schema[key] for key in ANNOTATIONS if key in schema}
        schema["$ref"] = DEFS + generated["notation"]
    if "propertyNames" in schema:
        schema["propertyNames"] = {"type": "string"} | schema["propertyNames"]
    schema |= {key: _key(schema[key]) for key in INNER if isinstance(schema.get(key), dict)}
    if NULL in schema.get("anyOf", ()):
        [branch] = [one for one in schema.pop("anyOf") if one != NULL]
        schema = branch | schema
    default = _default(generated)
    schema.pop("default", None)
    return schema if default is None else schema | {"default": default}


def _default(generated: Schema) -> Any:
    """A default as a file has it; None for a section, whose keys have their own."""
    default = generated.get("default")
    if "notation" in generated and "default" in generated:
        default = NOTATIONS[generated["notation"]].written(default)
    elif "$ref" in generated:
        return None
    if isinstance(default, tuple):
        return list(default)
    return int(default) if isinstance(default, float) and default.is_integer() else default


def _choice(notation: Notation, of_types: Iterator[Schema]) -> Schema:
    """The forms of a notation; `of_types` are the schemas of those that are types."""
    title = {} if notation.title is None else {"title": notation.title}
    forms = [
        {"enum": list(form)} if isinstance(form, tuple) else next(of_types)
        for form in notation.forms
    ]
    return title | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def definition(name: str) -> Schema:
    """A named part of a schema. No two schemas give a name to different parts."""
    for schema in (spec_schema, chip_schema, study_schema):
        if name in (parts := schema()["$defs"]):
            return resolved(parts[name])
    raise KeyError(name)


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
    kind_of_node = {Mapping: "object", Sequence: "array"}.get(type(node))
    fits = [i for i, one in enumerate(alternatives(schema)) if one.get("type") == kind_of_node]
    if kind_of_node is None or not fits:
        return None
    keys = set(node.entries) if isinstance(node, Mapping) else set()
    return max(fits, key=lambda i: len(keys & set(properties(alternatives(schema)[i]))))


def properties(schema: Schema) -> dict[str, Schema]:
    """The keys of a mapping that have a name in the schema."""
    keys: dict[str, Schema] = resolved(schema).get("properties", {})
    return keys


def member(schema: Schema, key: str) -> Schema | None:
    """What stands under a key of a mapping; None when the key is unknown."""
    others = schema.get("additionalProperties")
    inside = properties(schema).get(key, others if isinstance(others, dict) else None)
    return None if inside is None else resolved(inside)


def field(path: tuple[str, ...]) -> Schema | None:
    """The schema of a key by its path, through whichever alternative has it."""
    schema: Schema | None = spec_schema()
    for key in path:
        inside = [member(one, key) for one in alternatives(schema or {})]
        schema = next((one for one in inside if one is not None), None)
    return schema


def homes(key: str) -> list[str]:
    """Where in a spec a key of that name belongs, as dotted paths."""
    return [".".join(path) for path in _paths(spec_schema()) if path[-1] == key]


def _paths(schema: Schema) -> Iterator[tuple[str, ...]]:
    for one in alternatives(schema):
        for key, inside in properties(one).items():
            yield (key,)
            yield from ((key, *path) for path in _paths(inside))


def scalar_types(schema: Schema) -> set[str]:
    """The JSON types that a single value may have."""
    all_types: set[str] = set()
    for one in alternatives(schema):
        types = one.get("type", [])
        all_types |= {types} if isinstance(types, str) else set(types)
        all_types |= {"string" if isinstance(value, str) else "integer" for value in constants(one)}
    return all_types - {"object", "array"}


def constants(schema: Schema) -> list[Any]:
    """The values that a schema lists."""
    listed: list[Any] = schema.get("enum", [])
    return [schema["const"]] if "const" in schema else listed
