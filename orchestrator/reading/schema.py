"""The JSON Schema of specs and studies, generated from their types, and how to walk it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import cache
from typing import Annotated, Any

import msgspec
from jsonschema import Draft202012Validator
from msgspec import Meta, structs

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.catalog.serving import engines
from orchestrator.network.rematerialization import POLICIES
from orchestrator.reading.nodes import MOST, JsonScalar, Mapping, Node, SequenceNode
from orchestrator.values import codec
from orchestrator.values import spec as specs
from orchestrator.values.model import Model
from orchestrator.values.serving import LengthShare, ServingMesh, ServingSpec, Wish
from orchestrator.values.spec import Spec

Schema = dict[str, Any]

# Forms that a file has and a Spec has not: other files, stages that leave out what stays, a study.

_Sequences = Annotated[int, Meta(ge=1, le=10_000_000)]
_Length = Annotated[
    Annotated[int, Meta(ge=1, le=100_000_000)] | None,
    codec.about(8192, description="The number of tokens in a sequence; as before when left out."),
]


class _HuggingFaceModel(codec.Value):
    """A model that a Hugging Face config.json describes.

    Attributes:
        huggingface: The path of the config.json, from the spec.
        name: The name of the model in plans; the config's model_type when left out.
    """

    huggingface: Annotated[codec.Text, codec.about("config.json")]
    name: codec.Name | None = None


class _ChipFile(codec.Value):
    """A chip of one's own.

    Attributes:
        file: The path of the chip's TOML file, from the spec.
    """

    file: Annotated[codec.Text, codec.about("my-chip.toml")]


class _StageBatch(codec.Value):
    """The batch of a stage; a key that is left out is as before.

    Attributes:
        sequences: The number of sequences in a step, over all pods; as before when left out.
        tolerance: The share by which the plan may raise or lower `sequences`; as before when left
            out.
        microbatches: The number of parts of its sequences that a replica trains one after another;
            as before when left out.
    """

    sequences: Annotated[_Sequences | None, codec.about(1024)] = None
    length: _Length = None
    tolerance: Annotated[float | None, codec.about("10%", notation="tolerance")] = None
    microbatches: Annotated[codec.Microbatches | None, codec.about(2, notation="microbatches")] = (
        None
    )


class _StageEntry(codec.Value):
    """A part of the training; what it leaves out is as in the stage before it.

    Attributes:
        tokens: The number of tokens of this stage.
        batch: The number of sequences in a step, or keys of `experiment.batch`; as before when left
            out.
    """

    tokens: Annotated[codec.PositiveInteger, codec.about("252M")]
    batch: Annotated[int | None, codec.about(1024, notation="stage_batch")] = None
    length: _Length = None
    optimizer: specs.Optimizer = msgspec.field(default_factory=specs.Optimizer)
    data: specs.DataSource = msgspec.field(default_factory=specs.DataSource)


class StudySection(codec.Value):
    """The keys that a study varies, and how its trials are run.

    Attributes:
        base: The path of the spec that is varied, relative to this file.
        kind: A scaling study compares speeds on more and fewer chips; a sweep compares losses. When
            left out: scaling where `scaling` is given, or resources.pods or resources.topology is
            varied.
        scaling: Whether every trial has the batch of the base (strong), or the batch grows with the
            pods (weak).
        vary: The dotted keys that are varied, each with its values. Several keys make a grid.
        repeats: The number of runs of each trial. The report has the spread over them.
        after_failure: Whether the study stops when a trial fails, or goes on with the next.
    """

    base: Annotated[
        str, codec.about("../llama3_70b_4pod.yaml"), Meta(min_length=1, title="the path of a spec")
    ]
    kind: codec.StudyKind | None = None
    scaling: codec.Scaling = "strong"
    vary: Annotated[
        dict[str, Annotated[list[Any], Meta(min_length=1)]],
        codec.about({"resources.pods": [1, 2, 4]}),
        Meta(min_length=1, title="a mapping of dotted keys to lists of values"),
    ]
    repeats: Annotated[int, codec.about(ge=1, le=100)] = 1
    after_failure: codec.AfterFailure = "stop"


class _StudyFile(codec.Value):
    """One spec varied: every combination of the values is a trial. A key that is left out has the
    default named here.

    Attributes:
        name: The name of the study; the name of its base and the kind of scaling when left out.
    """

    name: Annotated[codec.Name | None, codec.about("llama3-70b-pods")] = None
    study: StudySection


# The forms in which a file may give a value: 15T, 10%, 10m, auto, a name of the catalog.

AUTO = "auto"
_DECIMAL = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_COUNT = "^(?=.*[1-9])[0-9]{1,15}([.][0-9]{1,15})?[KMBT]$"
_COUNT_OR_ZERO = _COUNT.replace("(?=.*[1-9])", "")
_DEADLINE = "^(20[0-9]{2}-[0-9]{2}-[0-9]{2}|(?=.*[1-9])[0-9]{1,6}([.][0-9]{1,9})?[hd])$"
_SHARE = "^([0-9]?[0-9]([.][0-9]{1,9})?|100([.]0{1,9})?) ?%$"


class Misread(ValueError):
    """A value of legal form that means nothing legal: the code and message of the problem."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(code)


