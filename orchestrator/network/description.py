"""What a network is made of, as data. Sizes are those of the whole model, before any split."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Dimension:
    """A size, with the logical axis that decides which mesh axes split it."""

    axis: str
    size: int


@dataclass(frozen=True)
class Weight:
    """A trained array, with its dimensions as stored and its name in Hugging Face checkpoints.

    It starts normally distributed with `deviation`; a norm scale has none and starts at one.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    deviation: float | None
    published: str

    @property
    def elements(self) -> int:
        return prod(dimension.size for dimension in self.dimensions)

    @property
    def is_matrix(self) -> bool:
        return self.deviation is not None


@dataclass(frozen=True)
class Tensor:
    """An activation that the backward pass needs. A policy keeps, offloads or recomputes it.

    `positions` is the logical axis of its positions, `dimensions` those of one position.
    `statistics` are fp32 numbers that go with it, such as the log-sum-exp with attention.
    """

    name: str
    positions: str
    dimensions: tuple[Dimension, ...]
    statistics: tuple[Dimension, ...] = ()


@dataclass(frozen=True)
class Matmul:
    """An activation times a weight."""

    weight: Weight
    output: Tensor


@dataclass(frozen=True)
class Sublayer:
    """A norm, parallel matmuls of its result, and a matmul that adds to the residual stream.

    Parallel matmuls are gathered and multiplied as one.
    """

    norm: Weight
    inputs: tuple[Matmul, ...]
    output: Matmul

    @property
    def matmuls(self) -> tuple[Matmul, ...]:
        return (*self.inputs, self.output)

    @property
    def weights(self) -> tuple[Weight, ...]:
        return (self.norm, *(matmul.weight for matmul in self.matmuls))

    @property
    def matrix_elements(self) -> int:
        return sum(matmul.weight.elements for matmul in self.matmuls)


@dataclass(frozen=True)
class Attention(Sublayer):
    """Causal attention: scores of queries and keys, and their average of the values.

    `whole` are the tensors of which every query needs all positions.
    """

    result: Tensor
    whole: tuple[Tensor, ...]

    @property
    def width(self) -> int:
        """Numbers of all query heads."""
        return prod(dimension.size for dimension in self.result.dimensions)


@dataclass(frozen=True)
class MLP(Sublayer):
    """Matmuls to d_ff, an activation function of that kind, and a matmul back."""

    kind: str


@dataclass(frozen=True)
class Block:
    """One layer."""

    input: Tensor
    attention: Attention
    mlp: MLP

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return self.attention, self.mlp

    @property
    def matmuls(self) -> tuple[Matmul, ...]:
        return tuple(matmul for part in self.sublayers for matmul in part.matmuls)

    @property
    def norms(self) -> tuple[Weight, ...]:
        return tuple(part.norm for part in self.sublayers)

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(weight for part in self.sublayers for weight in part.weights)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a policy decides about, in the order in which the block makes it."""
        outputs = [matmul.output for matmul in self.matmuls if matmul.output != self.input]
        outputs.insert(len(self.attention.inputs), self.attention.result)
        return self.input, *outputs

    @property
    def matrix_elements(self) -> int:
        return sum(part.matrix_elements for part in self.sublayers)


@dataclass(frozen=True)
class Network:
    """Embedding, blocks that are all alike, a last norm, and the head that makes logits.

    A tied head is the embedding itself.
    """

    embedding: Weight
    block: Block
    layers: int
    norm: Weight
    head: Weight

    @property
    def tables(self) -> tuple[Weight, ...]:
        """The vocabulary tables, each once."""
        return (self.embedding,) if self.head is self.embedding else (self.embedding, self.head)

    @property
    def norm_parameters(self) -> int:
        blocks = self.layers * sum(norm.elements for norm in self.block.norms)
        return blocks + self.norm.elements

    @property
    def table_parameters(self) -> int:
        return sum(table.elements for table in self.tables)

    @property
    def parameters(self) -> int:
        """Every trained number."""
        matrices = self.layers * self.block.matrix_elements
        return matrices + self.table_parameters + self.norm_parameters

    @property
    def matmul_parameters(self) -> int:
        """Parameters that each token is multiplied by: those of the blocks and of the head."""
        return self.layers * self.block.matrix_elements + self.head.elements
