"""Plan room: FLOPs that one device executes in a step, and what of them is done twice.

FLOPs here are executed ones. The FLOPs that MFU counts are in plan.flops.
"""

from orchestrator.plan.kernel_constants import ATTENTION_BLOCK
from orchestrator.plan.layout import Layout, Number

BACKWARD_OVER_FORWARD = 2  # a matmul's backward is two matmuls: of the input, of the weight
# The splash kernel's forward has two matmuls. Its backward is two kernels, one for the queries with
# three and one for keys and values with four: both make the scores and their gradients again.
ATTENTION_BACKWARD_OVER_FORWARD = 7 / 2


def projection_flops(layout: Layout) -> dict[str, Number]:
    """Forward FLOPs of each matmul of one layer, by the tensor it makes: 2 x tokens x weights."""
    matrices = layout.layer_matrices.items()
    return {tensor: 2 * layout.step_tokens * elements for tensor, elements in matrices}


def layers_forward_flops(layout: Layout) -> Number:
    """All layers' matmuls, attention scores apart."""
    return layout.model.layers * sum(projection_flops(layout).values())


def copied_heads_flops(layout: Layout) -> Number:
    """What of it projects keys and values that another device projects as well."""
    per_head = 2 * layout.step_tokens * layout.model.d_model * layout.model.head_dim
    return layout.model.layers * 2 * per_head * layout.copied_heads


def layers_recompute_flops(layout: Layout) -> Number:
    """Matmuls that the backward pass repeats, because the policy did not keep what they make.

    The down projection is never repeated: the backward pass needs its input, not its result.
    """
    again = [
        flops
        for tensor, flops in projection_flops(layout).items()
        if tensor != "down" and layout.remat.recomputes(tensor)
    ]
    return layout.model.layers * sum(again)


def attention_forward_flops(layout: Layout) -> Number:
    """Causal scores and values of all layers: 2 S H a query head and token, by whole blocks.

    The kernel computes every block that a query sees, also the half of it that none does: 1 + b/S
    of the causal half. Positions lie in zigzag over `sequence`, so every device has the mean.
    """
    seen = layout.length + min(ATTENTION_BLOCK, layout.length)
    head = layout.heads * layout.model.head_dim
    return layout.model.layers * 2 * layout.step_tokens * seen * head


def attention_backward_flops(layout: Layout) -> Number:
    return ATTENTION_BACKWARD_OVER_FORWARD * attention_forward_flops(layout)


def attention_recompute_flops(layout: Layout) -> Number:
    """The forward kernel again, where its result was not kept."""
    return attention_forward_flops(layout) if layout.remat.recomputes("attention") else 0.0


def unembedding_forward_flops(layout: Layout) -> Number:
    """Logits: 2 tokens D V."""
    return 2 * layout.step_tokens * layout.table_elements