@dataclass(frozen=True)
class _Notation:
    """What a file may hold in place of a value: types, or tuples of names; and a default's look."""

    forms: tuple[Any, ...]
    title: str | None = None
    meaning: Callable[[str], JsonScalar | None] | None = None
    written: Callable[[Any], Any] = lambda value: value


def _form(kind: type, **bounds: Any) -> Any:
    return Annotated[kind, Meta(**bounds)]


def _count(text: str) -> int:
    exact = Fraction(text[:-1]) * _DECIMAL[text[-1]]
    if exact.denominator != 1:
        raise Misread("not-whole", f"comes to {float(exact):,}, must be a whole number")
    if exact > MOST:
        raise Misread("too-great", f"comes to {int(exact):,}, must be at most {MOST:,}")
    return int(exact)


def _share(text: str) -> float:
    return float(Fraction(text.rstrip("% ")) / 100)


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    unit = max((u for u, s in _SECONDS.items() if seconds % s == 0), key=lambda u: _SECONDS[u])
    return f"{seconds / _SECONDS[unit]:g}{unit}"


def _deadline(text: str) -> str:
    """Return the text itself, where it names a day of the calendar or a duration."""
    try:
        if "-" in text:
            date.fromisoformat(text)
    except ValueError:
        message = f"is {text}, must be a day of the calendar"
        raise Misread("no-such-date", message) from None
    return text


