"""The JSON Schema of specs and studies, generated from their types, and how to walk it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from datetime import date
from fractions import Fraction
from functools import cache
from typing import Annotated, Any

import msgspec
from jsonschema import Draft202012Validator
from msgspec import Meta

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.network.rematerialization import POLICIES
from orchestrator.reading.nodes import MOST, Mapping, Misread, Node, SequenceNode, Value
from orchestrator.values.fields import (
    AxisSize,
    Microbatches,
    Name,
    PodCount,
    PositiveInteger,
    Text,
    about,
)
from orchestrator.values.model import Model
from orchestrator.values.spec import (
    DataSource,
    MeshRequest,
    Optimizer,
    Pods,
    Spec,
    TensorTreatments,
)
from orchestrator.values.study import AfterFailure, Scaling, StudyKind

# The forms in which a spec names another file: a model's config, a chip of one's own.


Sequences = Annotated[int, Meta(ge=1, le=10_000_000)]
Length = Annotated[int, Meta(ge=1, le=100_000_000)]


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """A model that a Hugging Face config.json describes."""

    huggingface: Annotated[
        Text, about("The path of the config.json, from the spec.", "config.json")
    ]
    name: Annotated[
        Name | None,
        about("The name of the model in plans; the config's model_type when left out."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChipFile:
    """A chip of one's own."""

    file: Annotated[Text, about("The path of the chip's TOML file, from the spec.", "my-chip.toml")]


