"""The forms in which a file may give a value: 15T, 10%, 10m, auto, a name of the catalog.

A field of `orchestrator.types.spec` names its notation. The schema is generated from the types of
its forms.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from datetime import date
from fractions import Fraction
from typing import Annotated, Any

from msgspec import Meta

from orchestrator import catalog
from orchestrator.network.rematerialization import POLICIES
from orchestrator.spec.file_types import (
    ChipFile,
    HuggingFaceModel,
    Sequences,
    StageBatch,
    StageEntry,
)
from orchestrator.spec.scalars import MOST, Misread, Value
from orchestrator.types.model import Model
from orchestrator.types.spec import MeshRequest, Pods, TensorTreatments
from orchestrator.types.spec_fields import AxisSize, Microbatches, PodCount, about

DECIMAL = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
SECONDS = {"s": 1, "m": 60, "h": 3600}
AUTO = "auto"
SIZES = [one.name for one in fields(Model) if one.default is MISSING and one.name != "name"]


Form = Any  # a type; or a tuple of names, of which a file gives one


@dataclass(frozen=True)
class Notation:
    """What a file may hold instead of a value, what text there means, and how a default looks."""

    forms: tuple[Form, ...]
    title: str | None = None
    meaning: Callable[[str], Value | None] | None = None
    written: Callable[[Any], Any] = lambda value: value


def _count(text: str) -> int:
    exact = Fraction(text[:-1]) * DECIMAL[text[-1]]
    if exact.denominator != 1:
        raise Misread("not-whole", number=float(exact))
    if exact > MOST:
        raise Misread("too-great", number=int(exact), most=MOST)
    return int(exact)


def _share(text: str) -> float:
    return float(Fraction(text.rstrip("% ")) / 100)


def _seconds(text: str) -> float:
    return float(Fraction(text[:-1]) * SECONDS[text[-1]])


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    unit = max((u for u, s in SECONDS.items() if seconds % s == 0), key=lambda u: SECONDS[u])
    return f"{seconds / SECONDS[unit]:g}{unit}"


def _deadline(text: str) -> str:
    """The text itself, where it names a day of the calendar or a duration."""
    if "-" in text:
        try:
            date.fromisoformat(text)
        except ValueError:
            raise Misread("no-such-date", text=text) from None
    return text


def _auto(_: object) -> str:
    return AUTO


def _searched(_: object) -> None:
    """A value that is chosen when a plan is made."""


def _steps(text: str) -> int | None:
    return None if text == AUTO else _count(text)


COUNT = "^(?=.*[1-9])[0-9]{1,15}([.][0-9]{1,15})?[KMBT]$"
NOTATIONS = {
    "count": Notation(
        (
            Annotated[int, Meta(ge=1, le=MOST)],
            Annotated[str, Meta(pattern=COUNT)],
        ),
        title="a whole number, at least 1; 15T, 1.5B, 20M and 2K will do",
        meaning=_count,
    ),
    "count_or_zero": Notation(
        (
            Annotated[int, Meta(ge=0, le=MOST)],
            Annotated[str, Meta(pattern="^[0-9]{1,15}([.][0-9]{1,15})?[KMBT]$")],
        ),
        title="a whole number, at least 0; 2K will do",
        meaning=_count,
    ),
    "tolerance": Notation(
        (
            Annotated[float, Meta(ge=0, le=0.5)],
            Annotated[str, Meta(pattern="^([0-4]?[0-9]([.][0-9]{1,9})?|50([.]0{1,9})?) ?%$")],
        ),
        title="a share from 0 to 50 %, such as 10% or 0.1",
        meaning=_share,
    ),
    "share": Notation(
        (
            Annotated[float, Meta(gt=0, le=1)],
            Annotated[
                str,
                Meta(pattern="^(?=.*[1-9])([0-9]?[0-9]([.][0-9]{1,9})?|100([.]0{1,9})?) ?%$"),
            ],
        ),
        title="a share above 0 and up to 100 %, such as 90% or 0.9",
        meaning=_share,
    ),
    "rate": Notation(
        (
            Annotated[float, Meta(ge=0, le=1)],
            Annotated[str, Meta(pattern="^([0-9]?[0-9]([.][0-9]{1,9})?|100([.]0{1,9})?) ?%$")],
        ),
        title="a share from 0 to 100 %, such as 0.08% or 0.0008",
        meaning=_share,
    ),
    "duration": Notation(
        (Annotated[str, Meta(pattern="^(?=.*[1-9])[0-9]{1,9}([.][0-9]{1,9})?[smh]$")],),
        title="a duration above 0 with its unit, such as 90s, 10m or 2h",
        meaning=_seconds,
        written=_duration,
    ),
    "deadline": Notation(
        (
            Annotated[
                str,
                Meta(
                    pattern="^(20[0-9]{2}-[0-9]{2}-[0-9]{2}"
                    "|(?=.*[1-9])[0-9]{1,6}([.][0-9]{1,9})?[hd])$"
                ),
            ],
        ),
        title="a date such as 2027-03-01, or a duration such as 30d or 36h",
        meaning=_deadline,
    ),
    "option": Notation(
        (
            Annotated[
                bool | int | float | Annotated[str, Meta(min_length=1, max_length=4096)],
                about("The value of an XLA option.", True),
            ],
        ),
        title="true, false, a number or text",
    ),
    "topology": Notation(
        (Annotated[str, Meta(min_length=1, max_length=100)], Annotated[int, Meta(ge=1)]),
        title="the shape of a slice, or an accelerator type",
    ),
    "axis": Notation(((AUTO,), AxisSize), written=_auto),
    "microbatches": Notation(((AUTO,), Microbatches), meaning=_searched, written=_auto),
    "every": Notation(
        (
            (AUTO,),
            Annotated[int, Meta(ge=1, le=MOST)],
            Annotated[str, Meta(pattern=COUNT)],
        ),
        title="a whole number of steps, at least 1, or auto",
        meaning=_steps,
    ),
    "mesh": Notation(((AUTO,), MeshRequest), written=_auto),
    "pods": Notation((PodCount, Pods), written=lambda pods: pods["max"]),
    "stages": Notation(
        (Annotated[tuple[StageEntry, ...], Meta(min_length=1, max_length=100)],),
        title="a list of stages, each {tokens, batch, length, optimizer, data}",
        written=_searched,
    ),
    "stage_batch": Notation(
        (Sequences, StageBatch),
        title="a number of sequences, or a mapping {sequences, length, tolerance, microbatches}",
    ),
    "remat": Notation(((AUTO, *POLICIES), TensorTreatments)),
    "chip": Notation((catalog.chips(), Annotated[ChipFile, Meta(title="{file: my-chip.toml}")])),
    "model": Notation(
        (
            catalog.models(),
            Annotated[Model, Meta(title=f"a mapping {{{', '.join(SIZES)}}}")],
            Annotated[HuggingFaceModel, Meta(title="{huggingface: config.json}")],
        )
    ),
}


def meaning(value: Value, notation: str) -> Value | None:
    """What a legal value means, in base units."""
    read = NOTATIONS[notation].meaning if notation in NOTATIONS else None
    return read(value) if read and isinstance(value, str) else value