_SIZES = [key.name for key in structs.fields(Model) if key.required and key.name != "name"]
_NOTATIONS = {
    "count": _Notation(
        (_form(int, ge=1, le=MOST), _form(str, pattern=_COUNT)),
        title="a whole number, at least 1; 15T, 1.5B, 20M and 2K will do",
        meaning=_count,
    ),
    "count_or_zero": _Notation(
        (_form(int, ge=0, le=MOST), _form(str, pattern=_COUNT_OR_ZERO)),
        title="a whole number, at least 0; 2K will do",
        meaning=_count,
    ),
    "tolerance": _Notation(
        (
            _form(float, ge=0, le=0.5),
            _form(str, pattern="^([0-4]?[0-9]([.][0-9]{1,9})?|50([.]0{1,9})?) ?%$"),
        ),
        title="a share from 0 to 50 %, such as 10% or 0.1",
        meaning=_share,
    ),
    "share": _Notation(
        (_form(float, gt=0, le=1), _form(str, pattern=_SHARE.replace("^", "^(?=.*[1-9])"))),
        title="a share above 0 and up to 100 %, such as 90% or 0.9",
        meaning=_share,
    ),
    "rate": _Notation(
        (_form(float, ge=0, le=1), _form(str, pattern=_SHARE)),
        title="a share from 0 to 100 %, such as 0.08% or 0.0008",
        meaning=_share,
    ),
    "duration": _Notation(
        (_form(str, pattern="^(?=.*[1-9])[0-9]{1,9}([.][0-9]{1,9})?[smh]$"),),
        title="a duration above 0 with its unit, such as 90s, 10m or 2h",
        meaning=lambda text: float(Fraction(text[:-1]) * _SECONDS[text[-1]]),
        written=_duration,
    ),
    "deadline": _Notation(
        (_form(str, pattern=_DEADLINE),),
        title="a date such as 2027-03-01, or a duration such as 30d or 36h",
        meaning=_deadline,
    ),
    "option": _Notation(
        (
            Annotated[
                bool | int | float | Annotated[str, Meta(min_length=1, max_length=4096)],
                codec.about(True, description="The value of an XLA option."),
            ],
        ),
        title="true, false, a number or text",
    ),
    "topology": _Notation(
        (Annotated[str, Meta(min_length=1, max_length=100)], _form(int, ge=1)),
        title="the shape of a slice, or an accelerator type",
    ),
    "axis": _Notation(((AUTO,), codec.AxisSize), written=lambda _: AUTO),
    "microbatches": _Notation(
        ((AUTO,), codec.Microbatches), meaning=lambda _: None, written=lambda _: AUTO
    ),
    "every": _Notation(
        ((AUTO,), _form(int, ge=1, le=MOST), _form(str, pattern=_COUNT)),
        title="a whole number of steps, at least 1, or auto",
        meaning=lambda text: None if text == AUTO else _count(text),
    ),
    "mesh": _Notation(((AUTO,), specs.MeshRequest), written=lambda _: AUTO),
    "pods": _Notation((codec.PodCount, specs.Pods), written=lambda pods: pods["max"]),
    "stages": _Notation(
        (Annotated[tuple[_StageEntry, ...], Meta(min_length=1, max_length=100)],),
        title="a list of stages, each {tokens, batch, length, optimizer, data}",
        written=lambda _: None,
    ),
    "stage_batch": _Notation(
        (_Sequences, _StageBatch),
        title="a number of sequences, or a mapping {sequences, length, tolerance, microbatches}",
    ),
    "remat": _Notation(((AUTO, *POLICIES), specs.TensorTreatments)),
    "chip": _Notation((catalog.chips(), Annotated[_ChipFile, Meta(title="{file: my-chip.toml}")])),
    "model": _Notation(
        (
            catalog.models(),
            Annotated[Model, Meta(title=f"a mapping {{{', '.join(_SIZES)}}}")],
            Annotated[_HuggingFaceModel, Meta(title="{huggingface: config.json}")],
        )
    ),
}

_LATENCY = "^(?=.*[1-9])[0-9]{1,6}([.][0-9]{1,6})?(ms|s)$"


def _latency(text: str) -> float:
    return float(Fraction(text.rstrip("ms")) / (1000 if text.endswith("ms") else 1))


# Those of a serving spec: some of the above, and its own.
_SERVING_NOTATIONS = {
    name: _NOTATIONS[name]
    for name in ("count", "count_or_zero", "share", "topology", "axis", "chip", "model")
} | {
    "latency": _Notation(
        (_form(str, pattern=_LATENCY),),
        title="a time above 0 with its unit, such as 50ms or 2s",
        meaning=_latency,
    ),
    "wish": _Notation(
        (_form(str, pattern=_LATENCY), Wish),
        title="a time such as 50ms or 2s, or a mapping {time, percentile}",
        meaning=_latency,
    ),
    "lengths": _Notation(
        (
            _form(int, ge=1, le=MOST),
            _form(str, pattern=_COUNT),
            Annotated[tuple[LengthShare, ...], Meta(min_length=1, max_length=100)],
        ),
        title="a number of tokens, or a list of {tokens, share}",
        meaning=_count,
    ),
    "engine": _Notation((engines(),)),
    "serving_mesh": _Notation(((AUTO,), ServingMesh), written=lambda _: AUTO),
}
_ALL_NOTATIONS = _NOTATIONS | _SERVING_NOTATIONS


