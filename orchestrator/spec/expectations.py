"""The schema in words: what a field must hold, and what to write instead of a wrong value."""

from difflib import get_close_matches
from typing import Any

from orchestrator.spec.nodes import Mapping, Node, Scalar
from orchestrator.spec.notation import meaning
from orchestrator.spec.problem import SHOWN_VALUE, Correction, shortened
from orchestrator.spec.scalars import Misread, as_written, respellings
from orchestrator.spec.schema import (
    Schema,
    alternatives,
    constants,
    homes,
    kind,
    properties,
    resolved,
    scalar_types,
    validator,
)
from orchestrator.spec.synonyms import synonym, values_meant

BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
NOUNS = {
    "boolean": "true or false",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
}
ALMOST_EQUAL = 0.9  # a key beside it that is this similar is likelier than the same key elsewhere
MANY = 10  # a longer list is not repeated where the nearest names are suggested
SECTIONS = ("experiment", "resources", "run", "cluster", "tracking")


def must(schema: Schema, *, brief: bool = False) -> str:
    """What a field must hold; where it is to be brief, without a long list of names."""
    whole = resolved(schema)
    if "title" in whole:
        return str(whole["title"])
    if "anyOf" in whole:
        return " or ".join(must(one, brief=brief) for one in alternatives(whole))
    if listed := constants(whole):
        if brief and len(listed) > MANY:
            return "a known name"
        return ("one of " if len(listed) > 1 else "") + ", ".join(map(plain, listed))
    if whole.get("type") == "object":
        return f"a mapping of {', '.join(properties(whole)) or 'names to values'}"
    bounds = [f"{words} {whole[key]:,}" for key, words in BOUNDS.items() if key in whole]
    return ", ".join(filter(None, (NOUNS[whole["type"]], " and ".join(bounds))))


def shown(node: Node, schema: Schema) -> str:
    """What a field holds, as a message repeats it; what may be a secret is not repeated."""
    if not isinstance(node, Scalar):
        return "a mapping" if isinstance(node, Mapping) else "a list"
    if schema.get("writeOnly"):
        return "something else"
    return shortened(node.text) if node.plain else f'"{shortened(node.text)}"'


def suggestion(
    path: tuple[str | int, ...], schema: Schema, node: Node | None = None
) -> Correction | None:
    """A legal value instead of an illegal or missing one: what was meant, or an example."""
    if isinstance(node, Scalar) and not schema.get("writeOnly"):
        meant = likely(schema, node)
        if meant:
            quoted = meant[0] == node.text and not node.plain
            return Correction("unquoted" if quoted else "meant", meant[0], tuple(meant[1:]))
    value = example(schema)
    key = f"{path[-1]}: " if path and isinstance(path[-1], str) else ""
    return None if value is None else Correction("example", f"{key}{plain(value)}")


def likely(schema: Schema, node: Scalar) -> list[str]:
    """The legal values that were probably meant, the likeliest first."""
    if not 0 < len(node.text) <= SHOWN_VALUE:
        return []
    listed = [value for one in alternatives(schema) for value in map(plain, constants(one))]
    if listed and (meant := values_meant(node.text, listed)):
        return meant
    return [text for text in respellings(node.text) if is_legal(text, schema)][:1]


def is_legal(text: str, schema: Schema) -> bool:
    """Whether a field could hold this text, without quotes."""
    types = scalar_types(schema)
    value = as_written(text, types)
    if may_mean_either(types) and isinstance(value, str):
        return False  # it needs quotes, or no other spelling
    if not text.isprintable() or not validator().evolve(schema=schema).is_valid(value):
        return False
    try:
        meaning(value, kind(schema))
    except Misread:
        return False
    return True


def may_mean_either(types: set[str]) -> bool:
    """Whether a field holds text as well as truth values, so that text may be mistaken for one."""
    return types >= {"boolean", "string"}


def example(schema: Schema) -> Any:
    """A legal value; None when the schema suggests none."""
    whole = resolved(schema)
    several = [value for one in whole.get("anyOf", ()) if (value := example(one)) is not None]
    candidates = [*whole.get("examples", ())]
    candidates += [whole[key] for key in ("default", "minimum") if key in whole]
    candidates += [*constants(whole), *several]
    inside = {key: example(one) for key, one in properties(whole).items()}
    required = {key: inside[key] for key in whole.get("required", ())}
    return candidates[0] if candidates else required or inside or None


def key_suggestion(key: str, legal: list[str], *, in_spec: bool = True) -> Correction:
    """What to write instead of an unknown key; in a spec, it may belong elsewhere."""
    if key.isdigit():
        return Correction("commas")
    if key in SECTIONS and key not in legal:
        return Correction("top")
    if len(key) > SHOWN_VALUE:
        return Correction("remove")
    elsewhere = homes(key) if in_spec else []
    if key in elsewhere:
        return Correction("top")
    beside = get_close_matches(key.lower(), legal, 1, cutoff=ALMOST_EQUAL)
    meant = [synonym(key, legal), *beside, *elsewhere, meant_key(key, legal)]
    return next((Correction("meant", one) for one in meant if one), Correction("remove"))


def meant_key(key: str, legal: list[str]) -> str | None:
    """The legal key that was probably meant."""
    if len(key) > SHOWN_VALUE:
        return None
    if known := synonym(key, legal):
        return known
    close = get_close_matches(key.lower(), legal, 1)
    longer = [one for one in legal if one.startswith(key.lower())]
    return next(iter(close + longer), None)


def plain(value: Any) -> str:
    """A JSON value as a spec has it on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(inside)}" for key, inside in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return str(value)
