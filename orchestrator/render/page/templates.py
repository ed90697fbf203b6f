"""Fill the templates of dashboards/. Every value is escaped; only templates contain markup."""

from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator import formatting
from orchestrator.resources import resource
from orchestrator.types.codec import short

FILTERS = ("count", "counted", "elapsed", "in_memory", "percent", "scaled", "seconds")


@cache
def environment() -> Environment:
    """Return the templates, with the number formats of the screens as filters."""
    templates = Environment(
        loader=FileSystemLoader(resource("dashboards")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {name: getattr(formatting, name) for name in FILTERS}
    templates.filters["short"] = short
    return templates


def filled(template: str, **values: object) -> str:
    """Return a page."""
    return environment().get_template(template).render(values)


def sentence(text: str) -> str:
    """Return a screen's note as the start of a sentence. Columns of pages have small letters."""
    first, space, rest = text.partition(" ")
    is_column = first.isupper() and len(first) > len("MFU")
    return f"{first[0].upper()}{first[1:].lower() if is_column else first[1:]}{space}{rest}"
