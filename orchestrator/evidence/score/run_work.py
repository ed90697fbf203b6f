"""How each source counts FLOPs, and the step time that its TFLOP/s or MFU mean."""

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from orchestrator.evidence.score.published_runs import PublishedRun, Unscorable
from orchestrator.network.attention import RESULT
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, Matmul, Mixture, Weight
from orchestrator.planning import flops
from orchestrator.planning.layout import Number, Training, is_of_experts, whole
from orchestrator.planning.time import matmul_line, rated_line
from orchestrator.values.model import MixtureOfExperts
from orchestrator.values.plan import ATTENTION_LINES, LedgerLine

# A row whose stated FLOPs differ by more from those of its columns describes another model.
TOLERANCE = 0.05


@dataclass(frozen=True)
class FlopCount:
    """Which parameters a source multiplies by six, and how much of attention it counts."""

    pattern: str
    parameters: Literal["all", "matmul"]
    attention: Literal["none", "full", "causal", "causal in windows"]


# The first that matches; MaxText alone has counted in five ways.
FLOP_COUNTS = (
    FlopCount(r"maxtext2023a|6\*?N\*tok; no attention", "all", "none"),
    FlopCount(r"maxtext2023b", "all", "full"),
    FlopCount(r"maxtext2023c", "all", "causal"),
    FlopCount(r"maxtext2024", "matmul", "full"),
    FlopCount(r"maxtext2025", "matmul", "causal in windows"),
    FlopCount(r"PaLM|6N \+ 12LHQT", "all", "full"),
    FlopCount(r"levanter", "matmul", "full"),
)
OURS = FlopCount("", "matmul", "causal in windows")


def flop_count(run: PublishedRun) -> FlopCount:
    """How the row's source counts FLOPs."""
    count = known_flop_count(run)
    if count:
        return count
    raise Unscorable(f"it is unknown what FLOPs {run.convention or 'its source'!r} counts")


def known_flop_count(run: PublishedRun) -> FlopCount | None:
    return next((c for c in FLOP_COUNTS if re.search(c.pattern, run.convention)), None)


def attention_share(run: PublishedRun, local: float, whole: float = 1.0) -> float:
    """Attention of all layers, over that of as many global layers with the columns' heads.

    `local` and `whole` are those of a layer with a window, and of one without.
    """
    window = run.window
    if window is None:
        return whole
    wider = (window.whole_head_dim or run.model.head_dim) / run.model.head_dim
    return window.whole * wider * whole + (1 - window.whole) * local


def window_share(run: PublishedRun) -> float:
    """Pairs of positions inside the windows, over the causal half."""
    if run.window is None:
        return 1.0
    window = min(run.window.tokens, run.length)
    return attention_share(run, (2 * window - window * window / run.length) / run.length)


def extra_parameters_per_layer(run: PublishedRun) -> float:
    """Parameters that global layers have beyond the columns' heads, as the mean over all layers."""
    model, window = run.model, run.window
    if window is None:
        return 0.0
    head = window.whole_head_dim or model.head_dim
    keys = window.whole_kv_heads or model.kv_heads
    queries = model.heads * (head - model.head_dim)
    key_values = keys * head - model.kv_heads * model.head_dim
    return window.whole * 2 * model.d_model * (queries + key_values)


def counted_flops_per_token(run: PublishedRun, counted: FlopCount) -> float:
    """A token's FLOPs, forward and backward, as the source counts them."""
    model = run.model
    network = decoder(model)
    counted_by_all = network.parameters - network.vector_parameters  # no source counts norms
    weights = {"all": counted_by_all, "matmul": network.matmul_parameters}
    more = model.layers * extra_parameters_per_layer(run)
    return 6.0 * (weights[counted.parameters] + more) + attention_flops_per_token(run, counted)


def attention_flops_per_token(run: PublishedRun, counted: FlopCount) -> float:
    causal = 3.0 * flops.attention_flops_per_token(run.model, run.length)
    shares = {
        "none": 0.0,
        "full": 2.0,
        "causal": 1.0,
        "causal in windows": window_share(run),
    }
    return shares[counted.attention] * causal


