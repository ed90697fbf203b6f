"""Problems of a file: what is wrong, where, and what to write instead. Knows no YAML."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import SpecError

_SHOWN_PROBLEMS = 100
_SHOWN_COLUMNS = 76  # of a line of a file, after the indentation
_SHOWN_BEFORE_CARET = 40
SHOWN_VALUE = 40
_INDENT = "    "
_SUGGESTIONS = {
    "meant": "did you mean {}?",
    "unquoted": "write {} without quotes",
    "example": "for example {}",
    "commas": "write numbers without commas",
    "top": "it belongs at the top of a spec",
    "remove": "remove it",
}


@dataclass(frozen=True)
class SpecText:
    """The text of a file, or the `--set` overrides, one per line. `hidden` places (line, column,
    length) are never shown, such as a secret where its name belongs.
    """

    name: str
    lines: tuple[str, ...]
    hidden: list[tuple[int, int, int]] = field(default_factory=list, compare=False)

    def line(self, number: int) -> str:
        """Return a line as it may be shown, every character in its column."""
        text = list(self.lines[number - 1])
        for line, col, length in self.hidden:
            if line == number:
                end = min(col - 1 + length, len(text))
                text[col - 1 : end] = "*" * (end - col + 1)
        return _printable("".join(text))


@dataclass(frozen=True)
class Correction:
    """A legal value or key to write instead; `others` are the values that are as likely."""

    kind: str
    value: str = ""
    others: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.others)

    def __str__(self) -> str:
        *before, last = self.values
        return _SUGGESTIONS[self.kind].format(" or ".join(filter(None, (", ".join(before), last))))


@dataclass(frozen=True)
class SpecPosition:
    """A position in a text. Lines and columns count from 1; line 0 is the text as a whole."""

    source: SpecText
    line: int
    col: int

    @property
    def text(self) -> str:
        name = self.source.name
        return f"{name}:{self.line}:{self.col}" if self.line else name

    def problem(
        self, code: str, key: str, message: str, hint: str | Correction | None = "", **fields: Any
    ) -> "Problem":
        """Return a problem of this place; `fields` are what programs may want of it."""
        return Problem(self, code, key, message, hint or "", fields)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a file: its code, what is against what must be, and advice. Of a
    file that a spec names, perhaps by mistake, no text is shown: only the spec's line.
    """

    place: SpecPosition
    code: str
    key: str
    message: str
    advice: str | Correction
    fields: dict[str, Any]
    named_at: tuple[SpecPosition, str] | None = None  # the place and key of a spec

    @property
    def suggestion(self) -> Correction | None:
        return self.advice if isinstance(self.advice, Correction) else None

    @property
    def hint(self) -> str:
        return str(self.advice)

    @property
    def file(self) -> str:
        return self.place.source.name

    @property
    def line(self) -> int:
        return self.place.line

    @property
    def col(self) -> int:
        return self.place.col

    @property
    def order(self) -> tuple[str, int, int, str, int, int]:
        """Return its rank among the problems of a spec and of the files that the spec names."""
        first = self.named_at[0] if self.named_at else self.place
        return first.source.name, first.line, first.col, self.file, self.line, self.col

    @property
    def snippet(self) -> str:
        """Return the line, cut to what a screen holds, and a caret below its column."""
        place = self.named_at[0] if self.named_at else self.place
        if not place.line or not place.source.lines:
            return ""
        text = place.source.line(place.line)
        before, rest = text[: place.col - 1], text[place.col - 1 :]
        start = max(0, len(before) - _SHOWN_BEFORE_CARET)
        before = "..." * bool(start) + before[start:]
        rest = shortened(rest, _SHOWN_COLUMNS - len(before))
        return f"{_INDENT}{before}{rest}".rstrip() + f"\n{_INDENT}{' ' * len(before)}^"

    def __str__(self) -> str:
        parts = [self.place.text, self.key, self.message]
        if self.named_at:
            place, key = self.named_at
            parts = [place.text, key, *parts]
        head = ": ".join(filter(None, parts))
        return "\n".join(filter(None, (head, self.snippet, self.hint and f"hint: {self.hint}")))


class SpecProblems(SpecError):
    """Everything that is wrong with a spec, in the order of its text."""

    is_prose = True
    quoted = (_INDENT,)

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.order)
        texts = [str(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            texts.append(f"and {len(self.problems) - _SHOWN_PROBLEMS:,} more problems")
        super().__init__("\n\n".join(texts))


def named_by(place: SpecPosition, key: str, problems: Iterable[Problem]) -> list[Problem]:
    return [replace(problem, named_at=(place, key)) for problem in problems]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def shortened(text: str, most: int = SHOWN_VALUE) -> str:
    return _printable(text if len(text) <= most else text[:most] + "...")
