"""A plan in the keys of MaxText's command."""

import math
from typing import Any

import msgspec

from orchestrator.interop.maxtext import conversion
from orchestrator.interop.maxtext.recipe import Recipe, Setting
from orchestrator.interop.maxtext.used_keys import AXES, DEFAULTS, TABLES, UsedKeys, models
from orchestrator.network import rematerialization
from orchestrator.network.attention import yarn_growth
from orchestrator.network.decoder import decoder
from orchestrator.network.rematerialization import Policy, policy, treatments
from orchestrator.planning.flops import head_of
from orchestrator.planning.kernels import attention_block, block_sizes, loss_chunk_bytes
from orchestrator.planning.layout import DTYPE_BYTES, activation_type
from orchestrator.values.codec import Treatment
from orchestrator.values.model import Model
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Remat

_Keys = dict[str, Any]
_OVERRIDE = "override_model_config"  # lets words change what MaxText's model says
_REFUSED_NAMES = ("llama3-405b",)  # MaxText 0.2.5 has their files, and its runs refuse the names
# What MaxText's models leave to the training.
_OF_TRAINING = frozenset(
    {"load_balance_loss_weight", "capacity_factor", "sparse_matmul", "routed_bias_update_rate"}
)
# Blocks in which MaxText asks for the name of the model too, and what may differ from its model.
_NAMED_ALONE = ("deepseek", "gemma2", "gemma3")
_OF_NAMED = frozenset({"n_routing_groups", "topk_routing_group", "vocab_size"})
_OF_NAMED |= {"rope_type", "rope_max_timescale", "max_position_embeddings"}
_MSCALE_DIGITS = 12  # published shares are rounded to fewer
_THEIR_TYPES = {ours: theirs for theirs, ours in conversion.TYPES.items()}
# The types in which blocks' matrices multiply, where it is not the type of activations.
_QUANTIZED = {"int8": "int8", "fp8": "fp8_full"}
# MaxText's names of the tensors that a policy keeps or offloads.
_PLACES = {"keep": "device", "offload": "offload", "recompute": "remat"}
_NAMES: dict[str, list[str]] = TABLES["tensors"]
_OF_EXPERTS = {"gate": "moe_mlpwi_0", "up": "moe_mlpwi_1"}
_UNGATED_UP = "mlpwi"
_LOGIT_BYTES = 4  # fp32
_LOGITS_HELD = 3.5  # how often MaxText's programs held them, at most
_UNUSED = ("none", "minimal_flash")  # it recomputes all; an older name of minimal_with_context


# A model of a spec in MaxText's keys.


def _keys_of_model(model: Model) -> _Keys:
    """Return the model by MaxText's name where it has one, else by its sizes. A model that MaxText
    does not have is not the one that these keys say.
    """
    block = _block(model)
    keys = {
        "decoder_block": block,
        "base_num_decoder_layers": model.layers,
        "base_emb_dim": model.d_model,
        "base_mlp_dim": conversion.comparable(model).d_ff,
        "base_num_query_heads": model.heads,
        "base_num_kv_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "logits_via_embedding": model.tied,
        "normalization_layer_epsilon": model.norm_epsilon,
        **_mlp(model, block),
        **_rope(model),
        **(_latent(model) if model.latent else _attention(model, block)),
        **_mixture(model, block),
    }
    may_differ = _OF_TRAINING | (_OF_NAMED if block in _NAMED_ALONE else frozenset())
    for name, of_name in models().items():
        if of_name.get("decoder_block") != block or name in _REFUSED_NAMES:
            continue
        usual = DEFAULTS | of_name
        others = {key: value for key, value in keys.items() if usual.get(key) != value}
        if not others.keys() - may_differ:
            override = {_OVERRIDE: True} if others.keys() & of_name.keys() else {}
            words = {"model_name": name, **override, **others}
            if _shape_of(words) == conversion.comparable(model):
                return words
    return {"model_name": "default", **keys}


