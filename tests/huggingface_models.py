"""Small models of every architecture that is served, as Hugging Face folders with random weights.

Weights follow from their names, so that any program makes the same ones.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from orchestrator.network.decoder import decoder
from orchestrator.network.published import PublishedWeight, published_weights
from orchestrator.reading.huggingface import model_of

SIZES: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "rope_theta": 10_000.0, "tie_word_embeddings": False,
    "torch_dtype": "float32",
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LATENTS = {
    "num_key_value_heads": 8, "head_dim": None, "num_hidden_layers": 3, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "moe_intermediate_size": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip
GEMMA4 = {
    "num_hidden_layers": 6, "sliding_window": 32, "tie_word_embeddings": True, "rope_theta": None,
    "global_head_dim": 32, "hidden_size_per_layer_input": 0, "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}  # fmt: skip
GROUPS = {"n_group": 4, "topk_group": 2}
# By name: the architecture, its model_type, and what its config has besides the sizes.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "llama", {}),
    "llama3.1": (
        "LlamaForCausalLM", "llama", {"rope_scaling": LLAMA3, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralForCausalLM", "mistral", {"sliding_window": 32}),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", {}),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", {}),
    "gemma": ("GemmaForCausalLM", "gemma", {"tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2ForCausalLM", "gemma2",
        {"query_pre_attn_scalar": 24, "sliding_window": 32, "tie_word_embeddings": True},
    ),
    "gemma3": (
        "Gemma3ForCausalLM", "gemma3_text",
        {"query_pre_attn_scalar": 24, "sliding_window": 32, "num_hidden_layers": 6,
         "tie_word_embeddings": True, "rope_local_base_freq": 1000.0},
    ),
    "phi3": (
        "Phi3ForCausalLM", "phi3",
        {"hidden_size": 128, "head_dim": None, "original_max_position_embeddings": 512},
    ),
    "olmo2": ("Olmo2ForCausalLM", "olmo2", {}),
    "mixtral": ("MixtralForCausalLM", "mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM", "qwen3_moe",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "norm_topk_prob": True},
    ),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM", "deepseek_v2",
        {**LATENTS, **GROUPS, "q_lora_rank": 24, "n_shared_experts": 2,
         "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5},
    ),
    "deepseek_v2_lite": (
        "DeepseekV2ForCausalLM", "deepseek_v2",
        {**LATENTS, "q_lora_rank": None, "n_shared_experts": 2, "topk_method": "greedy"},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM", "deepseek_v3",
        {**LATENTS, **GROUPS, "q_lora_rank": 24, "n_shared_experts": 1,
         "routed_scaling_factor": 2.5, "norm_topk_prob": True},
    ),
    "gemma4": (
        "Gemma4ForCausalLM", "gemma4_text",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
         "final_logit_softcapping": 3.0},
    ),
    "gemma4_moe": (
        "Gemma4ForCausalLM", "gemma4_text",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
         "moe_intermediate_size": 32},
    ),
    "gpt2": (
        "GPT2LMHeadModel", "gpt2",
        {**dict.fromkeys(SIZES), "n_embd": 64, "n_head": 8, "n_layer": 2, "n_inner": 96,
         "n_positions": 512, "vocab_size": 128, "activation_function": "relu",
         **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)},
    ),
    "gpt_oss": (
        "GptOssForCausalLM", "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32,
         "attention_bias": True, "rope_scaling": YARN},
    ),
}  # fmt: skip
SMALL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def config_of(name: str) -> dict[str, Any]:
    architecture, model_type, own = FAMILIES[name]
    config = {**SIZES, **SMALL_TOKENS, **own}
    known = {key: value for key, value in config.items() if key not in SIZES or value is not None}
    return {"architectures": [architecture], "model_type": model_type, **known}


def write_model(folder: Path, config: dict[str, Any], *, parts: int = 1) -> Path:
    """A folder with that config and random weights, in several files if asked for."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    network = decoder(model_of(folder / "config.json", None))
    weights = published_weights(network, config["model_type"])
    arrays = dict(sorted(random_arrays(weights).items()))
    if parts == 1:
        save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = {name: f"model-{n % parts}.safetensors" for n, name in enumerate(arrays)}
    for file in set(files.values()):
        mine = {name: array for name, array in arrays.items() if files[name] == file}
        save_file(mine, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def random_arrays(weights: list[PublishedWeight]) -> dict[str, np.ndarray]:
    """Norms are near one, but for those that are offsets, and all else is near zero."""
    return {
        name: random_array(name, weight.published_shape)
        for weight in weights
        for index in np.ndindex(*weight.stacked)
        for name in [weight.name_at(index)]
    }


def random_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    middle = 1.0 if any(part in name for part in ("norm", "ln_", "scal")) else 0.0
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (middle + 0.08 * random.standard_normal(shape)).astype(np.float32)


def tokens_of(name: str, count: int = 512) -> np.ndarray:
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return random.integers(3, SIZES["vocab_size"], (1, count))
