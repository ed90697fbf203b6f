"""The schema in words: what a field must hold, and what to write instead of a wrong value."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import chain
from typing import Any

from orchestrator.errors import UnknownName
from orchestrator.processes import resource
from orchestrator.reading import schema as schemas
from orchestrator.reading.nodes import Mapping, Node, Scalar, as_written, respellings
from orchestrator.reading.problems import SHOWN_VALUE, Correction, shortened
from orchestrator.reading.schema import Schema

_SECTIONS = ("experiment", "resources", "run", "cluster", "tracking", "choice")


def _names_of_others(table: dict[str, str]) -> dict[str, list[str]]:
    ours: dict[str, list[str]] = {}
    for name, others in table.items():
        for other in others.split():
            ours.setdefault(other, []).append(name)
    return ours


_SYNONYMS = tomllib.loads(resource("reading", "synonyms.toml").read_text("utf-8"))
_KEY_SYNONYMS = _names_of_others(_SYNONYMS["keys"])
_VALUE_SYNONYMS = _names_of_others(_SYNONYMS["values"])
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_NOUNS = {
    "boolean": "true or false",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
}
_AS_LIKELY = 0.05  # a name that is less similar than the nearest by more is not meant
_ALMOST_EQUAL = 0.9  # a key of this section that is so similar is likelier than one elsewhere
_SUGGESTED = 3  # names at most
_MANY = 10  # a longer list is not repeated where the nearest names are suggested


def must(schema: Schema, *, brief: bool = False) -> str:
    """Return what a field must hold; `brief` leaves out a long list of names."""
    whole = schemas.resolved(schema)
    if "title" in whole:
        return str(whole["title"])
    if "anyOf" in whole:
        return " or ".join(must(choice, brief=brief) for choice in schemas.alternatives(whole))
    if listed := schemas.constants(whole):
        if brief and len(listed) > _MANY:
            return "a known name"
        return ("one of " if len(listed) > 1 else "") + ", ".join(map(_plain, listed))
    if whole.get("type") == "object":
        return f"a mapping of {', '.join(schemas.properties(whole)) or 'names to values'}"
    bounds = [f"{words} {whole[key]:,}" for key, words in _BOUNDS.items() if key in whole]
    return ", ".join(filter(None, (_NOUNS[whole["type"]], " and ".join(bounds))))


def shown(node: Node, schema: Schema) -> str:
    """Return what a field holds, as a message repeats it, without what may be a secret."""
    if not isinstance(node, Scalar):
        return "a mapping" if isinstance(node, Mapping) else "a list"
    if schema.get("writeOnly"):
        return "something else"
    return shortened(node.text) if node.plain else f'"{shortened(node.text)}"'


def _plain(value: Any) -> str:
    """Return a JSON value as a spec has it on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(inside)}" for key, inside in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value)


def suggestion(
    key: tuple[str | int, ...], schema: Schema, node: Node | None = None
) -> Correction | None:
    """Return what was meant, or an example; `key` is the end of the path, empty at the root."""
    if isinstance(node, Scalar) and not schema.get("writeOnly") and (meant := likely(schema, node)):
        quoted = meant[0] == node.text and not node.plain
        return Correction("unquoted" if quoted else "meant", meant[0], tuple(meant[1:]))
    value = example(schema)
    named = "".join(f"{name}: " for name in key if isinstance(name, str))
    return None if value is None else Correction("example", f"{named}{_plain(value)}")


def likely(schema: Schema, node: Scalar) -> list[str]:
    """Return the legal values that were probably meant, the likeliest first."""
    if not 0 < len(node.text) <= SHOWN_VALUE:
        return []
    values = map(schemas.constants, schemas.alternatives(schema))
    legal = [_plain(value) for value in chain.from_iterable(values)]
    # The names that begin so, or else the most similar, after any `meta-llama/`.
    name = node.text.lower().strip().rpartition("/")[2]
    if known := _VALUE_SYNONYMS.get(name.removeprefix("tpu").strip(" -_")):
        meant = [value for value in known if value in legal]
    else:
        begun = [value for value in legal if name and value.startswith(name)]
        close = get_close_matches(name, begun or legal, _SUGGESTED, cutoff=0.0 if begun else 0.6)
        similar = {value: SequenceMatcher(None, value, name).ratio() for value in close}
        least = 0.0 if begun else max(similar.values(), default=0.0) - _AS_LIKELY
        meant = [value for value in close if begun or similar[value] > least]
    return meant or [text for text in respellings(node.text) if is_legal(text, schema)][:1]


def is_legal(text: str, schema: Schema) -> bool:
    """Return whether a field could hold this text, without quotes."""
    types = schemas.scalar_types(schema)
    value = as_written(text, types)
    if may_mean_either(types) and isinstance(value, str):
        return False  # it needs quotes, or no other spelling
    if not text.isprintable() or not schemas.fits(value, schema):
        return False
    try:
        schemas.meaning(value, schema)
    except schemas.Misread:
        return False
    return True


