"""A plan in the keys of MaxText's command."""

import math
from typing import Any

import msgspec

from orchestrator.interop.maxtext.recipe import Recipe, Setting
from orchestrator.interop.maxtext.shape import (
    FIRST_LENGTH,
    GPT_OSS_LIMIT,
    GPT_OSS_MLP,
    LONGER,
    TYPES,
    comparable,
    model_of,
)
from orchestrator.interop.maxtext.used_keys import AXES, DEFAULTS, UsedKeys, models
from orchestrator.network import rematerialization
from orchestrator.network.attention import yarn_growth
from orchestrator.network.decoder import decoder
from orchestrator.network.rematerialization import Policy, policy, treatments
from orchestrator.planning.flops import head_of
from orchestrator.planning.kernels import attention_block, block_sizes, loss_chunk_bytes
from orchestrator.planning.layout import DTYPE_BYTES, activation_type
from orchestrator.values.fields import Treatment
from orchestrator.values.model import MixtureOfExperts, Model, RopeScaling
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Remat

# A model of a spec in MaxText's keys.


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


THEIR_TYPES = {ours: theirs for theirs, ours in TYPES.items()}
# What the blocks' matrices multiply in, where it is not the type of activations.
QUANTIZED = {"int8": "int8", "fp8": "fp8_full"}
# MaxText's names of what a policy keeps or offloads. The last of each word is that of experts.
PLACES = {"keep": "device", "offload": "offload", "recompute": "remat"}
NAMES = {
    "block_input": ("decoder_layer_input",),
    "latent": ("query_wa_proj", "kv_wa_proj"),
    "query": ("query_proj",),
    "key": ("key_proj",),
    "value": ("value_proj",),
    "attention": ("context",),
    "mlp_input": ("out_proj",),
    "gate": ("mlpwi_0",),
    "up": ("mlpwi_1",),
}
OF_EXPERTS = {"gate": "moe_mlpwi_0", "up": "moe_mlpwi_1"}
UNGATED_UP = "mlpwi"
LOGIT_BYTES = 4  # fp32
LOGITS_HELD = 3.5  # how often MaxText's programs held them, at most
UNUSED = ("none", "minimal_flash")  # it recomputes all; an older name of minimal_with_context


def keys_of_plan(plan: Plan) -> Keys:
    """The keys, where MaxText has them: what is lost comes back otherwise."""
    return {
        "run_name": plan.name,
        **keys_of_model(model_of_plan(plan)),
        **_attention_keys(plan),
        **_batch_keys(plan),
        **_loss_keys(plan),
        **_mesh_keys(plan),
        **_remat_keys(plan),
        **_precision_keys(plan),
        **_optimizer_keys(plan),
        "dataset_type": "synthetic",
        "init_weights_seed": plan.seed,
        "enable_checkpointing": False,
    }


def _attention_keys(plan: Plan) -> Keys:
    """The attention kernel, with the blocks that ours takes; `local_` are those along a window."""
    keys: Keys = {"attention": "flash"}
    wide = DTYPE_BYTES[activation_type(plan.precision)]
    for block, _ in decoder(plan.model).kinds:
        attention = block.attention
        window = attention.scores.window
        place = plan.batch.length, plan.mesh["sequence"], window
        if attention_block(*place, 0):
            sizes = block_sizes(*place, head_of(attention, wide))
            prefix = "local_sa_" if window else "sa_"
            keys |= {f"{prefix}{k}": v for k, v in sizes.items() if v is not None}
    return keys


