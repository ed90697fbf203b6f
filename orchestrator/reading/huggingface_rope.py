"""RoPE of a Hugging Face config, in the older form (`rope_scaling`) and the newer one
(`rope_parameters`).
"""

from typing import Any

import msgspec

from orchestrator.network.attention import yarn_growth
from orchestrator.reading.nodes import is_positive
from orchestrator.values.model import LatentDimensions, RopeScaling

ROPE_KEYS = ("rope_scaling", "rope_parameters")
PLAIN = "default"
# Their keys → the fields of RopeScaling, by its kind.
FACTOR = {"factor": "factor"}
ORIGINAL = {"original_max_position_embeddings": "original_length"}
SCALINGS: dict[str, dict[str, str]] = {
    "linear": FACTOR,
    "llama3": FACTOR
    | ORIGINAL
    | {
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
    },
    "yarn": FACTOR
    | ORIGINAL
    | {
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
    },
}
GROWTH = ("mscale", "mscale_all_dim")  # of turned numbers, and of all numbers of a head
SHARE_DIGITS = 10  # so that a published 0.707 is 0.707 again
ROTARY_SHARE = "partial_rotary_factor"
NAMES = frozenset({"type", "rope_type", "rope_theta", ROTARY_SHARE})
# The newer form by kind of layer → the field of its base.
BY_LAYER = {"full_attention": "rope_theta", "sliding_attention": "local_rope_theta"}


class Unserved(Exception):
    """A value that is not served, and what can be."""

    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value = key, value
        self.expected = f"null or one of {', '.join(SCALINGS)} with their own keys"


def rope_of(values: dict[str, Any], *, scales_scores: bool = False) -> dict[str, Any]:
    """The fields of a Model that say how positions turn.

    Where attention `scales_scores` itself, YaRN may have a share of its growth for all numbers.
    """
    fields: dict[str, Any] = {}
    for key in ROPE_KEYS:
        rope = values.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise Unserved(key, rope)
        if rope.keys() and rope.keys() <= BY_LAYER.keys():
            fields |= by_layer(key, rope)
        else:
            plain = without_growth(key, rope) if scales_scores else rope
            fields |= of_all_layers(key, plain, "rope_theta", values)
    return fields


def without_growth(key: str, rope: dict[str, Any]) -> dict[str, Any]:
    """YaRN's shares of growth as one factor of turned vectors: that of them over that of all."""
    shares, factor = [rope.get(name) for name in GROWTH], rope.get("factor")
    if shares == [None, None]:
        return rope
    others = {name: value for name, value in rope.items() if name not in GROWTH}
    if not all(map(is_positive, [*shares, factor])) or "attention_factor" in rope:
        raise Unserved(key, rope)
    turned, every = (yarn_growth(float(factor or 1), float(share or 0)) for share in shares)
    return others | {"attention_factor": turned / every}


def with_growth(factor: float, turned: float, every: float) -> dict[str, float]:
    """The shares of YaRN's growth that scale turned vectors and all vectors so; the inverse."""
    whole = yarn_growth(factor) - 1
    if not whole:
        return {}  # a factor of 1 grows nothing, so that no share says another scale
    growths = dict(zip(GROWTH, (turned * every, every), strict=True))
    return {key: round((growth - 1) / whole, SHARE_DIGITS) for key, growth in growths.items()}


def by_layer(key: str, rope: dict[str, Any]) -> dict[str, Any]:
    """The newer form with a section for each kind of layer; only global layers are stretched."""
    fields: dict[str, Any] = {}
    for kind, section in rope.items():
        if not isinstance(section, dict):
            raise Unserved(key, section)
        found = of_all_layers(key, section, BY_LAYER[kind], {})
        if kind == "sliding_attention" and "rope_scaling" in found:
            raise Unserved(key, section)
        fields |= found
    return fields


def of_all_layers(
    key: str, rope: dict[str, Any], base: str, values: dict[str, Any]
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if (theta := rope.get("rope_theta")) is not None:
        if not is_positive(theta):
            raise Unserved(key, rope)
        fields[base] = float(theta)
    if (share := rope.get(ROTARY_SHARE)) is not None:
        if not is_positive(share) or share > 1:
            raise Unserved(key, rope)
        fields["rotary_share"] = float(share)
    kind = rope.get("rope_type", rope.get("type", PLAIN))
    if kind == PLAIN and rope.keys() <= NAMES:
        return fields
    return fields | {"rope_scaling": scaling_of(key, rope, kind, values)}


def scaling_of(key: str, rope: dict[str, Any], kind: Any, values: dict[str, Any]) -> RopeScaling:
    """The rule and its numbers; every key has to be one of its kind."""
    known = SCALINGS.get(kind, {}) if isinstance(kind, str) else {}
    others = {name for name, value in rope.items() if value is not None} - NAMES - known.keys()
    if not known or others or not is_positive(rope.get("factor")):
        raise Unserved(key, rope)
    fields = {known[name]: value for name, value in rope.items() if name in known}
    original = values.get("max_position_embeddings")
    if "original_max_position_embeddings" in known and is_positive(original):
        fields.setdefault("original_length", original)
    fields = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert({"kind": kind, **fields}, RopeScaling)
    except msgspec.ValidationError:
        raise Unserved(key, rope) from None


# Keys of the config → the fields of LatentAttention.
LATENT_KEYS = {
    "q_lora_rank": "query_rank",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "nope_dim",
    "qk_rope_head_dim": "rope_dim",
    "v_head_dim": "value_dim",
}
LATENT_DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def latent_values(values: dict[str, Any]) -> dict[str, Any]:
    """What the config says; only the rank of queries may be null, where they have no latent."""
    said = {key: values[key] for key in LATENT_KEYS if key in values}
    absent = {key for key, value in said.items() if value is None and key != "q_lora_rank"}
    return {**LATENT_DEFAULTS, **{key: said[key] for key in said.keys() - absent}}


def scale_of_scores(latent: LatentDimensions, values: dict[str, Any]) -> float | None:
    """What scores are multiplied by, where YaRN changes it; None where it is the usual."""
    for key in ROPE_KEYS:
        rope = values.get(key)
        share = rope.get(GROWTH[1]) if isinstance(rope, dict) else None
        if rope is not None and share:
            return float(latent.head_dim**-0.5 * yarn_growth(rope["factor"], share) ** 2)
    return None
