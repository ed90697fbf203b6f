"""The plan's rematerialization policy, as a `jax.checkpoint` policy."""

from collections.abc import Callable
from typing import Any

import jax

from orchestrator.network import rematerialization
from orchestrator.types.spec import Remat

ATTENTION = "attention"
# The forward pass of cuDNN attention: the log-sum-exp among its results cannot be named.
CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"


def policy(remat: Remat) -> Callable[..., Any]:
    """Which tensors of a block stay for its backward pass, in HBM or on the host."""
    plan = rematerialization.policy(remat)
    by_name = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[*plan.keep],
        names_which_can_be_offloaded=[*plan.offload],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def decide(primitive: Any, *operands: Any, **parameters: Any) -> Any:
        if primitive.name == CUDNN_FORWARD:
            return not plan.recomputes(ATTENTION)
        return by_name(primitive, *operands, **parameters)

    return decide
