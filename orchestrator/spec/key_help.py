"""What the keys of a spec mean, must be, and are when left out."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import UnknownName
from orchestrator.spec.expectations import must, plain
from orchestrator.spec.schema import Schema, alternatives, member, properties, resolved, spec_schema


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
