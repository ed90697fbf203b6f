"""Replace the text between two marks of a page: `<!-- NAME -->` and `<!-- end -->`."""

import re


def with_block(page: str, name: str, text: str) -> str:
    """The page with that text as the content of the named block."""
    block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->\n)", re.DOTALL)
    if not block.search(page):
        raise ValueError(f"the page has no block <!-- {name} -->")
    return block.sub(lambda match: f"{match[1]}{text}{match[2]}", page)
