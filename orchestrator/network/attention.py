"""Grouped-query attention with rotary positions."""

from dataclasses import replace
from math import log
from typing import Any

from orchestrator.network.description import (
    Attention,
    Dimension,
    LatentAttention,
    Matmul,
    Rotary,
    Scores,
    Tensor,
    Weight,
    bias_of,
    norm,
    norms_around,
    plain_norm,
)
from orchestrator.network.mesh_axes import GATHERED
from orchestrator.values.model import Model

# How a program names the products that exchange the halves of heads: they compute nothing.
EXCHANGE = "exchange_of_halves"


def yarn_growth(factor: float, share: float = 1) -> float:
    """How much YaRN enlarges vectors for sequences longer by a factor; or a share of that."""
    return 0.1 * share * log(factor) + 1 if factor > 1 else 1.0


RESULT = "attention"  # of every kind of attention
TENSORS = ("latent", "query", "key", "value", RESULT, "mlp_input")


def grouped_query_attention(model: Model, residual_scale: float, window: int | None) -> Attention:
    """The attention of a layer. `residual_scale` shrinks the initial weights of its output."""
    # Global layers may have heads of another width, and another number of KV heads.
    width, kv = Dimension("head_dim", model.head_dim), Dimension("kv_heads", model.kv_heads)
    if window is None and model.global_head_dim:
        width = Dimension("global_head_dim", model.global_head_dim)
    if window is None and model.global_kv_heads:
        kv = Dimension("global_kv_heads", model.global_kv_heads)
    heads, kv_heads = (Dimension("heads", model.heads), width), (kv, width)
    inputs = tuple(
        _projection(model, name, dimensions)
        for name, dimensions in (("query", heads), ("key", kv_heads), ("value", kv_heads))
        if name != "value" or window is not None or not model.keys_as_values
    )
    # Norms of queries and keys: of each head by itself, or over all heads together.
    query_norm = key_norm = None
    if model.qk_norm != "none":
        query, key = (made if model.qk_norm == "heads" else made[1:] for made in (heads, kv_heads))
        query_norm = norm(model, "query_norm", "self_attn.q_norm", *query)
        key_norm = norm(model, "key_norm", "self_attn.k_norm", *key)
    return _attention(
        Attention, model, residual_scale, window, inputs, heads,
        whole=(inputs[1].output, Tensor("value", "length", kv_heads)),
        query_norm=query_norm, key_norm=key_norm,
        value_norm=plain_norm(model) if model.value_norm else None,
    )  # fmt: skip


def _attention(
    kind: type[Attention], model: Model, residual_scale: float, window: int | None,
    inputs: tuple[Matmul, ...], heads: tuple[Dimension, ...], **others: Any,
) -> Attention:  # fmt: skip
    """The attention of queries, keys and values, whose results have these heads."""
    before, after = norms_around(model, "attention")
    # From all heads back to the stream.
    width = heads[0].size * heads[1].size
    stream, published = (Dimension("residual", model.d_model),), "self_attn.o_proj"
    dimensions = (*heads, Dimension("embed", model.d_model))
    output = Matmul(
        Weight("output", dimensions, residual_scale * width**-0.5, published),
        Tensor("mlp_input", "residual_length", stream),
        bias=bias_of("output", stream, published) if model.output_bias else None,
    )
    # Numbers of a head that turn, in whole pairs. Of latent attention they are a part of their own.
    head_dim = inputs[0].output.dimensions[-1].size
    turned = 2 * int(head_dim * model.rotary_share / 2)
    if model.latent:
        turned = model.latent.rope_dim
    rotary: Rotary | None = Rotary(turned, model.rope_theta, model.rope_scaling)
    if model.learned_positions:
        rotary = None
    elif window is not None and model.local_rope_theta is not None:
        # A base of local layers' own leaves their positions unstretched.
        rotary = Rotary(turned, model.local_rope_theta)
    elif window is None and model.global_rotary_share is not None:
        rotary = Rotary(head_dim, model.rope_theta, model.rope_scaling, model.global_rotary_share)
    scale = model.attention_scale or head_dim**-0.5
    sinks = Weight("sinks", heads[:1], None, "self_attn.sinks", start=0.0)
    return kind(
        before=before,
        after=after,
        inputs=inputs,
        output=output,
        result=Tensor(RESULT, "length", heads, statistics=heads[:1]),
        scores=Scores(scale=scale, cap=model.attention_cap, window=window),
        rotary=rotary,
        sinks=sinks if model.sinks else None,
        **others,
    )


