"""The work of a published run: FLOPs as its source counts them, and what its own kernels do."""

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from orchestrator.evidence.score.published_runs import PublishedRun, Unscorable
from orchestrator.network.attention import RESULT
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Block, Matmul, Mixture
from orchestrator.planning import flops
from orchestrator.planning.layout import Number, Training, is_of_experts, whole
from orchestrator.planning.time import matmul_line, rated_line
from orchestrator.values.plan import ATTENTION_LINES, LedgerLine, LineKind


@dataclass(frozen=True)
class _FlopCount:
    """Which parameters a source multiplies by six, and how much of attention it counts."""

    pattern: str
    parameters: Literal["all", "matmul"]
    attention: Literal["none", "full", "causal", "causal in windows"]


# The first that matches; MaxText has counted in five ways.
_FLOP_COUNTS = (
    _FlopCount(r"maxtext2023a|6\*?N\*tok; no attention", "all", "none"),
    _FlopCount(r"maxtext2023b", "all", "full"),
    _FlopCount(r"maxtext2023c", "all", "causal"),
    _FlopCount(r"maxtext2024", "matmul", "full"),
    _FlopCount(r"maxtext2025", "matmul", "causal in windows"),
    _FlopCount(r"PaLM|6N \+ 12LHQT", "all", "full"),
    _FlopCount(r"levanter", "matmul", "full"),
)
OURS = _FlopCount("", "matmul", "causal in windows")


def _flop_count(run: PublishedRun) -> _FlopCount | None:
    return next((c for c in _FLOP_COUNTS if re.search(c.pattern, run.convention)), None)


def _attention_share(run: PublishedRun, local: float, whole: float = 1.0) -> float:
    """Return attention of all layers over global ones; `local` has a window, `whole` does not."""
    window = run.window
    if window is None:
        return whole
    wider = (window.whole_head_dim or run.model.head_dim) / run.model.head_dim
    return window.whole * wider * whole + (1 - window.whole) * local


def extra_parameters_per_layer(run: PublishedRun) -> float:
    """Return what global layers have beyond the columns' heads, as the mean over all layers."""
    model, window = run.model, run.window
    if window is None:
        return 0.0
    head = window.whole_head_dim or model.head_dim
    keys = window.whole_kv_heads or model.kv_heads
    queries = model.heads * (head - model.head_dim)
    key_values = keys * head - model.kv_heads * model.head_dim
    return window.whole * 2 * model.d_model * (queries + key_values)


def counted_flops_per_token(run: PublishedRun, counted: _FlopCount) -> float:
    """Return a token's FLOPs, forward and backward, as the source counts them."""
    model, window, length = run.model, run.window, run.length
    network = decoder(model)
    parameters: float = network.matmul_parameters
    if counted.parameters == "all":
        parameters = network.parameters - network.vector_parameters  # no source counts norms
    parameters += model.layers * extra_parameters_per_layer(run)

    # Attention over the causal half of all pairs of positions; a window of w tokens sees
    # (2 w - w^2 / length) / length of that half.
    causal = 3.0 * flops.attention_flops_per_token(model, length)
    share = {"none": 0.0, "full": 2.0}.get(counted.attention, 1.0)
    if counted.attention == "causal in windows" and window is not None:
        seen = min(window.tokens, length)
        share = _attention_share(run, (2 * seen - seen * seen / length) / length)
    return 6.0 * parameters + share * causal


def measured_step_s(run: PublishedRun, peak_flops_per_s: float) -> float:
    """Return the step time that a row states, or what its TFLOP/s or MFU come to."""
    if run.step_s is not None:
        return run.step_s
    if run.flops_per_chip_s is not None:
        rate = run.flops_per_chip_s
    elif run.mfu is not None:
        rate = run.mfu * peak_flops_per_s
    else:
        raise Unscorable("no step time, no TFLOP/s, no MFU")
    count = _flop_count(run)
    if count is None:
        raise Unscorable(f"it is unknown what FLOPs {run.convention or 'its source'!r} counts")
    tokens = run.sequences * run.length
    return tokens * counted_flops_per_token(run, count) / (rate * run.chips)


