"""A model of a spec in MaxText's keys."""

import math
from typing import Any

import msgspec

from orchestrator.maxtext.model_shape import (
    FIRST_LENGTH,
    GPT_OSS_LIMIT,
    GPT_OSS_MLP,
    LONGER,
    comparable,
    model_of,
)
from orchestrator.maxtext.recipe import Recipe, Setting
from orchestrator.maxtext.used_keys import DEFAULTS, UsedKeys, models
from orchestrator.network.rotary import yarn_growth
from orchestrator.types.model import Model, RopeScaling
from orchestrator.types.moe import MixtureOfExperts

Keys = dict[str, Any]
OVERRIDE = "override_model_config"  # lets words change what MaxText's model says
REFUSED_NAMES = ("llama3-405b",)  # MaxText 0.2.5 has their files, and its runs refuse the names
# What MaxText's models leave to the training.
OF_TRAINING = frozenset({"load_balance_loss_weight", "capacity_factor", "routed_bias_update_rate"})
# Blocks in which MaxText asks for the name of the model too, and what may differ from its model.
NAMED_ALONE = ("deepseek", "gemma2", "gemma3")
OF_NAMED = frozenset({"n_routing_groups", "topk_routing_group", "vocab_size"})
OF_NAMED |= {"rope_type", "rope_max_timescale", "max_position_embeddings"}
MSCALE_DIGITS = 12  # what published shares are rounded to, and no plan notices


def keys_of_model(model: Model) -> Keys:
    """The model by MaxText's name where it has one, else by its sizes.

    A model that MaxText does not have is not the one that these keys say.
    """
    keys = _keys(model)
    for name, of_name in models().items():
        if of_name.get("decoder_block") == keys["decoder_block"] and name not in REFUSED_NAMES:
            words = _by_name(name, keys)
            if words is not None and shape_of(words) == comparable(model):
                return words
    return {"model_name": "default", **keys}


def shape_of(words: Keys) -> Model | None:
    """The model that keys are about; None where they are about none."""
    keys = UsedKeys(Recipe({key: Setting(value, "") for key, value in words.items()}))
    found = model_of(keys)
    if keys.problems or (keys["decoder_block"] in NAMED_ALONE and words["model_name"] == "default"):
        return None
    return comparable(msgspec.convert(found, Model, strict=False))


def _by_name(name: str, keys: Keys) -> Keys | None:
    """The model of that name with the keys that differ; None where these are its sizes."""
    of_name = models()[name]
    others = {
        key: value for key, value in keys.items() if of_name.get(key, DEFAULTS.get(key)) != value
    }
    may_differ = OF_TRAINING | (OF_NAMED if keys["decoder_block"] in NAMED_ALONE else set())
    if others.keys() - may_differ:
        return None
    override = {OVERRIDE: True} if others.keys() & of_name.keys() else {}
    return {"model_name": name, **override, **others}


def _keys(model: Model) -> Keys:
    block = _block(model)
    keys = {
        "decoder_block": block,
        "base_num_decoder_layers": model.layers,
        "base_emb_dim": model.d_model,
        "base_mlp_dim": comparable(model).d_ff,
        "base_num_query_heads": model.heads,
        "base_num_kv_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "logits_via_embedding": model.tied,
        "normalization_layer_epsilon": model.norm_epsilon,
        **_mlp(model, block),
        **_rope(model),
        **_attention(model, block),
    }
    return keys | (_mixture(model.moe, model, block) if model.moe else {})


def _block(model: Model) -> str:
    """The block of MaxText that computes such layers."""
    moe = model.moe
    if model.norm_offset:
        patterns = {"LG": "gemma2", "LLLLLG": "gemma3"}
        return patterns.get(model.window_pattern, "gemma") if model.window else "gemma"
    if model.activation == "clamped_swiglu":
        return "gpt_oss"
    if model.latent:
        return "deepseek"
    if model.qk_norm == "head":
        return "qwen3_moe" if moe else "qwen3"
    if model.qkv_bias:
        return "qwen2"
    return "mixtral" if moe else "llama2"