def _shape_of(words: _Keys) -> Model | None:
    """Return the model that keys are about; None where they are about none."""
    keys = UsedKeys(Recipe({key: Setting(value, "") for key, value in words.items()}))
    found = conversion.model_of(keys)
    is_unnamed = keys["decoder_block"] in _NAMED_ALONE and words["model_name"] == "default"
    if keys.problems or is_unnamed:
        return None
    return conversion.comparable(msgspec.convert(found, Model, strict=False))


def model_of_plan(plan: Plan) -> Model:
    counted = {"parameters", "active_parameters"}
    said = {k: v for k, v in msgspec.to_builtins(plan.model).items() if k not in counted}
    return msgspec.convert(said, Model)


def _block(model: Model) -> str:
    """Return the block of MaxText that computes such layers."""
    moe = model.moe
    if model.learned_positions:
        return "gpt3"
    if model.value_norm:
        return "gemma4"
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


def _mlp(model: Model, block: str) -> _Keys:
    if block == "gpt_oss":
        return {
            "mlp_activations": conversion.GPT_OSS_MLP,
            "mlp_activations_limit": float(conversion.GPT_OSS_LIMIT),
            "mlp_bias": model.moe is not None and model.moe.biases,
        }
    activations = [conversion.comparable(model).activation, *(["linear"] if model.gated else [])]
    bias = {"mlp_bias": True} if model.mlp_bias and block != "gpt3" else {}  # which always has it
    return {"mlp_activations": activations} | bias


def _attention(model: Model, block: str) -> _Keys:
    in_both, is_gemma_4 = block in ("gemma2", "gemma3", "gemma4"), block == "gemma4"
    keys: _Keys = {
        "sliding_window_size": model.window,
        "use_qk_norm": model.qk_norm != "none" and block not in ("gemma3", "gemma4"),
        "attention_bias": model.qkv_bias and block != "gpt3",
        "trainable_position_size": model.learned_positions,
        "share_kv_projections": model.keys_as_values,
        **{theirs: getattr(model, ours) for ours, theirs in conversion.GLOBAL_SIZES.items()},
        "attention_sink": model.sinks,
        "attn_logits_soft_cap": model.attention_cap,
        "final_logits_soft_cap": model.logit_cap,
        "use_post_attn_norm": in_both,
        "use_post_ffw_norm": in_both,
    }
    keys = {"head_dim": model.head_dim} | {key: value for key, value in keys.items() if value}
    share = model.global_rotary_share or 1.0
    return keys | (
        {"v_norm_with_scale": False, "global_rope_proportion": share} if is_gemma_4 else {}
    )


def _latent(model: Model) -> _Keys:
    """Return latent attention and the scale of its scores, as MaxText's growth with longer
    sequences: (1 + 0.1 x mscale x ln(rope_factor)) squared, also without YaRN.
    """
    latent, scaling = model.latent, model.rope_scaling
    assert latent is not None
    first, factor = conversion.FIRST_LENGTH, float(conversion.LONGER)
    if scaling is not None and scaling.kind == "yarn":
        first, factor = scaling.original_length or first, scaling.factor
    scores: _Keys = {"max_position_embeddings": first}
    if model.attention_scale is not None and factor > 1:
        growth = math.sqrt(model.attention_scale * math.sqrt(model.head_dim))
        share_of_growth = round((growth - 1) / (yarn_growth(factor) - 1), _MSCALE_DIGITS)
        scores = {"max_position_embeddings": math.ceil(first * factor)}
        scores |= {"mscale": share_of_growth} if share_of_growth != 1 else {}
    return {
        "attention_type": "mla",
        "q_lora_rank": latent.query_rank or 0,
        **{theirs: getattr(latent, ours) for ours, (theirs, _) in conversion.LATENT.items()},
        **scores,
    }


