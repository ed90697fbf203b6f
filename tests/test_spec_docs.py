"""The pages of keys: their tables are the contract's."""

from pathlib import Path

import pytest

from orchestrator.reading.expectations import KeyHelp, _keys
from orchestrator.reading.schema import spec_schema
from tests.conftest import ROOT

DOCS = ROOT / "docs"
# A key is on the page of the longest of these beginnings.
PAGES = {
    "": DOCS / "spec-keys.md",
    "experiment.model.": DOCS / "spec-model.md",
    "run.": DOCS / "spec-run.md",
    "cluster.": DOCS / "spec-run.md",
    "tracking.": DOCS / "spec-run.md",
    "choice.": DOCS / "spec-run.md",
}
MARK = "--refresh-golden` -->\n"
HEAD = "| key | what it is | must be | default |\n|---|---|---|---|\n"


def row(one: KeyHelp) -> str:
    """One key with its default, as a line of the table."""
    absent = "required" if one.required else "none"
    default = absent if one.default is None else f"`{one.default}`"
    return f"| `{one.key}` | {one.about} | {one.must} | {default} |"


def page_of(one: KeyHelp) -> Path:
    """The page that lists a key."""
    beginnings = [begin for begin in PAGES if f"{one.key}.".startswith(begin)]
    return PAGES[max(beginnings, key=len)]


@pytest.mark.parametrize("page", sorted(set(PAGES.values())), ids=lambda page: page.name)
def test_the_pages_list_every_key(page: Path, request: pytest.FixtureRequest) -> None:
    """Each key stands there with its meaning, its limits and its default."""
    keys = dict.fromkeys(_keys(spec_schema(), ""))
    rows = [row(key) for key in keys if page_of(key) == page]
    table = HEAD + "".join(f"{line}\n" for line in rows)
    text = page.read_text(encoding="utf-8")
    above = text[: text.index(MARK) + len(MARK)]
    if request.config.getoption("--refresh-golden"):
        page.write_text(f"{above}\n{table}", encoding="utf-8")
    assert page.read_text(encoding="utf-8") == f"{above}\n{table}"