def meaning(value: Any, schema: Schema) -> Any:
    """Return what a legal value of a field means, in base units, or raise `Misread`."""
    notation = _ALL_NOTATIONS.get(str(schema.get("$ref", "")).removeprefix(_DEFS))
    if notation is None or notation.meaning is None or not isinstance(value, str):
        return value
    return notation.meaning(value)


# The schemas.

_VERSION = 1
_DEFS = "#/$defs/"
# Where a file and its value use another key.
KEYS_IN_FILES = {"hang_limit_s": "hang_limit", "restart_s": "restart", "repair_s": "repair"}
_NULL: Schema = {"type": "null"}
_VERSION_KEY: Schema = {
    "description": "Version of this schema that the file was written for.",
    "title": f"a version of the schema that is known: {_VERSION}",
    "enum": [_VERSION],
    "default": _VERSION,
}


@cache
def spec_schema() -> Schema:
    return _document(Spec, "spec", _NOTATIONS)


@cache
def study_schema() -> Schema:
    """Return the schema of a study. A spec is loaded without its types."""
    return _document(_StudyFile, "study", {})


@cache
def serving_schema() -> Schema:
    return _document(ServingSpec, "serving", _SERVING_NOTATIONS)


@cache
def chip_schema() -> Schema:
    return _document(Chip, "chip", {})


def schema_text(schema: Schema) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


@cache
def validator(schema: Callable[[], Schema]) -> Draft202012Validator:
    return Draft202012Validator(schema())


def fits(value: Any, schema: Schema) -> bool:
    name = str(schema.get("$ref", "")).removeprefix(_DEFS)
    is_of_serving = name in _SERVING_NOTATIONS.keys() - _NOTATIONS.keys()  # a spec lacks its parts
    whole = validator(serving_schema if is_of_serving else spec_schema)
    return bool(whole.evolve(schema=schema).is_valid(value))


def _document(root: type, name: str, notations: dict[str, _Notation]) -> Schema:
    """Return the schema of a file: its root's keys, and each section and notation it uses."""
    forms = [form for notation in notations.values() for form in notation.forms]
    types = [root, *(form for form in forms if not isinstance(form, tuple))]
    schemas, sections = msgspec.json.schema_components(types, ref_template=_DEFS + "{name}")
    of_types = iter(schemas[1:])
    defs = {key: _section(section) for key, section in sections.items()}
    for key, notation in notations.items():
        choice = [
            {"enum": list(form)} if isinstance(form, tuple) else next(of_types)
            for form in notation.forms
        ]
        title = {} if notation.title is None else {"title": notation.title}
        defs[key] = title | (choice[0] if len(choice) == 1 else {"anyOf": choice})
    top = defs.pop(root.__name__)
    text = json.dumps([top, defs])
    if root is not Chip:
        top["properties"] = {"schema": _VERSION_KEY} | top["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:orch:schema:{name}:{_VERSION}",
        **top,
        "$defs": {key: part for key, part in defs.items() if f'"{_DEFS}{key}"' in text},
    }


def _section(generated: Schema) -> Schema:
    """Return the keys of a mapping as a file has them."""
    published = {k: part for k, part in generated["properties"].items() if "computed" not in part}
    keys = {KEYS_IN_FILES.get(key, key): _key(part) for key, part in published.items()}
    needed = [
        key for key in generated.get("required", ()) if key in keys and "default" not in keys[key]
    ]
    section: Schema = {
        "description": " ".join(generated["description"].split()),
        "type": "object",
        "additionalProperties": False,
    }
    if always := [key for key in needed if "unless" not in published[key]]:
        section["required"] = always
    if spared := [key for key in needed if "unless" in published[key]]:
        [other] = {published[key]["unless"] for key in spared}
        section["if"], section["then"] = {"not": {"required": [other]}}, {"required": spared}
    return section | {"properties": keys}


