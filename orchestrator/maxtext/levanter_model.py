"""The model of a configuration of Levanter as that of a spec."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.maxtext.levanter_keys import LevanterKeys
from orchestrator.network.rotary import yarn_growth

Values = dict[str, Any]
# Keys of its LlamaConfig → ours, and their defaults.
SIZES = {
    "num_layers": ("layers", 32),
    "hidden_dim": ("d_model", 4096),
    "intermediate_dim": ("d_ff", 11_008),
    "num_heads": ("heads", 32),
    "num_kv_heads": ("kv_heads", 32),
}
# Its activation functions → ours, where the MLP is gated.
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu_exact", "gelu_new": "gelu"}
GEMMA: Values = {"norm_offset": True, "embedding_scale": True}
GEMMA_SIZES: Values = {
    "num_layers": 18, "hidden_dim": 2048, "intermediate_dim": 16_384, "num_heads": 8,
    "num_kv_heads": 1, "head_dim": 256, "seq_len": 8192, "tie_word_embeddings": True,
    "activation_function": "gelu_new",
}  # fmt: skip
MISTRAL_SIZES: Values = {
    "intermediate_dim": 14_336, "num_kv_heads": 8, "seq_len": 8192, "layer_norm_epsilon": 1e-6,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A type of model: where its class differs from Levanter's Llama.

    `own` are fields of the Model that it always has. `unused` are keys that its code does not read,
    and `switches` keys that add fields where they are on.
    """

    own: Values = field(default_factory=dict)
    defaults: Values = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, Values] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


