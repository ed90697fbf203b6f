"""Notes: what a person should know, made where its numbers are. A note stores a code and
figures. Its sentence is made of them by a function whose name is the code:

    @sentence(PlanWarning)
    def few_steps(steps: int) -> str:
        return f"all tokens are used up in {steps} steps"

    few_steps(steps=12)         # PlanWarning(code="few_steps", figures={"steps": 12})
    few_steps(steps=12).text    # "all tokens are used up in 12 steps"

Sentences that only show their figures are texts with fields, in a table (`sentences`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

_Figures = dict[str, int | float | str]
_P = ParamSpec("_P")
_NoteT = TypeVar("_NoteT", bound="Note")

_sentences: dict[tuple[type["Note"], str], Callable[..., str]] = {}


@dataclass(frozen=True, kw_only=True)
class Note:
    """A code, and the figures of its sentence."""

    code: str
    figures: _Figures

    @property
    def text(self) -> str:
        """The sentence; the module that makes such notes must have been imported."""
        return _sentences[type(self), self.code](**self.figures)


def sentence(kind: type[_NoteT]) -> Callable[[Callable[_P, str]], Callable[_P, _NoteT]]:
    """Turn a function that says a sentence into one that makes a note of it, by its keywords."""

    def decorate(say: Callable[_P, str]) -> Callable[_P, _NoteT]:
        code: Any = say.__name__.lstrip("_")
        _sentences[kind, code] = say

        def make(*_: _P.args, **figures: _P.kwargs) -> _NoteT:
            numbers: Any = figures
            return kind(code=code, figures=numbers)

        return make

    return decorate


def sentences(kind: type[Note], texts: dict[str, str], fill: Callable[..., str]) -> None:
    """Say notes with these codes by texts, whose fields `fill(text, **figures)` fills in."""
    for code, text in texts.items():
        _sentences[kind, code] = partial(fill, text)