def may_mean_either(types: set[str]) -> bool:
    return types >= {"boolean", "string"}


def example(schema: Schema) -> Any:
    """Return a legal value; None when the schema suggests none."""
    whole = schemas.resolved(schema)
    several = [value for part in whole.get("anyOf", ()) if (value := example(part)) is not None]
    candidates = [*whole.get("examples", ())]
    candidates += [whole[key] for key in ("default", "minimum") if key in whole]
    candidates += [*schemas.constants(whole), *several]
    inside = {key: example(part) for key, part in schemas.properties(whole).items()}
    required = {key: inside[key] for key in whole.get("required", ())}
    return candidates[0] if candidates else required or inside or None


def key_suggestion(key: str, legal: list[str], *, in_spec: bool = True) -> Correction:
    """Return what to write instead of an unknown key; in a spec, it may belong elsewhere."""
    if key.isdigit():
        return Correction("commas")
    if key in _SECTIONS and key not in legal:
        return Correction("top")
    if len(key) > SHOWN_VALUE:
        return Correction("remove")
    elsewhere = schemas.homes(key) if in_spec else []
    if key in elsewhere:
        return Correction("top")
    near = get_close_matches(key.lower(), legal, 1, cutoff=_ALMOST_EQUAL)
    meant = [*_synonyms(key, legal), *near, *elsewhere, meant_key(key, legal)]
    return next((Correction("meant", name) for name in meant if name), Correction("remove"))


def _synonyms(key: str, legal: list[str]) -> list[str]:
    return [name for name in _KEY_SYNONYMS.get(key.lower().replace("-", "_"), ()) if name in legal]


def meant_key(key: str, legal: list[str]) -> str | None:
    if len(key) > SHOWN_VALUE:
        return None
    close = get_close_matches(key.lower(), legal, 1)
    longer = [name for name in legal if name.startswith(key.lower())]
    return next(iter(_synonyms(key, legal) + close + longer), None)


# Help about the keys of a spec: meaning, legal values, default.


@dataclass(frozen=True)
class KeyHelp:
    """A key with its dots, what it is, what it must be, and its default as it is written."""

    key: str
    about: str
    must: str
    default: str | None
    required: bool


def help_about(key: str) -> list[KeyHelp]:
    """Return a key of a spec or a serving spec and those below it; for another name raise
    `UnknownName`, with the keys next to it.
    """
    if found := _keys_at(key):
        return found
    level = nearest_key(key)
    start = f"{level}." if level else ""
    below = (row.key.removeprefix(start) for row in _keys_at(level) if row.key.startswith(start))
    names = dict.fromkeys(name.split(".")[0].split("[")[0] for name in below)
    raise UnknownName("key", key, [start + name for name in names])


def _keys_at(key: str) -> list[KeyHelp]:
    """Return a key and those below it, without a name all. What specs and serving specs both have
    is as in a spec.
    """
    rows = list(dict.fromkeys(_keys(schemas.spec_schema(), "")))
    known = {row.key for row in rows}
    of_serving = dict.fromkeys(_keys(schemas.serving_schema(), ""))
    rows += [row for row in of_serving if row.key not in known]
    below = (f"{key}.", f"{key}[") if key else ""
    return [row for row in rows if row.key == key or row.key.startswith(below)]


def nearest_key(key: str) -> str:
    """Return a key, or the nearest section above it that exists; empty where none does."""
    while key and not _keys_at(key):
        key = key.rpartition(".")[0]
    return key


def _keys(schema: Schema, prefix: str) -> Iterator[KeyHelp]:
    """Yield each key that holds a value. The keys of a section stand for it."""
    for choice in schemas.alternatives(schema):
        needed = (*choice.get("required", ()), *choice.get("then", {}).get("required", ()))
        for key in schemas.properties(choice):
            inside = schemas.member(choice, key) or {}
            if inside.get("type") != "object" or "default" in inside:
                yield _help(prefix + key, inside, key in needed)
            yield from _keys(inside, f"{prefix}{key}.")
            if inside.get("type") == "array" and "$ref" in inside.get("items", {}):
                entry = schemas.resolved(inside["items"])
                for name in schemas.properties(entry):  # sections are as in the experiment
                    part = schemas.member(entry, name) or {}
                    if part.get("type") != "object":
                        is_required = name in entry.get("required", ())
                        yield _help(f"{prefix}{key}[].{name}", part, is_required)


def _help(key: str, schema: Schema, required: bool) -> KeyHelp:
    default = _plain(schema["default"]) if "default" in schema else None
    return KeyHelp(key, schema["description"], must(schema), default, required)
