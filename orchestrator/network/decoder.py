"""The decoder-only transformer of a model."""

from functools import cache

from orchestrator.network.attention import grouped_query_attention
from orchestrator.network.description import Block, Dimension, Network, Tensor, Weight
from orchestrator.network.mlp import mlp
from orchestrator.types.spec import Model

# Logical axis → the key of a Model that has its size.
MODEL_KEYS = {
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ff": "d_ff",
    "vocab": "vocab",
    "embed": "d_model",
}
BLOCK_INPUT = "block_input"
LAYERS_PUBLISHED = "model.layers.{layer}."  # what the name of a block's weight begins with


@cache
def decoder(model: Model) -> Network:
    """The network of a model."""
    stream = Dimension("residual", model.d_model)
    table = Dimension("vocab", model.vocab), Dimension("embed", model.d_model)
    deviation = model.d_model**-0.5
    embedding = Weight("embedding", table, deviation, "model.embed_tokens")
    return Network(
        embedding=embedding,
        block=block(model),
        layers=model.layers,
        norm=Weight("norm", (stream,), None, "model.norm"),
        head=embedding if model.tied else Weight("unembedding", table, deviation, "lm_head"),
    )


def block(model: Model) -> Block:
    """One layer. What writes to the residual stream starts smaller, for there are 2 L of these."""
    stream = Tensor(BLOCK_INPUT, "residual_length", (Dimension("residual", model.d_model),))
    writes_to_stream = (2 * model.layers) ** -0.5
    return Block(
        input=stream,
        attention=grouped_query_attention(model, writes_to_stream),
        mlp=mlp(model, stream, writes_to_stream),
    )
