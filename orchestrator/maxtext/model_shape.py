"""The shape of a MaxText model in the words of a spec."""

from math import log2
from typing import Any

from orchestrator.maxtext.used_keys import UsedKeys

# What a decoder block computes that no key says.
BLOCKS: dict[str, dict[str, Any]] = {
    "llama2": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
    "gemma": {"embedding_scale": True, "norm_offset": True},
    "gemma2": {
        "embedding_scale": True,
        "norm_offset": True,
        "norm_placement": "both",
        "window_pattern": "LG",
    },
    "gemma3": {
        "embedding_scale": True,
        "norm_offset": True,
        "norm_placement": "both",
        "window_pattern": "LLLLLG",
    },
    "gpt_oss": {"window_pattern": "LG", "output_bias": True},
}
# Gemma's largest scale scores by the width over the heads, not by the head's own.
SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3", 62)}
LLAMA_3_1 = {"kind": "llama3", "factor": 8.0}


def model_of(keys: UsedKeys) -> dict[str, Any]:
    """The model; what no spec can say is refused by its key."""
    block = keys.word("decoder_block")
    if block not in BLOCKS:
        keys.refuse("decoder_block", f"must be one of {', '.join(BLOCKS)}")
        block = "llama2"
    sizes = _sizes(keys)
    model = {
        "name": _name(keys),
        **sizes,
        "tied": bool(keys["logits_via_embedding"]),
        "rope_theta": float(keys.number("rope_max_timescale")),
        "norm_epsilon": float(keys.number("normalization_layer_epsilon")),
        **_mlp(keys),
        **_attention(keys, block),
        **_rotary(keys),
    }
    model |= {key: value for key, value in BLOCKS[block].items() if key != "window_pattern"}
    if (block, sizes["layers"]) in SCALED_BY_WIDTH:
        model["attention_scale"] = (sizes["d_model"] / max(sizes["heads"], 1)) ** -0.5
    for key in ("use_post_attn_norm", "use_post_ffw_norm"):
        if keys.is_on(key) and BLOCKS[block].get("norm_placement") != "both":
            keys.refuse(key, f"is not served in a {block} block")
    if keys.whole("num_experts") > 1:
        model["moe"] = _mixture(keys, block)
    return model


def _name(keys: UsedKeys) -> str:
    name = str(keys["model_name"])
    return "maxtext" if name == "default" else name.replace(".", "-").replace("_", "-").lower()


def _sizes(keys: UsedKeys) -> dict[str, int]:
    """Sizes, grown by the global scale: a power of two that is spread over widths and layers."""
    scale = keys.whole("global_parameter_scale")
    if scale < 1 or scale & (scale - 1):
        keys.refuse("global_parameter_scale", "must be a power of two")
        scale = 1
    base, rest = divmod(int(log2(scale)), 3)
    heads, width = 2 ** (base + (rest > 0)), 2 ** (base + (rest > 1))
    return {
        "layers": 2**base * keys.whole("base_num_decoder_layers"),
        "d_model": width * keys.whole("base_emb_dim"),
        "d_ff": heads * keys.whole("base_mlp_dim"),
        "heads": heads * keys.whole("base_num_query_heads"),
        "kv_heads": heads * keys.whole("base_num_kv_heads"),
        "head_dim": keys.whole("head_dim"),
        "vocab": keys.whole("vocab_size"),
    }


def _mlp(keys: UsedKeys) -> dict[str, Any]:
    activations = keys["mlp_activations"]
    if not isinstance(activations, list) or not activations:
        keys.refuse("mlp_activations", "must be a list, such as ['silu','linear']")
        return {}
    gated = activations[1:] == ["linear"]
    if not gated and len(activations) > 1:
        keys.refuse("mlp_activations", "the second one must be linear")
    if keys.is_on("mlp_activations_limit"):
        keys.note("mlp_activations_limit: the plan's MLP is not clipped, which costs no time")
    mlp: dict[str, Any] = {"gated": gated}
    if activations[0] == "sigmoid":  # gpt-oss: x times sigmoid of 1.7 x
        keys.note("mlp_activations: sigmoid is planned as silu, which costs as much")
    elif (activations[0], gated) != ("silu", True):
        mlp["activation"] = activations[0]
    if keys.is_on("mlp_bias"):
        mlp["mlp_bias"] = True
    return mlp