def measured_step_s(run: PublishedRun, peak_flops_per_s: float) -> float:
    """The step time that a row states, or what its TFLOP/s or MFU come to."""
    if run.step_s is not None:
        return run.step_s
    if run.flops_per_chip_s is not None:
        rate = run.flops_per_chip_s
    elif run.mfu is not None:
        rate = run.mfu * peak_flops_per_s
    else:
        raise Unscorable("no step time, no TFLOP/s, no MFU")
    tokens = run.sequences * run.length
    return tokens * counted_flops_per_token(run, flop_count(run)) / (rate * run.chips)


def check_count(run: PublishedRun) -> None:
    """A row that states both its seconds and its FLOP/s must count the FLOPs of its columns."""
    count = known_flop_count(run)
    if count is None or run.step_s is None or run.flops_per_chip_s is None:
        return
    tokens = run.sequences * run.length
    stated = run.step_s * run.flops_per_chip_s * run.chips / tokens
    ours = counted_flops_per_token(run, count)
    if abs(ours / stated - 1) > TOLERANCE:
        raise Unscorable(
            f"its columns do not describe its model: {ours / 1e9:,.1f} GFLOP a token by its own"
            f" convention, its source counted {stated / 1e9:,.1f}"
        )


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
    run: PublishedRun, layout: Training, lines: list[LedgerLine]
) -> list[LedgerLine]:
    """The ledger with the attention of the run's own kernel."""
    others = [line for line in lines if line.kind not in ATTENTION_LINES]
    if run.software.kernel == "none":
        return [*others, square_line(layout), scores_line(layout)]
    return [
        *others,
        *(kernel_line(run, layout, line) for line in lines if line.kind in ATTENTION_LINES),
    ]


def kernel_line(run: PublishedRun, layout: Training, line: LedgerLine) -> LedgerLine:
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


def computed_share(run: PublishedRun, layout: Training) -> float:
    """Attention that the kernel computes, over that of the trainer's for whole sequences.

    It takes whole blocks, also along a window.
    """
    ours = computed_by_ours(layout)
    block = min(block_of(run), run.length)
    whole = (run.length + block) / 2 / ours
    local = min((run.window.tokens + block) / ours, whole) if run.window else whole
    return attention_share(run, local, whole)


def computed_by_ours(layout: Training) -> float:
    """Positions that the trainer's forward kernel computes for a query, mean over the sequence."""
    attention = layout.network.blocks[0].attention
    return float(flops.forward_positions(layout, attention))


def block_of(run: PublishedRun) -> int:
    """Tokens that the kernel takes at a time."""
    assumed = FUSED_BLOCK if run.software.kernel == "splash-fused" else USUAL_BLOCK
    return run.attention_block or assumed


def square_line(layout: Training) -> LedgerLine:
    """The whole square of scores, as matmuls."""
    again = layout.remat.share(RESULT, "recompute")
    square = flops.attention_forward_flops(layout) * layout.length / computed_by_ours(layout)
    count = (SQUARES_AGAIN if again else SQUARES) * square
    formula = "forward flops of the whole square, 3.5 or 4 times"
    return matmul_line(layout, "scores and values", formula, count)


def scores_line(layout: Training) -> LedgerLine:
    """Scores that go through HBM."""
    heads = layout.over_layers(lambda block: layout.size(block.attention.result.dimensions[0]))
    count = heads * layout.step_tokens * layout.length
    rate = layout.chip.hbm_bytes_per_s
    formula = f"{SCORE_BYTES} B x scores"
    moved = SCORE_BYTES * count
    return rated_line(layout, "activation_traffic", "scores", formula, "hbm", moved, rate)


# The experts of a published run: what its software computes and ours does not.


DISPATCH_PRODUCTS = 6
PASSES = 1 + flops.BACKWARD_OVER_FORWARD