def check_count(run: PublishedRun) -> None:
    """Refuse a row whose seconds and FLOP/s are not those of the model in its columns."""
    count = _flop_count(run)
    if count is None or run.step_s is None or run.flops_per_chip_s is None:
        return
    tokens = run.sequences * run.length
    stated = run.step_s * run.flops_per_chip_s * run.chips / tokens
    ours = counted_flops_per_token(run, count)
    if abs(ours / stated - 1) > 0.05:
        raise Unscorable(
            f"its columns do not describe its model: {ours / 1e9:,.1f} GFLOP a token by its own"
            f" convention, its source counted {stated / 1e9:,.1f}"
        )


# Tokens at a time where a run does not say: those of kernels by default, and those of every
# published recipe with one backward kernel.
_USUAL_BLOCK, _FUSED_BLOCK = 512, 2048
# Without a kernel, forward passes over the passes of one square: forward and backward, and the
# scores again; or all of the forward pass again.
_SQUARES, _SQUARES_AGAIN = 3.5, 4.0
# Bytes of each score: fp32 scores are written, read for the largest and for the sum; probabilities
# in bf16 are written and read. Backward, after the scores again: gradients of probabilities in fp32
# are written and read with the probabilities for a sum, and both again for the gradients of the
# scores, which are written once and read twice; the probabilities are read for those of the values.
_FORWARD_BYTES = 4 + 4 + 4 + 2 + 2
_BACKWARD_BYTES = 4 + (4 + 2) + (4 + 2) + 2 + (2 + 2) + 2
_SCORE_BYTES = 2 * _FORWARD_BYTES + _BACKWARD_BYTES


def attention_as_run(
    run: PublishedRun, layout: Training, lines: list[LedgerLine]
) -> list[LedgerLine]:
    """Return the ledger with the attention of the run's own kernel."""
    others = [line for line in lines if line.kind not in ATTENTION_LINES]
    attention = layout.network.blocks[0].attention
    # Positions that the trainer's forward kernel computes for a query, mean over the sequence.
    computed = float(flops.forward_positions(layout, attention))
    forward = flops.attention_forward_flops(layout)
    if run.software.kernel == "none":
        # The whole square of scores as matmuls, and the scores through HBM.
        again = layout.remat.share(RESULT, "recompute")
        square = forward * layout.length / computed
        count = (_SQUARES_AGAIN if again else _SQUARES) * square
        formula = "forward flops of the whole square, 3.5 or 4 times"
        heads = layout.over_layers(lambda block: layout.size(block.attention.result.dimensions[0]))
        moved = _SCORE_BYTES * (heads * layout.step_tokens * layout.length)
        rate = layout.chip.hbm_bytes_per_s
        return [
            *others,
            matmul_line(layout, "scores and values", formula, count),
            rated_line(layout, "activation_traffic", "scores", f"{_SCORE_BYTES} B x scores", "hbm",
                       moved, rate),
        ]  # fmt: skip

    # The run's kernel over the trainer's for whole sequences: it takes whole blocks, also along a
    # window.
    at_once = run.software.kernel == "splash-fused"
    block = min(run.attention_block or (_FUSED_BLOCK if at_once else _USUAL_BLOCK), run.length)
    whole_share = (run.length + block) / 2 / computed
    local = min((run.window.tokens + block) / computed, whole_share) if run.window else whole_share
    share = _attention_share(run, local, whole_share)

    # Products of forward and backward kernels, over those of the forward kernel.
    backward = (flops.AT_ONCE,) if at_once else (flops.OF_QUERIES, flops.OF_KEYS_AND_VALUES)
    own = decoder(run.model).blocks[0].attention
    queries, values = own.queries.width, own.result.width
    gradients: float = sum(part.queries * queries + part.values * values for part in backward)
    passes = 1 + gradients / (queries + values)
    ours = float((forward + flops.attention_backward_flops(layout)) / forward)
    factors: dict[LineKind, float] = {"attention": share * (passes / ours)}
    return [
        *others,
        *(
            scaled(line, factors.get(line.kind, share))
            for line in lines
            if line.kind in ATTENTION_LINES
        ),
    ]


