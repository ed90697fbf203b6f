"""A plan in the keys of MaxText's command."""

import math

import msgspec

from orchestrator.maxtext.model_keys import Keys, keys_of_model
from orchestrator.maxtext.names import AXES
from orchestrator.maxtext.training_shape import TYPES
from orchestrator.network import maxtext_policies
from orchestrator.network.decoder import decoder
from orchestrator.network.rematerialization import Policy, policy, treatments
from orchestrator.plan.attention_blocks import attention_block, block_sizes
from orchestrator.plan.flops import head_of
from orchestrator.plan.kernel_constants import loss_chunk_bytes
from orchestrator.plan.layout import DTYPE_BYTES, activation_type
from orchestrator.types.model import Model
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Remat
from orchestrator.types.spec_fields import Treatment

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
    for name, known in maxtext_policies.NAMED.items():
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
