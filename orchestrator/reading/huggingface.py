"""Reads a Hugging Face config.json as a Model, by the table of `huggingface_families`.

It accepts only what is served. An unknown key may change the model, so it is refused by name unless
it is null or false.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.reading import checks
from orchestrator.reading import huggingface_families as families
from orchestrator.reading.expectations import example, must
from orchestrator.reading.huggingface_families import Family
from orchestrator.reading.nodes import TOO_DEEP, Mapping, as_written, parse, read
from orchestrator.reading.problems import (
    Correction,
    SpecPosition,
    SpecProblems,
    SpecText,
    shortened,
)
from orchestrator.reading.schema import Schema, definition, fits, member, scalar_types
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model

_KEYS = {field: key for key, (field, *_) in families.SIZES.items()}
_KEYS |= {field: key for key, field in families.LATENT_KEYS.items()}
_OPTIONAL = ("num_key_value_heads", "head_dim")  # reported with the sizes that they follow from
_NUMBERS = {"integer", "number"}
_AS_MAPPING = "write the model as a mapping"


def model_of(path: Path, name: str | None) -> Model:
    return text_model(read(path), name)


def text_model(source: SpecText, name: str | None) -> Model:
    """Return the model of a config.json's text; `SpecProblems` says why not."""
    config = _Config(source)
    family = config.family()
    config.enter(family.section)
    config.check_keys(family)
    shape = config.shape(family)
    if config.problems:
        raise SpecProblems(config.problems)
    return Model(name=name or family.model_type.replace("_", "-"), **shape)


