"""Writes a Model as a Hugging Face config.json: the inverse of `huggingface`.

Each architecture is tried, and the first one is taken whose config, read again, is the same
network.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.network.attention import yarn_growth
from orchestrator.network.decoder import LOCAL, decoder
from orchestrator.reading.huggingface import text_model
from orchestrator.reading.huggingface_families import (
    ACTIVATIONS,
    FAMILIES,
    LAYER_TYPES,
    SIZES,
    ExpertKeys,
    Family,
)
from orchestrator.reading.huggingface_rope import LATENT_KEYS, SCALINGS, with_growth
from orchestrator.reading.inputs import CONFIG
from orchestrator.reading.nodes import read
from orchestrator.reading.problems import SpecProblems, SpecText
from orchestrator.values.model import MixtureOfExperts, Model

SAME = 1e-8  # of two scales, relative: less than float32 tells apart
TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def config_of(model: Model, length: int, dtype: str) -> dict[str, Any]:
    """The config of a model that was trained with sequences of that length."""
    for family in FAMILIES:
        if family.section:
            continue  # it describes more than a text model
        config = {
            "architectures": [family.architecture],
            "model_type": family.model_type,
            "max_position_embeddings": length,
            "torch_dtype": TYPES[dtype],
            **values_of(family, model),
        }
        if is_of(config, model):
            return config
    raise SpecError(
        f"{model.name}: no architecture of Hugging Face that is known computes the same"
    )


def same_config(folder: Path, model: Model) -> dict[str, Any] | None:
    """The config.json of a folder if it describes this model; it may say more than ours."""
    try:
        source = read(folder / CONFIG)
        if not same_network(text_model(source, model.name), model):
            return None
    except SpecProblems:
        return None
    config: dict[str, Any] = json.loads("\n".join(source.lines))
    return config


def is_of(config: dict[str, Any], model: Model) -> bool:
    """Whether a config describes the same network."""
    text = SpecText("config.json", tuple(json.dumps(config, indent=2).split("\n")))
    try:
        return same_network(text_model(text, model.name), model)
    except SpecProblems:
        return False


def same_network(one: Model, other: Model) -> bool:
    """Whether two models compute the same; scales that a config says otherwise are rounded."""
    pairs = zip(scales(one), scales(other), strict=True)
    return all(isclose(*pair, rel_tol=SAME) for pair in pairs) and (
        decoder(without_scales(one)) == decoder(without_scales(other))
    )


def scales(model: Model) -> tuple[float, float]:
    """What multiplies scores, over the usual, and YaRN's factor of turned vectors."""
    scores, scaling = (model.attention_scale or 0) * model.head_dim**0.5, model.rope_scaling
    if scaling is None or scaling.kind != "yarn":
        return scores or 1.0, 1.0
    return scores or 1.0, scaling.attention_factor or yarn_growth(scaling.factor)


def without_scales(model: Model) -> Model:
    scaling = model.rope_scaling and replace(model.rope_scaling, attention_factor=None)
    return replace(model, attention_scale=None, rope_scaling=scaling)


def values_of(family: Family, model: Model) -> dict[str, Any]:
    """The keys of a family with the values of a model."""
    values = {
        key: value
        for key, (field, *_) in {**SIZES, **family.keys}.items()
        if (value := value_of(key, field, model)) is not None
    }
    if "hidden_activation" not in values and family.defaults.get("hidden_act"):
        values["hidden_activation"] = values.get("hidden_act")
    values |= dict(rope_values(model)) | window_values(family, model)
    if model.moe is not None and family.experts is not None:
        values |= expert_values(family.experts, model.moe)
    if model.latent is not None and family.latent:
        del values["head_dim"]  # the sum of two keys; here the key would say another width
        values |= {key: getattr(model.latent, field) for key, field in LATENT_KEYS.items()}
    return values


def expert_values(experts: ExpertKeys, moe: MixtureOfExperts) -> dict[str, Any]:
    """The keys of a family's experts, and the words that stand for several fields."""
    known = {key: getattr(moe, field) for key, field in experts.keys.items()}
    values = {key: value for key, value in known.items() if value is not None}
    for key, words in experts.choices.items():
        for word, fields in words.items():
            if all(getattr(moe, field) == value for field, value in fields.items()):
                values.setdefault(key, word)
    return values


def value_of(key: str, field: str, model: Model) -> Any:
    value = getattr(model, field)
    if key == "hidden_act":
        meant = value or ("silu" if model.gated else "gelu")
        return next((theirs for theirs, ours in ACTIVATIONS.items() if ours == meant), None)
    if key == "query_pre_attn_scalar":
        scalar = model.head_dim if value is None else value**-2
        return round(scalar) if isclose(scalar, round(scalar)) else scalar
    return value


def rope_values(model: Model) -> Iterator[tuple[str, Any]]:
    """How RoPE is stretched, in the form that every release reads."""
    scaling = model.rope_scaling
    if scaling is not None:
        keys = SCALINGS[scaling.kind].items()
        known = {theirs: getattr(scaling, ours) for theirs, ours in keys}
        given = {key: value for key, value in known.items() if value is not None}
        scores, turned = scales(model)
        if model.latent and scaling.kind == "yarn" and not isclose(scores, 1, rel_tol=SAME):
            given.pop("attention_factor", None)
            given |= with_growth(scaling.factor, turned, scores**0.5)
        yield "rope_scaling", {"rope_type": scaling.kind, **given}


def window_values(family: Family, model: Model) -> dict[str, Any]:
    """The window and its layers; without one, what switches a family's own window off."""
    if not family.window_pattern:
        return {}
    if model.window is None:
        return {"sliding_window": None}
    windows = {"sliding_window": model.window}
    if family.window_pattern == LOCAL and not family.window_switch:
        return windows  # on every layer, whatever a list says
    names = {letter: kind for kind, letter in LAYER_TYPES.items()}
    pattern = model.window_pattern
    kinds = [names[pattern[layer % len(pattern)]] for layer in range(model.layers)]
    switch = {family.window_switch: True} if family.window_switch else {}
    return {**windows, "layer_types": kinds, **switch}
