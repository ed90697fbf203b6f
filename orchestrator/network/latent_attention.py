"""Multi-head latent attention: queries, keys and values from narrow latents (arXiv 2405.04434).

Each device of a `tensor` group makes the latents of its own positions, and the group gathers them:
they are narrower than the stream.
"""

from orchestrator.network.attention import RESULT, output_projection, projection, scores
from orchestrator.network.description import (
    Attention,
    Dimension,
    LatentAttention,
    Matmul,
    Tensor,
    Weight,
)
from orchestrator.network.mesh_axes import GATHERED
from orchestrator.network.norms import norm, norms_around
from orchestrator.network.rotary import rotary
from orchestrator.types import latent
from orchestrator.types.model import Model

LATENT = "latent"  # the tensor: what queries, keys and values are made from
KEYS_AND_VALUES = "kv_b_proj"
LATENT_AND_TURNED = "kv_a_proj_with_mqa"


def latent_attention(model: Model, residual_scale: float, window: int | None) -> Attention:
    """The attention of a layer. `residual_scale` shrinks the initial weights of its output."""
    shape = model.latent
    assert shape is not None
    heads = Dimension("heads", model.heads)
    whole_head, values = (
        Dimension("head_dim", shape.head_dim),
        Dimension("value_dim", shape.value_dim),
    )
    key, value = (
        from_latent("kv_rank", shape.kv_rank, name, KEYS_AND_VALUES, (heads, made), (heads, kept))
        for name, made, kept in (
            ("key", Dimension("nope_dim", shape.nope_dim), whole_head),
            ("value", values, values),
        )
    )
    before, after = norms_around(model, "attention")
    return LatentAttention(
        before=before,
        after=after,
        inputs=(queries(model, shape, (heads, whole_head)), key, value),
        output=output_projection(model, residual_scale, (heads, values)),
        result=Tensor(RESULT, "length", (heads, values), statistics=(heads,)),
        whole=(key.output, value.output),
        scores=scores(model, window),
        rotary=rotary(model, window),
        sinks=Weight("sinks", (heads,), None, "self_attn.sinks", start=0.0)
        if model.sinks
        else None,
        latents=latents(model, shape),
        query_latent_norm=norm(
            model, "query_latent_norm", "self_attn.q_a_layernorm",
            Dimension("query_latent", shape.query_rank),
        )
        if shape.query_rank
        else None,
        kv_latent_norm=norm(
            model, "kv_latent_norm", "self_attn.kv_a_layernorm",
            Dimension("kv_latent", shape.kv_rank),
        ),
    )  # fmt: skip


def queries(
    model: Model, shape: latent.LatentDimensions, dimensions: tuple[Dimension, Dimension]
) -> Matmul:
    """From their latent, or from the stream where they have none."""
    if shape.query_rank is None:
        return projection(model, "query", dimensions)
    return from_latent("query_rank", shape.query_rank, "query", "q_b_proj", dimensions, dimensions)


def from_latent(
    axis: str,
    rank: int,
    name: str,
    published: str,
    made: tuple[Dimension, ...],
    kept: tuple[Dimension, ...],
) -> Matmul:
    """Numbers of all heads from a latent. Keys are kept with the part that RoPE turns."""
    dimensions = (Dimension(axis, rank), *made)
    return Matmul(
        Weight(name, dimensions, rank**-0.5, f"self_attn.{published}"),
        Tensor(name, "length", kept),
    )


def latents(model: Model, shape: latent.LatentDimensions) -> tuple[Matmul, ...]:
    """What the stream is multiplied by: the latents, and the part of keys that RoPE turns."""
    embed = Dimension(GATHERED, model.d_model)
    kinds = [
        ("query_down", "query_latent", shape.query_rank, "q_a_proj"),
        ("kv_down", "kv_latent", shape.kv_rank, LATENT_AND_TURNED),
        ("key_rope", "rope_dim", shape.rope_dim, LATENT_AND_TURNED),
    ]
    return tuple(
        Matmul(
            Weight(name, (embed, Dimension(axis, size)), model.d_model**-0.5,
                   f"self_attn.{published}"),
            Tensor(LATENT, "residual_length", (Dimension(axis, size),)),
        )
        for name, axis, size, published in kinds
        if size is not None
    )  # fmt: skip
