"""Grouped-query attention with rotary positions."""

from orchestrator.network.description import Attention, Dimension, Matmul, Scores, Tensor, Weight
from orchestrator.network.norms import norms_around, query_key_norms
from orchestrator.network.rotary import rotary
from orchestrator.types.model import Model

RESULT = "attention"  # of every kind of attention
TENSORS = ("latent", "query", "key", "value", RESULT, "mlp_input")


def grouped_query_attention(model: Model, residual_scale: float, window: int | None) -> Attention:
    """The attention of a layer. `residual_scale` shrinks the initial weights of its output."""
    heads = Dimension("heads", model.heads), Dimension("head_dim", model.head_dim)
    kv_heads = Dimension("kv_heads", model.kv_heads), Dimension("head_dim", model.head_dim)
    q, k, v = (
        projection(model, name, dimensions)
        for name, dimensions in (("query", heads), ("key", kv_heads), ("value", kv_heads))
    )
    before, after = norms_around(model, "attention")
    query_norm, key_norm = query_key_norms(model)
    return Attention(
        before=before,
        after=after,
        inputs=(q, k, v),
        output=output_projection(model, residual_scale, heads),
        result=Tensor(RESULT, "length", heads, statistics=heads[:1]),
        whole=(k.output, v.output),
        scores=scores(model, window),
        rotary=rotary(model, window),
        query_norm=query_norm,
        key_norm=key_norm,
        sinks=Weight("sinks", heads[:1], None, "self_attn.sinks", start=0.0)
        if model.sinks
        else None,
    )


def scores(model: Model, window: int | None) -> Scores:
    """How the scores of a layer are made."""
    scale = model.attention_scale or model.head_dim**-0.5
    return Scores(scale=scale, cap=model.attention_cap, window=window)


def projection(model: Model, name: str, dimensions: tuple[Dimension, ...]) -> Matmul:
    """Queries, keys or values from the stream."""
    published = f"self_attn.{name[0]}_proj"
    embed = Dimension("embed", model.d_model)
    return Matmul(
        Weight(name, (embed, *dimensions), model.d_model**-0.5, published),
        Tensor(name, "length", dimensions),
        bias=Weight(f"{name}_bias", dimensions, None, f"{published}.bias", start=0.0)
        if model.qkv_bias
        else None,
    )


def output_projection(model: Model, residual_scale: float, heads: tuple[Dimension, ...]) -> Matmul:
    """From all heads back to the stream."""
    width = heads[0].size * heads[1].size
    stream, published = (Dimension("residual", model.d_model),), "self_attn.o_proj"
    dimensions = (*heads, Dimension("embed", model.d_model))
    return Matmul(
        Weight("output", dimensions, residual_scale * width**-0.5, published),
        Tensor("mlp_input", "residual_length", stream),
        bias=Weight("output_bias", stream, None, f"{published}.bias", start=0.0)
        if model.output_bias
        else None,
    )
