"""The sublayers of a block as each chip runs them: attention and MLP, and what both need. b
sequences, S positions split s ways over `sequence`, D d_model, F d_ff, N heads, K KV heads, H
head_dim; Y ways of `tensor` (KV heads: K/Y, at least one), X ways of a matrix's d_model
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network import description
from orchestrator.network.attention import EXCHANGE, LATENT, yarn_growth
from orchestrator.network.decoder import decoder
from orchestrator.network.description import MLP, Attention, Matmul, Norm, Scores
from orchestrator.network.mesh_axes import ways
from orchestrator.values.model import Activation, RopeScaling
from orchestrator.values.plan import Plan
from orchestrator.values.program import AnyPlan
from trainers.llama import attention_kernels, collectives, products
from trainers.llama.attention_kernels import Attend, Documents
from trainers.llama.collectives import TENSOR, all_gather, line, together_in_backward
from trainers.llama.parameters import DTYPES, Parameters, compute_type, norm
from trainers.llama.ring import all_gather_matmul, in_arrival_order, in_order, matmul_reduce_scatter

Grouped = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class Runtime:
    """A plan's model and the kernels of its platform, those of attention by a block's scores."""

    plan: AnyPlan
    kernels: Mapping[Scores, Attend]
    grouped: Grouped
    on_gpu: bool = False
    # For this chip's positions and for all positions, if a row of a batch has several documents.
    documents: Documents | None = None
    # Whether targets may be `NO_WORD`, though each row is one document.
    some_predict_nothing: bool = False
    # Whether matrices come whole along d_model: a pipeline may gather them once for all its ticks.
    matrices_are_whole: bool = False

    @property
    def training(self) -> Plan:
        """The plan, where only training asks for it: programs that serve have the rest."""
        assert isinstance(self.plan, Plan)
        return self.plan

    @property
    def network(self) -> description.Network:
        return decoder(self.plan.model)

    @property
    def ways(self) -> int:
        return ways(self.plan.mesh, "length")

    @property
    def narrow(self) -> bool:
        """Whether the blocks' products are in fp8; all else is in bf16."""
        return self.plan.precision.compute == "fp8"

    def matmul(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        with line("matmul"):
            return products.matmul(x, weight, narrow=self.narrow)

    def gather_matrix(
        self, shard: jax.Array, dimension: int, axes: tuple[str, ...] = collectives.WEIGHTS
    ) -> jax.Array:
        """Gather a matrix from the chips that split its d_model."""
        if self.matrices_are_whole:
            return shard
        precision = self.plan.precision
        types = compute_type(precision), DTYPES[precision.gradients]
        return collectives.gather_matrix(shard, dimension, *types, axes)

    def gather_rows(self, shard: jax.Array, dimension: int) -> jax.Array:
        """Gather a matrix with d_model first: it is then in one piece, and so is its gradient."""
        return self.gather_matrix(jnp.moveaxis(shard, dimension, 0), 0)

    def scatter_rows(self, gradient: jax.Array) -> jax.Array:
        """This chip's part of the gradient of such a matrix, summed over chips."""
        if self.matrices_are_whole:
            return gradient
        return collectives.scatter_matrix(gradient, 0, DTYPES[self.plan.precision.gradients])

    @property
    def experts_apart(self) -> tuple[jax.Array, int, int]:
        """This chip's part of the experts, the parts there are, and those of an expert's width."""
        part = jax.lax.axis_index(collectives.EXPERT)
        return part, jax.lax.axis_size(collectives.EXPERT), jax.lax.axis_size(TENSOR)

    def gather_experts(self, shard: jax.Array, dimension: int) -> jax.Array:
        return self.gather_matrix(shard, dimension, collectives.WEIGHTS_OF_EXPERTS)

    def products(
        self, y: jax.Array, shards: list[jax.Array], joined: int = 1, *, in_turn: bool = False
    ) -> list[jax.Array]:
        """Products [Y, b, S/(s Y), F] of y [b, S/(s Y), D] and matrices [D/X, F]; `joined`: F per
        head. `in_turn`: the backward pass first makes the gradients of the matrices.
        """
        # Over a ring they are one product, which hides the hops, of matrices `joined` along that
        # dimension. Without a ring that would only cost copies of matrices, results and gradients.
        without_ring = jax.lax.axis_size(TENSOR) == 1
        together = shards if without_ring else [jnp.concatenate(shards, axis=joined)]
        matrices = [self.gather_matrix(shard, 0) for shard in together]
        if in_turn:
            y, matrices = together_in_backward(y, matrices)
        made = [all_gather_matmul(y, matrix, self.narrow) for matrix in matrices]
        if without_ring:
            return made
        ends = np.cumsum([shard.shape[joined] for shard in shards])
        return jnp.split(made[0], ends[:-1], axis=joined + 2)

    def scattered_product(self, x: jax.Array, matrix: jax.Array) -> jax.Array:
        """The sum over `tensor` of x [Y, b, t, F] times matrices [D, F], for own positions."""
        return matmul_reduce_scatter(x, matrix, self.narrow)


def with_biases(
    matmuls: Sequence[Matmul], layer: Parameters, products: Sequence[jax.Array]
) -> list[jax.Array]:
    """The products of these matmuls, with the bias of each that has one."""
    return [
        product if matmul.bias is None else product + layer[matmul.bias.name].astype(product.dtype)
        for matmul, product in zip(matmuls, products, strict=True)
    ]


_ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}
_CLAMP, _GAIN = 7.0, 1.702  # of gpt-oss
_FEW_TOKENS = 16_384  # per device; docs/proof.md has what was compiled on either side