def _key(generated: Schema) -> Schema:
    """Return what a file may hold under a key: in its notation, never null, no section default."""
    schema = {key: part for key, part in generated.items() if key not in ("notation", "unless")}
    default = schema.pop("default", None)
    if "notation" in generated:
        schema = {key: schema[key] for key in ("description", "title", "examples") if key in schema}
        schema["$ref"] = _DEFS + generated["notation"]
        if "default" in generated:
            default = _ALL_NOTATIONS[generated["notation"]].written(default)
    elif "$ref" in generated:
        default = None
    if "propertyNames" in schema:
        schema["propertyNames"] = {"type": "string"} | schema["propertyNames"]
    for inner in ("additionalProperties", "items"):
        if isinstance(schema.get(inner), dict):
            schema[inner] = _key(schema[inner])
    if _NULL in schema.get("anyOf", ()):
        branches = [part for part in schema.pop("anyOf") if part != _NULL]
        schema = (branches[0] if len(branches) == 1 else {"anyOf": branches}) | schema
    if isinstance(default, tuple):
        default = list(default)
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return schema if default is None else schema | {"default": default}


# How to walk a schema.


def definition(name: str) -> Schema:
    """Return a named part of a schema. No two schemas give a name to different parts."""
    for schema in (spec_schema, chip_schema, study_schema, serving_schema):
        if name in (parts := schema()["$defs"]):
            return resolved(parts[name])
    raise KeyError(name)


def resolved(schema: Schema) -> Schema:
    """Return the schema with its reference filled in; `$ref` stays, as the name of its kind."""
    reference = schema.get("$ref")
    return schema if reference is None else definition(reference.removeprefix(_DEFS)) | schema


def alternatives(schema: Schema) -> list[Schema]:
    """Return what a value may be: the branches of `anyOf`, or only the schema."""
    return [resolved(branch) for branch in resolved(schema).get("anyOf", [schema])]


def chosen(schema: Schema, node: Node) -> int | None:
    """Return the index of the alternative that a mapping or list is meant to be, if any."""
    kind = {Mapping: "object", SequenceNode: "array"}.get(type(node))
    choices = alternatives(schema)
    indices = [i for i, choice in enumerate(choices) if kind and choice.get("type") == kind]
    keys = set(node.entries) if isinstance(node, Mapping) else set()
    return max(indices, key=lambda i: len(keys & set(properties(choices[i]))), default=None)


def properties(schema: Schema) -> dict[str, Schema]:
    return dict(resolved(schema).get("properties", {}))


def member(schema: Schema, key: str) -> Schema | None:
    """Return the schema of a key of a mapping; None for an unknown key."""
    others = schema.get("additionalProperties")
    inside = properties(schema).get(key, others if isinstance(others, dict) else None)
    return None if inside is None else resolved(inside)


def schema_field(*path: str, within: Schema | None = None) -> Schema:
    """Return the schema of a key by its path, through whichever alternative has it; of specs, if
    `within` is not given.
    """
    schema = within or spec_schema()
    for key in path:
        inside = [member(choice, key) for choice in alternatives(schema)]
        schema = next((part for part in inside if part is not None), {})
    return schema


def default_of(schema: Schema) -> Any:
    """Return what a key means that is left out; None when it has no default."""
    return meaning(schema.get("default"), schema)


def homes(key: str) -> list[str]:
    """Return where in a spec a key of that name belongs, as dotted paths."""

    def paths(schema: Schema) -> Iterator[tuple[str, ...]]:
        for choice in alternatives(schema):
            for name, inside in properties(choice).items():
                yield (name,)
                yield from ((name, *path) for path in paths(inside))

    return [".".join(path) for path in paths(spec_schema()) if path[-1] == key]


def scalar_types(schema: Schema) -> set[str]:
    all_types: set[str] = set()
    for choice in alternatives(schema):
        types = choice.get("type", [])
        all_types |= {types} if isinstance(types, str) else set(types)
        listed = constants(choice)
        all_types |= {"string" if isinstance(value, str) else "integer" for value in listed}
    return all_types - {"object", "array"}


def constants(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))
