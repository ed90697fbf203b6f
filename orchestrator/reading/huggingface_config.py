"""Writes a Model as a Hugging Face config.json: the inverse of `huggingface`.

Each architecture is tried, and the first one is taken whose config, read again, is the same
network.
"""

import json
from contextlib import suppress
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.network.attention import yarn_growth
from orchestrator.network.decoder import LOCAL, decoder
from orchestrator.reading import huggingface_families as families
from orchestrator.reading.huggingface import text_model
from orchestrator.reading.huggingface_families import Family
from orchestrator.reading.nodes import read
from orchestrator.reading.problems import SpecProblems, SpecText
from orchestrator.values.model import Model

_SAME = 1e-8  # of two scales, relative: less than float32 tells apart
_TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def config_of(model: Model, length: int, dtype: str) -> dict[str, Any]:
    """Return the config of a model that was trained with sequences of that length."""
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
        theirs = text_model(source, model.name)
    except SpecProblems:
        return False
    pairs = zip(_scales(theirs), _scales(model), strict=True)
    same = decoder(_without_scales(theirs)) == decoder(_without_scales(model))
    return same and all(isclose(*pair, rel_tol=_SAME) for pair in pairs)


def _scales(model: Model) -> tuple[float, float]:
    """Return what multiplies scores, over the usual, and YaRN's factor of turned vectors."""
    scores, scaling = (model.attention_scale or 0) * model.head_dim**0.5, model.rope_scaling
    if scaling is None or scaling.kind != "yarn":
        return scores or 1.0, 1.0
    return scores or 1.0, scaling.attention_factor or yarn_growth(scaling.factor)


def _without_scales(model: Model) -> Model:
    scaling = model.rope_scaling and replace(model.rope_scaling, attention_factor=None)
    return replace(model, attention_scale=None, rope_scaling=scaling)


def _values_of(family: Family, model: Model) -> dict[str, Any]:
    """Return the keys of a family with the values of a model."""
    values = {
        key: value
        for key, (field, *_) in {**families.SIZES, **family.keys}.items()
        if (value := _value_of(key, field, model)) is not None
    }
    if "hidden_activation" not in values and family.defaults.get("hidden_act"):
        values["hidden_activation"] = values.get("hidden_act")
    values |= _rope_values(model) | _window_values(family, model)
    if model.moe is not None and family.experts is not None:
        known = {key: getattr(model.moe, field) for key, field in family.experts.keys.items()}
        values |= {key: value for key, value in known.items() if value is not None}
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


def _rope_values(model: Model) -> dict[str, Any]:
    """Return how RoPE is stretched, in the form that every release reads."""
    scaling = model.rope_scaling
    if scaling is None:
        return {}
    known = families.SCALINGS[scaling.kind].items()
    given = {key: value for key, name in known if (value := getattr(scaling, name)) is not None}
    scores, turned = _scales(model)
    if model.latent and scaling.kind == "yarn" and not isclose(scores, 1, rel_tol=_SAME):
        given.pop("attention_factor", None)
        given |= families.with_growth(scaling.factor, turned, scores**0.5)
    return {"rope_scaling": {"rope_type": scaling.kind, **given}}


def _window_values(family: Family, model: Model) -> dict[str, Any]:
    """Return the window and its layers; without one, what switches a family's own window off."""
    if not family.window_pattern:
        return {}
    if model.window is None:
        return {"sliding_window": None}
    windows = {"sliding_window": model.window}
    if family.window_pattern == LOCAL and not family.window_switch:
        return windows  # on every layer, whatever a list says
    names = {letter: kind for kind, letter in families.LAYER_TYPES.items()}
    pattern = model.window_pattern
    kinds = [names[pattern[layer % len(pattern)]] for layer in range(model.layers)]
    switch = {family.window_switch: True} if family.window_switch else {}
    return {**windows, "layer_types": kinds, **switch}
