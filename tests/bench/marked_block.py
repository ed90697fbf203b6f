"""Tables in Markdown, and where they go: between two marks of a page.

The marks are `<!-- NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Sequence


def with_block(page: str, name: str, text: str) -> str:
    """The page with that text as the content of the named block."""
    block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->\n)", re.DOTALL)
    if not block.search(page):
        raise ValueError(f"the page has no block <!-- {name} -->")
    return block.sub(lambda match: f"{match[1]}{text}{match[2]}", page)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row is its head and whose first column is text."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]]) + "\n"
