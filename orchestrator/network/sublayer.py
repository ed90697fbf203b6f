"""The norms of a sublayer: before it, after it, or both."""

from orchestrator.network.description import Dimension, Norm
from orchestrator.network.norm import norm
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
