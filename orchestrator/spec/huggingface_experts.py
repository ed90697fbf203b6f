"""How the experts of a Hugging Face config are called, family by family."""

from dataclasses import dataclass, field
from typing import Any


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