def _projection(model: Model, name: str, heads: tuple[Dimension, ...]) -> Matmul:
    published = f"self_attn.{name[0]}_proj"
    bias = bias_of(name, heads, published) if model.qkv_bias else None
    made = _heads_from(Dimension("embed", model.d_model), name, published, heads, heads)
    return replace(made, bias=bias)


def _heads_from(
    source: Dimension, name: str, published: str, made: tuple[Dimension, ...],
    kept: tuple[Dimension, ...],
) -> Matmul:  # fmt: skip
    """Numbers of all heads. Keys from latents are kept with the part that RoPE turns."""
    weight = Weight(name, (source, *made), source.size**-0.5, published)
    return Matmul(weight, Tensor(name, "length", kept))


# Multi-head latent attention: queries, keys and values from narrow latents (arXiv 2405.04434).
LATENT = "latent"  # the tensor: what queries, keys and values are made from
_KEYS_AND_VALUES = "self_attn.kv_b_proj"
_LATENT_AND_TURNED = "kv_a_proj_with_mqa"


def latent_attention(model: Model, residual_scale: float, window: int | None) -> Attention:
    """The attention of a layer. `residual_scale` shrinks the initial weights of its output."""
    shape = model.latent
    assert shape is not None
    heads = Dimension("heads", model.heads)
    whole_head = Dimension("head_dim", shape.head_dim)
    values = Dimension("value_dim", shape.value_dim)
    kv_rank = Dimension("kv_rank", shape.kv_rank)
    key, value = (
        _heads_from(kv_rank, name, _KEYS_AND_VALUES, (heads, made), (heads, kept))
        for name, made, kept in (
            ("key", Dimension("nope_dim", shape.nope_dim), whole_head),
            ("value", values, values),
        )
    )
    query_heads = (heads, whole_head)
    query = _projection(model, "query", query_heads)
    query_latent_norm = None
    if (rank := shape.query_rank) is not None:
        source, latent = Dimension("query_rank", rank), Dimension("query_latent", rank)
        query = _heads_from(source, "query", "self_attn.q_b_proj", query_heads, query_heads)
        query_latent_norm = norm(model, "query_latent_norm", "self_attn.q_a_layernorm", latent)
    # From the stream to the latents, and to the part of keys that RoPE turns.
    embed = Dimension(GATHERED, model.d_model)
    latents = tuple(
        Matmul(
            Weight(name, (embed, Dimension(axis, size)), model.d_model**-0.5,
                   f"self_attn.{published}"),
            Tensor(LATENT, "residual_length", (Dimension(axis, size),)),
        )
        for name, axis, size, published in (
            ("query_down", "query_latent", shape.query_rank, "q_a_proj"),
            ("kv_down", "kv_latent", shape.kv_rank, _LATENT_AND_TURNED),
            ("key_rope", "rope_dim", shape.rope_dim, _LATENT_AND_TURNED),
        )
        if size is not None
    )  # fmt: skip
    kv_latent = Dimension("kv_latent", shape.kv_rank)
    return _attention(
        LatentAttention, model, residual_scale, window, (query, key, value), (heads, values),
        whole=(key.output, value.output),
        latents=latents,
        query_latent_norm=query_latent_norm,
        kv_latent_norm=norm(model, "kv_latent_norm", "self_attn.kv_a_layernorm", kv_latent),
    )  # fmt: skip
