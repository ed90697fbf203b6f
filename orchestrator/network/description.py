"""A network as data. Sizes are those of the whole model, before any split."""

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from math import prod

from orchestrator.values.codec import Value
from orchestrator.values.model import Activation, Model, RopeScaling


class Dimension(Value, kw_only=False):
    axis: str
    size: int


class Weight(Value, kw_only=False):
    """A trained array, with its dimensions as stored and its name in Hugging Face checkpoints. A
    matrix starts normal, with `deviation`. A vector (a norm scale, a bias) starts at `start`, does
    not decay, and is on every device except for what `tensor` splits.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    deviation: float | None
    published: str
    start: float = 1.0

    @property
    def elements(self) -> int:
        return prod(dimension.size for dimension in self.dimensions)


class Tensor(Value, kw_only=False):
    """An activation for the backward pass: a policy keeps, offloads or recomputes it. `positions`
    is a logical axis, `dimensions` those of one position. `statistics` are fp32 numbers with it,
    such as the log-sum-exp of attention.
    """

    name: str
    positions: str
    dimensions: tuple[Dimension, ...]
    statistics: tuple[Dimension, ...] = ()

    @property
    def width(self) -> int:
        return prod(dimension.size for dimension in self.dimensions)


class Norm(Value, kw_only=False):
    """RMSNorm, or LayerNorm where it has a bias. `offset` is added to the scale, if it has one."""

    scale: Weight | None
    bias: Weight | None
    offset: float
    epsilon: float

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(weight for weight in (self.scale, self.bias) if weight)


class Matmul(Value, kw_only=False):
    """An activation times a weight, plus a bias; a token meets that `share` of the weight."""

    weight: Weight
    output: Tensor
    share: float = 1.0
    bias: Weight | None = None


class Sublayer(Value, kw_only=False):
    """A norm, parallel matmuls of its result, gathered and multiplied as one, a matmul back, and a
    norm of what it adds to the residual stream. Either norm may be absent.
    """

    before: Norm | None
    after: Norm | None
    inputs: tuple[Matmul, ...]
    output: Matmul

    @property
    def parallel(self) -> tuple[tuple[Matmul, ...], ...]:
        return self.inputs, (self.output,)

    @property
    def matmuls(self) -> tuple[Matmul, ...]:
        return tuple(chain.from_iterable(self.parallel))

    @property
    def norms(self) -> tuple[Norm, ...]:
        return tuple(norm for norm in (self.before, self.after) if norm)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        norms = [weight for norm in self.norms for weight in norm.weights]
        return (*norms, *(matmul.bias for matmul in self.matmuls if matmul.bias))

    @property
    def weights(self) -> tuple[Weight, ...]:
        return (*self.vectors, *(matmul.weight for matmul in self.matmuls))

    @property
    def entering_width(self) -> int:
        """Numbers of a position that a `tensor` group gathers for its matmuls: the stream's."""
        return self.output.output.width


class Rotary(Value, kw_only=False):
    """Rotary positions: the first `width` numbers of a head turn, the slowest by 1 / `theta`; of
    their pairs only the fastest, where it is a `share`.
    """

    width: int
    theta: float
    scaling: RopeScaling | None = None
    share: float = 1.0


class Scores(Value, kw_only=False):
    """Scores: queries x keys x `scale`, capped at `cap`, of `window` positions up to its own."""

    scale: float
    cap: float | None = None
    window: int | None = None


class Attention(Sublayer, kw_only=False):
    """Causal attention: scores of queries and keys, and their average of the values. Without a
    matmul of their own, values are made from keys. `whole` are the tensors of which every query
    needs all positions. `sinks` are scores of a place without a value, one for each head.
    """

    result: Tensor
    whole: tuple[Tensor, ...]
    scores: Scores
    rotary: Rotary | None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    sinks: Weight | None = None

    @property
    def norms(self) -> tuple[Norm, ...]:
        inside = (self.before, self.query_norm, self.key_norm, self.value_norm, self.after)
        return tuple(norm for norm in inside if norm)

    @property
    def normalized(self) -> tuple[Matmul, ...]:
        """The matmuls whose results are normalized: the backward pass makes them again."""
        norms = (self.query_norm, self.key_norm, self.value_norm)
        return tuple(matmul for matmul, norm in zip(self.inputs, norms, strict=False) if norm)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return (*super().vectors, *((self.sinks,) if self.sinks else ()))

    @property
    def queries(self) -> Tensor:
        return self.inputs[0].output


