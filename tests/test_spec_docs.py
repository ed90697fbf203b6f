"""The page about specs: its table of keys is the contract's."""

from collections.abc import Iterator

import pytest

from orchestrator.spec.expectations import must, plain
from orchestrator.spec.schema import Schema, alternatives, member, properties, resolved, spec_schema
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "spec.md"
MARK = "--refresh-golden` -->\n"
HEAD = "| key | what it is | must be | default |\n|---|---|---|---|\n"


def rows(schema: Schema, prefix: str = "") -> Iterator[str]:
    """A row for each key that holds a value. The keys of a section stand for it."""
    for one in alternatives(schema):
        for key in properties(one):
            inside = member(one, key) or {}
            if inside.get("type") != "object" or "default" in inside:
                demands = (*one.get("required", ()), *one.get("then", {}).get("required", ()))
                yield row(prefix + key, inside, key in demands)
            yield from rows(inside, f"{prefix}{key}.")
            if inside.get("type") == "array" and "$ref" in inside.get("items", {}):
                yield from item_rows(resolved(inside["items"]), f"{prefix}{key}[]")


def item_rows(item: Schema, prefix: str) -> Iterator[str]:
    """A row for each key of the entries of a list; sections are as in the experiment."""
    for key, inside in properties(item).items():
        if resolved(inside).get("type") != "object":
            yield row(f"{prefix}.{key}", resolved(inside), key in item.get("required", ()))


def row(path: str, schema: Schema, is_required: bool) -> str:
    """One key with its default, as a line of the table."""
    absent = "required" if is_required else "none"
    default = f"`{plain(schema['default'])}`" if "default" in schema else absent
    return f"| `{path}` | {schema['description']} | {must(schema)} | {default} |"


def test_the_page_lists_every_key(request: pytest.FixtureRequest) -> None:
    """Each key stands there with its meaning, its limits and its default."""
    table = HEAD + "".join(f"{line}\n" for line in dict.fromkeys(rows(spec_schema())))
    page = PAGE.read_text(encoding="utf-8")
    above = page[: page.index(MARK) + len(MARK)]
    if request.config.getoption("--refresh-golden"):
        PAGE.write_text(f"{above}\n{table}", encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == f"{above}\n{table}"
