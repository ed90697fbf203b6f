"""What every part of the forward pass needs to know."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from orchestrator.network.decoder import decoder
from orchestrator.network.description import Network, Scores
from orchestrator.types.plan import Plan
from trainers.llama.attention import Attend
from trainers.llama.axes import SEQUENCE, WEIGHTS, WEIGHTS_OF_EXPERTS
from trainers.llama.collectives import gather_matrix
from trainers.llama.grouped import Grouped

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


@dataclass(frozen=True)
class Runtime:
    """A plan's model and the attention kernels of its platform, by the scores of a block."""

    plan: Plan
    kernels: Mapping[Scores, Attend]
    grouped: Grouped

    @property
    def network(self) -> Network:
        return decoder(self.plan.model)

    @property
    def ways(self) -> int:
        return self.plan.mesh[SEQUENCE]

    def gather_matrix(self, shard: jax.Array, dimension: int) -> jax.Array:
        """A matrix gathered from the chips that split its d_model."""
        return self._gathered(shard, dimension, WEIGHTS)

    def gather_experts(self, shard: jax.Array, dimension: int) -> jax.Array:
        """The same for matrices of this chip's experts."""
        return self._gathered(shard, dimension, WEIGHTS_OF_EXPERTS)

    def _gathered(self, shard: jax.Array, dimension: int, axes: tuple[str, ...]) -> jax.Array:
        precision = self.plan.precision
        types = DTYPES[precision.compute], DTYPES[precision.gradients]
        return gather_matrix(shard, dimension, *types, axes)


def concatenate_matrices(shards: list[jax.Array]) -> jax.Array:
    """Matrices [D/X, ...] with the same input, as one: they travel and multiply together."""
    return jnp.concatenate([shard.reshape(shard.shape[0], -1) for shard in shards], axis=1)
