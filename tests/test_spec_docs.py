"""The page about specs: its table of keys is the contract's."""

import pytest

from orchestrator.reading.expectations import KeyHelp, keys_of_specs
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "spec.md"
MARK = "--refresh-golden` -->\n"
HEAD = "| key | what it is | must be | default |\n|---|---|---|---|\n"


def row(one: KeyHelp) -> str:
    """One key with its default, as a line of the table."""
    absent = "required" if one.required else "none"
    default = absent if one.default is None else f"`{one.default}`"
    return f"| `{one.key}` | {one.about} | {one.must} | {default} |"


def test_the_page_lists_every_key(request: pytest.FixtureRequest) -> None:
    """Each key stands there with its meaning, its limits and its default."""
    table = HEAD + "".join(f"{line}\n" for line in map(row, keys_of_specs()))
    page = PAGE.read_text(encoding="utf-8")
    above = page[: page.index(MARK) + len(MARK)]
    if request.config.getoption("--refresh-golden"):
        PAGE.write_text(f"{above}\n{table}", encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == f"{above}\n{table}"