def mlp(runtime: Runtime, kind: MLP, layer: Parameters, y: jax.Array) -> jax.Array:
    """The MLP's addition to the stream. y [b, S/(s Y), D]"""
    # The backward pass makes the gradient of each matrix before it goes on. The compiler would go
    # on first, and hold what is for the gradient meanwhile. It may where sums over a whole pod run
    # with products, and few tokens make the products short: what comes after them hides the sums.
    tokens = y.shape[0] * y.shape[1]
    in_turn = runtime.training.loss_gradient == "at_end" or tokens > _FEW_TOKENS
    shards = [layer[matmul.weight.name] for matmul in kind.inputs]
    products = runtime.products(y, shards, in_turn=in_turn)
    output = runtime.gather_rows(layer[kind.output.weight.name], 1)
    if in_turn:
        products, output = together_in_backward(products, output)
    hidden = activate(kind, with_biases(kind.inputs, layer, products))  # [Y, b, S/(s Y), F/Y]
    if jax.lax.axis_size(TENSOR) > 1:
        # Without a ring the activation is part of a product, and this would split them.
        hidden, output = together_in_backward(hidden, output)
    [added] = with_biases([kind.output], layer, [runtime.scattered_product(hidden, output)])
    return added


def activate(kind: MLP, products: Sequence[jax.Array]) -> jax.Array:
    """The input of the last matmul, from the products of the first matmuls."""
    first, *others = (
        checkpoint_name(part, matmul.output.name)
        for part, matmul in zip(products, kind.inputs, strict=True)
    )
    if kind.activation == "clamped_swiglu":
        gate, up = jnp.minimum(first, _CLAMP), jnp.clip(others[0], -_CLAMP, _CLAMP)
        return gate * jax.nn.sigmoid(_GAIN * gate) * (up + 1)
    inner = _ACTIVATIONS[kind.activation](first)
    return inner * others[0] if others else inner


# Attention: grouped-query, and multi-head latent


_QueriesKeysValues = tuple[jax.Array, jax.Array, jax.Array]


def attention(runtime: Runtime, kind: Attention, layer: Parameters, y: jax.Array) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    if isinstance(kind, description.LatentAttention):
        heads = _from_latents(runtime, kind, layer, y)
    else:
        # All positions of the tensor group: [b, S/s, N/Y, H], [b, S/s, K/Y, H] twice.
        shards = [layer[matmul.weight.name] for matmul in kind.inputs]  # [D/X, heads of each, H]
        products = with_biases(kind.inputs, layer, runtime.products(y, shards))
        positions = attention_kernels.own_positions(runtime.training.batch.length, runtime.ways)
        heads = of_heads(kind, layer, list(map(in_order, products)), positions)
    q, k, v = map(checkpoint_name, heads, ("query", "key", "value"))
    k, v = (attention_kernels.gather(x, runtime.ways) for x in (k, v))
    sinks = layer[kind.sinks.name] if kind.sinks else None
    with line("attention"):
        y = runtime.kernels[kind.scores](q, k, v, sinks, runtime.documents)
    output = runtime.gather_rows(layer[kind.output.weight.name], 2)  # [D, N/Y, H]
    y = runtime.scattered_product(in_arrival_order(y), output)
    [added] = with_biases([kind.output], layer, [y])
    return added


def of_heads(
    kind: Attention, layer: Parameters, products: list[jax.Array], positions: jax.Array
) -> _QueriesKeysValues:
    """Queries, keys and values from the products of the stream, at `positions` [S] or [b, S]."""
    # Without a matmul of their own, values are keys before their norm and RoPE.
    q, k, v = (products[number] for number in (0, 1, len(products) - 1))

    def turned(norm_kind: Norm | None, x: jax.Array, heads: str) -> jax.Array:
        # Each head is normalized by itself, or all heads together.
        scale = norm_kind.scale if norm_kind else None
        together = scale is not None and len(scale.dimensions) == 2
        x = norm(norm_kind, layer, x, collectives.mesh_axes(heads) if together else ())
        return rotate(kind.rotary, x, positions)

    v = norm(kind.value_norm, layer, v)
    return turned(kind.query_norm, q, "heads"), turned(kind.key_norm, k, "kv_heads"), v