def _rope(model: Model) -> _Keys:
    if model.learned_positions:
        return {}
    keys: _Keys = {"rope_max_timescale": int(model.rope_theta)}
    if model.local_rope_theta:
        keys["local_rope_max_timescale"] = int(model.local_rope_theta)
    scaling = model.rope_scaling
    if scaling is None:
        return keys | {"rope_type": "default"}
    if scaling.kind == "linear":
        return keys | {"rope_type": "default", "rope_linear_scaling_factor": scaling.factor}
    if scaling.kind == "llama3":
        return keys | {"rope_type": "llama3.1"}
    return keys | {
        "rope_type": "yarn",
        "rope_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_length,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "rope_truncate": scaling.truncate,
        "rope_attention_scaling": scaling.attention_factor is None,
    }


def _mixture(model: Model, block: str) -> _Keys:
    moe = model.moe
    if moe is None:
        return {}
    keys: _Keys = {
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "base_moe_mlp_dim": moe.d_ff or model.d_ff,
        "load_balance_loss_weight": moe.balance_loss,
    }
    if block == "deepseek":  # no other block has these
        keys |= {
            "first_num_dense_layers": moe.dense_layers,
            "shared_experts": moe.shared_experts,
            "routed_scaling_factor": moe.scale,
            "routed_score_func": moe.router,
        }
        if moe.groups > 1:
            keys |= {"n_routing_groups": moe.groups, "topk_routing_group": moe.top_groups}
        if moe.balance_bias is not None:
            keys |= {"routed_bias": True, "routed_bias_update_rate": moe.balance_bias}
    keys |= {"routed_bias": moe.router_bias} if block == "gpt_oss" else {}
    keys |= {"shared_experts": 1} if moe.with_mlp else {}
    if moe.capacity_factor:  # its sparse products drop no tokens
        keys |= {"capacity_factor": moe.capacity_factor, "sparse_matmul": False}
    return keys


# The run of a plan.


