"""Reads a Hugging Face config.json as a Model, by the table of `huggingface_families`.

It accepts only what is served. An unknown key may change the model, so it is refused by name unless
it is null or false.
"""

import json
from pathlib import Path
from typing import Any

from orchestrator.reading.checks import SHAPE_KEYS, latent_faults, mixture_faults, shape_faults
from orchestrator.reading.expectations import example, must
from orchestrator.reading.huggingface_families import (
    ACTIVATIONS,
    DEFAULTS,
    FAMILIES,
    FIXED,
    HARMLESS,
    LAYER_TYPES,
    OTHER_FAMILIES,
    SIZES,
    Family,
    window_pattern,
)
from orchestrator.reading.huggingface_rope import (
    LATENT_KEYS,
    ROPE_KEYS,
    Unserved,
    latent_values,
    rope_of,
    scale_of_scores,
)
from orchestrator.reading.nodes import (
    MOST_DEPTH,
    Mapping,
    Value,
    as_written,
    is_positive,
    parse,
    read,
)
from orchestrator.reading.problems import (
    Correction,
    SpecPosition,
    SpecProblems,
    SpecText,
    shortened,
)
from orchestrator.reading.schema import Schema, definition, member, validator
from orchestrator.values.model import LatentDimensions, MixtureOfExperts, Model

KEYS = {field: key for key, (field, *_) in SIZES.items()}


def model_of(path: Path, name: str | None) -> Model:
    """The model of a config.json; `SpecProblems` says why not."""
    return text_model(read(path), name)


