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
PUBLISHED_LAYER = "model.layers.{layer}."  # the beginning of a block's names in a checkpoint


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
    """One layer. The stream adds up 2 L outputs, so their initial weights are smaller."""
    stream = Tensor(BLOCK_INPUT, "residual_length", (Dimension("residual", model.d_model),))
    residual_scale = (2 * model.layers) ** -0.5
    return Block(
        input=stream,
        attention=grouped_query_attention(model, residual_scale),
        mlp=mlp(model, stream, residual_scale),
    )


def published_names(network: Network) -> dict[tuple[str, ...], str]:
    """Each weight's place in the trainer's tree → its name in a Hugging Face checkpoint.

    Names of the blocks' weights have a place for the `layer`.
    """
    names: dict[tuple[str, ...], str] = {}
    for weight in (*network.tables, network.norm):
        names[weight.name,] = weight.published
    for weight in network.block.weights:
        names["layers", weight.name] = PUBLISHED_LAYER + weight.published
    return {path: f"{name}.weight" for path, name in names.items()}
