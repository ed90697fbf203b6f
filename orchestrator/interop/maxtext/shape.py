"""The shape of a MaxText model in the words of a spec."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import log2
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.interop.maxtext.used_keys import OFF, UsedKeys
from orchestrator.network import rematerialization
from orchestrator.network.attention import yarn_growth
from orchestrator.network.rematerialization import POLICIES, Policy, remat_of, treatments
from orchestrator.values.model import Model

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
        "qk_norm": "head",
        "window_pattern": "LLLLLG",
    },
    "gpt_oss": {"window_pattern": "LG", "output_bias": True, "activation": "clamped_swiglu"},
    "deepseek": {},
}
# The gate of gpt-oss: x times the sigmoid of 1.702 x, where both are clipped.
GPT_OSS_MLP, GPT_OSS_LIMIT = ["sigmoid", "linear"], 7
# Gemma's largest scale scores by the width over the heads, not by the head's own.
SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3", 62)}
LLAMA_3_1 = {"kind": "llama3", "factor": 8.0}
ACTIVATIONS = ("silu", "gelu")
# Keys that other blocks do not read.
ONLY_IN = {
    "use_qk_norm": ("qwen2", "qwen3", "qwen3_moe", "gemma3"),
    "attention_bias": ("qwen2", "gpt_oss"),
    "attn_logits_soft_cap": ("llama2", "gemma2", "gemma3", "deepseek"),
    "mlp_bias": ("gpt_oss",),
}
MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek")
# They are about DeepSeek's mixtures alone.
OF_DEEPSEEK = ("shared_experts", "first_num_dense_layers", "n_routing_groups", "topk_routing_group")
# The length of sequences at first, and how many times longer they become, where no key says it.
FIRST_LENGTH, LONGER = 4096, 40
# They are about rope_type=yarn alone.
YARN = (
    "rope_factor",
    "beta_fast",
    "beta_slow",
    "rope_truncate",
    "rope_attention_scaling",
    "original_max_position_embeddings",
)


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
        **_mlp(keys, block),
        **_attention(keys, block),
        **_rotary(keys),
    }
    if block == "deepseek":
        model |= _latent(keys, model)
    model |= {key: value for key, value in BLOCKS[block].items() if key != "window_pattern"}
    if (block, sizes["layers"]) in SCALED_BY_WIDTH:
        model["attention_scale"] = (sizes["d_model"] / max(sizes["heads"], 1)) ** -0.5
    for key in ("use_post_attn_norm", "use_post_ffw_norm"):
        if keys.is_on(key) and BLOCKS[block].get("norm_placement") != "both":
            keys.refuse(key, f"is not served in a {block} block")
    if keys.whole("num_experts") > 1:
        model["moe"] = _mixture(keys, block)
    _check_block(keys, block)
    return model


def _check_block(keys: UsedKeys, block: str) -> None:
    """Refuse what is on and has no effect in such a block."""
    for key, blocks in ONLY_IN.items():
        if keys.is_on(key) and block not in blocks:
            keys.refuse(key, f"has no effect in a {block} block")
    if keys.whole("num_experts") > 1 and block not in MIXTURES:
        keys.refuse("num_experts", f"has no effect in a {block} block")


def in_catalog(values: dict[str, Any]) -> dict[str, Any]:
    """The model of the catalog where it is one of them, with its name, else the same."""
    try:
        found = comparable(msgspec.convert(values, Model, strict=False))
    except msgspec.ValidationError:  # whoever loads the spec says what is wrong
        return values
    for known in map(catalog.model, catalog.models()):
        if known.mtp_layers == 0 and comparable(known) == found:
            moe = asdict(known.moe) if known.moe else {}
            said = {key: value for key, value in moe.items() if value is not None}
            mixture = {"moe": said} if said else {}
            return values | {"name": known.name, "d_ff": known.d_ff} | mixture
    return values


def comparable(model: Model) -> Model:
    """A model without what MaxText computes alike: names, loads, and an MLP that no layer has."""
    moe = model.moe
    if moe is not None:
        width = moe.d_ff or model.d_ff
        has_mlp = moe.dense_layers > 0 or moe.every > 1
        model = replace(model, d_ff=model.d_ff if has_mlp else width)
        moe = replace(moe, d_ff=width, imbalance=1.0)
    activation = model.activation or ("silu" if model.gated else "gelu")
    return replace(model, name="model", mtp_layers=0, activation=activation, moe=moe)


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


def _mlp(keys: UsedKeys, block: str) -> dict[str, Any]:
    activations = keys["mlp_activations"]
    if not isinstance(activations, list) or not activations:
        keys.refuse("mlp_activations", "must be a list, such as ['silu','linear']")
        return {}
    limit = keys["mlp_activations_limit"]
    if block == "gpt_oss":
        if activations != GPT_OSS_MLP or limit != GPT_OSS_LIMIT:
            keys.refuse("mlp_activations", f"must be {GPT_OSS_MLP} with a limit of 7 in gpt_oss")
        keys.accept("mlp_bias")  # that of its experts
        return {"gated": True}
    if limit not in OFF:
        keys.refuse("mlp_activations_limit", f"is not served in a {block} block")
    gated = activations[1:] == ["linear"]
    if (not gated and len(activations) > 1) or activations[0] not in ACTIVATIONS:
        keys.refuse(
            "mlp_activations", f"must be one of {', '.join(ACTIVATIONS)}, then linear or nothing"
        )
    mlp: dict[str, Any] = {"gated": gated}
    if activations[0] != ("silu" if gated else "gelu"):
        mlp["activation"] = activations[0]
    return mlp


def _attention(keys: UsedKeys, block: str) -> dict[str, Any]:
    kind, said = keys["attention_type"], dict[str, Any]()
    if kind not in ("global", "local_sliding") and (block, kind) != ("deepseek", "mla"):
        keys.refuse("attention_type", "must be global, local_sliding, or mla in a deepseek block")
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
            "factor": float(keys.number("rope_factor", LONGER)),
            "original_length": keys.whole("original_max_position_embeddings", FIRST_LENGTH),
            "beta_fast": float(keys.number("beta_fast", 32)),
            "beta_slow": float(keys.number("beta_slow", 1)),
            "truncate": keys["rope_truncate"] is not False,
        }
        if not keys.is_on("rope_attention_scaling"):
            said["rope_scaling"]["attention_factor"] = 1.0
    elif kind != "default":
        keys.refuse("rope_type", "must be default, llama3.1 or yarn")
    keys.accept(*YARN)
    return said


def _latent(keys: UsedKeys, model: dict[str, Any]) -> dict[str, Any]:
    """Latent attention, whose scores MaxText scales where sequences are stretched."""
    latent = {
        "kv_rank": keys.whole("kv_lora_rank", 512),
        "nope_dim": keys.whole("qk_nope_head_dim", 128),
        "rope_dim": keys.whole("qk_rope_head_dim", 64),
        "value_dim": keys.whole("v_head_dim", 128),
    }
    if rank := keys.whole("q_lora_rank"):
        latent["query_rank"] = rank
    width = latent["nope_dim"] + latent["rope_dim"]
    said: dict[str, Any] = {"latent": latent, "head_dim": width, "kv_heads": model["heads"]}
    original = keys.whole("original_max_position_embeddings", FIRST_LENGTH)
    if keys.whole("max_position_embeddings", 163_840) > original:
        growth = yarn_growth(keys.number("rope_factor", LONGER), keys.number("mscale", 1))
        said["attention_scale"] = max(width, 1) ** -0.5 * growth**2
    return said


def _mixture(keys: UsedKeys, block: str) -> dict[str, Any]:
    mixture: dict[str, Any] = {
        "experts": keys.whole("num_experts"),
        "top_k": keys.whole("num_experts_per_tok"),
        "normalized": block != "deepseek" or keys["routed_score_func"] == "sigmoid",
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
            if theirs in OF_DEEPSEEK and block != "deepseek":
                keys.refuse(theirs, f"has no effect in a {block} block")
    keys.accept("norm_topk_prob")  # the softmax of the chosen scores has a sum of one before it
    if keys["routed_score_func"]:
        mixture["router"] = keys["routed_score_func"]
    if block == "gpt_oss":
        mixture |= {"biases": keys.is_on("mlp_bias"), "router_bias": keys.is_on("routed_bias")}
    elif keys.is_on("routed_bias"):
        mixture["balance_bias"] = float(keys.number("routed_bias_update_rate", 0.001))
    capacity = keys.number("capacity_factor")
    if capacity > 0:
        mixture["capacity_factor"] = float(capacity)
    if keys.is_on("use_random_routing"):
        keys.note("use_random_routing: the plan takes loads as its router gives them")
    return mixture


# The training of a MaxText run as a spec has it: optimizer, schedule, types, recomputation.


TYPES = {"float32": "fp32", "bfloat16": "bf16"}
QUANTIZED = ("fp8", "int8")
PLACES = ("device", "offload", "remat")
DIGITS = 12  # of a rate that is a share of another
ADAM = ("adamw", "adam_pax")  # the same states, and one update of each weight


@dataclass(frozen=True)
class StepCounts:
    """The steps that the schedule of the learning rate is made for, and those that are run."""

    planned: int
    run: int


def steps_of(keys: UsedKeys) -> StepCounts:
    """Each is the other's where one is -1."""
    run, planned = keys.whole("steps"), keys.whole("learning_rate_schedule_steps", -1)
    planned = run if planned == -1 else planned
    run = planned if run == -1 else run
    if run < 1 or planned < 1:
        keys.refuse("steps", "must be positive")
    if run > planned:
        keys.note(f"the last {run - planned} steps have a learning rate of 0: they are left out")
    return StepCounts(planned=max(planned, 1), run=max(min(run, planned), 1))


