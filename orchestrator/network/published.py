"""How Hugging Face checkpoints name and store the weights of a network. A published matrix has
outputs as rows and inputs as columns; the trainer's have inputs first, and one dimension for each
logical axis. The trainer stacks layers, and experts within a layer; a checkpoint has a matrix for
each, but for gpt-oss, whose arrays have all experts of a layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import numpy as np

from orchestrator.network.decoder import PUBLISHED_LAYER
from orchestrator.network.description import LatentAttention, Network, Stack, Weight
from orchestrator.network.mlp import CHOICES, EXPERTS

# The ends of names that are published without `.weight`.
_WHOLE_NAMES = (
    ".bias", ".sinks", "_bias", ".layer_scalar", "router.scale", "router.per_expert_scale",
    ".experts.gate_up_proj", ".experts.down_proj",
)  # fmt: skip


@dataclass(frozen=True)
class _Naming:
    """Where the names of an architecture differ from Llama's. `other` has their names by Llama's,
    `joined` the matrices that hold the rows of several others. `stacks_experts` says that an array
    has the weights of all experts, gates and other inputs in turns or one after another. Matrices
    `inputs_first` have inputs as rows.
    """

    other: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stacks_experts: Literal["", "in_turns", "apart"] = ""
    inputs_first: bool = False

    def name(self, published: str, prefix: str = "") -> str:
        """The whole name of a weight; a bias is called as its matrix or norm is."""
        stem = published.removesuffix(".bias")
        found = self.other.get(published) or self.other.get(stem, stem) + published[len(stem) :]
        return _full_name(prefix + found)


_LLAMA = _Naming()
# By the `model_type` of a config.json; all others are as Llama's.
_NAMINGS = {
    "mixtral": _Naming(
        other={
            "mlp.gate": "block_sparse_moe.gate",
            "mlp.experts.{expert}.gate_proj": "block_sparse_moe.experts.{expert}.w1",
            "mlp.experts.{expert}.down_proj": "block_sparse_moe.experts.{expert}.w2",
            "mlp.experts.{expert}.up_proj": "block_sparse_moe.experts.{expert}.w3",
        }
    ),
    "gpt_oss": _Naming(
        other={
            "mlp.gate": "mlp.router",
            "mlp.gate.bias": "mlp.router.bias",
            "mlp.experts.{expert}.gate_proj": "mlp.experts.gate_up_proj",
            "mlp.experts.{expert}.up_proj": "mlp.experts.gate_up_proj",
            "mlp.experts.{expert}.down_proj": "mlp.experts.down_proj",
            "mlp.experts.{expert}.gate_proj.bias": "mlp.experts.gate_up_proj_bias",
            "mlp.experts.{expert}.up_proj.bias": "mlp.experts.gate_up_proj_bias",
            "mlp.experts.{expert}.down_proj.bias": "mlp.experts.down_proj_bias",
        },
        stacks_experts="in_turns",
    ),
    "gemma4_text": _Naming(
        other={
            "mlp.gate": "router.proj",
            "mlp.experts.{expert}.gate_proj": "experts.gate_up_proj",
            "mlp.experts.{expert}.up_proj": "experts.gate_up_proj",
            "mlp.experts.{expert}.down_proj": "experts.down_proj",
        },
        stacks_experts="apart",
    ),
    "gpt2": _Naming(
        other={
            PUBLISHED_LAYER: "transformer.h.{layer}.",
            "model.embed_tokens": "transformer.wte",
            "model.embed_positions": "transformer.wpe",
            "model.norm": "transformer.ln_f",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.o_proj": "attn.c_proj",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        },
        joined={
            f"attn.c_attn.{kind}": tuple(f"self_attn.{name}_proj.{kind}" for name in "qkv")
            for kind in ("weight", "bias")
        },
        inputs_first=True,
    ),
    "phi3": _Naming(
        joined={
            "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        }
    ),
}


@dataclass(frozen=True)
class _PublishedAxis:
    """An axis of a published array, and the dimensions of a weight that lie along it, of `sizes`,
    one inside another. An entry lies at `first`, a `period` further for each step of the dimensions
    but the last, and there at its place of `order`.
    """

    dimensions: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int
    period: int
    order: Sequence[int]
    first: int = 0

    def places(self, wanted: Sequence[range]) -> np.ndarray:
        """Where the entries of a part are, of a range of each dimension of the weight."""
        *outer, last = (wanted[dimension] for dimension in self.dimensions)
        steps = np.zeros(1, np.int64)
        for places, size in zip(outer, self.sizes, strict=False):
            steps = (steps[:, None] * size + np.array(places)).ravel()
        inside = np.array(self.order, np.int64)[last.start : last.stop]
        return (self.first + steps[:, None] * self.period + inside).ravel()


def _axis_of(shape: tuple[int, ...], dimensions: tuple[int, ...]) -> _PublishedAxis:
    sizes = tuple(shape[dimension] for dimension in dimensions)
    return _PublishedAxis(dimensions, sizes, prod(sizes), sizes[-1], range(sizes[-1]))


@dataclass(frozen=True)
class PublishedWeight:
    """A weight of the trainer's tree, and how a checkpoint stores that of one layer and expert.
    `shape` is the tree's; each dimension lies along one of the published `axes`. Weights that a
    checkpoint puts together share a name.
    """

    path: tuple[str, ...]
    name: str
    shape: tuple[int, ...]
    axes: tuple[_PublishedAxis, ...]
    layers: range | None = None
    experts: int | None = None

    @property
    def stacked(self) -> tuple[int, ...]:
        layers = () if self.layers is None else (len(self.layers),)
        return layers if self.experts is None else (*layers, self.experts)

    @property
    def published_shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(dimension for axis in self.axes for dimension in axis.dimensions)

    def name_at(self, index: tuple[int, ...]) -> str:
        layer = None if self.layers is None else self.layers[index[0]]
        return self.name.format(layer=layer, expert=index[-1] if index else None)


def published_weights(network: Network, model_type: str) -> list[PublishedWeight]:
    """Every weight of a network as checkpoints of that architecture store it."""
    naming = _NAMINGS.get(model_type, _LLAMA)
    found = []
    for table in network.tables:
        shape = tuple(dimension.size for dimension in table.dimensions)
        axes = _axis_of(shape, (0,)), _axis_of(shape, (1,))
        found.append(PublishedWeight((table.name,), naming.name(table.published), shape, axes))
    norms = network.norm.weights
    found += [_vector((scale.name,), scale, naming.name(scale.published)) for scale in norms]
    for stack in network.stacks:
        found += _joined(naming, list(_stack(naming, stack)))
    return found


def _vector(
    path: tuple[str, ...], weight: Weight, name: str, layers: range | None = None
) -> PublishedWeight:
    shape = tuple(dimension.size for dimension in weight.dimensions)
    axes = (_axis_of(shape, tuple(range(len(shape)))),)
    return PublishedWeight(path, name, shape, axes, layers)


def _stack(naming: _Naming, stack: Stack) -> Iterator[PublishedWeight]:
    """The weights of a stack's block, of one layer each."""
    outputs = {
        matmul.weight: sum(dimension.axis != CHOICES for dimension in matmul.output.dimensions)
        for part in stack.block.sublayers
        for matmul in part.matmuls
    }
    attention, prefix = stack.block.attention, naming.other.get(PUBLISHED_LAYER, PUBLISHED_LAYER)
    for weight in stack.block.weights:
        path, name = (stack.name, weight.name), naming.name(weight.published, prefix)
        if weight.dimensions[0].axis == EXPERTS and naming.stacks_experts:
            # A weight of all experts in one array, with its inputs before its outputs if gates and
            # other inputs take turns in it, and after them if these follow gates.
            shape = tuple(dimension.size for dimension in weight.dimensions)
            axes = [_axis_of(shape, (place,)) for place in range(len(shape))]
            if "gate_up" in name:
                second, width = int("gate" not in weight.name), 2 * shape[-1]
                order = range(second, width, 2)
                if naming.stacks_experts == "apart":
                    order = range(second * shape[-1], (second + 1) * shape[-1])
                axes[-1] = replace(axes[-1], size=width, order=order)
            if naming.stacks_experts == "apart" and len(shape) > 2:
                axes[1:] = axes[:0:-1]
            yield PublishedWeight(path, name, shape, tuple(axes), stack.layers)
        elif weight not in outputs:
            yield _vector(path, weight, name, stack.layers)
        else:
            # The last dimensions of a matrix are those of its outputs.
            experts = weight.dimensions[0].size if weight.dimensions[0].axis == EXPERTS else None
            inner = weight.dimensions if experts is None else weight.dimensions[1:]
            shape, places = tuple(size.size for size in inner), tuple(range(len(inner)))
            ends = places[-outputs[weight] :], places[: -outputs[weight]]
            matrix_axes = tuple(_axis_of(shape, end) for end in ends)
            matrix = PublishedWeight(path, name, shape, matrix_axes, stack.layers, experts)
            if isinstance(attention, LatentAttention):
                matrix = _of_latents(attention, matrix)
            yield matrix