def scaled(line: LedgerLine, factor: float) -> LedgerLine:
    counted = {"flops", "bytes"}
    inputs = {n: value * factor if n in counted else value for n, value in line.inputs.items()}
    return replace(line, value=line.value * factor, inputs=inputs, serial_s=line.serial_s * factor)


MASKS = "dispatch by matmuls"


def experts_as_run(
    run: PublishedRun, layout: Training, lines: list[LedgerLine]
) -> list[LedgerLine]:
    """Return the ledger with the run's kernels of experts in place of ours."""
    moe = layout.model.moe
    if moe is None:
        return lines
    # Other software weighs the experts' results. The one expert of a token (Llama 4) has its weight
    # on its input.
    weighs_results = moe.top_k > 1
    added = []

    if run.dispatch_matmuls:
        # Tokens to experts and back as products with masks of rows: two products, two gradients of
        # tokens and rows, one of the mask that weighs; and the first is made again, since no policy
        # keeps what it makes.
        rows = layout.rows_of_token * layout.length
        product = 2 * layout.step_tokens * rows * layout.model.d_model
        count = 6 * layout.network.mixture_layers * product
        formula = "6 x 2 x tokens x rows of a sequence x d_model flops"
        added.append(matmul_line(layout, MASKS, formula, count))

    if weighs_results:
        # The experts' results are made again, as the gradients of their weights need them. Ours
        # weighs what goes into their last matrix.
        def output(block: Block) -> Number:
            mlp = block.mlp
            return layout.multiplied_elements(mlp.output) if isinstance(mlp, Mixture) else 0.0

        surplus = 1 + flops.surplus_rows(layout)
        count = flops.matmul_flops(layout, layout.over_layers(output)) * surplus
        added.append(matmul_line(layout, "experts' results again", "1 forward flops", count))

    def passes(block: Block, matmul: Matmul) -> Number:
        """Return how often a step multiplies by an expert's matrix: forward, backward, again."""
        is_output = matmul is block.mlp.output
        again = weighs_results if is_output else layout.recomputed(matmul)
        return 1 + flops.BACKWARD_OVER_FORWARD + again

    if (tile := run.expert_tile) is not None:
        # Grouped matmuls compute whole tiles, beyond the widths of experts.
        def beyond(block: Block) -> Number:
            return sum(
                passes(block, matmul)
                * layout.multiplied_elements(matmul)
                * (
                    prod(
                        whole(size.size, min(tile, size.size)) / size.size
                        for size in matmul.weight.dimensions[1:]
                    )
                    - 1
                )
                for matmul in block.mlp.matmuls
                if is_of_experts(matmul)
            )

        count = flops.matmul_flops(layout, layout.over_layers(beyond))
        formula = "routed matmul flops x (whole tiles / widths - 1)"
        added.append(matmul_line(layout, "tiles of experts", formula, count))

    if run.expert_rows is not None:
        # Tiles of rows that two experts share are computed for both: in each product one more for
        # each expert but the last.
        def routed(block: Block) -> Number:
            return sum(
                passes(block, matmul) * layout.elements(matmul.weight)
                for matmul in block.mlp.matmuls
                if is_of_experts(matmul)
            )

        experts = moe.experts / layout.ways("experts")
        shared = 2 * layout.microbatches * run.expert_rows * (experts - 1) / experts
        formula = "2 x rows x (experts - 1) flops"
        count = shared * layout.over_layers(routed)
        added.append(matmul_line(layout, "shared tiles of experts", formula, count))
        lines = [line for line in lines if line.kind != "expert_padding"]
    return [*added, *lines]
