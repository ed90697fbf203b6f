"""How Hugging Face checkpoints name and store the weights of a network.

A published matrix has outputs as rows and inputs as columns; the trainer's have inputs first, and
one dimension for each logical axis. The trainer stacks layers, and experts within a layer; a
checkpoint has a matrix for each.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from orchestrator.errors import SpecError
from orchestrator.network.decoder import PUBLISHED_LAYER
from orchestrator.network.description import LatentAttention, Network, Stack, Weight
from orchestrator.network.mixture import CHOICES, EXPERTS

WHOLE_NAMES = (".bias", ".sinks", "_bias")  # the ends of names that are published without `.weight`


@dataclass(frozen=True)
class Naming:
    """Where the names of an architecture differ from Llama's.

    `other` has their names by Llama's, `joined` the matrices that hold the rows of several others.
    """

    other: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


LLAMA = Naming()
# By the `model_type` of a config.json; all others are as Llama's.
NAMINGS = {
    "mixtral": Naming(
        other={
            "mlp.gate": "block_sparse_moe.gate",
            "mlp.experts.{expert}.gate_proj": "block_sparse_moe.experts.{expert}.w1",
            "mlp.experts.{expert}.down_proj": "block_sparse_moe.experts.{expert}.w2",
            "mlp.experts.{expert}.up_proj": "block_sparse_moe.experts.{expert}.w3",
        }
    ),
    "phi3": Naming(
        joined={
            "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        }
    ),
}


@dataclass(frozen=True)
class PublishedWeight:
    """A weight of the trainer's tree, and how a checkpoint stores that of one layer and expert.

    `shape` are its dimensions in the tree, of one layer and expert. The published array has those
    of `rows` first and those of `columns` last, each put together; without columns it is a vector.
    Where the published matrix joins several weights, this one begins at `first_row` of `all_rows`.
    """

    path: tuple[str, ...]
    name: str
    shape: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    layers: range | None = None
    experts: int | None = None
    first_row: int = 0
    all_rows: int = 0

    @property
    def stacked(self) -> tuple[int, ...]:
        """Sizes of the dimensions that the tree has before `shape`."""
        layers = () if self.layers is None else (len(self.layers),)
        return layers if self.experts is None else (*layers, self.experts)

    @property
    def row_count(self) -> int:
        return prod(self.shape[place] for place in self.rows)

    @property
    def published_shape(self) -> tuple[int, ...]:
        columns = (prod(self.shape[place] for place in self.columns),) if self.columns else ()
        return (self.all_rows or self.row_count, *columns)

    def name_at(self, index: tuple[int, ...]) -> str:
        """The name of the array at an index of `stacked`."""
        layer = None if self.layers is None else self.layers[index[0]]
        return self.name.format(layer=layer, expert=index[-1] if index else None)


def published_weights(network: Network, model_type: str) -> list[PublishedWeight]:
    """Every weight of a network as checkpoints of that architecture store it; `SpecError` where
    they put weights together in a way of their own.
    """
    if not is_readable(network):
        raise SpecError(
            "checkpoints with latent attention or biases of experts are neither read nor written"
        )
    naming = NAMINGS.get(model_type, LLAMA)
    found = [_table(weight) for weight in network.tables]
    found += [_vector((weight.name,), weight) for weight in network.norm.weights]
    for stack in network.stacks:
        found += _joined(naming, list(_stack(naming, stack)))
    return found


def is_readable(network: Network) -> bool:
    """Whether checkpoints store its weights as matrices and vectors of one layer and expert. Those
    of DeepSeek have keys and values of a head beside one another, those of gpt-oss all experts.
    """
    return not any(
        isinstance(block.attention, LatentAttention)
        or any(vector.dimensions[0].axis == EXPERTS for vector in block.vectors)
        for block in network.blocks
    )


def _table(weight: Weight) -> PublishedWeight:
    shape = tuple(dimension.size for dimension in weight.dimensions)
    return PublishedWeight((weight.name,), _full_name(weight.published), shape, (0,), (1,))


def _vector(
    path: tuple[str, ...], weight: Weight, name: str = "", layers: range | None = None
) -> PublishedWeight:
    shape = tuple(dimension.size for dimension in weight.dimensions)
    rows = tuple(range(len(shape)))
    name = _full_name(name or weight.published)
    return PublishedWeight(path, name, shape, rows, (), layers)


def _stack(naming: Naming, stack: Stack) -> Iterator[PublishedWeight]:
    """The weights of a stack's block, of one layer each."""
    outputs = {
        matmul.weight: sum(dimension.axis != CHOICES for dimension in matmul.output.dimensions)
        for part in stack.block.sublayers
        for matmul in part.matmuls
    }
    for weight in stack.block.weights:
        path = (stack.name, weight.name)
        name = PUBLISHED_LAYER + naming.other.get(weight.published, weight.published)
        if weight in outputs:
            yield _matrix(path, weight, _full_name(name), outputs[weight], stack.layers)
        else:
            yield _vector(path, weight, name, stack.layers)


def _matrix(
    path: tuple[str, ...], weight: Weight, name: str, outputs: int, layers: range
) -> PublishedWeight:
    """A matrix whose last dimensions, so many, are those of its outputs."""
    first, *_ = weight.dimensions
    experts = first.size if first.axis == EXPERTS else None
    dimensions = weight.dimensions if experts is None else weight.dimensions[1:]
    places = tuple(range(len(dimensions)))
    return PublishedWeight(
        path,
        name,
        tuple(dimension.size for dimension in dimensions),
        rows=places[-outputs:],
        columns=places[:-outputs],
        layers=layers,
        experts=experts,
    )


def _joined(naming: Naming, weights: list[PublishedWeight]) -> list[PublishedWeight]:
    """The same weights, those that are published as one matrix at their rows of it."""
    by_name = {weight.name: weight for weight in weights}
    for theirs, ours in naming.joined.items():
        parts = [by_name[_full_name(PUBLISHED_LAYER + name)] for name in ours]
        first, total = 0, sum(part.row_count for part in parts)
        for part in parts:
            by_name[part.name] = PublishedWeight(
                part.path,
                _full_name(PUBLISHED_LAYER + theirs),
                part.shape,
                part.rows,
                part.columns,
                part.layers,
                first_row=first,
                all_rows=total,
            )
            first += part.row_count
    return list(by_name.values())


def _full_name(name: str) -> str:
    return name if name.endswith(WHOLE_NAMES) else f"{name}.weight"