def keys_of_plan(plan: Plan) -> _Keys:
    """Return the keys of a plan; what MaxText has no key for does not come back from them."""
    batch, accumulated = plan.batch, plan.batch.microbatches
    # The attention kernel, with our blocks; `local_` are those along a window.
    kernel: _Keys = {"attention": "flash"}
    wide = DTYPE_BYTES[activation_type(plan.precision)]
    for block, _ in decoder(plan.model).kinds:
        attention = block.attention
        window = attention.scores.window
        place = plan.batch.length, plan.mesh["sequence"], window
        if attention_block(*place, 0):
            sizes = block_sizes(*place, head_of(attention, wide))
            prefix = "local_sa_" if window else "sa_"
            kernel |= {f"{prefix}{k}": v for k, v in sizes.items() if v is not None}
    # The parts of the loss, about those that ours makes of a device's tokens, if needed. In one
    # part MaxText holds the logits of all tokens, which is as fast or faster. Its parts are of the
    # whole batch: those of several slices travel between them, and a number that neither divides
    # the devices nor is divided by them gathers it.
    parts = plan.mesh["tensor"]
    shards = plan.devices // parts
    tokens = batch.tokens // batch.microbatches // shards
    logits = _LOGIT_BYTES * -(-plan.model.vocab // parts)  # bytes per token
    whole = plan.forecast.memory_bytes_per_device + _LOGITS_HELD * tokens * logits
    loss: _Keys = {}
    if whole > plan.forecast.hbm_bytes_per_device:
        most = int(loss_chunk_bytes(plan.loss_chunk_tokens, logits)) // logits  # tokens of a part
        of_device = tokens // parts
        tiles = (n for n in range(-(-tokens // most), of_device) if of_device % n == 0)
        found = next((n for n in tiles if shards % n == 0 or n % shards == 0), 1)
        loss = {"num_vocab_tiling": found} if found > 1 else {}
    # Each of our axes as the first of MaxText's; fsdp is written also where it is 1.
    mesh: _Keys = {}
    if plan.pods > 1:
        shared = plan.mesh["fsdp_dcn"]
        mesh["dcn_data_parallelism"] = plan.pods // shared
        mesh |= {"dcn_fsdp_parallelism": shared} if shared > 1 else {}
    for ours, theirs in AXES.items():
        if plan.mesh[ours] > 1 or ours == "fsdp":
            mesh[f"ici_{theirs[0]}_parallelism"] = plan.mesh[ours]
    types, quantized = plan.precision, _QUANTIZED.get(plan.precision.compute)
    return {
        "run_name": plan.name,
        **_keys_of_model(model_of_plan(plan)),
        **kernel,
        "per_device_batch_size": _share(batch.sequences // accumulated, plan.devices),
        **({"gradient_accumulation_steps": accumulated} if accumulated > 1 else {}),
        "max_target_length": batch.length,
        **loss,
        **mesh,
        **_remat_keys(plan),
        "weight_dtype": _THEIR_TYPES[types.parameters],
        **({"mu_dtype": _THEIR_TYPES[types.first_moment]} if types.first_moment else {}),
        "dtype": _THEIR_TYPES.get(types.compute, "bfloat16"),
        **({"quantization": quantized, "use_qwix_quantization": True} if quantized else {}),
        **_optimizer_keys(plan),
        "dataset_type": "synthetic",
        "init_weights_seed": plan.seed,
        "enable_checkpointing": False,
    }


def _share(part: int, whole: int) -> int | float:
    """Return the number of which MaxText's int(whole x number) is `part`."""
    if part % whole == 0:
        return part // whole
    found = part / whole
    return found if int(whole * found) == part else math.nextafter(found, math.inf)


def _remat_keys(plan: Plan) -> _Keys:
    """Return a policy of MaxText's by its name, or tensor by tensor."""
    model, moe = plan.model, plan.model.moe
    wanted = treated(plan.remat, model)
    for name, known in rematerialization.NAMED.items():
        if name not in _UNUSED and _of_policy(known, model) == wanted:
            return {"remat_policy": name}
    has_mlp = moe is None or moe.shared_experts or moe.dense_layers or moe.every > 1
    keys: _Keys = {"remat_policy": "custom"}
    for tensor, treatment in wanted.items():
        names = _NAMES[tensor]
        if tensor == "up" and not model.gated:
            names = [_UNGATED_UP]
        if tensor == "latent" and model.latent and model.latent.query_rank is None:
            names = names[1:]
        if moe is not None and tensor in _OF_EXPERTS:
            names = [*(names if has_mlp else ()), _OF_EXPERTS[tensor]]
        if treatment != "recompute":
            keys |= dict.fromkeys(names, _PLACES[treatment])
    return keys


def treated(remat: Remat, model: Model) -> dict[str, Treatment]:
    return _of_policy(policy(remat), model)


def _of_policy(known: Policy, model: Model) -> dict[str, Treatment]:
    return treatments(known, latent=model.latent is not None, gated=model.gated)


def _optimizer_keys(plan: Plan) -> _Keys:
    steps, optimizer = plan.total_steps, plan.optimizer
    run_steps = min(plan.run_steps or steps, steps)
    keys: _Keys = {
        "steps": run_steps,
        **({"learning_rate_schedule_steps": steps} if run_steps < steps else {}),
        "learning_rate": optimizer.peak_lr,
        "learning_rate_final_fraction": optimizer.end_lr / optimizer.peak_lr,
        "warmup_steps_fraction": _share(optimizer.warmup_steps, steps),
    }
    if optimizer.decay != "cosine":
        falling = steps - optimizer.warmup_steps if optimizer.decay == "linear" else 0
        keys |= {"lr_schedule_type": "wsd", "wsd_decay_steps_fraction": _share(falling, steps)}
    keys |= {
        **{theirs: getattr(optimizer, ours) for ours, theirs in conversion.OPTIMIZER.items()},
        "adamw_mask": ["scale", "bias"],
        "gradient_clipping_threshold": optimizer.clip_norm,
    }
    return keys | ({"z_loss_multiplier": optimizer.z_loss} if optimizer.z_loss else {})
