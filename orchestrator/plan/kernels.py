"""Plan room: what each device computes alone in a step, in the pieces that a profile has timed."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.plan import compute
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.time import hbm_lines
from orchestrator.types.chip_profile import Kernel
from orchestrator.types.plan import LineKind
from orchestrator.types.spec import DType

# Of a block. The trainer multiplies by query, key and value at once, and by gate and up at once.
PRODUCTS = 4


@dataclass(frozen=True)
class KernelCalls:
    """`calls` a step of a kernel, each with that amount of work."""

    kind: LineKind
    name: str
    kernel: Kernel
    dtype: DType
    amount: float
    calls: float
    head_dim: int = 0


def pieces(layout: Layout) -> list[KernelCalls]:
    """Everything but the exchanges."""
    found = [*products(layout), *pointwise(layout), *attention(layout), *memory(layout)]
    return [piece for piece in found if piece.amount > 0 and piece.calls > 0]


def products(layout: Layout) -> Iterator[KernelCalls]:
    """Matmuls of the blocks and of the unembedding, those of attention left out.

    A product and its backward pass are timed as one: of the three, none runs as fast as the others.
    """
    blocks = layout.model.layers * layout.microbatches
    forward = compute.layers_forward_flops(layout)
    again = compute.layers_recompute_flops(layout)
    both = 1 + compute.BACKWARD_OVER_FORWARD
    logits = both * compute.unembedding_forward_flops(layout)
    each = PRODUCTS * blocks
    kernels: tuple[tuple[LineKind, str, Kernel, Number, float], ...] = (
        ("matmul", "matmuls", "matmul", both * forward, each),
        ("matmul_recompute", "recompute", "matmul forward", again, each),
        ("matmul", "unembedding", "matmul", logits, layout.microbatches),
    )
    for kind, name, kernel, flops, calls in kernels:
        yield KernelCalls(kind, name, kernel, layout.precision.compute, flops / calls, calls)


def pointwise(layout: Layout) -> Iterator[KernelCalls]:
    """What is done number by number, and between the products."""
    model, dtype = layout.model, layout.precision.compute
    blocks, tokens = model.layers * layout.microbatches, layout.tokens
    stream = tokens / layout.tensor * model.d_model
    turned = tokens * (layout.heads + layout.kv_heads) * model.head_dim
    yield KernelCalls(
        "elementwise", "norms", "norm", dtype, stream, 2 * blocks + layout.microbatches
    )
    yield KernelCalls("elementwise", "rotary", "rotary", dtype, turned, blocks)
    yield KernelCalls("elementwise", "gates", "gate", dtype, tokens * layout.d_ff, blocks)
    yield KernelCalls("logits", "loss", "logits", dtype, tokens * layout.vocab, layout.microbatches)
    # Each parameter is met once a step, so what all of them take together is what a cache holds.
    yield KernelCalls("optimizer_update", "optimizer update", "update",
                      layout.precision.optimizer, layout.owned_elements, 1)  # fmt: skip


def attention(layout: Layout) -> Iterator[KernelCalls]:
    """The trainer's kernel; where its result is not kept, the forward pass twice."""
    blocks = layout.model.layers * layout.microbatches
    scores = layout.tokens * layout.heads * layout.length
    dtype, head_dim = layout.precision.compute, layout.model.head_dim
    yield KernelCalls("attention", "attention", "attention", dtype, scores, blocks, head_dim)
    if layout.remat.recomputes("attention"):
        yield KernelCalls("attention_recompute", "attention recompute", "attention forward",
                          dtype, scores, blocks, head_dim)  # fmt: skip


def memory(layout: Layout) -> Iterator[KernelCalls]:
    """Traffic that no fusion avoids, as `time` counts it; the update has a kernel of its own."""
    blocks = layout.model.layers * layout.microbatches
    for line in hbm_lines(layout):
        if line.kind != "optimizer_update":
            amount = float(line.inputs["bytes"]) / blocks
            yield KernelCalls(
                line.kind, line.name, "copy", layout.precision.compute, amount, blocks
            )
