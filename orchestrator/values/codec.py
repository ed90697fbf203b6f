"""The base of values, the kinds of their fields, their JSON and their digests."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import Field, dataclass, fields
from html import escape
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform

import msgspec
from msgspec import Meta

from orchestrator.errors import MissingExtra

_T = TypeVar("_T")
_ABOUT = {"is_about": True}  # marks what `about` returns
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


@dataclass
class _Any:
    any: Any


class _Kind(msgspec.StructMeta):
    """Makes structs, which import faster than dataclasses. To the functions of `dataclasses` they
    are such: `replace`, `fields` and `asdict` take them.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        made: Any = super().__new__(cls, *arguments, **{"frozen": True, "kw_only": True} | options)
        made.__dataclass_fields__ = {name: copy(fields(_Any)[0]) for name in made.__struct_fields__}
        for name, key in made.__dataclass_fields__.items():
            key.name = name
        if issubclass(made, Shown):
            made.__repr__ = Shown.__repr__
        return made


class Shown:
    """Shown by Python as one line, by a notebook as a table, and taken by pandas as a frame."""

    def _line(self) -> str:
        raise NotImplementedError

    def _rows(self) -> list[dict[str, Any]]:
        """Return rows by the names of their columns; each row has all columns."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._line()}>"

    @staticmethod
    def _at(value: Any, path: str) -> Any:
        """Return the attribute at a dotted path; None where a part of it is None."""
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return value

    def _repr_html_(self) -> str:
        """Return the line, and the rows as a table, for notebooks."""
        rows = self._rows()

        def cells(values: Iterable[Any], tag: str = "td") -> str:
            shown = (f"{value:.4g}" if isinstance(value, float) else value for value in values)
            texts = ("" if value is None else escape(str(value)) for value in shown)
            return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

        table = "".join([cells(rows[0], "th"), *(cells(row.values()) for row in rows)])
        return f"<b>{escape(self._line())}</b><table>{table}</table>"

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame. MLflow brings pandas."""
        try:
            return import_module("pandas").DataFrame(self._rows())
        except ModuleNotFoundError:
            raise MissingExtra("run", ["pandas"]) from None


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, metaclass=_Kind, frozen=True, dict=True):
    """The base of every value: it never changes, and is made by keywords, unless its class says
    `kw_only=False`.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        # The schema publishes what the docstring says of the attributes.
        annotated: Any = Annotated
        text, _, attributes = cleandoc(cls.__doc__ or "").partition("\n\nAttributes:\n")
        if attributes:
            cls.__doc__ = text
        for name, about_it in _ATTRIBUTE.findall(attributes):
            kind = cls.__annotations__[name]
            metas = getattr(kind, "__metadata__", ())
            # A schema has its keys in the order of the Metas: descriptions stand before examples.
            at = next((i for i, meta in enumerate(metas) if meta.extra == _ABOUT), len(metas))
            described = Meta(description=" ".join(about_it.split()))
            whole = (*metas[:at], described, *metas[at:])
            cls.__annotations__[name] = annotated[kind.__origin__ if metas else kind, *whole]


# Values to JSON and back.


def to_json(value: Any) -> bytes:
    """Return the canonical text: keys sorted, no whitespace, the same bytes on every machine."""
    return msgspec.json.encode(value, order="sorted")


def to_pretty_json(value: Any) -> str:
    """Return the canonical text, indented, with a final newline. Its value has the same digest."""
    return msgspec.json.format(to_json(value), indent=2).decode() + "\n"


def from_json(text: bytes | str, kind: type[_T]) -> _T:
    """Return the value of that type; `msgspec.DecodeError` says why the text is not one."""
    with decoding():
        return msgspec.json.decode(text, type=kind)


@contextmanager
def decoding() -> Iterator[None]:
    """Turn every error of a text that is not a value into `msgspec.DecodeError`."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def digest(value: Any) -> str:
    """Return the identity of a value: the sha256 of its canonical text."""
    return hashlib.sha256(to_json(value)).hexdigest()


def short(full_digest: str) -> str:
    return full_digest[:8]


# The kinds of fields, and what the JSON Schema of a spec publishes about a field.


def about(
    *examples: Any, notation: str | None = None, default: Any = None, **constraints: Any
) -> Meta:
    """What the schema publishes about a field, besides what the docstring of its class says. A file
    may write the value in a `notation` (15T, 10%, auto), and leave out what has a `default`.
    """
    more = {"notation": notation, "default": default}
    return Meta(
        examples=list(examples) or None,
        extra=_ABOUT,
        extra_json_schema={key: value for key, value in more.items() if value is not None},
        **constraints,
    )


# No key of a file: it follows from the others.
COMPUTED = Meta(extra_json_schema={"computed": True})
# A key that a file needs only where it has no stages.
FROM_STAGES = Meta(extra_json_schema={"unless": "stages"})
# A key of a model that follows from its latent attention.
FROM_LATENT = Meta(extra_json_schema={"unless": "latent"})

Name = Annotated[
    str,
    Meta(
        title="a name: 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit",
        pattern="^[a-z0-9][a-z0-9-]{0,62}$",
        examples=["my-run-2"],
    ),
]
Text = Annotated[str, Meta(title="text", min_length=1, max_length=4096)]
Address = Annotated[
    str,
    Meta(
        title="a path or address, without a password",
        pattern="^(?!.*://[^/]*@).",
        max_length=4096,
        extra_json_schema={"writeOnly": True},
    ),
]
Variable = Annotated[
    str,
    Meta(
        title="the name of an environment variable (A-Z, 0-9, _), never its value",
        pattern="^[A-Z_][A-Z0-9_]{0,127}$",
        examples=["HF_TOKEN"],
        extra_json_schema={"writeOnly": True},
    ),
]
OptionName = Annotated[
    str,
    Meta(
        title="the name of an XLA option (a-z, 0-9, _)",
        pattern="^[a-z][a-z0-9_]{0,127}$",
        examples=["xla_tpu_enable_latency_hiding_scheduler"],
    ),
]
PositiveInteger = Annotated[int, Meta(ge=1, le=10**18, extra_json_schema={"notation": "count"})]
NonNegativeInteger = Annotated[
    int, Meta(ge=0, le=10**18, extra_json_schema={"notation": "count_or_zero"})
]
PositiveNumber = Annotated[float, Meta(gt=0)]
NonNegativeNumber = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
DecayRate = Annotated[float, Meta(ge=0, lt=1)]
MOST_SLICES = 10_000
PodCount = Annotated[int, Meta(ge=1, le=MOST_SLICES)]
AxisSize = Annotated[int, Meta(ge=1, le=1_000_000)]
Microbatches = Annotated[int, Meta(ge=1, le=1_000_000)]
RetryCount = Annotated[int, Meta(ge=0, le=1_000_000)]
DType = Literal["fp32", "bf16"]
MomentType = Literal["fp32", "bf16", "int8"]
MatmulType = Literal["fp32", "bf16", "int8", "fp8"]
TRAINED: tuple[MatmulType, ...] = ("fp32", "bf16", "fp8")  # what trainer llama multiplies in
Treatment = Literal["keep", "offload", "recompute"]
StudyKind = Literal["scaling", "sweep"]
Scaling = Literal["strong", "weak"]
AfterFailure = Literal["stop", "go on"]