class _Config:
    """One config.json: its values, the places of its keys, and its problems."""

    def __init__(self, source: SpecText) -> None:
        self.values = _json(source)
        root, self.problems = parse(source)
        self._root = root if isinstance(root, Mapping) else Mapping(root.place)
        if not isinstance(self.values, dict):
            message = "is not a JSON object, must be a config.json"
            self._report("", "config-not-an-object", message, "begin with {")
            raise SpecProblems(self.problems)

    def family(self) -> Family:
        """Return the family that it names; `SpecProblems` if none is served by that name."""
        named = self.values.get("architectures") or []
        architecture = named[0] if isinstance(named, list) and named else None
        kind = self.values.get("model_type")
        for family in families.FAMILIES if architecture or kind else ():
            if architecture in (None, family.architecture) and kind in (None, family.model_type):
                return family
        key = "architectures" if architecture else "model_type"
        known = ", ".join(getattr(family, key.removesuffix("s")) for family in families.FAMILIES)
        name = ", ".join(shortened(str(word)) for word in (architecture, kind) if word) or "missing"
        why = families.OTHER_FAMILIES.get(str(kind))
        message = f"is {name}, must be {known}" + (f": {why}" if why else "")
        self._report(key, "config-family", message, f"{_AS_MAPPING} to plan one of that shape")
        raise SpecProblems(self.problems)

    def enter(self, section: str) -> None:
        """Go on with a section of the config, where it describes the text model."""
        entry = self._root.entries.get(section)
        if entry is None or not isinstance(self.values.get(section), dict):
            return
        self.values = self.values[section]
        if isinstance(entry.node, Mapping):
            self._root = entry.node

    def check_keys(self, family: Family) -> None:
        """Report every key that asks for something that is not served."""
        known = {"layer_types", *families.SIZES, *families.HARMLESS, *families.ROPE_KEYS}
        known |= {*family.keys, *family.harmless}
        known |= {*family.experts.keys, *family.experts.choices} if family.experts else set()
        known |= families.LATENT_KEYS.keys() if family.latent else set()
        fixed = families.FIXED | family.fixed
        for key, value in self.values.items():
            if key in fixed and value is not None:
                only, why = fixed[key]
                if value != only:
                    self._report_fixed(key, value, _shown(only), why)
            elif key not in known and value not in (None, False):
                message = "is unknown, must be absent or null: it may change the model"
                self._report(key, "config-unknown", message, f"{_AS_MAPPING} if it does not matter")

    def shape(self, family: Family) -> dict[str, Any]:
        """Return the fields of the Model. Wrong ones are reported and left out."""
        values = self._values(family)
        heads, width = values.get("num_attention_heads"), values.get("hidden_size")
        values.setdefault("num_key_value_heads", heads)
        latent = self._latent() if family.latent else None
        if latent is not None:
            values["head_dim"] = latent.head_dim
        elif values.get("head_dim") is None and type(width) is type(heads) is int and heads > 0:
            if width % heads:
                message = f"is {width:,}, must be a multiple of {heads} heads"
                self._report("hidden_size", "config-width", message, "or give the head_dim")
            values["head_dim"] = width // heads
        fields = self._fields(family, values)
        sizes = {key: fields.get(key) for key in checks.SHAPE_KEYS}
        if latent is not None:
            sizes["head_dim"] = None  # the sum of two keys
        self._report_faults(checks.shape_faults(*sizes.values()))
        fields |= self._windows(family, values) | self._rope(family) | self._experts(family, fields)
        if latent is not None:
            faults = checks.latent_faults(latent, fields.get("heads"), fields.get("kv_heads"))
            self._report_faults(faults)
            fields["latent"] = latent
            scale = families.scale_of_scores(latent, self.values)
            if scale and "rope_scaling" in fields:
                fields["attention_scale"] = scale
        if fields.get("activation") == families.DEFAULTS["hidden_act"]:
            del fields["activation"]  # a gated MLP has it by default
        return family.own | fields

    def _values(self, family: Family) -> dict[str, Any]:
        """Return what the config says, and what it means by leaving keys out."""
        known = {**families.SIZES, **family.keys}
        said = {key: value for key, value in self.values.items() if value is not None}
        if family.defaults.get("hidden_act"):
            said.pop("hidden_act", None)
            if "hidden_activation" in said:
                said["hidden_act"] = said["hidden_activation"]
        values = {**families.DEFAULTS, **family.defaults, **said}
        for key in family.defaults.keys() & self.values.keys() - families.SIZES.keys():
            values[key] = self.values[key]  # null switches off what is a default
        for key, value in values.items():
            if key in known:
                values[key] = _whole(value, "Model", known[key][0])
        return values

    def _fields(self, family: Family, values: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, names in {**families.SIZES, **family.keys}.items():
            value = values.get(key)
            if value is None and (key in family.keys or key in _OPTIONAL):
                continue
            meant: Any = "" if value is None else value  # nothing is illegal for each of these keys
            if key == "hidden_act":
                if not isinstance(value, str) or value not in families.ACTIVATIONS:
                    known = ", ".join(families.ACTIVATIONS)
                    message = f"is {_shown(value)}, must be one of {known}"
                    hint = 'for example "hidden_act": "silu"'
                    self._report(key, "config-activation", message, hint)
                    continue
                meant = families.ACTIVATIONS[value]
            if key == "query_pre_attn_scalar" and families.is_positive(value):
                meant = meant**-0.5
            if self._is_legal(key, names[0], value, meant):
                fields |= dict.fromkeys(names, meant)
        return fields

    def _is_legal(
        self, key: str, name: str, value: Any, meant: Any, section: str = "Model"
    ) -> bool:
        schema = _schema_of(section, name)
        if fits(meant, schema):
            return True
        hint = Correction("example", f"{_shown(key)}: {_shown(example(schema))}")
        code, what = "illegal-value", f"is {_shown(value)}"
        if value is None:
            code, what = "missing-key", "is missing"
        self._report(key, code, f"{what}, must be {must(schema)}", hint)
        return False

    def _windows(self, family: Family, values: dict[str, Any]) -> dict[str, Any]:
        """Return the window, and the layers that have it."""
        pattern = families.window_pattern(family, values)
        if pattern is None:
            kinds = ", ".join(families.LAYER_TYPES)
            message = f"is {_shown(values.get('layer_types'))}, must be a list of these: {kinds}"
            hint = f"{_AS_MAPPING}, with a window_pattern"
            self._report("layer_types", "config-layer-types", message, hint)
            return {}
        window = values.get("sliding_window")
        if "L" not in pattern or window is None:
            return {}
        if not self._is_legal("sliding_window", "window", window, window):
            return {}
        return {"window": int(window), "window_pattern": pattern}

    def _experts(self, family: Family, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the mixture of experts, where the family has one."""
        kind = family.experts
        if kind is None:
            return {}
        known = {*kind.keys, *kind.choices}
        said = {key: self.values[key] for key in known if self.values.get(key) is not None}
        values, chosen = {**kind.defaults, **said}, dict[str, Any]()
        for key, words in kind.choices.items():
            word = values.pop(key)
            if not isinstance(word, str) or word not in words:
                self._report_fixed(key, word, " or ".join(map(_shown, words)), "no other is known")
                return {}
            chosen |= words[word]
        keys = {kind.keys[key]: key for key in values}  # one that is written comes last
        for key, field in kind.keys.items():
            if field not in keys and _schema_of("MixtureOfExperts", field).get("default") is None:
                keys[field], values[key] = key, None  # reported as missing
        legal = {
            field: _whole(values[key], "MixtureOfExperts", field)
            for field, key in keys.items()
            if self._is_legal(key, field, values[key], values[key], "MixtureOfExperts")
        }
        if len(legal) < len(keys):
            return {}
        moe = MixtureOfExperts(**{**kind.own, **legal, **chosen})
        for field, *fault in checks.mixture_faults(moe, fields.get("layers")):
            self._report(keys.get(field, next(iter(values))), *fault)
        return {"moe": moe}

    def _latent(self) -> LatentDimensions | None:
        """Return latent attention; None where a size is wrong.

        Only the rank of queries may be null, where they have no latent.
        """
        values: dict[str, Any] = dict(families.LATENT_DEFAULTS)
        for key in families.LATENT_KEYS.keys() & self.values.keys():
            if self.values[key] is not None or key == "q_lora_rank":
                values[key] = self.values[key]
        fields = {
            families.LATENT_KEYS[key]: _whole(value, "LatentDimensions", families.LATENT_KEYS[key])
            for key, value in values.items()
            if value is None
            or self._is_legal(key, families.LATENT_KEYS[key], value, value, "LatentDimensions")
        }
        return LatentDimensions(**fields) if len(fields) == len(values) else None

    def _rope(self, family: Family) -> dict[str, Any]:
        """Return how RoPE is stretched, and bases that a newer config has elsewhere."""
        try:
            return families.rope_of(self.values, scales_scores=family.latent)
        except families.Unserved as refusal:
            message = f"is {_shown(refusal.value)}, must be {refusal.expected}"
            null = f'write "{refusal.key}": null in a copy of the file'
            hint = f"{null} if the run trains without scaling"
            self._report(refusal.key, "config-rope-scaled", message, hint)
            return {}

    def _report_faults(self, faults: Iterator[checks.Fault]) -> None:
        for name, code, message, hint in faults:
            self._report(_KEYS[name], code, message, hint.replace(name, _KEYS[name]))

    def _report_fixed(self, key: str, value: Any, expected: str, reason: str) -> None:
        message = f"is {_shown(value)}, must be {expected}: {reason}"
        self._report(key, "config-fixed", message, f"for example {_shown(key)}: {expected}")

    def _report(self, key: str, code: str, message: str, hint: str | Correction) -> None:
        entry = self._root.entries.get(key)
        place = entry.key_place if entry else self._root.place
        self.problems.append(place.problem(code, key, message, hint))


def _schema_of(section: str, name: str) -> Schema:
    return member(definition(section), name) or {}


def _whole(value: Any, section: str, name: str) -> Any:
    """Return a value of a field as an integer where one is meant: JSON may write 4096.0."""
    is_whole = isinstance(value, float) and value.is_integer()
    is_meant = is_whole and scalar_types(_schema_of(section, name)) & _NUMBERS == {"integer"}
    return int(value) if is_meant else value


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def _json(source: SpecText) -> Any:
    """Return the values of a JSON text; a number that is too large for one stays text."""
    text, number = "\n".join(source.lines), partial(as_written, types=_NUMBERS)
    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=str)
    except json.JSONDecodeError as error:
        place = SpecPosition(source, error.lineno, error.colno)
        code, message = "not-json", f"is not JSON: {error.msg}"
    except RecursionError:
        place, code, message = SpecPosition(source, 1, 1), "too-deep", TOO_DEEP
    raise SpecProblems([place.problem(code, "", message)])