def training_of(keys: UsedKeys, steps: StepCounts) -> dict[str, Any]:
    """The optimizer, its schedule, and the types."""
    if keys["opt_type"] not in ADAM:
        keys.refuse("opt_type", f"must be one of {', '.join(ADAM)}")
    optimizer = {
        **_schedule(keys, steps),
        "beta1": float(keys.number("adam_b1")),
        "beta2": float(keys.number("adam_b2")),
        "epsilon": float(keys.number("adam_eps")),
        "weight_decay": float(keys.number("adam_weight_decay")),
        "z_loss": float(keys.number("z_loss_multiplier", 0.0)),
    }
    clip = keys.number("gradient_clipping_threshold")
    if clip > 0:
        optimizer["clip_norm"] = float(clip)
    else:
        keys.note("gradient_clipping_threshold=0: the plan's optimizer clips at a norm of 1")
    return {"optimizer": optimizer, "precision": _precision(keys)}


def _schedule(keys: UsedKeys, steps: StepCounts) -> dict[str, Any]:
    """How the learning rate rises and falls, over all steps of the schedule."""
    rate, kind = float(keys.number("learning_rate")), keys.word("lr_schedule_type")
    last = float(f"{rate * keys.number(_final_fraction(keys)):.{DIGITS}g}")
    warmup = int(steps.planned * keys.number("warmup_steps_fraction"))
    said = {"peak_lr": rate, "end_lr": last, "warmup_steps": warmup}
    if kind == "cosine":
        keys.accept("wsd_decay_steps_fraction", "wsd_decay_style")
        return said
    if kind != "wsd":
        keys.refuse("lr_schedule_type", "must be cosine or wsd")
    falling = int(steps.planned * keys.number("wsd_decay_steps_fraction"))
    if falling not in (0, steps.planned - warmup):
        keys.refuse("wsd_decay_steps_fraction", "the rate must fall at no step, or at all")
    if falling and keys["wsd_decay_style"] == "cosine":
        return said
    return said | {"decay": "linear" if falling else "constant"}


