"""Published configs of models on huggingface.co, as far as they describe the network, and how many
parameters each model has by its model card (safetensors) or its report.
"""

from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "rope_scaling": None, "pretraining_tp": 1, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_3_1 = {
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip
QWEN: dict[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": False,
    "tie_word_embeddings": False, "attention_dropout": 0.0, "rope_theta": 1_000_000.0,
}  # fmt: skip
QWEN_2 = QWEN | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN_3 = QWEN | {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
    "head_dim": 128, "rope_scaling": None, "sliding_window": None,
}  # fmt: skip
GEMMA_2: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "sliding_window": 4096, "vocab_size": 256_000,
    "cache_implementation": "hybrid",
}  # fmt: skip
GEMMA_3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "boi_token_index": 255_999, "mm_tokens_per_image": 256,
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}  # fmt: skip
STRETCHED = {"factor": 8.0, "rope_type": "linear"}
GPT_2: dict[str, Any] = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0,
    "bos_token_id": 50_256, "embd_pdrop": 0.0, "eos_token_id": 50_256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25,
    "n_layer": 48, "n_positions": 1024, "output_past": True, "resid_pdrop": 0.0,
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50_257,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip


def gemma_4(**more: Any) -> dict[str, Any]:
    """The config of Gemma 4 31B, of which 26B-A4B differs in a few keys."""
    rope = {
        "full_attention": {
            "partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    }  # fmt: skip
    kinds = [*["sliding_attention"] * 5, "full_attention"]
    described = {
        "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True,
        "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": False, "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376,
        "hidden_size_per_layer_input": 0, "intermediate_size": 21_504,
        "max_position_embeddings": 262_144, "model_type": "gemma4_text",
        "moe_intermediate_size": None, "num_attention_heads": 32, "num_experts": None,
        "num_global_key_value_heads": 4, "num_hidden_layers": 60, "num_key_value_heads": 16,
        "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-6,
        "rope_parameters": rope, "sliding_window": 1024, "tie_word_embeddings": True,
        "top_k_experts": None, "use_bidirectional_attention": "vision", "use_cache": True,
        "use_double_wide_mlp": False, "vocab_size": 262_144,
        "vocab_size_per_layer_input": 262_144, **more,
    }  # fmt: skip
    described["layer_types"] = kinds * (described["num_hidden_layers"] // len(kinds))
    return {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "audio_config": None, "image_token_id": 258_880, "text_config": described,
        "vision_config": {"hidden_size": 1152, "model_type": "gemma4_vision"},
    }  # fmt: skip


GEMMA_4_WITH_EXPERTS = gemma_4(
    enable_moe_block=True, hidden_size=2816, intermediate_size=2112, moe_intermediate_size=704,
    num_attention_heads=16, num_experts=128, num_global_key_value_heads=2, num_hidden_layers=30,
    num_key_value_heads=8, top_k_experts=8,
)  # fmt: skip


def shape(layers: int, d_model: int, d_ff: int, heads: int, kv_heads: int, vocab: int) -> Any:
    return {
        "num_hidden_layers": layers, "hidden_size": d_model, "intermediate_size": d_ff,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
    }  # fmt: skip


def text(layers: int, d_model: int, d_ff: int, **more: Any) -> dict[str, Any]:
    """A config of Gemma 3, whose text model leaves out what is the default of its class."""
    return GEMMA_3 | {
        "text_config": {
            "num_hidden_layers": layers, "hidden_size": d_model, "intermediate_size": d_ff,
            "model_type": "gemma3_text", "rope_scaling": STRETCHED, "sliding_window": 1024, **more,
        }
    }  # fmt: skip


# Model → its config, and its parameters: the safetensors totals of the model cards.
EXACT: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7b": (LLAMA | shape(32, 4096, 11_008, 32, 32, 32_000), 6_738_415_616),
    "Llama-2-70b": (LLAMA | shape(80, 8192, 28_672, 64, 8, 32_000), 68_976_648_192),
    "Meta-Llama-3-8B": (
        LLAMA | shape(32, 4096, 14_336, 32, 8, 128_256) | {"rope_theta": 500_000.0},
        8_030_261_248,
    ),
    "Llama-3.1-70B": (
        LLAMA
        | shape(80, 8192, 28_672, 64, 8, 128_256)
        | {"rope_theta": 500_000.0, "rope_scaling": LLAMA_3_1, "mlp_bias": False},
        70_553_706_496,
    ),
    "Llama-3.2-1B": (
        LLAMA
        | shape(16, 2048, 8192, 32, 8, 128_256)
        | {
            "rope_theta": 500_000.0, "rope_scaling": LLAMA_3_1 | {"factor": 32.0},
            "tie_word_embeddings": True, "head_dim": 64,
        },
        1_235_814_400,
    ),
    "Llama-3.2-3B": (
        LLAMA
        | shape(28, 3072, 8192, 24, 8, 128_256)
        | {
            "rope_theta": 500_000.0, "rope_scaling": LLAMA_3_1 | {"factor": 32.0},
            "tie_word_embeddings": True, "head_dim": 128,
        },
        3_212_749_824,
    ),
    "Mistral-7B-v0.1": (
        shape(32, 4096, 14_336, 32, 8, 32_000)
        | {
            "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "sliding_window": 4096,
            "tie_word_embeddings": False,
        },
        7_241_732_096,
    ),
    "Qwen2-7B": (
        QWEN_2
        | shape(28, 3584, 18_944, 28, 4, 152_064)
        | {"sliding_window": 131_072, "max_window_layers": 28},
        7_615_616_512,
    ),
    "Qwen2.5-0.5B": (
        QWEN_2
        | shape(24, 896, 4864, 14, 2, 151_936)
        | {"sliding_window": 32_768, "max_window_layers": 24, "tie_word_embeddings": True},
        494_032_768,
    ),
    "Qwen2.5-72B": (
        QWEN_2
        | shape(80, 8192, 29_568, 64, 8, 152_064)
        | {"sliding_window": 131_072, "max_window_layers": 80},
        72_706_203_648,
    ),
    "Qwen3-8B": (
        QWEN_3 | shape(36, 4096, 12_288, 32, 8, 151_936) | {"max_window_layers": 36},
        8_190_735_360,
    ),
    "Qwen3-32B": (
        QWEN_3 | shape(64, 5120, 25_600, 64, 8, 151_936) | {"max_window_layers": 64},
        32_762_123_264,
    ),
    "gemma-2b": (
        shape(18, 2048, 16_384, 8, 1, 256_000)
        | {
            "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 256,
            "hidden_act": "gelu", "hidden_activation": None, "rms_norm_eps": 1e-6,
            "attention_bias": False, "rope_scaling": None,
        },
        2_506_172_416,
    ),
    "gemma-2-2b": (
        GEMMA_2 | shape(26, 2304, 9216, 8, 4, 256_000) | {"query_pre_attn_scalar": 256},
        2_614_341_888,
    ),
    "gemma-2-9b": (
        GEMMA_2 | shape(42, 3584, 14_336, 16, 8, 256_000) | {"query_pre_attn_scalar": 256},
        9_241_705_984,
    ),
    "gemma-2-27b": (
        GEMMA_2
        | shape(46, 4608, 36_864, 32, 16, 256_000)
        | {"query_pre_attn_scalar": 144, "head_dim": 128},
        27_227_128_320,
    ),
    "gemma-3-1b-pt": (
        shape(26, 1152, 6912, 4, 1, 262_144)
        | {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6, "rope_local_base_freq": 10_000, "rope_theta": 1_000_000,
            "rope_scaling": None, "sliding_window": 512, "sliding_window_pattern": 6,
            "attn_logit_softcapping": None, "final_logit_softcapping": None,
            "attention_bias": False,
        },
        999_885_952,
    ),
    "Phi-3-mini-4k-instruct": (
        shape(32, 3072, 8192, 32, 32, 32_064)
        | {
            "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu",
            "attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5,
            "rope_scaling": None, "rope_theta": 10_000.0, "sliding_window": 2047,
            "original_max_position_embeddings": 4096, "tie_word_embeddings": False,
            "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "attention_bias": False,
        },
        3_821_079_552,
    ),
    "phi-4": (
        shape(40, 5120, 17_920, 40, 10, 100_352)
        | {
            "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu",
            "attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5,
            "rope_scaling": None, "rope_theta": 250_000, "sliding_window": None,
            "original_max_position_embeddings": 16_384, "tie_word_embeddings": False,
            "attention_bias": False,
        },
        14_659_507_200,
    ),
    "OLMo-2-1124-7B": (
        shape(32, 4096, 11_008, 32, 32, 100_352)
        | {
            "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "hidden_act": "silu",
            "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 500_000,
            "tie_word_embeddings": False, "rope_scaling": None,
        },
        7_298_617_344,
    ),
    "OLMo-2-1124-13B": (
        shape(40, 5120, 13_824, 40, 40, 100_352)
        | {
            "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "hidden_act": "silu",
            "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 500_000,
            "tie_word_embeddings": False, "rope_scaling": None,
        },
        13_716_198_400,
    ),
    "SmolLM2-135M": (
        LLAMA
        | shape(30, 576, 1536, 9, 3, 49_152)
        | {
            "rope_theta": 100_000, "tie_word_embeddings": True, "is_llama_config": True,
            "rope_interleaved": False,
        },
        134_515_008,
    ),
    "SmolLM2-1.7B": (
        LLAMA
        | shape(24, 2048, 8192, 32, 32, 49_152)
        | {"rope_theta": 130_000, "tie_word_embeddings": True, "rope_interleaved": False},
        1_711_376_384,
    ),
}  # fmt: skip
# Millions of parameters of the text models: embeddings and others, by the Gemma 3 report (arXiv
# 2503.19786, table 1).
REPORTED: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "gemma-3-4b-pt": (text(34, 2560, 10_240), (675, 3209)),
    "gemma-3-12b-pt": (
        text(48, 3840, 15_360, num_attention_heads=16, num_key_value_heads=8),
        (1012, 10_759),
    ),
    "gemma-3-27b-pt": (
        text(
            62, 5376, 21_504, head_dim=128, num_attention_heads=32, num_key_value_heads=16,
            query_pre_attn_scalar=168,
        ),
        (1416, 25_600),
    ),
}  # fmt: skip

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
QWEN_3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
STRETCHED_40 = {
    "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096, "type": "yarn",
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "ep_size": 1,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"}, "hidden_act": "silu",
    "initializer_range": 0.02, "kv_lora_rank": 512, "max_position_embeddings": 163_840,
    "moe_layer_freq": 1, "pretraining_tp": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6, "rope_scaling": STRETCHED_40, "rope_theta": 10_000, "seq_aux": True,
    "tie_word_embeddings": False, "use_cache": True, "v_head_dim": 128,
}  # fmt: skip
DEEPSEEK_V2 = DEEPSEEK | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "first_k_dense_replace": 1, "n_shared_experts": 2, "norm_topk_prob": False,
    "num_experts_per_tok": 6, "scoring_func": "softmax",
}  # fmt: skip
DEEPSEEK_V3 = (
    DEEPSEEK
    | shape(61, 7168, 18_432, 128, 128, 129_280)
    | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "first_k_dense_replace": 3, "moe_intermediate_size": 2048, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "quantization_config": {"fmt": "e4m3", "quant_method": "fp8"},
        "rope_scaling": STRETCHED_40 | {"mscale": 1.0, "mscale_all_dim": 1.0},
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4,
        "topk_method": "noaux_tc",
    }
)  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
    "eos_token_id": 200_002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "initial_context_length": 4096, "initializer_range": 0.02, "max_position_embeddings": 131_072,
    "model_type": "gpt_oss", "num_experts_per_tok": 4, "output_router_logits": False,
    "pad_token_id": 199_999, "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
        "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False,
    },
    "rope_theta": 150_000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": False, "use_cache": True,
}  # fmt: skip


def gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    """A config of gpt-oss, of so many layers and experts."""
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    sizes: dict[str, Any] = {"num_local_experts": experts, "layer_types": kinds}
    return {**GPT_OSS, **shape(layers, 2880, 2880, 64, 8, 201_088), **sizes}


# Configs with experts, and their parameters in billions as published: all, and active.
EXPERTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "Mixtral-8x7B-v0.1": (MIXTRAL | shape(32, 4096, 14_336, 32, 8, 32_000), 46.70, 12.88),
    "Mixtral-8x22B-v0.1": (MIXTRAL | shape(56, 6144, 16_384, 48, 8, 32_000), 140.6, 39.2),
    "Qwen3-30B-A3B": (
        QWEN_3_MOE | shape(48, 2048, 6144, 32, 4, 151_936) | {"moe_intermediate_size": 768},
        30.53,
        3.35,
    ),
    "Qwen3-235B-A22B": (
        QWEN_3_MOE | shape(94, 4096, 12_288, 64, 4, 151_936) | {"moe_intermediate_size": 1536},
        235.1,
        22.2,
    ),
    "DeepSeek-V2-Lite": (
        DEEPSEEK_V2
        | shape(27, 2048, 10_944, 16, 16, 102_400)
        | {"moe_intermediate_size": 1408, "n_routed_experts": 64, "n_group": 1, "topk_group": 1,
           "q_lora_rank": None, "routed_scaling_factor": 1.0, "topk_method": "greedy"},
        15.71,
        2.66,
    ),
    "DeepSeek-V2": (
        DEEPSEEK_V2
        | shape(60, 5120, 12_288, 128, 128, 102_400)
        | {"moe_intermediate_size": 1536, "n_routed_experts": 160, "n_group": 8, "topk_group": 3,
           "q_lora_rank": 1536, "routed_scaling_factor": 16.0,
           "topk_method": "group_limited_greedy"},
        235.7,
        21.4,
    ),
    "DeepSeek-V3": (DEEPSEEK_V3, 671.0, 37.6),
    # OpenAI's card has 3.61B and 5.13B active: it leaves out the embedding, of 0.58B.
    "gpt-oss-20b": (gpt_oss(24, 32), 20.91, 3.61 + 0.58),
    "gpt-oss-120b": (gpt_oss(36, 128), 116.83, 5.13 + 0.58),
}  # fmt: skip
