"""The architectures of Hugging Face configs that are served; their keys are in the .toml file."""

import tomllib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from orchestrator.network.attention import yarn_growth
from orchestrator.processes import resource
from orchestrator.values.model import LatentDimensions, RopeScaling


@dataclass(frozen=True)
class _ExpertKeys:
    """Keys of experts → the fields of MixtureOfExperts that they give; `defaults` are for missing
    keys, `own` what the family always has, `choices` by key and word.
    """

    keys: dict[str, str]
    defaults: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    switch: str = ""  # the key that says whether there are experts, where not all have them


@dataclass(frozen=True)
class Family:
    """An architecture that is served. `own` are fields that it always has, `keys` those that only
    some families have, `defaults` what a missing key means, `window_pattern` its layers with the
    window, where the config does not list them.
    """

    architecture: str
    model_type: str
    own: dict[str, Any]
    keys: dict[str, tuple[str, ...]]
    defaults: dict[str, Any]
    fixed: dict[str, tuple[Any, str]]  # keys with one value that is served, and the reason
    window_pattern: str = ""
    # Keys that choose the layers with the window: a switch, and the first layer that has it.
    window_switch: str = ""
    window_first: str = ""
    experts: _ExpertKeys | None = None  # where the family has experts
    latent: bool = False  # whether its attention has latents
    harmless: frozenset[str] = frozenset()  # keys that change nothing, only in this family
    # The section of the config that describes the text model, where it describes another as well.
    section: str = ""
    # Its own names of keys → those of all families; and the MLP's width over the stream's, where
    # the config leaves it out.
    names: dict[str, str] = field(default_factory=dict)
    mlp_width: int = 0


_TABLES = tomllib.loads(resource("reading", "huggingface_families.toml").read_text("utf-8"))
# Keys of the config → the fields of Model that they give. All families have these.
SIZES: dict[str, tuple[str, ...]] = {key: (name,) for key, name in _TABLES["sizes"].items()}
DEFAULTS: dict[str, Any] = _TABLES["defaults"]
ACTIVATIONS: dict[str, str] = _TABLES["activations"]
OTHER_FAMILIES: dict[str, str] = _TABLES["other_families"]
FIXED = msgspec.convert(_TABLES["fixed"], dict[str, tuple[Any, str]])
HARMLESS = frozenset(_TABLES["harmless"]["keys"].split())
_INHERITED = ("own", "keys", "defaults", "fixed", "experts")
_families: dict[str, dict[str, Any]] = {}
for _table in _TABLES["family"]:  # one that is like another has its tables too
    _like = _families.get(_table.get("like", ""), {})
    _both = {name: (_like.get(name) or {}) | _table.get(name, {}) for name in _INHERITED}
    _families[_table["model_type"]] = _like | _table | _both | {"experts": _both["experts"] or None}
FAMILIES = tuple(msgspec.convert(table, Family) for table in _families.values())
# Their kinds of layers → a letter of `window_pattern`.
LAYER_TYPES = {"sliding_attention": "L", "full_attention": "G"}
_GLOBAL = "G"
_LONGEST = 1000  # layers that a pattern names


def window_pattern(family: Family, values: dict[str, Any]) -> str | None:
    """Return the layers with the window, as the shortest pattern; None for a kind not served."""
    kinds = values.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or not 0 < len(kinds) <= _LONGEST:
            return None
        letters = [LAYER_TYPES.get(kind) if isinstance(kind, str) else None for kind in kinds]
        return None if None in letters else _shortest("".join(filter(None, letters)))
    if family.window_switch and not values.get(family.window_switch):
        return _GLOBAL
    first, layers = values.get(family.window_first), values.get("num_hidden_layers")
    if isinstance(first, int) and isinstance(layers, int):
        return _shortest((_GLOBAL * min(first, layers) + "L" * (layers - first))[:_LONGEST])
    every = values.get("sliding_window_pattern", values.get("_sliding_window_pattern"))
    if isinstance(every, int) and 0 < every < _LONGEST:
        return "L" * (every - 1) + _GLOBAL
    return family.window_pattern or _GLOBAL


def _shortest(row: str) -> str:
    for length in range(1, len(row)):
        if (row[:length] * len(row))[: len(row)] == row:
            return row[:length]
    return row


# RoPE, in an older form (`rope_scaling`) and a newer one (`rope_parameters`), and latent attention.
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
GROWTH = ("mscale", "mscale_all_dim")  # of turned numbers, and of all numbers of a head
PROPORTIONAL = "proportional"  # RoPE of Gemma 4's global layers
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
    """A key of RoPE whose value is not served."""

    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value = key, value


def is_positive(value: object) -> bool:
    """Return whether a value of JSON is a number above zero; `true` is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def rope_of(values: dict[str, Any], *, scales_scores: bool = False) -> dict[str, Any]:
    """Return how positions turn, as a Model's fields; raise `Unserved`. Where attention
    `scales_scores` itself, YaRN may have a share of its growth for all numbers.
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
            shares, factor = [rope.get(name) for name in GROWTH], rope.get("factor")
            if scales_scores and shares != [None, None]:
                # One factor of turned vectors in place of YaRN's two shares of growth.
                if not all(map(is_positive, [*shares, factor])) or "attention_factor" in rope:
                    raise Unserved(key, rope)
                longer = float(factor or 1)
                turned, every = (yarn_growth(longer, float(share or 0)) for share in shares)
                rope = {name: value for name, value in rope.items() if name not in GROWTH}
                rope["attention_factor"] = turned / every
            fields |= _of_all_layers(key, rope, "rope_theta", values)
    return fields


def _of_all_layers(
    key: str, rope: dict[str, Any], base: str, values: dict[str, Any]
) -> dict[str, Any]:
    """Return the base, the share of numbers that turn, and the rule that stretches them."""
    fields: dict[str, Any] = {}
    if (theta := rope.get("rope_theta")) is not None:
        if not is_positive(theta):
            raise Unserved(key, rope)
        fields[base] = float(theta)
    kind = rope.get("rope_type", rope.get("type", _PLAIN))
    if (share := rope.get(_ROTARY_SHARE)) is not None:
        if not is_positive(share) or share > 1:
            raise Unserved(key, rope)
        fields["global_rotary_share" if kind == PROPORTIONAL else "rotary_share"] = float(share)
    if kind in (_PLAIN, PROPORTIONAL) and rope.keys() <= _NAMES:
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


def scale_of_scores(latent: LatentDimensions, values: dict[str, Any]) -> dict[str, float]:
    """Return the field of what scores are multiplied by, where YaRN changes it."""
    for key in ROPE_KEYS:
        rope = values.get(key)
        if isinstance(rope, dict) and (share := rope.get(GROWTH[1])):
            scale = latent.head_dim**-0.5 * yarn_growth(rope["factor"], share) ** 2
            return {"attention_scale": float(scale)}
    return {}
