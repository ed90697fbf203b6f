"""Reads a Hugging Face config.json as a Model, by the table of `huggingface_families`, and back. An
unknown key may change the model: it is refused by name unless it is null or false.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isclose
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.network.attention import yarn_growth
from orchestrator.network.decoder import LOCAL, decoder
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
    return _text_model(read(path), name)


def _text_model(source: SpecText, name: str | None) -> Model:
    """Return the model of a config.json's text; `SpecProblems` says why not."""
    config = _Config(source)
    family = config.family()
    config.enter(family)
    config.check_keys(family)
    shape = config.shape(family)
    if config.problems:
        raise SpecProblems(config.problems)
    return Model(name=name or family.model_type.replace("_", "-"), **shape)


class _Config:
    def __init__(self, source: SpecText) -> None:
        self.values = _json(source)
        root, self.problems = parse(source)
        self._names: dict[str, str] = {}  # the family's own names, by those of all families
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

    def enter(self, family: Family) -> None:
        """Go on with the section of the config that describes the text model, if there is one, and
        with the names that all families have.
        """
        self._names = {name: own for own, name in family.names.items()}
        self.values = {family.names.get(key, key): value for key, value in self.values.items()}
        entry = self._root.entries.get(family.section)
        if entry is None or not isinstance(self.values.get(family.section), dict):
            return
        self.values = self.values[family.section]
        if isinstance(entry.node, Mapping):
            self._root = entry.node

    def check_keys(self, family: Family) -> None:
        """Report every key that asks for something that is not served."""
        known = {"layer_types", *families.SIZES, *families.HARMLESS, *families.ROPE_KEYS}
        known |= {*family.keys, *family.harmless}
        known |= {*family.experts.keys, *family.experts.choices} if family.experts else set()
        known |= families.LATENT_KEYS.keys() if family.latent else set()
        known |= {family.experts.switch} if family.experts else set()
        fixed = families.FIXED | family.fixed
        usual = {key: family.defaults[key] for key in fixed.keys() & family.defaults.keys()}
        for key, value in (usual | self.values).items():
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
        if family.mlp_width and type(width) is int:
            values.setdefault("intermediate_size", family.mlp_width * width)
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
            if "rope_scaling" in fields:
                fields |= families.scale_of_scores(latent, self.values)
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
        # A spec may say 2K for a number; nothing that reads a config.json knows this notation.
        is_notation = isinstance(meant, str) and bool(scalar_types(schema) & _NUMBERS)
        is_fitting = fits(meant, schema)
        if is_fitting and not is_notation:
            return True
        hint = Correction("example", f"{_shown(key)}: {_shown(example(schema))}")
        code, what = "illegal-value", f"is {_shown(value)}"
        if value is None:
            code, what = "missing-key", "is missing"
        expected = "a number in digits, without quotes" if is_fitting else must(schema)
        self._report(key, code, f"{what}, must be {expected}", hint)
        return False

    def _windows(self, family: Family, values: dict[str, Any]) -> dict[str, Any]:
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
        if kind is None or (kind.switch and not self.values.get(kind.switch)):
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
        """Return latent attention; None where a size is wrong. Only queries' rank may be null."""
        fields: dict[str, Any] = {}
        for key, name in families.LATENT_KEYS.items():
            value = self.values.get(key)
            if value is None and not (key == "q_lora_rank" and key in self.values):
                value = families.LATENT_DEFAULTS[key]
            if value is None or self._is_legal(key, name, value, value, "LatentDimensions"):
                fields[name] = _whole(value, "LatentDimensions", name)
        return LatentDimensions(**fields) if len(fields) == len(families.LATENT_KEYS) else None

    def _rope(self, family: Family) -> dict[str, Any]:
        """Return how RoPE is stretched, and bases that a newer config has elsewhere."""
        try:
            fields = families.rope_of(self.values, scales_scores=family.latent)
            # A config that says something of global layers says all of it.
            if fields and "global_rotary_share" in family.own:
                fields.setdefault("global_rotary_share", 1.0)
            return fields
        except families.Unserved as refusal:
            expected = f"null or one of {', '.join(families.SCALINGS)} with their own keys"
            message = f"is {_shown(refusal.value)}, must be {expected}"
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
        key = self._names.get(key, key)
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


# A Model as a config.json.

_SAME = 1e-8  # of two scales, relative: less than float32 tells apart
_TYPES = {"fp32": "float32", "bf16": "bfloat16"}
_SHARE_DIGITS = 10  # so that a published 0.707 is 0.707 again


def config_of(model: Model, length: int, dtype: str) -> dict[str, Any]:
    """Return a trained model's config, of the first architecture that reads back as this model."""
    for family in families.FAMILIES:
        if family.section:
            continue  # it describes more than a text model
        config = {
            "architectures": [family.architecture],
            "model_type": family.model_type,
            "max_position_embeddings": length,
            "torch_dtype": _TYPES[dtype],
            **_values_of(family, model),
        }
        fixed = families.FIXED | family.fixed
        config |= {key: fixed[key][0] for key in fixed.keys() & family.defaults.keys()}
        if family.names:  # heads are as wide as the stream divided by them
            theirs = {name: own for own, name in family.names.items()}
            kept = config.keys() - {"head_dim", "num_key_value_heads", "hidden_act", "rope_theta"}
            config = {theirs.get(k, k): value for k, value in config.items() if k in kept}
        text = tuple(json.dumps(config, indent=2).split("\n"))
        if _describes(SpecText("config.json", text), model):
            return config
    raise SpecError(
        f"{model.name}: no architecture of Hugging Face that is known computes the same"
    )


