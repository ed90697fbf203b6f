"""HTML and SVG as text in which nothing is markup unless it was made here."""

from collections.abc import Mapping, Sequence
from html import escape
from string import Template

from orchestrator.resources import resource

TEMPLATES = resource("dashboards")


class Html(str):
    """Text that is markup. All other text is escaped where it is put into some."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | float | None) -> Html:
    """An element. `class_` is class, `stroke_width` is stroke-width; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{join(*inside)}</{name}>")


def join(*parts: str) -> Html:
    """Parts one after another, each escaped unless it is markup."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def percent_of(fraction: float) -> str:
    """A place in a drawing, as a share of its width or height."""
    return f"{fraction * 100:.5g}%"


def filled(
    template: str, *, title: str, verdict: str, headline: str, kind: Html, **parts: str
) -> str:
    """A template of dashboards/ with its places filled, in the frame and style of all pages."""
    style = Html((TEMPLATES / "report.css").read_text(encoding="utf-8"))
    inside = Html(_substituted(template, parts))
    of_all = {"title": title, "verdict": verdict, "headline": headline, "kind": kind}
    return _substituted("page.html", of_all | {"style": style, "inside": inside})


def _substituted(template: str, parts: Mapping[str, str]) -> str:
    text = Template((TEMPLATES / template).read_text(encoding="utf-8"))
    return text.substitute({name: join(part) for name, part in parts.items()})


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, words: int = 1) -> Html:
    """A table; the first `words` columns are words, the others numbers."""

    def cells(kind: str, row: tuple[str, ...]) -> Html:
        return join(
            *(tag(kind, cell, class_=None if i < words else "n") for i, cell in enumerate(row))
        )

    body = join(*(tag("tr", cells("td", row)) for row in rows))
    inside = tag("table", tag("thead", tag("tr", cells("th", head))), tag("tbody", body))
    return tag("div", inside, class_="scroll")
