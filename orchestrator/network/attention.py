"""Grouped-query attention with rotary positions."""

from orchestrator.network.description import Attention, Dimension, Matmul, Tensor, Weight
from orchestrator.types.spec import Model

RESULT = "attention"  # of every kind of attention
TENSORS = ("query", "key", "value", RESULT, "mlp_input")


def grouped_query_attention(model: Model, residual_scale: float, window: int | None) -> Attention:
    """The attention of a layer. `residual_scale` shrinks the initial weights of its output."""
    embed = Dimension("embed", model.d_model)
    stream = Dimension("residual", model.d_model)
    heads = Dimension("heads", model.heads), Dimension("head_dim", model.head_dim)
    kv_heads = Dimension("kv_heads", model.kv_heads), Dimension("head_dim", model.head_dim)
    q, k, v = (
        Matmul(
            Weight(name, (embed, *dimensions), model.d_model**-0.5, f"self_attn.{letter}_proj"),
            Tensor(name, "length", dimensions),
        )
        for name, letter, dimensions in (
            ("query", "q", heads),
            ("key", "k", kv_heads),
            ("value", "v", kv_heads),
        )
    )
    deviation = residual_scale * (model.heads * model.head_dim) ** -0.5
    return Attention(
        norm=Weight("attention_norm", (stream,), None, "input_layernorm"),
        inputs=(q, k, v),
        output=Matmul(
            Weight("output", (*heads, embed), deviation, "self_attn.o_proj"),
            Tensor("mlp_input", "residual_length", (stream,)),
        ),
        result=Tensor(RESULT, "length", heads, statistics=heads[:1]),
        whole=(k.output, v.output),
        window=window,
    )