def _from_latents(
    runtime: Runtime, kind: description.LatentAttention, layer: Parameters, y: jax.Array
) -> _QueriesKeysValues:
    """All positions of the tensor group: [b, S/s, N/Y, H] twice, [b, S/s, N/Y, V]."""

    def latent(matmul: Matmul) -> jax.Array:
        matrix = runtime.gather_matrix(layer[matmul.weight.name], 0)
        return checkpoint_name(runtime.matmul(y, matrix), LATENT)

    def heads(source: jax.Array, *matmuls: Matmul) -> list[jax.Array]:
        """From sources [b, S/(s Y), R] of this chip's positions."""
        shards = [layer[matmul.weight.name] for matmul in matmuls]  # [R/X, N/Y, H]
        return [in_order(product) for product in runtime.products(source, shards, joined=2)]

    query, key, value = kind.inputs
    *query_latents, kv_latent, turning_key = map(latent, kind.latents)
    source = norm(kind.query_latent_norm, layer, query_latents[0] if query_latents else y)
    [q] = heads(source, query)
    k, v = heads(norm(kind.kv_latent_norm, layer, kv_latent), key, value)
    positions = attention_kernels.own_positions(runtime.training.batch.length, runtime.ways)
    # Only a part of each head turns; all heads of keys share theirs.
    shared = rotate(kind.rotary, all_gather(turning_key, TENSOR, 1)[:, :, None], positions)
    k = jnp.concatenate([k, jnp.broadcast_to(shared, (*k.shape[:-1], shared.shape[-1]))], axis=-1)
    still, turning = q[..., : kind.nope], q[..., kind.nope :]
    q = jnp.concatenate([still, rotate(kind.rotary, turning, positions)], axis=-1)
    return q, k, v


# Rotary positions: the pairs of a head's vector turn with the position.


def rotate(kind: description.Rotary | None, x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [b, S/s, heads, H], its first `width` numbers turned, half of them with the other half, at
    positions [S/s] or [b, S/s].
    """
    if kind is None:
        return x
    angles = positions[..., None] * _frequencies(kind)  # [S/s, width / 2]
    cos, sin = (f(angles) * _magnitude(kind.scaling) for f in (jnp.cos, jnp.sin))
    both = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
    turning, rest = x[..., : kind.width], x[..., kind.width :]
    return jnp.concatenate(
        [_turned(turning, *(wave[..., None, :] for wave in both)), rest], axis=-1
    )


@jax.custom_vjp
def _turned(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x cos + x' sin, in fp32, where x' has the halves of x in the other order."""
    turned = x.astype(jnp.float32) * cos
    # The halves are exchanged by a matrix of ones and zeros, which is exact: halves of a head of
    # 128 are half of a TPU's lanes, and arrays of halves cost copies (docs/proof.md).
    width = x.shape[-1]
    exchange = np.roll(np.eye(width), width // 2, axis=0).astype(x.dtype)
    with jax.named_scope(EXCHANGE):
        exchanged = jnp.einsum(
            "...h,hi->...i",
            x,
            exchange,
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
    return (turned + exchanged * sin).astype(x.dtype)


# The gradient turns back, by the same angles.
_turned.defvjp(
    lambda x, cos, sin: (_turned(x, cos, sin), (cos, sin)),
    lambda saved, gradient: (_turned(gradient, saved[0], -saved[1]), None, None),
)


def _frequencies(kind: description.Rotary) -> jax.Array:
    """Radians that each pair turns from one position to the next."""
    exponents, scaling = jnp.arange(0, kind.width, 2) / kind.width, kind.scaling
    plain = kind.theta**-exponents
    if kind.share < 1:  # proportional RoPE: the slower pairs stay
        plain = jnp.where(np.arange(kind.width // 2) < int(kind.share * kind.width // 2), plain, 0)
    if scaling is None:
        return plain
    # How much of each frequency is stretched: all of it (one), none of it (zero), or a part.
    exact = kind.theta ** -(np.arange(0, kind.width, 2) / kind.width)
    if scaling.kind == "linear":
        share = np.ones_like(exact)
    elif scaling.kind == "llama3":
        turns = scaling.original_length * exact / (2 * pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        share = 1 - np.clip((turns - low) / (high - low), 0, 1)
    else:
        # yarn: pair width ln(length / 2 pi n) / (2 ln theta) turns n times in the original length
        first, last = (
            kind.width * log(scaling.original_length / (n * 2 * pi)) / (2 * log(kind.theta))
            for n in (scaling.beta_fast, scaling.beta_slow)
        )
        if scaling.truncate:
            first, last = floor(first), ceil(last)
        first, last = max(first, 0), min(last, kind.width - 1)
        width = max(last - first, 1e-3)
        share = np.clip((np.arange(kind.width // 2) - first) / width, 0, 1)
    return plain * np.float32(1 - share + share / scaling.factor)


def _magnitude(scaling: RopeScaling | None) -> float:
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return yarn_growth(scaling.factor)
