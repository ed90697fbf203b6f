"""Attention as a run computed it: by the kernel that its row names, or without one.

A kernel computes whole blocks of scores on the chip. Without one, the whole square of scores is
matmuls, and goes through HBM.
"""

from dataclasses import replace

from orchestrator.network.attention import RESULT
from orchestrator.network.decoder import decoder
from orchestrator.plan import flops
from orchestrator.plan.layout import Layout
from orchestrator.plan.time import matmul_line, rated_line
from orchestrator.score.flop_counts import attention_share
from orchestrator.score.published_runs import PublishedRun
from orchestrator.types.plan import ATTENTION_LINES, LedgerLine

# Tokens at a time where a run does not say: those of kernels by default, and those of every
# published recipe with one backward kernel.
USUAL_BLOCK, FUSED_BLOCK = 512, 2048
# Without a kernel, forward passes over the passes of one square: forward and backward, and the
# scores again; or all of the forward pass again.
SQUARES, SQUARES_AGAIN = 3.5, 4.0
# Bytes of each score: fp32 scores are written, read for the largest and for the sum; probabilities
# in bf16 are written and read. Backward, after the scores again: gradients of probabilities in fp32
# are written and read with the probabilities for a sum, and both again for the gradients of the
# scores, which are written once and read twice; the probabilities are read for those of the values.
FORWARD_BYTES = 4 + 4 + 4 + 2 + 2
BACKWARD_BYTES = 4 + (4 + 2) + (4 + 2) + 2 + (2 + 2) + 2
SCORE_BYTES = 2 * FORWARD_BYTES + BACKWARD_BYTES


def attention_as_run(
    run: PublishedRun, layout: Layout, lines: list[LedgerLine]
) -> list[LedgerLine]:
    """The ledger with the attention of the run's own kernel."""
    others = [line for line in lines if line.kind not in ATTENTION_LINES]
    if run.software.kernel == "none":
        return [*others, square_line(layout), scores_line(layout)]
    return [
        *others,
        *(kernel_line(run, layout, line) for line in lines if line.kind in ATTENTION_LINES),
    ]


def kernel_line(run: PublishedRun, layout: Layout, line: LedgerLine) -> LedgerLine:
    """A line of attention, scaled from the trainer's kernel to the run's."""
    factor = computed_share(run, layout)
    if line.kind == "attention":
        forward = flops.attention_forward_flops(layout)
        ours = (forward + flops.attention_backward_flops(layout)) / forward
        factor *= passes_of(run) / float(ours)
    return scaled(line, factor)


def passes_of(run: PublishedRun) -> float:
    """Products of forward and backward kernels, over those of the forward kernel."""
    at_once = run.software.kernel == "splash-fused"
    backward = (flops.AT_ONCE,) if at_once else (flops.OF_QUERIES, flops.OF_KEYS_AND_VALUES)
    attention = decoder(run.model).blocks[0].attention
    queries, values = attention.score_width, attention.width
    gradients: float = sum(one.queries * queries + one.values * values for one in backward)
    return 1 + gradients / (queries + values)


def scaled(line: LedgerLine, factor: float) -> LedgerLine:
    inputs = {
        name: value * factor if name in {"flops", "bytes"} else value
        for name, value in line.inputs.items()
    }
    return replace(line, value=line.value * factor, inputs=inputs, serial_s=line.serial_s * factor)


def computed_share(run: PublishedRun, layout: Layout) -> float:
    """Attention that the kernel computes, over that of the trainer's for whole sequences.

    It takes whole blocks, also along a window.
    """
    ours = computed_by_ours(layout)
    block = min(block_of(run), run.length)
    whole = (run.length + block) / 2 / ours
    local = min((run.window.tokens + block) / ours, whole) if run.window else whole
    return attention_share(run, local, whole)


def computed_by_ours(layout: Layout) -> float:
    """Positions that the trainer's forward kernel computes for a query, mean over the sequence."""
    attention = layout.network.blocks[0].attention
    return float(flops.forward_positions(layout, attention))


def block_of(run: PublishedRun) -> int:
    """Tokens that the kernel takes at a time."""
    assumed = FUSED_BLOCK if run.software.kernel == "splash-fused" else USUAL_BLOCK
    return run.attention_block or assumed


def square_line(layout: Layout) -> LedgerLine:
    """The whole square of scores, as matmuls."""
    again = layout.remat.share(RESULT, "recompute")
    square = flops.attention_forward_flops(layout) * layout.length / computed_by_ours(layout)
    count = (SQUARES_AGAIN if again else SQUARES) * square
    formula = "forward flops of the whole square, 3.5 or 4 times"
    return matmul_line(layout, "scores and values", formula, count)


def scores_line(layout: Layout) -> LedgerLine:
    """Scores that go through HBM."""
    heads = layout.over_layers(lambda block: layout.size(block.attention.result.dimensions[0]))
    count = heads * layout.step_tokens * layout.length
    rate = layout.chip.hbm_bytes_per_s
    formula = f"{SCORE_BYTES} B x scores"
    moved = SCORE_BYTES * count
    return rated_line(layout, "activation_traffic", "scores", formula, "hbm", moved, rate)