def _of_latents(attention: LatentAttention, weight: PublishedWeight) -> PublishedWeight:
    """A matrix of DeepSeek's attention. A head's keys and values, and the latent and the part of
    keys that RoPE turns, are published as one; of what RoPE turns, pairs are neighbours.
    """
    name = weight.path[-1]
    rows, *columns = weight.axes
    nope, last = attention.nope, rows.sizes[-1]
    latent = attention.kv_latent_norm.weights[0].dimensions[0].size
    turned = attention.latents[-1].output.width
    if name == "query":
        pairs = tuple(nope + place for place in _neighbours(turned))
        rows = replace(rows, order=(*range(nope), *pairs))
    if name in ("key", "value"):
        period = nope + attention.result.dimensions[-1].size
        size, first = rows.sizes[0] * period, 0 if name == "key" else nope
        rows = replace(rows, size=size, period=period, first=first)
    if name == "kv_down":
        rows = replace(rows, size=last + turned)
    if name == "key_rope":
        rows = replace(rows, size=latent + last, order=_neighbours(last), first=latent)
    return replace(weight, axes=(rows, *columns))


def _neighbours(width: int) -> tuple[int, ...]:
    """Where the halves of a vector are that RoPE turns into each other, if they take turns."""
    return (*range(0, width, 2), *range(1, width, 2))


def _joined(naming: _Naming, weights: list[PublishedWeight]) -> list[PublishedWeight]:
    """The same weights, those that are published as one matrix at their rows of it."""
    by_path = {weight.path: weight for weight in weights}
    of_name = {weight.name: weight for weight in weights}
    prefix = naming.other.get(PUBLISHED_LAYER, PUBLISHED_LAYER)
    for theirs, ours in naming.joined.items():
        parts = [of_name[_full_name(prefix + name)] for name in ours]
        first, total = 0, sum(part.axes[0].size for part in parts)
        for part in parts:
            rows, *columns = part.axes
            whole = replace(rows, size=total, first=first)
            name = _full_name(prefix + theirs)
            by_path[part.path] = replace(part, name=name, axes=(whole, *columns))
            first += rows.size
    if naming.inputs_first:
        return [replace(weight, axes=weight.axes[::-1]) for weight in by_path.values()]
    return list(by_path.values())


def _full_name(name: str) -> str:
    return name if name.endswith((*_WHOLE_NAMES, ".weight")) else f"{name}.weight"