CAPS = {"attn_logit_softcapping": "attention_cap", "final_logit_softcapping": "logit_cap"}
QK_NORM: Mapping[str, Values] = {"use_qk_norm": {"qk_norm": "head"}}
KINDS = {
    "llama": Kind(switches={"hybrid_norm": {"norm_placement": "both"}}),
    "mistral": Kind(defaults=MISTRAL_SIZES, unused=("sliding_window",)),
    "mixtral": Kind(defaults=MISTRAL_SIZES, unused=("sliding_window",)),
    "qwen": Kind({"qkv_bias": True}, unused=("sliding_window", "max_window_layers")),
    "qwen3": Kind({"qk_norm": "head"}, unused=("sliding_window",)),
    "olmo2": Kind(
        {"norm_placement": "after", "qk_norm": "heads"},
        {"seq_len": 4096, "layer_norm_epsilon": 1e-6},
        switches={"attention_bias": {"qkv_bias": True, "output_bias": True}},
        unused=("attention_dropout",),
    ),
    "gemma": Kind(GEMMA, GEMMA_SIZES, unused=("vocab_size",)),
    "gemma2": Kind(
        GEMMA | {"norm_placement": "both"},
        GEMMA_SIZES
        | {
            "query_pre_attn_scalar": 256.0,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        numbers=CAPS,
        switches=QK_NORM,
        unused=("vocab_size", "sliding_window"),
    ),
    "gemma3": Kind(
        GEMMA | {"norm_placement": "both"},
        GEMMA_SIZES | {"query_pre_attn_scalar": 256.0, "use_qk_norm": True},
        numbers=CAPS,
        switches=QK_NORM,
        unused=("vocab_size", "sliding_window", "rope_local_base_freq"),
    ),
}
LENGTH = 2048
KNOWN = f"known are {', '.join(KINDS)}"
POSITIONS = "learned positions are not served"
WHY_NOT = {"gpt2": POSITIONS, "backpack": POSITIONS}
# Keys of its configurations of RoPE → ours, and their defaults.
THETA = ("rope_theta", 10_000.0)
ROPES: dict[str, dict[str, tuple[str, float]]] = {
    "default": {"theta": THETA, "factor": ("factor", 1.0)},
    "linear": {"theta": THETA, "factor": ("factor", 1.0)},
    "llama3": {
        "theta": ("rope_theta", 500_000.0),
        "factor": ("factor", 8.0),
        "low_freq_factor": ("low_frequency_factor", 1.0),
        "high_freq_factor": ("high_frequency_factor", 4.0),
        "original_max_position_embeddings": ("original_length", 8192),
    },
    "yarn": {
        "theta": THETA,
        "factor": ("factor", 1.0),
        "beta_fast": ("beta_fast", 32.0),
        "beta_slow": ("beta_slow", 1.0),
        "original_max_position_embeddings": ("original_length", 2048),
        "mscale": ("mscale", 1.0),
    },
}
# The number of words of tokenizers, by the beginning of their names.
VOCABULARIES = {
    "meta-llama/Llama-2": 32_000,
    "NousResearch/Llama-2": 32_000,
    "huggyllama/llama": 32_000,
    "meta-llama/Meta-Llama-3": 128_256,
    "meta-llama/Llama-3": 128_256,
    "nvidia/Llama-3": 128_256,
    "stanford-crfm/marin-tokenizer": 128_256,
    "marin-community/marin-tokenizer": 128_256,
    "mistralai/Mistral-7B": 32_000,
    "mistralai/Mixtral-8x7B": 32_000,
    "EleutherAI/gpt-neox-20b": 50_277,
    "gpt2": 50_257,
    "openai-community/gpt2": 50_257,
    "google/gemma-2b": 256_000,
    "google/gemma-7b": 256_000,
    "google/gemma-2-": 256_000,
    "Qwen/Qwen2.5": 151_665,
    "Qwen/Qwen3-": 151_669,
}


def length_of(keys: LevanterKeys) -> int:
    """The tokens of a sequence: what is trained, or the most that the model takes."""
    kind = KINDS.get(str(keys.get("model", "type", "llama")), KINDS["llama"])
    longest = keys.whole("model", "max_seq_len", kind.defaults.get("seq_len", LENGTH))
    return keys.whole("", "train_seq_len", keys.whole("model", "seq_len", longest))


def model_of(keys: LevanterKeys, vocab: int | None) -> Values:
    """The model; what is odd about it is refused."""
    name = str(keys.get("model", "type", "llama"))
    if name not in KINDS:
        keys.refuse("model.type", f"{name}: {WHY_NOT.get(name, 'is not served')}; {KNOWN}")
        keys.accept("model", *keys.section("model"))  # what they mean is not known
        return {"name": name}
    kind = KINDS[name]
    keys.accept("model", *kind.unused)
    for key, only in (("use_bias", False), ("upcast_attn", False), ("input_embedding_norm", False),
                      ("use_sliding_window", False), ("sliding_window_pattern", None)):  # fmt: skip
        keys.only("model", key, only)
    if keys.get("model", "use_layer_norm_weight", True) is False:
        keys.note("model.use_layer_norm_weight: the norms of a spec have weights")
    model: Values = {
        "name": name,
        **_sizes(keys, kind),
        "vocab": _vocabulary(keys) if vocab is None else vocab,
        "gated": True,
        "tied": bool(_value(keys, kind, "tie_word_embeddings", False)),
        "norm_epsilon": _number(keys, kind, "layer_norm_epsilon", 1e-5),
        **kind.own,
        **_activation(keys, kind),
        **_attention(keys, kind),
        **_rope(keys),
    }
    for key, fields in kind.switches.items():
        if _value(keys, kind, key, False):
            model |= fields
    return model | ({"moe": _experts(keys)} if name == "mixtral" else {})


def _value(keys: LevanterKeys, kind: Kind, key: str, otherwise: Any) -> Any:
    return keys.get("model", key, kind.defaults.get(key, otherwise))


def _number(keys: LevanterKeys, kind: Kind, key: str, otherwise: float) -> float:
    return keys.number("model", key, kind.defaults.get(key, otherwise))


def _sizes(keys: LevanterKeys, kind: Kind) -> Values:
    sizes = {
        ours: keys.whole("model", key, kind.defaults.get(key, usual))
        for key, (ours, usual) in SIZES.items()
    }
    if min(sizes.values()) < 1 or sizes["heads"] % sizes["kv_heads"]:
        keys.refuse("model.num_heads", "must be a multiple of num_kv_heads, and all be positive")
        return sizes | {"d_model": 2, "heads": 1, "kv_heads": 1, "head_dim": 2}
    head = kind.defaults.get("head_dim", sizes["d_model"] // sizes["heads"])
    return sizes | {"head_dim": keys.whole("model", "head_dim", head)}


def _activation(keys: LevanterKeys, kind: Kind) -> Values:
    name = str(_value(keys, kind, "activation_function", "silu"))
    if name not in ACTIVATIONS:
        keys.refuse("model.activation_function", f"must be one of {', '.join(ACTIVATIONS)}")
    found = ACTIVATIONS.get(name, "silu")
    return {} if found == "silu" else {"activation": found}


def _attention(keys: LevanterKeys, kind: Kind) -> Values:
    """Scales and caps of scores and logits; none where a number is left out."""
    said: Values = {}
    if scalar := _number(keys, kind, "query_pre_attn_scalar", 0.0):
        said["attention_scale"] = max(scalar, 1e-9) ** -0.5
    for key, ours in kind.numbers.items():
        if cap := _number(keys, kind, key, 0.0):
            said[ours] = cap
    return said


def _experts(keys: LevanterKeys) -> Values:
    """No choice of an expert is dropped."""
    shared = keys.whole("model", "n_shared_experts", 0)
    return {
        "experts": keys.whole("model", "n_routed_experts", 8),
        "top_k": keys.whole("model", "num_experts_per_tok", 2),
        **({"shared_experts": shared} if shared else {}),
        "balance_loss": keys.number("model", "lbl_coef", 0.01),
        "z_loss": keys.number("model", "rzl_coef", 0.001),
    }


def _vocabulary(keys: LevanterKeys) -> int:
    tokenizer = str(keys.get("data", "tokenizer", ""))
    for begin, size in VOCABULARIES.items():
        if tokenizer == begin or ("/" in begin and tokenizer.startswith(begin)):
            return size
    why = f"{tokenizer} is not known" if tokenizer else "is missing"
    keys.refuse("data.tokenizer", f"{why}; say how many words it has with --vocab")
    return 2


def _rope(keys: LevanterKeys) -> Values:
    rope = keys.get("model", "rope", {})
    rope = rope if isinstance(rope, Mapping) else {"type": rope}
    kind = rope.get("type", "default")
    known = ROPES.get(kind, {}) if isinstance(kind, str) else {}
    if not known or rope.keys() - {"type", *known}:
        keys.refuse("model.rope", f"must be of type {', '.join(ROPES)}, with its own keys alone")
        return {}
    said = {ours: rope.get(key, usual) for key, (ours, usual) in known.items()}
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in said.values()):
        keys.refuse("model.rope", "must have numbers")
        return {}
    found = {"rope_theta": float(said.pop("rope_theta"))}
    if kind == "yarn":  # Levanter turns queries and keys by the root of YaRN's factor
        said["attention_factor"] = yarn_growth(said["factor"], said.pop("mscale")) ** 0.5
    if said["factor"] == 1:
        return found
    return found | {"rope_scaling": {"kind": "linear" if kind == "default" else kind, **said}}
