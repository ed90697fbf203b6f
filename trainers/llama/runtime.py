"""What every part of the forward pass needs to know."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from orchestrator.network.decoder import decoder
from orchestrator.network.description import Network, Scores
from orchestrator.values.plan import Plan
from trainers.llama.attention_kernels import Attend, Documents
from trainers.llama.collectives import (
    SEQUENCE,
    TENSOR,
    WEIGHTS,
    WEIGHTS_OF_EXPERTS,
    gather_matrix,
    scatter_matrix,
    together_in_backward,
)
from trainers.llama.experts import Grouped
from trainers.llama.ring import all_gather_matmul

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


@dataclass(frozen=True)
class Runtime:
    """A plan's model and the attention kernels of its platform, by the scores of a block."""

    plan: Plan
    kernels: Mapping[Scores, Attend]
    grouped: Grouped
    # Of this chip's positions and of all positions, where a batch has several documents in a row.
    documents: Documents | None = None
    # Whether targets may be `NO_WORD`, though each row is one document.
    some_predict_nothing: bool = False

    @property
    def network(self) -> Network:
        return decoder(self.plan.model)

    @property
    def ways(self) -> int:
        return self.plan.mesh[SEQUENCE]

    def gather_matrix(self, shard: jax.Array, dimension: int) -> jax.Array:
        """A matrix gathered from the chips that split its d_model."""
        return self._gathered(shard, dimension, WEIGHTS)

    def gather_rows(self, shard: jax.Array, dimension: int) -> jax.Array:
        """The same with d_model first: the matrix is then in one piece as it arrives, and its
        gradient as it leaves.
        """
        return self.gather_matrix(jnp.moveaxis(shard, dimension, 0), 0)

    def scatter_rows(self, gradient: jax.Array) -> jax.Array:
        """This chip's part of the gradient of such a matrix, summed over chips."""
        return scatter_matrix(gradient, 0, DTYPES[self.plan.precision.gradients])

    def gather_experts(self, shard: jax.Array, dimension: int) -> jax.Array:
        """The same for matrices of this chip's experts."""
        return self._gathered(shard, dimension, WEIGHTS_OF_EXPERTS)

    def products(
        self, y: jax.Array, shards: list[jax.Array], joined: int = 1, *, in_turn: bool = False
    ) -> list[jax.Array]:
        """Products [Y, b, S/(s Y), F] of y [b, S/(s Y), D] and matrices [D/X, F], each with an F of
        one dimension or, for heads, two.

        Over a ring they are one product, which hides the hops, of matrices `joined` along that
        dimension. Without a ring that would only cost copies: to join the matrices, to part the
        results, and to join their gradients. `in_turn`: the backward pass goes on from y once it
        has the gradients of the matrices.
        """
        apart = jax.lax.axis_size(TENSOR) == 1
        together = shards if apart else [jnp.concatenate(shards, axis=joined)]
        matrices = [self.gather_matrix(one, 0) for one in together]
        if in_turn:
            y, matrices = together_in_backward(y, matrices)
        products = [all_gather_matmul(y, matrix) for matrix in matrices]
        if apart:
            return products
        ends = np.cumsum([shard.shape[joined] for shard in shards])
        return jnp.split(products[0], ends[:-1], axis=joined + 2)

    def _gathered(self, shard: jax.Array, dimension: int, axes: tuple[str, ...]) -> jax.Array:
        precision = self.plan.precision
        types = DTYPES[precision.compute], DTYPES[precision.gradients]
        return gather_matrix(shard, dimension, *types, axes)
