"""Norms: of a sublayer's input and result, and of queries and keys.

Each is computed in fp32 over the width of what it normalizes: RMS, or LayerNorm with a bias.
"""

from orchestrator.network.description import Dimension, Norm, Weight
from orchestrator.types.model import Model

# The sublayer, and where the norm is → its name in published checkpoints. Where a sublayer has a
# norm on one side alone, these follow Llama and OLMo 2; with both, Gemma 2.
PUBLISHED = {
    ("attention", "before"): "input_layernorm",
    ("attention", "after"): "post_attention_layernorm",
    ("mlp", "before"): "post_attention_layernorm",
    ("mlp", "after"): "post_feedforward_layernorm",
}
PUBLISHED_BOTH = PUBLISHED | {("mlp", "before"): "pre_feedforward_layernorm"}


def norm(model: Model, name: str, published: str, *dimensions: Dimension) -> Norm:
    """A norm of the model's kind. With a unit offset the scale that is trained starts at zero."""
    offset = 1.0 if model.norm_offset else 0.0
    is_layer_norm = model.norm == "layer"
    return Norm(
        scale=Weight(name, dimensions, None, published, start=1 - offset),
        bias=Weight(f"{name}_bias", dimensions, None, f"{published}.bias", start=0.0)
        if is_layer_norm
        else None,
        offset=offset,
        epsilon=model.norm_epsilon,
    )


def query_key_norms(model: Model) -> tuple[Norm | None, Norm | None]:
    """Norms of queries and keys: of each head by itself, or over all heads together."""
    if model.qk_norm == "none":
        return None, None
    head = Dimension("head_dim", model.head_dim)
    heads = Dimension("heads", model.heads), Dimension("kv_heads", model.kv_heads)
    query, key = ((one, head) if model.qk_norm == "heads" else (head,) for one in heads)
    return (
        norm(model, "query_norm", "self_attn.q_norm", *query),
        norm(model, "key_norm", "self_attn.k_norm", *key),
    )


def norms_around(model: Model, part: str) -> tuple[Norm | None, Norm | None]:
    """The norm of a sublayer's input, and that of what it adds to the stream."""
    stream = Dimension("residual", model.d_model)
    has_both = model.norm_placement == "both"
    names = PUBLISHED_BOTH if has_both else PUBLISHED
    before, after = (
        norm(model, name, names[part, place], stream)
        if has_both or model.norm_placement == place
        else None
        for name, place in ((f"{part}_norm", "before"), (f"{part}_after_norm", "after"))
    )
    return before, after
