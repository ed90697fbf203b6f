"""The decoder-only transformer of a model."""

from collections.abc import Hashable, Sequence
from functools import cache
from itertools import count

from orchestrator.network.attention import grouped_query_attention, latent_attention
from orchestrator.network.description import (
    Block,
    Dimension,
    Network,
    Segment,
    Stack,
    Tensor,
    Weight,
    norm,
)
from orchestrator.network.mlp import EXPERTS, is_mixture, mixture, mlp
from orchestrator.values.model import Model

_LONGEST = 32  # layers in a pattern


def _patterns(kinds: Sequence[Hashable]) -> list[range]:
    """The patterns that make up a row of layers, each as long as it goes, of few layers each:
    ranges with the first layer of each repeat, whose step is the pattern's length.
    """
    found: list[range] = []
    while (first := found[-1].stop if found else 0) < len(kinds):
        # The pattern that goes farthest from a layer; of several, the one of the fewest layers.
        best = _repeated(kinds, first, 1)
        for length in range(2, min(_LONGEST, (len(kinds) - first) // 2) + 1):
            if best.stop == len(kinds):
                break
            longer = _repeated(kinds, first, length)
            if len(longer) > 1 and longer.stop > best.stop:
                best = longer
        found.append(best)
    return found


def _repeated(kinds: Sequence[Hashable], first: int, length: int) -> range:
    """How often the next `length` layers come again."""
    end, pattern = first + length, kinds[first : first + length]
    while kinds[end : end + length] == pattern:
        end += length
    return range(first, end, length)


# Logical axis → the key of a Model that has its size.
_MODEL_KEYS = {
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ff": "d_ff",
    "vocab": "vocab",
    "embed": "d_model",
}
BLOCK_INPUT = "block_input"
_LAYERS = "layers"  # the name of a stack in the trainer's tree
LOCAL = "L"  # in a pattern of windows: a layer with the window
PUBLISHED_LAYER = "model.layers.{layer}."  # the beginning of a block's names in a checkpoint


def split_sizes(model: Model) -> list[tuple[str, str, int]]:
    """What a mesh may split: the logical axis, the key of the model, and the size."""
    split = [(axis, key, getattr(model, key)) for axis, key in _MODEL_KEYS.items()]
    if model.global_kv_heads:
        split.append(("global_kv_heads", "global_kv_heads", model.global_kv_heads))
    if model.learned_positions:
        split.append(("positions", "learned_positions", model.learned_positions))
    split.append((EXPERTS, "moe.experts", model.moe.experts if model.moe else 1))
    if model.latent is not None:
        split.append(("kv_rank", "latent.kv_rank", model.latent.kv_rank))
        if model.latent.query_rank is not None:
            split.append(("query_rank", "latent.query_rank", model.latent.query_rank))
    if model.moe is None or model.moe.d_ff is None:
        return split
    with_mlp = model.moe.with_mlp
    if not with_mlp and all(is_mixture(model, layer) for layer in range(model.layers)):
        split = [size for size in split if size[0] != "ff"]  # no layer has the model's own width
    return [*split, ("expert_ff", "moe.d_ff", model.moe.d_ff)]


@cache
def decoder(model: Model) -> Network:
    stream = Dimension("residual", model.d_model)
    table = Dimension("vocab", model.vocab), Dimension("embed", model.d_model)
    deviation = model.d_model**-0.5
    embedding = Weight("embedding", table, deviation, "model.embed_tokens")
    positions = None
    if model.learned_positions:
        places = Dimension("positions", model.learned_positions), table[1]
        positions = Weight("positions", places, deviation, "model.embed_positions")
    blocks, pattern = [], model.window_pattern
    for layer in range(model.layers):
        # Without a window, attention sees every position before.
        window = model.window if pattern[layer % len(pattern)] == LOCAL else None
        blocks.append(_block_of_kind(model, window, is_mixture(model, layer)))
    return Network(
        embedding=embedding,
        segments=segments(blocks),
        norm=norm(model, "norm", "model.norm", stream),
        head=embedding if model.tied else Weight("unembedding", table, deviation, "lm_head"),
        embedding_scale=model.d_model**0.5 if model.embedding_scale else 1.0,
        logit_cap=model.logit_cap,
        positions=positions,
    )


@cache
def _block_of_kind(model: Model, window: int | None, has_experts: bool) -> Block:
    """A block. The stream adds up 2 L outputs, so their initial weights are smaller."""
    stream = Tensor(BLOCK_INPUT, "residual_length", (Dimension("residual", model.d_model),))
    residual_scale = (2 * model.layers) ** -0.5
    attend = grouped_query_attention if model.latent is None else latent_attention
    # A block has a name where the network has several kinds.
    words = []
    if model.window is not None and len(set(model.window_pattern)) > 1:
        words.append("global" if window is None else "local")
    if len({is_mixture(model, layer) for layer in range(model.layers)}) > 1:
        words.append("mixture" if has_experts else "dense")
    return Block(
        input=stream,
        attention=attend(model, residual_scale, window),
        mlp=(mixture if has_experts else mlp)(model, stream, residual_scale),
        kind=" ".join(words),
        scale=Weight("layer_scale", (Dimension("layer_scale", 1),), None, "layer_scalar")
        if model.layer_scale
        else None,
    )


def segments(blocks: list[Block]) -> tuple[Segment, ...]:
    """Layers as repeated patterns; the stack of equal layers is `layers`, several are numbered."""
    found = _patterns(blocks)
    is_plain = len(found) == found[0].step == 1
    numbers = count()

    def stack(first: int, pattern: range) -> Stack:
        name = _LAYERS if is_plain else f"{_LAYERS}_{next(numbers)}"
        return Stack(name, blocks[first], range(first, pattern.stop, pattern.step))

    return tuple(
        Segment(tuple(stack(pattern[0] + place, pattern) for place in range(pattern.step)))
        for pattern in found
    )