def _attention(keys: UsedKeys, block: str) -> dict[str, Any]:
    kind, said = keys["attention_type"], dict[str, Any]()
    if kind not in ("global", "local_sliding"):
        keys.refuse("attention_type", "must be global or local_sliding")
    pattern = "L" if kind == "local_sliding" else BLOCKS[block].get("window_pattern")
    window = keys.whole("sliding_window_size")
    if window > 0 and pattern:
        said |= {"window": window, "window_pattern": pattern}
    elif window > 0:
        keys.note(f"sliding_window_size={window}: a {block} block attends to the whole sequence")
    keys.accept("inhomogeneous_layer_cycle_interval")  # the pattern says it
    if keys.is_on("use_qk_norm"):
        said["qk_norm"] = "head"
    if keys.is_on("attention_bias"):
        said["qkv_bias"] = True
    if keys.is_on("attention_sink"):
        said["sinks"] = True
    for ours, theirs in (
        ("attention_cap", "attn_logits_soft_cap"),
        ("logit_cap", "final_logits_soft_cap"),
    ):
        if keys.is_on(theirs):
            said[ours] = float(keys.number(theirs))
    return said


def _rotary(keys: UsedKeys) -> dict[str, Any]:
    """RoPE where it is stretched, or has another base in layers with a window."""
    said: dict[str, Any] = {}
    if keys.is_on("local_rope_max_timescale"):
        said["local_rope_theta"] = float(keys.number("local_rope_max_timescale"))
    linear = keys.number("rope_linear_scaling_factor", 1.0)
    if linear != 1:
        said["rope_scaling"] = {"kind": "linear", "factor": float(linear)}
    kind = keys["rope_type"]
    if kind == "llama3.1":
        said["rope_scaling"] = LLAMA_3_1
    elif kind == "yarn":
        said["rope_scaling"] = {
            "kind": "yarn",
            "factor": float(keys.number("rope_factor", 40)),
            "original_length": keys.whole("original_max_position_embeddings", 4096),
            "beta_fast": float(keys.number("beta_fast", 32)),
            "beta_slow": float(keys.number("beta_slow", 1)),
        }
    elif kind != "default":
        keys.refuse("rope_type", "must be default, llama3.1 or yarn")
    keys.accept("rope_truncate", "rope_attention_scaling")  # they change no cost
    return said


def _mixture(keys: UsedKeys, block: str) -> dict[str, Any]:
    mixture: dict[str, Any] = {
        "experts": keys.whole("num_experts"),
        "top_k": keys.whole("num_experts_per_tok"),
        "normalized": bool(keys["norm_topk_prob"]) or block in ("mixtral", "gpt_oss"),
        "scale": float(keys.number("routed_scaling_factor")),
        "balance_loss": float(keys.number("load_balance_loss_weight", 0.0)),
    }
    for ours, theirs, off in (
        ("d_ff", "base_moe_mlp_dim", -1),
        ("shared_experts", "shared_experts", 0),
        ("dense_layers", "first_num_dense_layers", 0),
        ("every", "interleave_moe_layer_step", 1),
        ("groups", "n_routing_groups", -1),
        ("top_groups", "topk_routing_group", -1),
    ):
        size = keys.whole(theirs, off)
        if size != off:
            mixture[ours] = size
    if keys["routed_score_func"]:
        mixture["router"] = keys["routed_score_func"]
    if keys.is_on("routed_bias"):
        mixture["balance_bias"] = float(keys.number("routed_bias_update_rate", 0.001))
    capacity = keys.number("capacity_factor")
    if capacity > 0:
        mixture["capacity_factor"] = float(capacity)
    if keys.is_on("use_random_routing"):
        keys.note("use_random_routing: the plan takes loads as its router gives them")
    return mixture
