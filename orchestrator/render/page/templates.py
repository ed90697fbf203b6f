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