def _mlp(model: Model, block: str) -> Keys:
    if block == "gpt_oss":
        biased = model.moe is not None and model.moe.biases
        return {
            "mlp_activations": GPT_OSS_MLP,
            "mlp_activations_limit": float(GPT_OSS_LIMIT),
            "mlp_bias": biased,
        }
    activations = [comparable(model).activation, *(["linear"] if model.gated else [])]
    return {"mlp_activations": activations} | ({"mlp_bias": True} if model.mlp_bias else {})


def _attention(model: Model, block: str) -> Keys:
    if model.latent is not None:
        return {
            "attention_type": "mla",
            "q_lora_rank": model.latent.query_rank or 0,
            "kv_lora_rank": model.latent.kv_rank,
            "qk_nope_head_dim": model.latent.nope_dim,
            "qk_rope_head_dim": model.latent.rope_dim,
            "v_head_dim": model.latent.value_dim,
            **_scores(model),
        }
    keys: Keys = {"head_dim": model.head_dim}
    keys |= {"sliding_window_size": model.window} if model.window else {}
    if model.qk_norm != "none" and block != "gemma3":  # which always has it
        keys["use_qk_norm"] = True
    keys |= {"attention_bias": True} if model.qkv_bias else {}
    keys |= {"attention_sink": True} if model.sinks else {}
    keys |= {"attn_logits_soft_cap": model.attention_cap} if model.attention_cap else {}
    keys |= {"final_logits_soft_cap": model.logit_cap} if model.logit_cap else {}
    if block in ("gemma2", "gemma3"):
        keys |= {"use_post_attn_norm": True, "use_post_ffw_norm": True}
    return keys


def _scores(model: Model) -> Keys:
    """How latent attention scales scores: more where sequences are longer than at first.

    MaxText's growth is 1 + 0.1 x mscale x ln(rope_factor), squared, also without YaRN.
    """
    first, factor = FIRST_LENGTH, float(LONGER)
    if (scaling := model.rope_scaling) is not None and scaling.kind == "yarn":
        first, factor = scaling.original_length or first, scaling.factor
    if model.attention_scale is None or factor <= 1:
        return {"max_position_embeddings": first}
    growth = math.sqrt(model.attention_scale * math.sqrt(model.head_dim))
    share = round((growth - 1) / (yarn_growth(factor) - 1), MSCALE_DIGITS)
    longer = {"max_position_embeddings": math.ceil(first * factor)}
    return longer | ({"mscale": share} if share != 1 else {})


def _rope(model: Model) -> Keys:
    keys: Keys = {"rope_max_timescale": int(model.rope_theta)}
    if model.local_rope_theta:
        keys["local_rope_max_timescale"] = int(model.local_rope_theta)
    scaling = model.rope_scaling or RopeScaling(kind="linear", factor=1.0)
    if scaling.kind == "llama3":
        return keys | {"rope_type": "llama3.1"}
    if scaling.kind == "linear":
        factor = {"rope_linear_scaling_factor": scaling.factor} if model.rope_scaling else {}
        return keys | {"rope_type": "default"} | factor
    return keys | {
        "rope_type": "yarn",
        "rope_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_length,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "rope_truncate": scaling.truncate,
        "rope_attention_scaling": scaling.attention_factor is None,
    }


def _mixture(moe: MixtureOfExperts, model: Model, block: str) -> Keys:
    keys: Keys = {
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "base_moe_mlp_dim": moe.d_ff or model.d_ff,
        "load_balance_loss_weight": moe.balance_loss,
    }
    if block == "deepseek":
        keys |= _deepseek(moe)
    if block == "gpt_oss":
        keys["routed_bias"] = moe.router_bias
    if moe.capacity_factor:
        keys["capacity_factor"] = moe.capacity_factor
    return keys


def _deepseek(moe: MixtureOfExperts) -> Keys:
    """What no other block of MaxText has."""
    keys: Keys = {"first_num_dense_layers": moe.dense_layers, "shared_experts": moe.shared_experts}
    keys |= {"routed_scaling_factor": moe.scale, "routed_score_func": moe.router}
    if moe.groups > 1:
        keys |= {"n_routing_groups": moe.groups, "topk_routing_group": moe.top_groups}
    if moe.balance_bias is not None:
        keys |= {"routed_bias": True, "routed_bias_update_rate": moe.balance_bias}
    return keys
