"""Trainer llama: the plan's rematerialization policy, as JAX takes it."""

from collections.abc import Callable
from typing import Any

import jax

from orchestrator.plan import remat

BLOCK_INPUT = "block_input"
# The forward pass of cuDNN attention: the log-sum-exp among its results cannot be named.
CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"


def policy(name: str) -> Callable[..., Any]:
    """Which tensors of a block stay for its backward pass, in HBM or on the host."""
    plan = remat.policy(name)
    kept, on_host = [*plan.kept], [BLOCK_INPUT] if plan.offloads_block_input else []
    if plan.offloaded:
        kept, on_host = [], [*plan.kept, *on_host]
    if not plan.offloads_block_input:
        kept.append(BLOCK_INPUT)
    by_name = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=kept,
        names_which_can_be_offloaded=on_host,
        offload_src="device",
        offload_dst="pinned_host",
    )

    def decide(primitive: Any, *operands: Any, **parameters: Any) -> Any:
        if primitive.name == CUDNN_FORWARD:
            return "attention" in plan.kept
        return by_name(primitive, *operands, **parameters)

    return decide