def experts_as_run(
    run: PublishedRun, layout: Training, lines: list[LedgerLine]
) -> list[LedgerLine]:
    """The ledger with the run's kernels of experts in place of ours."""
    moe = layout.model.moe
    if moe is None:
        return lines
    added = []
    if run.dispatch_matmuls:
        added.append(dispatch_line(layout))
    if weighs_results(layout):
        added.append(output_line(layout))
    if run.expert_tile is not None:
        added.append(tiles_line(layout, run.expert_tile))
    if run.expert_rows is not None:
        lines = [line for line in lines if line.kind != "expert_padding"]
        added.append(rows_line(layout, moe, run.expert_rows))
    return [*added, *lines]


def dispatch_line(layout: Training) -> LedgerLine:
    """Tokens to experts and back as products with masks of rows.

    There are two, two gradients of tokens and rows, one of the mask that weighs; and the first is
    made again, since no policy keeps what it makes.
    """
    mixtures = layout.network.mixture_layers
    rows = layout.rows_of_token * layout.length
    product = 2 * layout.step_tokens * rows * layout.model.d_model
    count = DISPATCH_PRODUCTS * mixtures * product
    formula = "6 x 2 x tokens x rows of a sequence x d_model flops"
    return matmul_line(layout, "dispatch by matmuls", formula, count)


def output_line(layout: Training) -> LedgerLine:
    """The experts' results made again: where they are weighed, the gradients of the weights need
    them. Ours weighs what goes into their last matrix.
    """

    def output(block: Block) -> Number:
        mlp = block.mlp
        return layout.multiplied_elements(mlp.output) if isinstance(mlp, Mixture) else 0.0

    rows = 1 + flops.surplus_rows(layout)
    count = flops.matmul_flops(layout, layout.over_layers(output)) * rows
    return matmul_line(layout, "experts' results again", "1 forward flops", count)


def tiles_line(layout: Training, tile: int) -> LedgerLine:
    """What grouped matmuls compute beyond the widths of experts, in whole tiles: forward, backward,
    and again.
    """

    def beyond(block: Block) -> Number:
        return sum(
            passes(layout, block, one)
            * layout.multiplied_elements(one)
            * (in_whole_tiles(one.weight, tile) - 1)
            for one in block.mlp.matmuls
            if is_of_experts(one)
        )

    count = flops.matmul_flops(layout, layout.over_layers(beyond))
    formula = "routed matmul flops x (whole tiles / widths - 1)"
    return matmul_line(layout, "tiles of experts", formula, count)


def rows_line(layout: Training, moe: MixtureOfExperts, rows: int) -> LedgerLine:
    """Tiles of so many rows that two experts share are computed for both: in each product one more
    for each expert but the last.
    """
    experts = moe.experts / layout.ways("experts")

    def routed(block: Block) -> Number:
        return sum(
            passes(layout, block, one) * layout.elements(one.weight)
            for one in block.mlp.matmuls
            if is_of_experts(one)
        )

    beyond = 2 * layout.microbatches * rows * (experts - 1) / experts
    count = beyond * layout.over_layers(routed)
    return matmul_line(layout, "shared tiles of experts", "2 x rows x (experts - 1) flops", count)


def passes(layout: Training, block: Block, matmul: Matmul) -> Number:
    """How often a step multiplies by an expert's matrix: forward, backward, and again."""
    is_output = matmul is block.mlp.output
    again = weighs_results(layout) if is_output else layout.recomputed(matmul)
    return PASSES + again


def weighs_results(layout: Training) -> bool:
    """Whether other software weighs the experts' results. The one expert of a token (Llama 4) has
    its weight on its input.
    """
    moe = layout.model.moe
    return moe is not None and moe.top_k > 1


def in_whole_tiles(weight: Weight, tile: int) -> float:
    """The widths of an expert's matrix in whole tiles, over its widths."""
    sizes = [one.size for one in weight.dimensions[1:]]
    return float(prod(whole(size, min(tile, size)) / size for size in sizes))