class LatentAttention(Attention):
    """Attention whose keys and values, and often queries, are made from narrow latents. `latents`
    are the matmuls from the stream: queries' latent, if any, keys' and values' latent, and keys'
    part for RoPE, shared by heads. A head's first `nope` numbers have no positions.
    """

    latents: tuple[Matmul, ...]
    query_latent_norm: Norm | None
    kv_latent_norm: Norm

    @property
    def keys(self) -> Matmul:
        return self.inputs[1]

    @property
    def nope(self) -> int:
        return self.keys.weight.dimensions[-1].size

    @property
    def parallel(self) -> tuple[tuple[Matmul, ...], ...]:
        queries, *keys_and_values = self.inputs
        return self.latents, (queries,), tuple(keys_and_values), (self.output,)

    @property
    def norms(self) -> tuple[Norm, ...]:
        inside = (self.before, self.query_latent_norm, self.kv_latent_norm, self.after)
        return tuple(norm for norm in inside if norm)

    @property
    def latent_width(self) -> int:
        return sum(matmul.output.width for matmul in self.latents)

    @property
    def entering_width(self) -> int:
        """The latents, and the stream where queries are made from it."""
        return self.latent_width + (0 if self.query_latent_norm else super().entering_width)


class MLP(Sublayer, kw_only=False):
    """Matmuls to d_ff, an activation function, and a matmul back; the first of two is a gate."""

    activation: Activation


class Mixture(MLP, kw_only=False):
    """Many MLPs, of which a router chooses some for each token; `shared` is there for all tokens.
    Weights of experts have a dimension of experts first. `balance` is what the choice of experts
    adds to scores. A `shared` MLP with norms of its own works next to the mixture: `own_norms` are
    of the experts' input, of what they add and of the router's input, and the router's scales are
    of its input and of each expert.
    """

    router: Matmul
    balance: Weight | None
    shared: MLP | None = None
    own_norms: tuple[Norm, ...] = ()
    router_scales: tuple[Weight, ...] = ()

    @property
    def norms(self) -> tuple[Norm, ...]:
        shared = self.shared.norms if self.shared else ()
        return (*super().norms, *shared, *self.own_norms)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return (*super().vectors, *((self.balance,) if self.balance else ()), *self.router_scales)

    @property
    def parallel(self) -> tuple[tuple[Matmul, ...], ...]:
        shared = () if self.shared is None else self.shared.parallel
        return (self.router,), *super().parallel, *shared


