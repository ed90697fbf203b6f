"""The architectures of Hugging Face configs that are served: their keys, and what each key means.

Defaults are those of each family's configuration class in `transformers`. A family's own fields are
what its architecture computes whatever its config says.
"""

from dataclasses import dataclass, field
from typing import Any

# How the experts of a Hugging Face config are called, family by family.


@dataclass(frozen=True)
class ExpertKeys:
    """Keys of experts → the fields of MixtureOfExperts that they give; `defaults` are what leaving
    them out means, `own` what the family always has.

    `choices` are keys whose words stand for several fields: key → word → the fields.
    """

    keys: dict[str, str]
    defaults: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)


EXPERTS = {"num_experts_per_tok": "top_k", "router_aux_loss_coef": "balance_loss"}
MIXTRAL = ExpertKeys(
    EXPERTS | {"num_local_experts": "experts"},
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
)
QWEN_3 = ExpertKeys(
    EXPERTS
    | {
        "num_experts": "experts",
        "num_local_experts": "experts",  # since transformers 5
        "moe_intermediate_size": "d_ff",
        "decoder_sparse_step": "every",
        "norm_topk_prob": "normalized",
    },
    defaults={
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
    },
)
GPT_OSS = ExpertKeys(
    EXPERTS | {"num_local_experts": "experts"},
    defaults={"num_local_experts": 128, "num_experts_per_tok": 4},
    own={"biases": True, "router_bias": True},
)
DEEPSEEK_KEYS = {
    "n_routed_experts": "experts",
    "num_experts_per_tok": "top_k",
    "moe_intermediate_size": "d_ff",
    "n_shared_experts": "shared_experts",
    "first_k_dense_replace": "dense_layers",
    "norm_topk_prob": "normalized",
    "routed_scaling_factor": "scale",
    "n_group": "groups",
    "topk_group": "top_groups",
    "aux_loss_alpha": "balance_loss",
    "scoring_func": "router",
}
ONE_GROUP = {"groups": 1, "top_groups": 1}
# How far a bias moves after a step: DeepSeek-V3's report, section 4.2.
BALANCE = {"balance_bias": 0.001}
DEEPSEEK_V2 = ExpertKeys(
    DEEPSEEK_KEYS,
    defaults={
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
    },
    choices={"topk_method": {"greedy": ONE_GROUP, "group_limited_greedy": {}}},
)
DEEPSEEK_V3 = ExpertKeys(
    DEEPSEEK_KEYS,
    defaults={
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    choices={"topk_method": {"noaux_tc": BALANCE}},
)


# Keys of the config → the fields of Model that they give. All families have these.
SIZES = {
    "num_hidden_layers": ("layers",),
    "hidden_size": ("d_model",),
    "intermediate_size": ("d_ff",),
    "num_attention_heads": ("heads",),
    "num_key_value_heads": ("kv_heads",),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab",),
    "tie_word_embeddings": ("tied",),
    "rope_theta": ("rope_theta",),
    "rms_norm_eps": ("norm_epsilon",),
    "hidden_act": ("activation",),
}
DEFAULTS = {
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
# Their names of activation functions → ours.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu": "gelu_exact",
    "relu2": "relu2",
}
Keys = dict[str, tuple[str, ...]]
BIASES: Keys = {"attention_bias": ("qkv_bias", "output_bias")}
# The layers that have the family's window: all, or those that the config lists.
NO_WINDOW = ""


@dataclass(frozen=True)
class Family:
    """An architecture that is served.

    `own` are fields of the Model that it always has, `keys` the keys that only some families have,
    and `defaults` what its config means by leaving a key out. `window_pattern` are the layers with
    its window, where the config does not list them.
    """

    architecture: str
    model_type: str
    own: dict[str, Any] = field(default_factory=dict)
    keys: Keys = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    window_pattern: str = NO_WINDOW
    # Keys that choose the layers with the window: a switch, and the first layer that has it.
    window_switch: str = ""
    window_first: str = ""
    experts: ExpertKeys | None = None  # where the family has experts
    latent: bool = False  # whether its attention has latents
    # Keys of which it has one value alone, and the reason.
    fixed: dict[str, tuple[Any, str]] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()  # keys that change nothing, in this family alone
    # The section of the config that describes the text model, where it describes another as well.
    section: str = ""


# Weights are published in a narrow type, which says nothing of training.
STORED = frozenset({"quantization_config"})
DEEPSEEK: dict[str, Any] = {
    "keys": {"num_nextn_predict_layers": ("mtp_layers",)},
    "latent": True,
    "harmless": STORED | {"qk_head_dim"},  # a sum of two other keys
    "fixed": {"rope_interleave": (True, "what RoPE turns together is side by side in its weights")},
}
GEMMA = {"norm_offset": True, "embedding_scale": True}
GEMMA_DEFAULTS = {"tie_word_embeddings": True, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh"}
BOTH = {"norm_placement": "both"}
QUERY_SCALE: Keys = {"query_pre_attn_scalar": ("attention_scale",)}
CAPS: Keys = {
    "attn_logit_softcapping": ("attention_cap",),
    "final_logit_softcapping": ("logit_cap",),
}
GEMMA_3: dict[str, Any] = {
    "own": GEMMA | BOTH | {"qk_norm": "head"},
    "keys": BIASES | QUERY_SCALE | CAPS | {"rope_local_base_freq": ("local_rope_theta",)},
    "defaults": GEMMA_DEFAULTS
    | {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    "window_pattern": "LLLLLG",
}
QWEN: dict[str, Any] = {
    "defaults": {"sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32},
    "window_pattern": "L",
    "window_switch": "use_sliding_window",
    "window_first": "max_window_layers",
}
FAMILIES = (
    Family(
        "LlamaForCausalLM",
        "llama",
        keys=BIASES | {"mlp_bias": ("mlp_bias",), "partial_rotary_factor": ("rotary_share",)},
    ),
    Family(
        "MistralForCausalLM",
        "mistral",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
        window_pattern="L",
    ),
    Family("Qwen2ForCausalLM", "qwen2", own={"qkv_bias": True}, **QWEN),
    Family(
        "Qwen3ForCausalLM",
        "qwen3",
        own={"qk_norm": "head"},
        keys=BIASES,
        **QWEN | {"defaults": QWEN["defaults"] | {"head_dim": 128}},
    ),
    Family("GemmaForCausalLM", "gemma", own=GEMMA, keys=BIASES, defaults=GEMMA_DEFAULTS),
    Family(
        "Gemma2ForCausalLM",
        "gemma2",
        own=GEMMA | BOTH,
        keys=BIASES | QUERY_SCALE | CAPS,
        defaults=GEMMA_DEFAULTS
        | {
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window": 4096,
        },
        window_pattern="LG",
    ),
    Family("Gemma3ForCausalLM", "gemma3_text", **GEMMA_3),
    Family("Gemma3ForConditionalGeneration", "gemma3", section="text_config", **GEMMA_3),
    Family(
        "Phi3ForCausalLM",
        "phi3",
        keys={"partial_rotary_factor": ("rotary_share",)},
        defaults={"rms_norm_eps": 1e-5},
        window_pattern="L",
    ),
    Family(
        "MixtralForCausalLM",
        "mixtral",
        defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0},
        window_pattern="L",
        experts=MIXTRAL,
    ),
    Family(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        own={"qk_norm": "head"},
        keys=BIASES,
        experts=QWEN_3,
        **QWEN | {"defaults": QWEN["defaults"] | {"num_key_value_heads": 4}},
    ),
    Family(
        "Olmo2ForCausalLM",
        "olmo2",
        own={"norm_placement": "after", "qk_norm": "heads"},
        keys=BIASES,
        defaults={"rms_norm_eps": 1e-5},
    ),
    Family("DeepseekV2ForCausalLM", "deepseek_v2", experts=DEEPSEEK_V2, **DEEPSEEK),
    Family("DeepseekV3ForCausalLM", "deepseek_v3", experts=DEEPSEEK_V3, **DEEPSEEK),
    Family(
        "GptOssForCausalLM",
        "gpt_oss",
        own={"sinks": True, "activation": "clamped_swiglu"},
        keys=BIASES,
        defaults={
            "attention_bias": True,
            "head_dim": 64,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "sliding_window": 128,
        },
        window_pattern="LG",
        experts=GPT_OSS,
        harmless=STORED,
        fixed={
            "hidden_act": ("silu", "its experts have a clamped SwiGLU"),
            "swiglu_limit": (7.0, "the clamp of its SwiGLU is 7"),
            "swiglu_alpha": (1.702, "the gain of its SwiGLU is 1.702"),
        },
    ),
)
# What other architectures compute that is not served.
OTHER_FAMILIES = {
    "deepseek_v32": "its attention chooses the positions that it sees",
    "kimi_k2": "it computes what deepseek_v3 does: write that as its model_type",
    "qwen2_moe": "its shared expert has a gate",
    "phi": "its attention and MLP work on one norm's result, and its head has a bias",
    "gpt2": "it has learned positions",
    "gpt_neox": "its attention and MLP add to one stream at once",
    "smollm3": "some of its layers have no rotary positions",
    "llama4_text": "it attends in chunks",
    "cohere": "its attention and MLP work on one norm's result",
    "olmo": "its norms have no weights",
}
# The one value that can be served, and the reason.
FIXED: dict[str, tuple[Any, str]] = {
    "attention_dropout": (0, "the trainer has no dropout"),
    "resid_pdrop": (0, "the trainer has no dropout"),
    "embd_pdrop": (0, "the trainer has no dropout"),
    "rope_interleaved": (False, "the trainer turns halves of heads, not neighbours"),
    "router_jitter_noise": (0, "the trainer's routers have no noise"),
    "moe_layer_freq": (1, "every layer after the dense ones has experts"),
    "seq_aux": (True, "the load-balancing loss is of a sequence"),
    "mlp_only_layers": ([], "layers without experts come first or in turn"),
    "use_bidirectional_attention": (False, "the trainer's attention is causal"),
}
# Keys that do not change what is computed in pre-training.
HARMLESS = frozenset(
    {
        "_model_name_or_path",
        "_name_or_path",
        "_sliding_window_pattern",
        "architectures",
        "auto_map",
        "boi_token_index",
        "bos_token_id",
        "cache_implementation",
        "dtype",
        "eoi_token_index",
        "ep_size",  # how a trainer spreads experts
        "experts_per_token",  # num_experts_per_tok again
        "initial_context_length",  # rope_scaling has it
        "eos_token_id",
        "hidden_activation",
        "image_token_index",
        "initializer_range",
        "is_llama_config",
        "max_position_embeddings",
        "max_window_layers",
        "mm_tokens_per_image",
        "model_type",
        "original_max_position_embeddings",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "return_dict",
        "sliding_window",
        "sliding_window_pattern",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "use_cache",
        "use_sliding_window",
        "vision_config",
    }
)


# Their kinds of layers → a letter of `window_pattern`.
LAYER_TYPES = {"sliding_attention": "L", "full_attention": "G"}
GLOBAL = "G"


def window_pattern(family: Family, values: dict[str, Any]) -> str | None:
    """The layers with the window, as the shortest pattern; None where a kind is not served."""
    kinds = values.get("layer_types")
    if kinds is not None:
        return pattern_of(kinds)
    if family.window_switch and not values.get(family.window_switch):
        return GLOBAL
    first, layers = values.get(family.window_first), values.get("num_hidden_layers")
    if isinstance(first, int) and isinstance(layers, int):
        return shortest((GLOBAL * min(first, layers) + "L" * (layers - first))[:LONGEST])
    every = values.get("sliding_window_pattern", values.get("_sliding_window_pattern"))
    if isinstance(every, int) and 0 < every < LONGEST:
        return "L" * (every - 1) + GLOBAL
    return family.window_pattern or GLOBAL


LONGEST = 1000  # layers that a pattern names


def pattern_of(kinds: Any) -> str | None:
    """The pattern of a list of layers."""
    if not isinstance(kinds, list) or not kinds:
        return None
    letters = [LAYER_TYPES.get(kind) if isinstance(kind, str) else None for kind in kinds]
    if None in letters or len(letters) > LONGEST:
        return None
    return shortest("".join(filter(None, letters)))


def shortest(row: str) -> str:
    """The shortest pattern that gives the row by repetition."""
    for length in range(1, len(row)):
        if (row[:length] * len(row))[: len(row)] == row:
            return row[:length]
    return row
