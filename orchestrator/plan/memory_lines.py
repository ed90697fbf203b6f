"""What the ledgers of bytes share: a line, and sizes that several phases have."""

from math import prod

from orchestrator.network.description import Block
from orchestrator.plan.layout import Layout, Number
from orchestrator.types.plan import LedgerLine, LineKind

FP32_BYTES = 4
ACCUMULATION_BYTES = FP32_BYTES  # gradients add up in fp32, whatever travels


def line(kind: LineKind, name: str, formula: str, **inputs: Number) -> LedgerLine:
    """A line that is the product of its inputs."""
    value = prod(inputs.values())
    return LedgerLine(
        kind=kind, name=name, value=value, unit="bytes", formula=formula, inputs=inputs
    )


def named(block: Block, what: str) -> str:
    """Something of a block, with the block's kind where the network has several."""
    return f"{block.kind} {what}" if block.kind else what


def stream_bytes(layout: Layout) -> Number:
    """The residual stream of a microbatch, gathered over `tensor`."""
    return layout.tokens * layout.model.d_model * layout.compute_bytes


def split_ways(layout: Layout) -> Number:
    """The devices between which the positions of the stream are split outside of matmuls."""
    return layout.ways("residual_length") / layout.ways("length")