def _final_fraction(keys: UsedKeys) -> str:
    """The key of the last rate, which older releases call by another name."""
    older = "cosine_learning_rate_final_fraction"
    return older if keys[older] is not None else "learning_rate_final_fraction"


def _precision(keys: UsedKeys) -> dict[str, str]:
    types = {"compute": _compute(keys), "parameters": _type(keys, "weight_dtype")}
    keys.accept("grad_dtype")  # devices send gradients in the type of activations in either
    sent = {"gradients": "fp32"} if types["compute"] == "fp32" else {}
    moments = {"optimizer": types["parameters"]}
    first = _type(keys, "mu_dtype") if keys.is_on("mu_dtype") else types["parameters"]
    if first != types["parameters"]:
        moments["first_moment"] = first
    return {**types, **sent, **moments}


def _compute(keys: UsedKeys) -> str:
    """The type of matrix multiplications: quantized, or that of activations."""
    of_activations, name = _type(keys, "dtype"), str(keys["quantization"] or "")
    for quantized in QUANTIZED:
        if name == quantized or name.startswith(f"{quantized}_"):
            return quantized
    if name:
        keys.refuse("quantization", f"must be one of {', '.join(QUANTIZED)}, fp8_full, or off")
    return of_activations


def _type(keys: UsedKeys, key: str) -> str:
    name = keys.word(key)
    if name not in TYPES:
        keys.refuse(key, f"must be one of {', '.join(TYPES)}")
    return TYPES.get(name, "bf16")


def remat_of_keys(keys: UsedKeys, *, latent: bool, gated: bool) -> Any:
    """The policy for such a model, by name or tensor by tensor."""
    one = _policy(keys)
    written = treatments(one, latent=latent, gated=gated)
    for name, known in POLICIES.items():
        if treatments(known, latent=latent, gated=gated) == written:
            return name
    remat = remat_of(one)
    return remat if isinstance(remat, str) else asdict(remat)


def _policy(keys: UsedKeys) -> Policy:
    name = keys.word("remat_policy")
    tensors = {one: keys[one] for one in rematerialization.TENSORS if keys[one] is not None}
    if name == "custom":
        return _custom(keys, tensors)
    if name == "none":
        keys.note("remat_policy=none: MaxText recomputes each layer of a scan, as with full")
        return POLICIES["full"]
    if name not in rematerialization.NAMED:
        keys.refuse("remat_policy", f"must be one of {', '.join(rematerialization.NAMED)}, custom")
        return POLICIES["full"]
    if any(keys.is_given(one) and place != "remat" for one, place in tensors.items()):
        keys.note(f"remat_policy={name}: the places of single tensors have no effect")
    return rematerialization.NAMED[name]


def _custom(keys: UsedKeys, tensors: Mapping[str, Any]) -> Policy:
    for tensor, place in tensors.items():
        if place not in PLACES:
            keys.refuse(tensor, f"must be one of {', '.join(PLACES)}")
    known = {tensor: place for tensor, place in tensors.items() if place in PLACES}
    return rematerialization.custom(known)