class Block(Value, kw_only=False):
    """One layer. `kind` tells it from the other blocks of its network; empty where all are alike.
    `scale` multiplies the stream after it. Blocks are equal where they do the same, whatever layer
    they are.
    """

    input: Tensor
    attention: Attention
    mlp: MLP
    kind: str = ""
    scale: Weight | None = None

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return self.attention, self.mlp

    @property
    def matmuls(self) -> tuple[Matmul, ...]:
        return tuple(matmul for part in self.sublayers for matmul in part.matmuls)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        vectors = (weight for part in self.sublayers for weight in part.vectors)
        return (*vectors, *((self.scale,) if self.scale else ()))

    @property
    def weights(self) -> tuple[Weight, ...]:
        weights = (weight for part in self.sublayers for weight in part.weights)
        return (*weights, *((self.scale,) if self.scale else ()))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a policy decides about, in the order in which the block makes it."""
        outputs = [matmul.output for matmul in self.matmuls if matmul.output != self.input]
        before, attention = len(self.attention.matmuls) - 1, self.attention
        made = [tensor for tensor in attention.whole if tensor not in outputs]  # values from keys
        outputs[before:before] = [*made, attention.result]
        return self.input, *outputs

    @property
    def matrix_elements(self) -> int:
        return sum(matmul.weight.elements for matmul in self.matmuls)


class Stack(Value, kw_only=False):
    """Equal blocks at places `layers`, their weights in one array, by its name in the tree."""

    name: str
    block: Block
    layers: range


class Segment(Value, kw_only=False):
    """Layers that repeat a pattern: each repeat has one block of every stack, in their order."""

    stacks: tuple[Stack, ...]

    @property
    def repeats(self) -> int:
        return len(self.stacks[0].layers)


class Network(Value, kw_only=False):
    """Embedding, segments of layers one after another, a last norm, and the head that makes logits.
    A tied head is the embedding itself. Word vectors are multiplied by `embedding_scale`, and the
    vectors of their `positions` are added, if these are learned.
    """

    embedding: Weight
    segments: tuple[Segment, ...]
    norm: Norm
    head: Weight
    embedding_scale: float = 1.0
    logit_cap: float | None = None
    positions: Weight | None = None

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        return tuple(stack for segment in self.segments for stack in segment.stacks)

    @cached_property
    def kinds(self) -> tuple[tuple[Block, int], ...]:
        counts: Counter[Block] = Counter()
        for stack in self.stacks:
            counts[stack.block] += len(stack.layers)
        return tuple(counts.items())

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for block, _ in self.kinds)

    @property
    def layers(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def mixture_layers(self) -> int:
        return sum(count for block, count in self.kinds if isinstance(block.mlp, Mixture))

    @property
    def tables(self) -> tuple[Weight, ...]:
        head = () if self.head is self.embedding else (self.head,)
        return (self.embedding, *head, *((self.positions,) if self.positions else ()))

    def _over_layers(self, count: Callable[[Block], int]) -> int:
        return sum(layers * count(block) for block, layers in self.kinds)

    @property
    def vector_parameters(self) -> int:
        blocks = self._over_layers(lambda block: sum(vector.elements for vector in block.vectors))
        return blocks + sum(vector.elements for vector in self.norm.weights)

    @property
    def table_parameters(self) -> int:
        return sum(table.elements for table in self.tables)

    @property
    def matrix_parameters(self) -> int:
        return self._over_layers(lambda block: block.matrix_elements)

    @property
    def parameters(self) -> int:
        return self.matrix_parameters + self.table_parameters + self.vector_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters active per token: its own experts, plus all tables and norms."""

        def idle_biases(block: Block) -> int:
            biases = [(matmul.bias, matmul.share) for matmul in block.matmuls if matmul.bias]
            return round(sum((1 - share) * bias.elements for bias, share in biases))

        vectors = self.vector_parameters - self._over_layers(idle_biases)
        return self.active_matrices + self.table_parameters + vectors

    @property
    def active_matrices(self) -> int:
        """Parameters of the blocks that each token is multiplied by."""
        return self._over_layers(
            lambda block: sum(round(m.weight.elements * m.share) for m in block.matmuls)
        )

    @property
    def matmul_parameters(self) -> int:
        return self.active_matrices + self.head.elements

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a policy decides about, by name, in the order in which a block makes it."""
        every = chain.from_iterable(block.tensors for block in self.blocks)
        return tuple({tensor.name: tensor for tensor in every}.values())


# The sublayer, and where the norm is → its name in published checkpoints. Where a sublayer has a
# norm on one side, these follow Llama and OLMo 2; with both, Gemma 2.
_PUBLISHED = {
    ("attention", "before"): "input_layernorm",
    ("attention", "after"): "post_attention_layernorm",
    ("mlp", "before"): "post_attention_layernorm",
    ("mlp", "after"): "post_feedforward_layernorm",
}
_PUBLISHED_BOTH = _PUBLISHED | {("mlp", "before"): "pre_feedforward_layernorm"}


def norm(model: Model, name: str, published: str, *dimensions: Dimension) -> Norm:
    """A norm of the model's kind. With a unit offset the scale that is trained starts at zero."""
    offset = 1.0 if model.norm_offset else 0.0
    return Norm(
        scale=Weight(name, dimensions, None, published, start=1 - offset),
        bias=bias_of(name, dimensions, published) if model.norm == "layer" else None,
        offset=offset,
        epsilon=model.norm_epsilon,
    )


def plain_norm(model: Model) -> Norm:
    return Norm(scale=None, bias=None, offset=0.0, epsilon=model.norm_epsilon)


def norms_around(model: Model, part: str) -> tuple[Norm | None, Norm | None]:
    """The norm of a sublayer's input, and that of what it adds to the stream."""
    stream = Dimension("residual", model.d_model)
    has_both = model.norm_placement == "both"
    names = _PUBLISHED_BOTH if has_both else _PUBLISHED
    before, after = (
        norm(model, name, names[part, place], stream)
        if has_both or model.norm_placement == place
        else None
        for name, place in ((f"{part}_norm", "before"), (f"{part}_after_norm", "after"))
    )
    return before, after


def bias_of(name: str, dimensions: tuple[Dimension, ...], published: str) -> Weight:
    return Weight(f"{name}_bias", dimensions, None, f"{published}.bias", start=0.0)