def _batch_keys(plan: Plan) -> Keys:
    batch = plan.batch
    accumulated = {"gradient_accumulation_steps": batch.microbatches}
    return {
        "per_device_batch_size": share(batch.sequences // batch.microbatches, plan.devices),
        **(accumulated if batch.microbatches > 1 else {}),
        "max_target_length": batch.length,
    }


def _loss_keys(plan: Plan) -> Keys:
    """The loss in about as many parts as ours makes of a device's tokens, where it must be.

    In one part MaxText holds the logits of all tokens, which is as fast or faster. Its parts are of
    the whole batch: those of several slices travel between them, and a number that neither divides
    the devices nor is divided by them gathers it.
    """
    batch, parts = plan.batch, plan.mesh["tensor"]
    shards = plan.devices // parts
    tokens = batch.tokens // batch.microbatches // shards
    logits = LOGIT_BYTES * -(-plan.model.vocab // parts)
    whole = plan.forecast.memory_bytes_per_device + LOGITS_HELD * tokens * logits
    if whole <= plan.forecast.hbm_bytes_per_device:
        return {}
    most = int(loss_chunk_bytes(plan.loss_chunk_tokens, logits)) // logits
    of_device = tokens // parts
    tiles = (n for n in range(-(-tokens // most), of_device) if of_device % n == 0)
    found = next((n for n in tiles if shards % n == 0 or n % shards == 0), 1)
    return {"num_vocab_tiling": found} if found > 1 else {}


def share(part: int, whole: int) -> int | float:
    """The number of which MaxText's int(whole x number) is `part`."""
    if part % whole == 0:
        return part // whole
    found = part / whole
    return found if int(whole * found) == part else math.nextafter(found, math.inf)


def _mesh_keys(plan: Plan) -> Keys:
    """Each of our axes as the first of MaxText's; fsdp is written also where it is 1."""
    keys: Keys = {}
    if plan.pods > 1:
        shared = plan.mesh["fsdp_dcn"]
        keys["dcn_data_parallelism"] = plan.pods // shared
        keys |= {"dcn_fsdp_parallelism": shared} if shared > 1 else {}
    for ours, theirs in AXES.items():
        if plan.mesh[ours] > 1 or ours == "fsdp":
            keys[f"ici_{theirs[0]}_parallelism"] = plan.mesh[ours]
    return keys


def _remat_keys(plan: Plan) -> Keys:
    """A policy of MaxText's by its name, or tensor by tensor."""
    wanted = treated(plan.remat, plan.model)
    for name, known in rematerialization.NAMED.items():
        if name not in UNUSED and of_policy(known, plan.model) == wanted:
            return {"remat_policy": name}
    keys: Keys = {"remat_policy": "custom"}
    for tensor, treatment in wanted.items():
        if treatment != "recompute":
            keys |= dict.fromkeys(_names(tensor, plan.model), PLACES[treatment])
    return keys


def _names(tensor: str, model: Model) -> tuple[str, ...]:
    moe, names = model.moe, NAMES[tensor]
    if tensor == "up" and not model.gated:
        names = (UNGATED_UP,)
    if tensor == "latent" and model.latent and model.latent.query_rank is None:
        names = names[1:]
    if moe is None or tensor not in OF_EXPERTS:
        return names
    has_mlp = moe.shared_experts or moe.dense_layers or moe.every > 1
    return (*(names if has_mlp else ()), OF_EXPERTS[tensor])


def treated(remat: Remat, model: Model) -> dict[str, Treatment]:
    """What becomes of the tensors that the model has."""
    return of_policy(policy(remat), model)


def of_policy(one: Policy, model: Model) -> dict[str, Treatment]:
    return treatments(one, latent=model.latent is not None, gated=model.gated)


def _precision_keys(plan: Plan) -> Keys:
    types = plan.precision
    keys: Keys = {"weight_dtype": THEIR_TYPES[types.parameters]}
    if types.first_moment:
        keys["mu_dtype"] = THEIR_TYPES[types.first_moment]
    keys["dtype"] = THEIR_TYPES.get(types.compute, "bfloat16")
    if types.compute in QUANTIZED:
        keys |= {"quantization": QUANTIZED[types.compute], "use_qwix_quantization": True}
    return keys


def _optimizer_keys(plan: Plan) -> Keys:
    steps, one = plan.total_steps, plan.optimizer
    run_steps = min(plan.run_steps or steps, steps)
    keys: Keys = {
        "steps": run_steps,
        **({"learning_rate_schedule_steps": steps} if run_steps < steps else {}),
        "learning_rate": one.peak_lr,
        "learning_rate_final_fraction": one.end_lr / one.peak_lr,
        "warmup_steps_fraction": share(one.warmup_steps, steps),
    }
    if one.decay != "cosine":
        falling = steps - one.warmup_steps if one.decay == "linear" else 0
        keys |= {"lr_schedule_type": "wsd", "wsd_decay_steps_fraction": share(falling, steps)}
    keys |= {
        "adam_b1": one.beta1,
        "adam_b2": one.beta2,
        "adam_eps": one.epsilon,
        "adam_weight_decay": one.weight_decay,
        "adamw_mask": ["scale", "bias"],
        "gradient_clipping_threshold": one.clip_norm,
    }
    return keys | ({"z_loss_multiplier": one.z_loss} if one.z_loss else {})


def model_of_plan(plan: Plan) -> Model:
    """The plan's model without what is counted of it."""
    counted = {"parameters", "active_parameters"}
    said = {k: v for k, v in msgspec.to_builtins(plan.model).items() if k not in counted}
    return msgspec.convert(said, Model)