def text_model(source: SpecText, name: str | None) -> Model:
    """The model of a config.json's text."""
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
            self._report("", "config-not-an-object")
            raise SpecProblems(self.problems)

    def family(self) -> Family:
        """The family that it names; `SpecProblems` if none is served by that name."""
        named = self.values.get("architectures") or []
        architecture = named[0] if isinstance(named, list) and named else None
        kind = self.values.get("model_type")
        for family in FAMILIES if architecture or kind else ():
            if architecture in (None, family.architecture) and kind in (None, family.model_type):
                return family
        key = "architectures" if architecture else "model_type"
        known = ", ".join(getattr(one, key.removesuffix("s")) for one in FAMILIES)
        name = ", ".join(shortened(str(one)) for one in (architecture, kind) if one) or "missing"
        why = OTHER_FAMILIES.get(str(kind))
        reason = f": {why}" if why else ""
        self._report(key, "config-family", name=name, expected=known, reason=reason)
        raise SpecProblems(self.problems)

    def enter(self, section: str) -> None:
        """Go on with a section of the config, where it describes the text model."""
        entry = self._root.entries.get(section)
        if entry is None or not isinstance(self.values.get(section), dict):
            return
        self.values = self.values[section]
        if isinstance(entry.node, Mapping):
            self._root = entry.node

    def shape(self, family: Family) -> dict[str, Any]:
        """The fields of the Model. Wrong ones are reported and left out."""
        values = self._values(family)
        heads = values.get("num_attention_heads")
        values.setdefault("num_key_value_heads", heads)
        latent = self._latent(family)
        if latent is not None:
            values["head_dim"] = latent.head_dim
        elif values.get("head_dim") is None:
            values["head_dim"] = self._quotient(values.get("hidden_size"), heads)
        fields = self._fields(family, values)
        sizes = {key: fields.get(key) for key in SHAPE_KEYS}
        if latent is not None:
            sizes["head_dim"] = None  # the sum of two keys
        for key, code, figures in shape_faults(*sizes.values()):
            self._report(KEYS[key], code, name=KEYS[key], **figures)
        fields |= self._windows(family, values) | self._rope(family) | self._experts(family, fields)
        fields |= self._latent_fields(latent, fields)
        if fields.get("activation") == DEFAULTS["hidden_act"]:
            del fields["activation"]  # a gated MLP has it by default
        return family.own | fields

    def _values(self, family: Family) -> dict[str, Any]:
        """What the config says, and what it means by leaving keys out."""
        known = {**SIZES, **family.keys}
        said = {key: value for key, value in self.values.items() if value is not None}
        if family.defaults.get("hidden_act"):
            said.pop("hidden_act", None)
            if "hidden_activation" in said:
                said["hidden_act"] = said["hidden_activation"]
        values = {**DEFAULTS, **family.defaults, **said}
        for key in family.defaults.keys() & self.values.keys() - SIZES.keys():
            values[key] = self.values[key]  # null switches off what is a default
        return {key: _whole(known, key, value) for key, value in values.items()}

    def _fields(self, family: Family, values: dict[str, Any]) -> dict[str, Any]:
        """The fields that single keys give."""
        fields: dict[str, Any] = {}
        for key, names in {**SIZES, **family.keys}.items():
            value = values.get(key)
            if value is None and (key in family.keys or key in OPTIONAL):
                continue
            meant = self._meaning(key, value)
            if meant is not None and self._is_legal(key, names[0], value, meant):
                fields |= dict.fromkeys(names, meant)
        return fields

    def _meaning(self, key: str, value: Any) -> Any:
        """A value as its field has it; None where it is reported."""
        if key == "hidden_act":
            if isinstance(value, str) and value in ACTIVATIONS:
                return ACTIVATIONS[value]
            known: dict[str, Any] = {"expected": ", ".join(ACTIVATIONS)}
            self._report(key, "config-activation", value=_shown(value), **known)
            return None
        if key == "query_pre_attn_scalar" and is_positive(value):
            return value**-0.5
        return "" if value is None else value  # nothing is illegal for each of these keys

    def _quotient(self, width: Any, heads: Any) -> int | None:
        """The width of a head, where the config does not have it."""
        if not (type(width) is type(heads) is int and heads > 0):
            return None
        if width % heads:
            self._report("hidden_size", "config-width", width=width, heads=heads)
        return width // heads

    def _is_legal(
        self, key: str, name: str, value: Any, meant: Any, section: str = "Model"
    ) -> bool:
        schema = schema_of(section, name)
        if validator().evolve(schema=schema).is_valid(meant):
            return True
        right = Correction("example", f"{_shown(key)}: {_shown(example(schema))}")
        if value is None:
            self._report(key, "missing-key", right, expected=must(schema))
        else:
            self._report(key, "illegal-value", right, value=_shown(value), expected=must(schema))
        return False

    def _windows(self, family: Family, values: dict[str, Any]) -> dict[str, Any]:
        """The window, and the layers that have it."""
        pattern = window_pattern(family, values)
        if pattern is None:
            kinds = ", ".join(LAYER_TYPES)
            shown = _shown(values.get("layer_types"))
            self._report("layer_types", "config-layer-types", value=shown, expected=kinds)
            return {}
        window = values.get("sliding_window")
        if "L" not in pattern or window is None:
            return {}
        if not self._is_legal("sliding_window", "window", window, window):
            return {}
        return {"window": int(window), "window_pattern": pattern}

    def _experts(self, family: Family, fields: dict[str, Any]) -> dict[str, Any]:
        """The mixture of experts, where the family has one."""
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
            if field not in keys and schema_of("MixtureOfExperts", field).get("default") is None:
                keys[field], values[key] = key, None  # reported as missing
        legal = {
            field: values[key]
            for field, key in keys.items()
            if self._is_legal(key, field, values[key], values[key], "MixtureOfExperts")
        }
        if len(legal) < len(keys):
            return {}
        moe = MixtureOfExperts(**{**kind.own, **legal, **chosen})
        for field, code, figures in mixture_faults(moe, fields.get("layers")):
            self._report(keys.get(field, next(iter(values))), code, **figures)
        return {"moe": moe}

    def _latent(self, family: Family) -> LatentDimensions | None:
        """Latent attention, where the family has it; None where a size is wrong."""
        if not family.latent:
            return None
        values = latent_values(self.values)
        fields = {
            LATENT_KEYS[key]: value
            for key, value in values.items()
            if value is None or self._is_legal(key, LATENT_KEYS[key], value, value, LATENT)
        }
        return LatentDimensions(**fields) if len(fields) == len(values) else None

    def _latent_fields(
        self, latent: LatentDimensions | None, fields: dict[str, Any]
    ) -> dict[str, Any]:
        """Latent attention, and the scale of its scores where YaRN changes it."""
        if latent is None:
            return {}
        for key, code, figures in latent_faults(latent):
            self._report(KEYS_OF_LATENT[key], code, **figures)
        heads, key_heads = fields.get("heads"), fields.get("kv_heads")
        if heads and key_heads and heads != key_heads:
            figures = {"kv_heads": key_heads, "heads": heads, "name": "num_key_value_heads"}
            self._report("num_key_value_heads", "latent-kv-heads", **figures)
        scale = scale_of_scores(latent, self.values) if "rope_scaling" in fields else None
        return {"latent": latent} | ({"attention_scale": scale} if scale else {})

    def _rope(self, family: Family) -> dict[str, Any]:
        """How RoPE is stretched, and bases that a newer config has elsewhere."""
        try:
            return rope_of(self.values, scales_scores=family.latent)
        except Unserved as refusal:
            fields: dict[str, Any] = {"value": _shown(refusal.value), "expected": refusal.expected}
            self._report(refusal.key, "config-rope-scaled", name=refusal.key, **fields)
            return {}

    def check_keys(self, family: Family) -> None:
        """Report every key that asks for something that is not served."""
        known = {*SIZES, *family.keys, *HARMLESS, *family.harmless, *ROPE_KEYS, "layer_types"}
        known |= {*family.experts.keys, *family.experts.choices} if family.experts else set()
        known |= LATENT_KEYS.keys() if family.latent else set()
        fixed = FIXED | family.fixed
        for key, value in self.values.items():
            if key in fixed and value is not None:
                only, why = fixed[key]
                if value != only:
                    self._report_fixed(key, value, _shown(only), why)
            elif key not in known and value not in (None, False):
                self._report(key, "config-unknown")

    def _report_fixed(self, key: str, value: Any, expected: str, reason: str) -> None:
        fields: dict[str, Any] = {"value": _shown(value), "expected": expected, "reason": reason}
        self._report(key, "config-fixed", name=_shown(key), **fields)

    def _report(
        self, key: str, code: str, suggestion: Correction | None = None, **fields: Any
    ) -> None:
        entry = self._root.entries.get(key)
        place: SpecPosition = entry.key_place if entry else self._root.place
        self.problems.append(place.problem(code, key, suggestion, **fields))


