"""RoPE and latent attention of a Hugging Face config.

RoPE has an older form (`rope_scaling`) and a newer one (`rope_parameters`).
"""

from typing import Any

import msgspec

from orchestrator.network.attention import yarn_growth
from orchestrator.values.model import LatentDimensions, RopeScaling

ROPE_KEYS = ("rope_scaling", "rope_parameters")
_PLAIN = "default"
# Their keys → the fields of RopeScaling, by its kind.
_FACTOR = {"factor": "factor"}
_STRETCHED = _FACTOR | {"original_max_position_embeddings": "original_length"}
SCALINGS: dict[str, dict[str, str]] = {
    "linear": _FACTOR,
    "llama3": _STRETCHED
    | {"low_freq_factor": "low_frequency_factor", "high_freq_factor": "high_frequency_factor"},
    "yarn": _STRETCHED
    | {key: key for key in ("beta_fast", "beta_slow", "attention_factor", "truncate")},
}
_GROWTH = ("mscale", "mscale_all_dim")  # of turned numbers, and of all numbers of a head
_SHARE_DIGITS = 10  # so that a published 0.707 is 0.707 again
_ROTARY_SHARE = "partial_rotary_factor"
_NAMES = frozenset({"type", "rope_type", "rope_theta", _ROTARY_SHARE})
# The newer form by kind of layer → the field of its base.
_BY_LAYER = {"full_attention": "rope_theta", "sliding_attention": "local_rope_theta"}
# Keys of the config → the fields of LatentDimensions.
LATENT_KEYS = {
    "q_lora_rank": "query_rank",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "nope_dim",
    "qk_rope_head_dim": "rope_dim",
    "v_head_dim": "value_dim",
}
LATENT_DEFAULTS = dict(zip(LATENT_KEYS, (1536, 512, 128, 64, 128), strict=True))


class Unserved(Exception):
    """A value that is not served, and what can be."""

    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value = key, value
        self.expected = f"null or one of {', '.join(SCALINGS)} with their own keys"


def is_positive(value: object) -> bool:
    """Return whether a value of JSON is a number above zero; `true` is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def rope_of(values: dict[str, Any], *, scales_scores: bool = False) -> dict[str, Any]:
    """Return the fields of a Model that say how positions turn; raise `Unserved`.

    Where attention `scales_scores` itself, YaRN may have a share of its growth for all numbers.
    """
    fields: dict[str, Any] = {}
    for key in ROPE_KEYS:
        rope = values.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise Unserved(key, rope)
        if rope.keys() and rope.keys() <= _BY_LAYER.keys():
            for kind, section in rope.items():  # only global layers are stretched
                if not isinstance(section, dict):
                    raise Unserved(key, section)
                found = _of_all_layers(key, section, _BY_LAYER[kind], {})
                if kind == "sliding_attention" and "rope_scaling" in found:
                    raise Unserved(key, section)
                fields |= found
        else:
            plain = _without_growth(key, rope) if scales_scores else rope
            fields |= _of_all_layers(key, plain, "rope_theta", values)
    return fields


def _without_growth(key: str, rope: dict[str, Any]) -> dict[str, Any]:
    """Return YaRN with one factor of turned vectors in place of its two shares of growth."""
    shares, factor = [rope.get(name) for name in _GROWTH], rope.get("factor")
    if shares == [None, None]:
        return rope
    others = {name: value for name, value in rope.items() if name not in _GROWTH}
    if not all(map(is_positive, [*shares, factor])) or "attention_factor" in rope:
        raise Unserved(key, rope)
    turned, every = (yarn_growth(float(factor or 1), float(share or 0)) for share in shares)
    return others | {"attention_factor": turned / every}


def with_growth(factor: float, turned: float, every: float) -> dict[str, float]:
    """Return the shares of YaRN's growth that scale turned vectors and all vectors so."""
    whole = yarn_growth(factor) - 1
    if not whole:
        return {}  # a factor of 1 grows nothing, so that no share says another scale
    growths = dict(zip(_GROWTH, (turned * every, every), strict=True))
    return {key: round((growth - 1) / whole, _SHARE_DIGITS) for key, growth in growths.items()}


def _of_all_layers(
    key: str, rope: dict[str, Any], base: str, values: dict[str, Any]
) -> dict[str, Any]:
    """Return the base, the share of numbers that turn, and the rule that stretches them."""
    fields: dict[str, Any] = {}
    if (theta := rope.get("rope_theta")) is not None:
        if not is_positive(theta):
            raise Unserved(key, rope)
        fields[base] = float(theta)
    if (share := rope.get(_ROTARY_SHARE)) is not None:
        if not is_positive(share) or share > 1:
            raise Unserved(key, rope)
        fields["rotary_share"] = float(share)
    kind = rope.get("rope_type", rope.get("type", _PLAIN))
    if kind == _PLAIN and rope.keys() <= _NAMES:
        return fields
    # every key has to be one of its kind
    known = SCALINGS.get(kind, {}) if isinstance(kind, str) else {}
    others = {name for name, value in rope.items() if value is not None} - _NAMES - known.keys()
    if not known or others or not is_positive(rope.get("factor")):
        raise Unserved(key, rope)
    scaling = {known[name]: value for name, value in rope.items() if name in known}
    original = values.get("max_position_embeddings")
    if "original_max_position_embeddings" in known and is_positive(original):
        scaling.setdefault("original_length", original)
    scaling = {name: value for name, value in scaling.items() if value is not None}
    try:
        fields["rope_scaling"] = msgspec.convert({"kind": kind, **scaling}, RopeScaling)
    except msgspec.ValidationError:
        raise Unserved(key, rope) from None
    return fields


def scale_of_scores(latent: LatentDimensions, values: dict[str, Any]) -> float | None:
    """Return what scores are multiplied by where YaRN changes it, or None."""
    for key in ROPE_KEYS:
        rope = values.get(key)
        share = rope.get(_GROWTH[1]) if isinstance(rope, dict) else None
        if rope is not None and share:
            return float(latent.head_dim**-0.5 * yarn_growth(rope["factor"], share) ** 2)
    return None
