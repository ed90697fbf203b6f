"""What is wrong with a file, where, and what to write instead. Knows no YAML."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.spec.problem_messages import MESSAGES, SUGGESTIONS

SHOWN_PROBLEMS = 100
SHOWN_COLUMNS = 76  # of a line of a file, after the indentation
SHOWN_BEFORE_CARET = 40
SHOWN_VALUE = 40
INDENT = "    "


@dataclass(frozen=True)
class SpecText:
    """A text as it was given: a file, or the `--set` overrides, one a line.

    What is `hidden` (a secret where its name belongs: line, column, length) is never shown.
    """

    name: str
    lines: tuple[str, ...]
    hidden: list[tuple[int, int, int]] = field(default_factory=list, compare=False)

    def line(self, number: int) -> str:
        """A line as it may be shown, every character in its column."""
        text = list(self.lines[number - 1])
        for line, col, length in self.hidden:
            if line == number:
                end = min(col - 1 + length, len(text))
                text[col - 1 : end] = "*" * (end - col + 1)
        return printable("".join(text))


@dataclass(frozen=True)
class SpecPosition:
    """A position in a source. Lines and columns count from 1; line 0 is the source as a whole."""

    source: SpecText
    line: int
    col: int

    @property
    def text(self) -> str:
        """What a message begins with."""
        name = self.source.name
        return f"{name}:{self.line}:{self.col}" if self.line else name

    def problem(
        self, code: str, /, key: str = "", suggestion: "Correction | None" = None, **fields: Any
    ) -> "Problem":
        return Problem(place=self, code=code, key=key, suggestion=suggestion, fields=fields)


@dataclass(frozen=True)
class Correction:
    """A legal value or key to write instead; SUGGESTIONS has the kinds.

    Where several are as likely, `others` has those after the first.
    """

    kind: str
    value: str = ""
    others: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.others)

    def __str__(self) -> str:
        *before, last = self.values
        return SUGGESTIONS[self.kind].format(
            value=" or ".join(filter(None, (", ".join(before), last)))
        )


@dataclass(frozen=True)
class FileReference:
    """The key of a spec that names another file."""

    place: SpecPosition
    key: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a file, by its code; MESSAGES has the sentences.

    Where a spec names the file, the message begins with the line of the spec and shows that line.
    The file may be any on the machine, named by mistake: none of its text is shown.
    """

    place: SpecPosition
    code: str
    key: str
    suggestion: Correction | None
    fields: dict[str, Any]
    named_at: FileReference | None = None

    @property
    def message(self) -> str:
        """What is, against what must be."""
        return MESSAGES[self.code][0].format_map(self.fields)

    @property
    def hint(self) -> str:
        """What to write instead."""
        if self.suggestion:
            return str(self.suggestion)
        return MESSAGES[self.code][1].format_map(self.fields)

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
        """Where it stands among the problems of a spec and of the files that it names."""
        first = self.named_at.place if self.named_at else self.place
        return first.source.name, first.line, first.col, self.file, self.line, self.col

    @property
    def snippet(self) -> str:
        """The line, cut to what a screen holds, and a caret below its column."""
        place = self.named_at.place if self.named_at else self.place
        if not place.line or not place.source.lines:
            return ""
        text = place.source.line(place.line)
        before, rest = text[: place.col - 1], text[place.col - 1 :]
        start = max(0, len(before) - SHOWN_BEFORE_CARET)
        before = "..." * bool(start) + before[start:]
        rest = shortened(rest, SHOWN_COLUMNS - len(before))
        return f"{INDENT}{before}{rest}".rstrip() + f"\n{INDENT}{' ' * len(before)}^"

    def __str__(self) -> str:
        parts = [self.place.text, self.key, self.message]
        if self.named_at:
            parts = [self.named_at.place.text, self.named_at.key, *parts]
        head = ": ".join(filter(None, parts))
        return "\n".join(filter(None, (head, self.snippet, self.hint and f"hint: {self.hint}")))


def whole(name: str, code: str, **fields: Any) -> Problem:
    """A problem of a file as a whole."""
    return SpecPosition(SpecText(name, ()), 0, 0).problem(code, **fields)


def printable(text: str) -> str:
    """Safe for a terminal, one column a character."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def shortened(text: str, most: int = SHOWN_VALUE) -> str:
    """A text as a message repeats it."""
    return printable(text if len(text) <= most else text[:most] + "...")


def named_by(reference: FileReference, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a file that a spec names."""
    return [replace(one, named_at=reference) for one in problems]


class SpecProblems(SpecError):
    """Everything that is wrong with a spec, in the order of its text."""

    is_prose = True
    quoted = (INDENT,)

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda one: one.order)
        super().__init__(_text(self.problems))


def _text(problems: list[Problem]) -> str:
    texts = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        texts.append(f"and {len(problems) - SHOWN_PROBLEMS:,} more problems")
    return "\n\n".join(texts)
