"""Latent attention of a Hugging Face config: DeepSeek V2 and V3."""

from typing import Any

from orchestrator.network.rotary import yarn_growth
from orchestrator.spec.huggingface_rope import GROWTH, ROPE_KEYS
from orchestrator.types.latent import LatentDimensions

# Keys of the config → the fields of LatentAttention.
LATENT_KEYS = {
    "q_lora_rank": "query_rank",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "nope_dim",
    "qk_rope_head_dim": "rope_dim",
    "v_head_dim": "value_dim",
}
LATENT_DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def latent_values(values: dict[str, Any]) -> dict[str, Any]:
    """What the config says; only the rank of queries may be null, where they have no latent."""
    said = {key: values[key] for key in LATENT_KEYS if key in values}
    absent = {key for key, value in said.items() if value is None and key != "q_lora_rank"}
    return {**LATENT_DEFAULTS, **{key: said[key] for key in said.keys() - absent}}


def scale_of_scores(latent: LatentDimensions, values: dict[str, Any]) -> float | None:
    """What scores are multiplied by, where YaRN changes it; None where it is the usual."""
    for key in ROPE_KEYS:
        rope = values.get(key)
        share = rope.get(GROWTH[1]) if isinstance(rope, dict) else None
        if rope is not None and share:
            return float(latent.head_dim**-0.5 * yarn_growth(rope["factor"], share) ** 2)
    return None
