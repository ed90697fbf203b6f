"""Turns a MaxText recipe into the content of a spec: chips, batch, model, training."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import log2, prod
from typing import Any

import msgspec

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.interop.maxtext.recipe import Recipe, RecipeProblems
from orchestrator.interop.maxtext.used_keys import AXES, CHIPS, OFF, TABLES, UsedKeys
from orchestrator.network import rematerialization
from orchestrator.network.attention import yarn_growth
from orchestrator.network.rematerialization import POLICIES, remat_of, treatments
from orchestrator.values.codec import Value
from orchestrator.values.model import Model

_Values = dict[str, Any]
_SPEC_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FUSED = ("autoselected", "flash", "cudnn_flash_te")
_NEARLY_WHOLE = 1e-6  # sequences: shares of a device are rounded

_BLOCKS: dict[str, _Values] = TABLES["blocks"]
_ONLY_IN: dict[str, list[str]] = TABLES["only_in"]
_MIXTURE_SIZES: dict[str, tuple[str, int]] = TABLES["mixture_sizes"]
# The gate of gpt-oss: x times the sigmoid of 1.702 x, where both are clipped.
GPT_OSS_MLP, GPT_OSS_LIMIT = ["sigmoid", "linear"], 7
# Gemma's largest scale scores by the width over the heads, not by the head's own.
_SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3", 62)}
_ACTIVATIONS = ("silu", "gelu", "relu")
_MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek", "gemma4")
_ONLY_DEEPSEEK = ("shared_experts", "dense_layers", "groups", "top_groups")
# The length of sequences at first, and how many times longer they become, where no key says it.
FIRST_LENGTH, LONGER = 4096, 40
_ONLY_YARN = (
    "rope_factor",
    "beta_fast",
    "beta_slow",
    "rope_truncate",
    "rope_attention_scaling",
    "original_max_position_embeddings",
)
TYPES = {"float32": "fp32", "bfloat16": "bf16"}
_QUANTIZED = ("fp8", "int8")
_PLACES = ("device", "offload", "remat")
_DIGITS = 12  # of a rate that is a share of another
_ADAM = ("adamw", "adam_pax")  # the same states, and one update of each weight
OPTIMIZER: dict[str, str] = TABLES["optimizer"]
GLOBAL_SIZES = {"global_head_dim": "global_head_dim", "global_kv_heads": "global_num_kv_heads"}
_MLP_OF_GEMMA_4 = ("shared_experts", "gemma4")
LATENT: dict[str, tuple[str, int]] = TABLES["latent"]


class ImportedSpec(Value):
    """The content of a spec, where it differs from its recipe, and the keys that do not matter."""

    values: Mapping[str, Any]
    notes: tuple[str, ...]
    irrelevant: tuple[str, ...]


def convert(recipe: Recipe, device: str | None = None, slices: int | None = None) -> ImportedSpec:
    """Return the spec of a recipe; `RecipeProblems` lists every key that it cannot say. `device`
    and `slices` say which chips, where it does not: v6e-256, tpu7x-4x8x8.
    """
    keys = UsedKeys(recipe)
    pods = slices or recipe.slices or max(keys.whole("compile_topology_num_slices"), 1)
    chip, topology = _slice(keys, device or recipe.device or keys["compile_topology"])
    devices = catalog.topology(chip, topology).chips * chip.devices
    planned, run = _steps(keys)
    model = _in_catalog(model_of(keys))
    experiment = {
        "model": model,
        **_batch(keys, devices * pods, planned),
        "optimizer": _optimizer(keys, planned),
        "precision": _precision(keys),
        "remat": _remat(keys, latent="latent" in model, gated=model["gated"]),
    }
    # The compiler's options, but for those that every plan on the chip has.
    usual = chip.libtpu.options if chip.libtpu else {}
    known = {name: option.value for name, option in usual.items()}
    flags = recipe.flags.items()
    said = {name: setting.value for name, setting in flags if name.startswith("xla_")}
    options = {name: value for name, value in said.items() if value not in (None, known.get(name))}
    if options:
        experiment["compiler_options"] = options
    if seed := keys.whole("init_weights_seed"):
        experiment["seed"] = seed
    mesh = _mesh(keys, devices, pods)
    resources = {"chip": chip.name, "topology": topology, "pods": pods, "mesh": mesh}
    if keys["attention"] not in _FUSED:
        keys.refuse("attention", f"must be one of {', '.join(_FUSED)}: attention is a fused kernel")
    for key in ("optimizer_memory_host_offload", "parameter_memory_host_offload"):
        if keys.is_on(key):
            keys.refuse(key, "is not served: only activations are offloaded")
    name = str(keys["run_name"] or "")
    if not _SPEC_NAME.fullmatch(name):
        name = f"{model['name']}-{chip.name}-{pods}x"
    irrelevant = keys.check_rest()
    if keys.problems:
        raise RecipeProblems(keys.problems, keys.refused)
    values = {"name": name, "experiment": experiment, "resources": resources}
    if run < planned:
        values["run"] = {"steps": run}
    return ImportedSpec(values=values, notes=tuple(keys.notes), irrelevant=irrelevant)


# The chips and the batch.


def _slice(keys: UsedKeys, name: Any) -> tuple[Chip, str]:
    """Return the chip, and one slice of v5e-256, v5litepod-256, v5p-128 or tpu7x-4x8x8."""
    if not name:
        keys.problems.append(
            "no chips: the recipe has no --device-type and no compile_topology; say which, for"
            " example --device-type v6e-256 --slices 2"
        )
        return catalog.chip("v5p"), "2x2x1"
    kind, _, size = str(name).partition("-")
    chip = catalog.chip(CHIPS.get(kind, "v5p"))
    try:
        if kind not in CHIPS:
            raise SpecError(f"must begin with one of {', '.join(CHIPS)}")
        text = size if "x" in size else f"{chip.slices.names[0]}-{size}"
        return chip, str(catalog.topology(chip, text))
    except SpecError as error:
        keys.problems.append(f"device type {name}: {error}")
        return catalog.chip("v5p"), "2x2x1"


def _mesh(keys: UsedKeys, devices: int, pods: int) -> dict[str, int]:
    """Return the sizes of the axes inside a slice, and of the weights' axis between slices."""
    sizes, across = _sizes(keys, "ici", devices), _sizes(keys, "dcn", pods)
    for axis in set(across) - {"data", "fsdp"}:
        if across[axis] > 1:
            keys.refuse(f"dcn_{AXES[axis][0]}_parallelism", "only data and fsdp may cross slices")
    mesh = {axis: size for axis, size in sizes.items() if size > 1 or axis in ("data", "fsdp")}
    return mesh | ({"fsdp_dcn": across["fsdp"]} if across["fsdp"] > 1 else {})


