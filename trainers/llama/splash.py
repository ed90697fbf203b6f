"""Splash attention, the TPU's kernel, for a shard in zigzag order."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as kernels

from orchestrator.errors import SpecError
from orchestrator.network.description import Scores
from orchestrator.plan.attention_blocks import (
    LANES,
    attention_block,
    block_sizes,
    head_bytes,
)
from trainers.llama import zigzag
from trainers.llama.axes import SEQUENCE
from trainers.llama.blockwise import Documents


@dataclass(frozen=True)
class ZigzagMask(kernels.Mask):
    """Causal, with a window or without, where row j is the query at the j-th place of the zigzag
    order.

    The kernel computes such a mask from `q_sequence`, the position of each row, by
    `mask_function`: nothing is loaded, and only blocks that some query sees are visited.
    """

    length: int
    ways: int
    window: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.length

    @cached_property
    def q_sequence(self) -> np.ndarray:
        return zigzag.order(self.length, self.ways)

    @property
    def mask_function(self) -> Callable[[Any, Any], Any]:
        return self._sees

    def _sees(self, query: Any, key: Any) -> Any:
        if self.window is None:
            return query >= key
        return (query >= key) & (query - key < self.window)

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        keys = np.arange(*index[1].indices(self.length))
        return np.asarray(self._sees(self.q_sequence[index[0], None], keys))


def splash(
    length: int, ways: int, kind: Scores, *, interpret: bool = False
) -> Callable[..., jax.Array]:
    """`attend` of `trainers.llama.attention`."""
    if not attention_block(length, ways, kind.window, 0):
        raise SpecError(
            f"splash attention takes {LANES} positions at a time:"
            f" {length // ways} a chip do not divide"
        )

    def attend(
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        sinks: jax.Array | None,
        documents: Documents | None,
    ) -> jax.Array:
        mask = kernels.MultiHeadMask([ZigzagMask(length, ways, kind.window)] * q.shape[2])
        kernel = kernels.make_splash_mha(
            mask,
            head_shards=1,
            q_seq_shards=ways,
            block_sizes=kernels.BlockSizes(
                **block_sizes(length, ways, kind.window, _head_bytes(q, v))
            ),
            residual_checkpoint_name="attention",
            attn_logits_soft_cap=kind.cap,
            interpret=interpret,
        )
        shard = _shard(kernel, ways)

        def of_sequence(
            q: jax.Array, k: jax.Array, v: jax.Array, documents: Documents | None
        ) -> jax.Array:
            ids = kernels.SegmentIds(*documents) if documents else None
            return jnp.asarray(shard(q, k, v, segment_ids=ids, sinks=sinks))

        q, k, v = (x.swapaxes(1, 2) for x in (q * kind.scale, k, v))
        return jax.vmap(of_sequence)(q, k, v, documents).swapaxes(1, 2)

    return attend


def _shard(kernel: Any, ways: int) -> Any:
    """The kernel of this chip's queries: its part of every array that describes the mask."""
    if ways == 1:
        return kernel

    def part(array: jax.Array) -> jax.Array:
        axis = 0 if array.ndim == 1 else 1  # positions [S], blocks [1, query blocks, key blocks]
        size = array.shape[axis] // ways
        start = jax.lax.axis_index(SEQUENCE) * size
        return jax.lax.dynamic_slice_in_dim(array, start, size, axis)

    return jax.tree.map(part, kernel)


def _head_bytes(q: jax.Array, v: jax.Array) -> int:
    return head_bytes((q.shape[-1], v.shape[-1]), q.dtype.itemsize)