LATENT = LatentDimensions.__name__
KEYS_OF_LATENT = {field: key for key, field in LATENT_KEYS.items()}
OPTIONAL = ("num_key_value_heads", "head_dim")  # reported with the sizes that they follow from


def schema_of(section: str, name: str) -> Schema:
    """The schema of a field."""
    return member(definition(section), name) or {}


def _whole(known: dict[str, tuple[str, ...]], key: str, value: Any) -> Any:
    """A size as a whole number: JSON may write 4096.0."""
    if key not in known:
        return value
    schema: Schema = member(definition("Model"), known[key][0]) or {}
    is_whole = isinstance(value, float) and value.is_integer() and schema.get("type") == "integer"
    return int(value) if is_whole else value


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def _json(source: SpecText) -> Any:
    """The values of a JSON text."""
    text = "\n".join(source.lines)
    try:
        return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=str)
    except json.JSONDecodeError as error:
        place = SpecPosition(source, error.lineno, error.colno)
        raise SpecProblems([place.problem("not-json", reason=error.msg)]) from None
    except RecursionError:
        problem = SpecPosition(source, 1, 1).problem("too-deep", most=MOST_DEPTH)
        raise SpecProblems([problem]) from None


def _number(text: str) -> Value:
    """A number; one that is too large, or is none, stays text."""
    return as_written(text, {"integer", "number"})