def _sizes(keys: UsedKeys, link: str, devices: int) -> dict[str, int]:
    """Return each axis as the product of MaxText's, of which one may be -1: what is left."""
    theirs = {axis: f"{link}_{axis}_parallelism" for axes in AXES.values() for axis in axes}
    given = {axis: keys.whole(key, 1) for axis, key in theirs.items()}
    for axis, size in given.items():
        if size < 1 and size != -1:
            keys.refuse(theirs[axis], "must be at least 1, or -1")
    open_axes = [axis for axis, size in given.items() if size == -1]
    known = prod(size for size in given.values() if size != -1)
    if len(open_axes) > 1:
        keys.refuse(theirs[open_axes[1]], "only one axis may be -1")
    elif open_axes:
        given[open_axes[0]] = max(devices // max(known, 1), 1)
    if prod(max(size, 1) for size in given.values()) != devices:
        shown = " x ".join(f"{axis} {size}" for axis, size in given.items() if size != 1)
        keys.problems.append(f"{link} parallelism: {shown or '1'} is not {devices}")
    return {ours: prod(given[axis] for axis in axes) for ours, axes in AXES.items()}


def _batch(keys: UsedKeys, devices: int, steps: int) -> _Values:
    """Return the global batch of MaxText's batch of a JAX device, and the tokens of all steps."""
    microbatches = max(keys.whole("gradient_accumulation_steps", 1), 1)
    wanted = keys.number("per_device_batch_size") * devices * microbatches
    sequences = round(wanted)
    if sequences < 1 or abs(wanted - sequences) > _NEARLY_WHOLE:
        keys.refuse("per_device_batch_size", f"{wanted:g} sequences a step are not a whole number")
        sequences = 1
    length = keys.whole("max_target_length")
    batch = {"sequences": sequences, "length": length, "microbatches": microbatches}
    return {"tokens": sequences * length * steps, "batch": batch}


# The model.


def model_of(keys: UsedKeys) -> _Values:
    """Return the model; what no spec can say is refused by its key."""
    block = str(keys["decoder_block"])
    if block not in _BLOCKS:
        keys.refuse("decoder_block", f"must be one of {', '.join(_BLOCKS)}")
        block = "llama2"
    of_block, experts = _BLOCKS[block], keys.whole("num_experts")
    name = str(keys["model_name"])
    # Sizes are grown by the global scale, a power of two spread over widths and layers.
    scale = keys.whole("global_parameter_scale")
    if scale < 1 or scale & (scale - 1):
        keys.refuse("global_parameter_scale", "must be a power of two")
        scale = 1
    base, rest = divmod(int(log2(scale)), 3)
    heads, width = 2 ** (base + (rest > 0)), 2 ** (base + (rest > 1))
    model = {
        "name": "maxtext" if name == "default" else re.sub("[._]", "-", name).lower(),
        "layers": 2**base * keys.whole("base_num_decoder_layers"),
        "d_model": width * keys.whole("base_emb_dim"),
        "d_ff": heads * keys.whole("base_mlp_dim"),
        "heads": heads * keys.whole("base_num_query_heads"),
        "kv_heads": heads * keys.whole("base_num_kv_heads"),
        "head_dim": keys.whole("head_dim"),
        "vocab": keys.whole("vocab_size"),
        "tied": bool(keys["logits_via_embedding"]),
        "rope_theta": float(keys.number("rope_max_timescale")),
        "norm_epsilon": float(keys.number("normalization_layer_epsilon")),
        **_mlp(keys, block),
        **_attention(keys, block),
        **_rotary(keys),
    }
    model |= _of_block(keys, block, model)
    model |= {key: value for key, value in of_block.items() if key != "window_pattern"}
    if (block, model["layers"]) in _SCALED_BY_WIDTH:
        model["attention_scale"] = (model["d_model"] / max(model["heads"], 1)) ** -0.5
    for key in ("use_post_attn_norm", "use_post_ffw_norm"):
        if keys.is_on(key) and of_block.get("norm_placement") != "both":
            keys.refuse(key, f"is not served in a {block} block")
    if experts > 1:
        model["moe"] = _mixture(keys, block)
    for key, blocks in _ONLY_IN.items():
        if keys.is_on(key) and block not in blocks:
            keys.refuse(key, f"has no effect in a {block} block")
    if experts > 1 and block not in _MIXTURES:
        keys.refuse("num_experts", f"has no effect in a {block} block")
    return model


def _in_catalog(values: _Values) -> _Values:
    """Return the model of the catalog where it is one of them, with its name, else the same."""
    try:
        found = comparable(msgspec.convert(values, Model, strict=False))
    except msgspec.ValidationError:  # whoever loads the spec says what is wrong
        return values
    for known in map(catalog.model, catalog.models()):
        if known.mtp_layers == 0 and comparable(known) == found:
            sizes: _Values = {"name": known.name, "d_ff": known.d_ff}
            if known.moe:
                moe = asdict(known.moe)
                sizes["moe"] = {key: value for key, value in moe.items() if value is not None}
            return values | sizes
    return values


def comparable(model: Model) -> Model:
    """Return a model without what MaxText computes alike: names, loads, an MLP no layer has."""
    moe = model.moe
    if moe is not None:
        width = moe.d_ff or model.d_ff
        has_mlp = moe.dense_layers > 0 or moe.every > 1 or moe.with_mlp
        model = replace(model, d_ff=model.d_ff if has_mlp else width)
        moe = replace(moe, d_ff=width, imbalance=1.0)
    if model.learned_positions:
        model = replace(model, rope_theta=1.0)  # nothing turns
    activation = model.activation or ("silu" if model.gated else "gelu")
    return replace(model, name="model", mtp_layers=0, activation=activation, moe=moe)


def _mlp(keys: UsedKeys, block: str) -> _Values:
    activations, limit = keys["mlp_activations"], keys["mlp_activations_limit"]
    if not isinstance(activations, list) or not activations:
        keys.refuse("mlp_activations", "must be a list, such as ['silu','linear']")
        return {}
    if block == "gpt_oss":
        if activations != GPT_OSS_MLP or limit != GPT_OSS_LIMIT:
            keys.refuse("mlp_activations", f"must be {GPT_OSS_MLP} with a limit of 7 in gpt_oss")
        keys.accept("mlp_bias")  # that of its experts
        return {"gated": True}
    if limit not in OFF:
        keys.refuse("mlp_activations_limit", f"is not served in a {block} block")
    gated = activations[1:] == ["linear"]
    if (not gated and len(activations) > 1) or activations[0] not in _ACTIVATIONS:
        must = f"must be one of {', '.join(_ACTIVATIONS)}, then linear or nothing"
        keys.refuse("mlp_activations", must)
    is_usual = activations[0] == ("silu" if gated else "gelu")
    return {"gated": gated, **({} if is_usual else {"activation": activations[0]})}


def _attention(keys: UsedKeys, block: str) -> _Values:
    kind, said = keys["attention_type"], dict[str, Any]()
    if kind not in ("global", "local_sliding") and (block, kind) != ("deepseek", "mla"):
        keys.refuse("attention_type", "must be global, local_sliding, or mla in a deepseek block")
    pattern = "L" if kind == "local_sliding" else _BLOCKS[block].get("window_pattern")
    window = keys.whole("sliding_window_size")
    if window > 0 and pattern:
        said |= {"window": window, "window_pattern": pattern}
    elif window > 0:
        note = f"sliding_window_size={window}: a {block} block attends to the whole sequence"
        keys.notes.append(note)
    keys.accept("inhomogeneous_layer_cycle_interval")  # the pattern says it
    said |= {"qk_norm": "head"} if keys.is_on("use_qk_norm") else {}
    said |= {"qkv_bias": True} if keys.is_on("attention_bias") else {}
    said |= {"sinks": True} if keys.is_on("attention_sink") else {}
    caps = {"attention_cap": "attn_logits_soft_cap", "logit_cap": "final_logits_soft_cap"}
    return said | {
        ours: float(keys.number(theirs)) for ours, theirs in caps.items() if keys.is_on(theirs)
    }


def _rotary(keys: UsedKeys) -> _Values:
    """Return RoPE where it is stretched, or has another base in layers with a window."""
    said: _Values = {}
    if keys.is_on("local_rope_max_timescale"):
        said["local_rope_theta"] = float(keys.number("local_rope_max_timescale"))
    linear, kind = keys.number("rope_linear_scaling_factor", 1.0), keys["rope_type"]
    if linear != 1:
        said["rope_scaling"] = {"kind": "linear", "factor": float(linear)}
    if kind == "llama3.1":
        said["rope_scaling"] = {"kind": "llama3", "factor": 8.0}
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
    keys.accept(*_ONLY_YARN)
    return said


def _latent(keys: UsedKeys, model: _Values) -> _Values:
    """Return latent attention, whose scores MaxText scales where sequences are stretched."""
    latent = {ours: keys.whole(theirs, usual) for ours, (theirs, usual) in LATENT.items()}
    if rank := keys.whole("q_lora_rank"):
        latent["query_rank"] = rank
    width = latent["nope_dim"] + latent["rope_dim"]
    said: _Values = {"latent": latent, "head_dim": width, "kv_heads": model["heads"]}
    original = keys.whole("original_max_position_embeddings", FIRST_LENGTH)
    if keys.whole("max_position_embeddings", 163_840) > original:
        growth = yarn_growth(keys.number("rope_factor", LONGER), keys.number("mscale", 1))
        said["attention_scale"] = max(width, 1) ** -0.5 * growth**2
    return said


def _of_block(keys: UsedKeys, block: str, model: _Values) -> _Values:
    """Return what only blocks of one kind read: latents, learned positions, global layers."""
    if block == "deepseek":
        return _latent(keys, model)
    if block == "gpt3":
        positions = keys.whole("trainable_position_size", -1)
        if positions < 1:
            why = "must be positive: nothing else tells a gpt3 block its positions"
            keys.refuse("trainable_position_size", why)
        return {"learned_positions": positions}
    if block != "gemma4":
        return {}
    said: _Values = {"global_rotary_share": float(keys.number("global_rope_proportion"))}
    for key, only in (("v_norm_with_scale", False), ("local_rope_proportion", 1)):
        if keys[key] != only:
            keys.refuse(key, f"must be {str(only).lower()}: no other is served")
    for ours, theirs in GLOBAL_SIZES.items():
        said |= {ours: keys.whole(theirs)} if keys.is_on(theirs) else {}
    if keys.is_on("global_rope_max_timescale"):
        said["rope_theta"] = float(keys.number("global_rope_max_timescale"))
    return said | ({"keys_as_values": True} if keys.is_on("share_kv_projections") else {})


def _mixture(keys: UsedKeys, block: str) -> _Values:
    router = keys["routed_score_func"]
    mixture: _Values = {
        "experts": keys.whole("num_experts"),
        "top_k": keys.whole("num_experts_per_tok"),
        "normalized": block != "deepseek" or router == "sigmoid",
        "scale": float(keys.number("routed_scaling_factor")),
        "balance_loss": float(keys.number("load_balance_loss_weight", 0.0)),
    }
    for ours, (theirs, off) in _MIXTURE_SIZES.items():
        size = keys.whole(theirs, off)
        if size != off:
            mixture[ours] = size
            if ours in _ONLY_DEEPSEEK and block != "deepseek" and (ours, block) != _MLP_OF_GEMMA_4:
                keys.refuse(theirs, f"has no effect in a {block} block")
    if block == "gemma4":
        mixture["with_mlp"] = True
        if mixture.pop("shared_experts", 0) != 1:
            keys.refuse("shared_experts", "must be 1: the MLP next to the mixture")
    keys.accept("norm_topk_prob")  # the softmax of the chosen scores has a sum of one before it
    mixture |= {"router": router} if router else {}
    if block == "gpt_oss":
        mixture |= {"biases": keys.is_on("mlp_bias"), "router_bias": keys.is_on("routed_bias")}
    elif keys.is_on("routed_bias"):
        mixture["balance_bias"] = float(keys.number("routed_bias_update_rate", 0.001))
    factor, sparse = keys.number("capacity_factor"), keys.is_on("sparse_matmul")
    if factor > 0 and sparse:
        keys.notes.append("capacity_factor: sparse_matmul drops no tokens, so it has no effect")
    mixture |= {"capacity_factor": float(factor)} if factor > 0 and not sparse else {}
    if keys.is_on("use_random_routing"):
        keys.notes.append("use_random_routing: the plan takes loads as its router gives them")
    return mixture


# The training: optimizer, schedule, types, recomputation.


def _steps(keys: UsedKeys) -> tuple[int, int]:
    """Return the steps of the schedule and those that are run; -1 stands for the other's."""
    run, planned = keys.whole("steps"), keys.whole("learning_rate_schedule_steps", -1)
    planned = run if planned == -1 else planned
    run = planned if run == -1 else run
    if run < 1 or planned < 1:
        keys.refuse("steps", "must be positive")
    if run > planned:
        late = f"the last {run - planned} steps"
        keys.notes.append(f"{late} have a learning rate of 0: they are left out")
    return max(planned, 1), max(min(run, planned), 1)


def _optimizer(keys: UsedKeys, steps: int) -> _Values:
    if keys["opt_type"] not in _ADAM:
        keys.refuse("opt_type", f"must be one of {', '.join(_ADAM)}")
    # How the learning rate rises and falls, over all steps of the schedule.
    rate, kind = float(keys.number("learning_rate")), keys["lr_schedule_type"]
    older = "cosine_learning_rate_final_fraction"  # the key of older releases
    last = older if keys[older] is not None else "learning_rate_final_fraction"
    end = float(f"{rate * keys.number(last):.{_DIGITS}g}")
    warmup = int(steps * keys.number("warmup_steps_fraction"))
    optimizer: _Values = {"peak_lr": rate, "end_lr": end, "warmup_steps": warmup}
    if kind == "cosine":
        keys.accept("wsd_decay_steps_fraction", "wsd_decay_style")
    else:
        if kind != "wsd":
            keys.refuse("lr_schedule_type", "must be cosine or wsd")
        falling = int(steps * keys.number("wsd_decay_steps_fraction"))
        if falling not in (0, steps - warmup):
            keys.refuse("wsd_decay_steps_fraction", "the rate must fall at no step, or at all")
        if not falling or keys["wsd_decay_style"] != "cosine":
            optimizer["decay"] = "linear" if falling else "constant"
    optimizer |= {ours: float(keys.number(theirs)) for ours, theirs in OPTIMIZER.items()}
    optimizer["z_loss"] = float(keys.number("z_loss_multiplier", 0.0))
    clip = keys.number("gradient_clipping_threshold")
    if clip > 0:
        optimizer["clip_norm"] = float(clip)
    else:
        note = "gradient_clipping_threshold=0: the plan's optimizer clips at a norm of 1"
        keys.notes.append(note)
    return optimizer


def _precision(keys: UsedKeys) -> dict[str, str]:
    compute, name = _type(keys, "dtype"), str(keys["quantization"] or "")
    quantized = [kind for kind in _QUANTIZED if name == kind or name.startswith(f"{kind}_")]
    if name and not quantized:
        keys.refuse("quantization", f"must be one of {', '.join(_QUANTIZED)}, fp8_full, or off")
    compute = quantized[0] if quantized else compute
    parameters = _type(keys, "weight_dtype")
    keys.accept("grad_dtype")  # devices send gradients in the type of activations in either
    first = _type(keys, "mu_dtype") if keys.is_on("mu_dtype") else parameters
    return {
        "compute": compute,
        "parameters": parameters,
        **({"gradients": "fp32"} if compute == "fp32" else {}),
        "optimizer": parameters,
        **({"first_moment": first} if first != parameters else {}),
    }


def _type(keys: UsedKeys, key: str) -> str:
    name = str(keys[key])
    if name not in TYPES:
        keys.refuse(key, f"must be one of {', '.join(TYPES)}")
    return TYPES.get(name, "bf16")


def _remat(keys: UsedKeys, *, latent: bool, gated: bool) -> Any:
    """Return the policy for such a model, by name or tensor by tensor."""
    named, policy = str(keys["remat_policy"]), POLICIES["full"]
    places = {key: keys[key] for key in rematerialization.TENSORS if keys[key] is not None}
    if named == "custom":
        for tensor, place in places.items():
            if place not in _PLACES:
                keys.refuse(tensor, f"must be one of {', '.join(_PLACES)}")
        policy = rematerialization.custom({k: v for k, v in places.items() if v in _PLACES})
    elif named == "none":
        keys.notes.append(
            "remat_policy=none: MaxText recomputes each layer of a scan, as with full"
        )
    elif named not in rematerialization.NAMED:
        keys.refuse("remat_policy", f"must be one of {', '.join(rematerialization.NAMED)}, custom")
    else:
        policy = rematerialization.NAMED[named]
        if any(keys.is_given(tensor) and place != "remat" for tensor, place in places.items()):
            keys.notes.append(f"remat_policy={named}: the places of single tensors have no effect")
    written = treatments(policy, latent=latent, gated=gated)
    for name, known in POLICIES.items():
        if treatments(known, latent=latent, gated=gated) == written:
            return name
    remat = remat_of(policy)
    return remat if isinstance(remat, str) else asdict(remat)