@dataclass(frozen=True, kw_only=True)
class StageBatch:
    """The batch of a stage; a key that is left out is as before."""

    sequences: Annotated[
        Sequences | None,
        about("The number of sequences in a step, over all pods; as before when left out.", 1024),
    ] = None
    length: Annotated[
        Length | None, about("The number of tokens in a sequence; as before when left out.", 8192)
    ] = None
    tolerance: Annotated[
        float | None,
        about(
            "The share by which the plan may raise or lower `sequences`; as before when left out.",
            "10%",
            notation="tolerance",
        ),
    ] = None
    microbatches: Annotated[
        Microbatches | None,
        about(
            "The number of parts of its sequences that a replica trains one after another; as"
            " before when left out.",
            2,
            notation="microbatches",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class StageEntry:
    """A part of the training; what it leaves out is as in the stage before it."""

    tokens: Annotated[PositiveInteger, about("The number of tokens of this stage.", "252M")]
    batch: Annotated[
        int | None,
        about(
            "The number of sequences in a step, or keys of `experiment.batch`; as before when left"
            " out.",
            1024,
            notation="stage_batch",
        ),
    ] = None
    length: Annotated[
        Length | None, about("The number of tokens in a sequence; as before when left out.", 8192)
    ] = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    data: DataSource = field(default_factory=DataSource)


# The forms in which a file may give a value: 15T, 10%, 10m, auto, a name of the catalog.


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


Schema = dict[str, Any]

VERSION = 1
DEFS = "#/$defs/"
# Where a file and its value use another key.
KEYS_IN_FILES = {"hang_limit_s": "hang_limit", "restart_s": "restart", "repair_s": "repair"}
ANNOTATIONS = ("description", "title", "examples")
HIDDEN = ("notation", "unless")
INNER = ("additionalProperties", "items")
NULL: Schema = {"type": "null"}
VERSION_KEY: Schema = {
    "description": "Version of this schema that the file was written for.",
    "title": f"a version of the schema that is known: {VERSION}",
    "enum": [VERSION],
    "default": VERSION,
}


@cache
def spec_schema() -> Schema:
    """The schema of a spec."""
    return _document(Spec, "spec", NOTATIONS)


@cache
def study_schema() -> Schema:
    """The schema of a study. A spec is loaded without its types."""

    return _document(StudyFile, "study", {})


@cache
def chip_schema() -> Schema:
    """The schema of a chip's file."""
    return _document(Chip, "chip", {})


@cache
def schema_text() -> str:
    """The schema of a spec, as editors read it."""
    return _text(spec_schema())


@cache
def study_schema_text() -> str:
    """The schema of a study, as editors read it."""
    return _text(study_schema())


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(spec_schema())


@cache
def study_validator() -> Draft202012Validator:
    return Draft202012Validator(study_schema())


@cache
def chip_validator() -> Draft202012Validator:
    return Draft202012Validator(chip_schema())


def _text(schema: Schema) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _document(root: type, name: str, notations: dict[str, Notation]) -> Schema:
    """The schema of a file: its root's keys, and a definition for each section and notation."""
    forms = [form for one in notations.values() for form in one.forms]
    types = [root, *(form for form in forms if not isinstance(form, tuple))]
    schemas, sections = msgspec.json.schema_components(types, ref_template=DEFS + "{name}")
    of_types = iter(schemas[1:])
    defs = {key: _section(section) for key, section in sections.items()}
    for key, notation in notations.items():
        defs[key] = _choice(notation, of_types)
    top = defs.pop(root.__name__)
    text = json.dumps([top, defs])
    defs = {key: one for key, one in defs.items() if f'"{DEFS}{key}"' in text}
    if root is not Chip:
        top["properties"] = {"schema": VERSION_KEY} | top["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:orch:schema:{name}:{VERSION}",
        **top,
        "$defs": defs,
    }


def _section(generated: Schema) -> Schema:
    """The keys of a mapping as a file has them."""
    keys = {
        KEYS_IN_FILES.get(key, key): _key(schema)
        for key, schema in generated["properties"].items()
        if "computed" not in schema
    }
    required = [
        key for key in generated.get("required", ()) if key in keys and "default" not in keys[key]
    ]
    spared = {
        key: s["unless"] for key in required if "unless" in (s := generated["properties"][key])
    }
    always = [key for key in required if key not in spared]
    return {
        "description": " ".join(generated["description"].split()),
        "type": "object",
        "additionalProperties": False,
        **({"required": always} if always else {}),
        **_required_unless(spared),
        "properties": keys,
    }


def _required_unless(spared: dict[str, str]) -> Schema:
    """That some keys are needed where another one is not there."""
    if not spared:
        return {}
    [other] = set(spared.values())
    return {"if": {"not": {"required": [other]}}, "then": {"required": list(spared)}}


def _key(generated: Schema) -> Schema:
    """What a file may hold under a key: in its notation, and never null."""
    schema = {key: value for key, value in generated.items() if key not in HIDDEN}
    if "notation" in generated:
        schema = {key: schema[key] for key in ANNOTATIONS if key in schema}
        schema["$ref"] = DEFS + generated["notation"]
    if "propertyNames" in schema:
        schema["propertyNames"] = {"type": "string"} | schema["propertyNames"]
    schema |= {key: _key(schema[key]) for key in INNER if isinstance(schema.get(key), dict)}
    if NULL in schema.get("anyOf", ()):
        [branch] = [one for one in schema.pop("anyOf") if one != NULL]
        schema = branch | schema
    default = _default(generated)
    schema.pop("default", None)
    return schema if default is None else schema | {"default": default}


def _default(generated: Schema) -> Any:
    """A default as a file has it; None for a section, whose keys have their own."""
    default = generated.get("default")
    if "notation" in generated and "default" in generated:
        default = NOTATIONS[generated["notation"]].written(default)
    elif "$ref" in generated:
        return None
    if isinstance(default, tuple):
        return list(default)
    return int(default) if isinstance(default, float) and default.is_integer() else default


def _choice(notation: Notation, of_types: Iterator[Schema]) -> Schema:
    """The forms of a notation; `of_types` are the schemas of those that are types."""
    title = {} if notation.title is None else {"title": notation.title}
    forms = [
        {"enum": list(form)} if isinstance(form, tuple) else next(of_types)
        for form in notation.forms
    ]
    return title | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def definition(name: str) -> Schema:
    """A named part of a schema. No two schemas give a name to different parts."""
    for schema in (spec_schema, chip_schema, study_schema):
        if name in (parts := schema()["$defs"]):
            return resolved(parts[name])
    raise KeyError(name)


def resolved(schema: Schema) -> Schema:
    """The schema with its reference filled in; `$ref` stays, as the name of its kind."""
    reference = schema.get("$ref")
    return schema if reference is None else definition(reference.removeprefix(DEFS)) | schema


def kind(schema: Schema) -> str:
    """The name of the definition that a schema refers to; empty when it refers to none."""
    return str(schema.get("$ref", "")).removeprefix(DEFS)


def alternatives(schema: Schema) -> list[Schema]:
    """What a value may be: the branches of `anyOf`, or the schema alone."""
    return [resolved(branch) for branch in resolved(schema).get("anyOf", [schema])]


def chosen(schema: Schema, node: Node) -> int | None:
    """The alternative that a mapping or list is meant to be; None when there is none."""
    kind_of_node = {Mapping: "object", SequenceNode: "array"}.get(type(node))
    fits = [i for i, one in enumerate(alternatives(schema)) if one.get("type") == kind_of_node]
    if kind_of_node is None or not fits:
        return None
    keys = set(node.entries) if isinstance(node, Mapping) else set()
    return max(fits, key=lambda i: len(keys & set(properties(alternatives(schema)[i]))))


def properties(schema: Schema) -> dict[str, Schema]:
    """The keys of a mapping that have a name in the schema."""
    keys: dict[str, Schema] = resolved(schema).get("properties", {})
    return keys


def member(schema: Schema, key: str) -> Schema | None:
    """What stands under a key of a mapping; None when the key is unknown."""
    others = schema.get("additionalProperties")
    inside = properties(schema).get(key, others if isinstance(others, dict) else None)
    return None if inside is None else resolved(inside)


def schema_field(path: tuple[str, ...]) -> Schema | None:
    """The schema of a key by its path, through whichever alternative has it."""
    schema: Schema | None = spec_schema()
    for key in path:
        inside = [member(one, key) for one in alternatives(schema or {})]
        schema = next((one for one in inside if one is not None), None)
    return schema


def homes(key: str) -> list[str]:
    """Where in a spec a key of that name belongs, as dotted paths."""
    return [".".join(path) for path in _paths(spec_schema()) if path[-1] == key]


def _paths(schema: Schema) -> Iterator[tuple[str, ...]]:
    for one in alternatives(schema):
        for key, inside in properties(one).items():
            yield (key,)
            yield from ((key, *path) for path in _paths(inside))


def scalar_types(schema: Schema) -> set[str]:
    """The JSON types that a single value may have."""
    all_types: set[str] = set()
    for one in alternatives(schema):
        types = one.get("type", [])
        all_types |= {types} if isinstance(types, str) else set(types)
        all_types |= {"string" if isinstance(value, str) else "integer" for value in constants(one)}
    return all_types - {"object", "array"}


def constants(schema: Schema) -> list[Any]:
    """The values that a schema lists."""
    listed: list[Any] = schema.get("enum", [])
    return [schema["const"]] if "const" in schema else listed


# The keys of a study's file. Its schema is generated from them.


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """The keys that a study varies, and how its trials are run."""

    base: Annotated[
        str,
        about(
            "The path of the spec that is varied, relative to this file.", "../llama3_70b_4pod.yaml"
        ),
        Meta(min_length=1, title="the path of a spec"),
    ]
    kind: Annotated[
        StudyKind | None,
        about(
            "A scaling study compares speeds on more and fewer chips; a sweep compares losses. When"
            " left out: scaling where `scaling` is given, or resources.pods or resources.topology"
            " is varied."
        ),
    ] = None
    scaling: Annotated[
        Scaling,
        about(
            "Whether every trial has the batch of the base (strong), or the batch grows with the"
            " pods (weak)."
        ),
    ] = "strong"
    vary: Annotated[
        dict[str, Annotated[list[Any], Meta(min_length=1)]],
        about(
            "The dotted keys that are varied, each with its values. Several keys make a grid.",
            {"resources.pods": [1, 2, 4]},
        ),
        Meta(min_length=1, title="a mapping of dotted keys to lists of values"),
    ]
    repeats: Annotated[
        int,
        about(
            "The number of runs of each trial. The report has the spread over them.", ge=1, le=100
        ),
    ] = 1
    after_failure: Annotated[
        AfterFailure,
        about("Whether the study stops when a trial fails, or goes on with the next."),
    ] = "stop"


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """One spec varied: every combination of the values is a trial. A key that is left out has the
    default named here.
    """

    name: Annotated[
        Name | None,
        about(
            "The name of the study; the name of its base and the kind of scaling when left out.",
            "llama3-70b-pods",
        ),
    ] = None
    study: StudySection