def same_config(folder: Path, model: Model) -> dict[str, Any] | None:
    """Return the config.json of a folder if it describes this model; it may say more than ours."""
    with suppress(SpecProblems):
        source = read(folder / "config.json")
        if _describes(source, model):
            config: dict[str, Any] = json.loads("\n".join(source.lines))
            return config
    return None


def _describes(source: SpecText, model: Model) -> bool:
    """Return whether a config describes the same network. Scales that it rounds are close."""
    try:
        theirs, *their_scales = _without_scales(_text_model(source, model.name))
    except SpecProblems:
        return False
    ours, *our_scales = _without_scales(model)
    pairs = zip(their_scales, our_scales, strict=True)
    return decoder(theirs) == decoder(ours) and all(isclose(*p, rel_tol=_SAME) for p in pairs)


def _without_scales(model: Model) -> tuple[Model, float, float]:
    """Return a model without scales of scores and vectors, and these: over the usual, YaRN's."""
    scaling, turned = model.rope_scaling, 1.0
    scores = (model.attention_scale or 0) * model.head_dim**0.5 or 1.0
    if scaling is not None and scaling.kind == "yarn":
        turned = scaling.attention_factor or yarn_growth(scaling.factor)
    scaling = scaling and replace(scaling, attention_factor=None)
    return replace(model, attention_scale=None, rope_scaling=scaling), scores, turned


def _values_of(family: Family, model: Model) -> dict[str, Any]:
    """Return the keys of a family with the values of a model."""
    values = {
        key: value
        for key, (field, *_) in {**families.SIZES, **family.keys}.items()
        if (value := _value_of(key, field, model)) is not None
    }
    if "hidden_activation" not in values and family.defaults.get("hidden_act"):
        values["hidden_activation"] = values.get("hidden_act")
    if scaling := model.rope_scaling:  # in the form that every release reads
        known = families.SCALINGS[scaling.kind].items()
        given = {key: value for key, name in known if (value := getattr(scaling, name)) is not None}
        _, scores, turned = _without_scales(model)
        if model.latent and scaling.kind == "yarn" and not isclose(scores, 1, rel_tol=_SAME):
            given.pop("attention_factor", None)
            # Shares of the growth, of turned vectors and of all. A factor of 1 grows nothing.
            if whole := yarn_growth(scaling.factor) - 1:
                growths = zip(families.GROWTH, (turned * scores**0.5, scores**0.5), strict=True)
                given |= {key: round((grown - 1) / whole, _SHARE_DIGITS) for key, grown in growths}
        values["rope_scaling"] = {"rope_type": scaling.kind, **given}
    values |= _window_values(family, model)
    if model.moe is not None and family.experts is not None:
        fields = {key: getattr(model.moe, field) for key, field in family.experts.keys.items()}
        fields |= {family.experts.switch: True} if family.experts.switch else {}
        values |= {key: value for key, value in fields.items() if value is not None}
        for key, words in family.experts.choices.items():
            for word, fields in words.items():
                if all(getattr(model.moe, field) == value for field, value in fields.items()):
                    values.setdefault(key, word)
    if model.latent is not None and family.latent:
        del values["head_dim"]  # the sum of two keys; here the key would say another width
        values |= {key: getattr(model.latent, field) for key, field in families.LATENT_KEYS.items()}
    return values


def _value_of(key: str, field: str, model: Model) -> Any:
    value = getattr(model, field)
    if key == "hidden_act":
        meant = value or ("silu" if model.gated else "gelu")
        known = families.ACTIVATIONS.items()
        return next((theirs for theirs, ours in known if ours == meant), None)
    if key == "query_pre_attn_scalar":
        scalar = model.head_dim if value is None else value**-2
        return round(scalar) if isclose(scalar, round(scalar)) else scalar
    return value


def _window_values(family: Family, model: Model) -> dict[str, Any]:
    """Return the window and its layers; without one, what switches a family's own window off."""
    if not family.window_pattern:
        return {}
    if model.window is None:
        return {"sliding_window": None}
    windows: dict[str, Any] = {"sliding_window": model.window}
    if "global_rotary_share" in family.own:  # RoPE of each kind of layer
        theta, share = model.rope_theta, model.global_rotary_share or 1.0
        of_global = {"rope_type": families.PROPORTIONAL, "partial_rotary_factor": share}
        of_local = {"rope_type": "default", "rope_theta": model.local_rope_theta or theta}
        rope = {"full_attention": of_global | {"rope_theta": theta}, "sliding_attention": of_local}
        windows["rope_parameters"] = rope
    if family.window_pattern == LOCAL and not family.window_switch:
        return windows  # on every layer, whatever a list says
    names = {letter: kind for kind, letter in families.LAYER_TYPES.items()}
    pattern = model.window_pattern
    kinds = [names[pattern[layer % len(pattern)]] for layer in range(model.layers)]
    switch = {family.window_switch: True} if family.window_switch else {}
    return {**windows, "layer_types": kinds, **switch}
