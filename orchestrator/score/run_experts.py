"""The experts of a published run: what its software computes and ours does not."""

from math import prod

from orchestrator.network.description import Block, Matmul, Mixture, Weight
from orchestrator.plan import flops
from orchestrator.plan.layout import Layout, Number, is_of_experts
from orchestrator.plan.tiles import whole
from orchestrator.plan.time import matmul_line
from orchestrator.score.published_runs import PublishedRun
from orchestrator.types.moe import MixtureOfExperts
from orchestrator.types.plan import LedgerLine

DISPATCH_PRODUCTS = 6
PASSES = 1 + flops.BACKWARD_OVER_FORWARD


def experts_as_run(run: PublishedRun, layout: Layout, lines: list[LedgerLine]) -> list[LedgerLine]:
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


def dispatch_line(layout: Layout) -> LedgerLine:
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


def output_line(layout: Layout) -> LedgerLine:
    """The experts' results made again: where they are weighed, the gradients of the weights need
    them. Ours weighs what goes into their last matrix.
    """

    def output(block: Block) -> Number:
        mlp = block.mlp
        return layout.multiplied_elements(mlp.output) if isinstance(mlp, Mixture) else 0.0

    rows = 1 + flops.surplus_rows(layout)
    count = flops.matmul_flops(layout, layout.over_layers(output)) * rows
    return matmul_line(layout, "experts' results again", "1 forward flops", count)


def tiles_line(layout: Layout, tile: int) -> LedgerLine:
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


def rows_line(layout: Layout, moe: MixtureOfExperts, rows: int) -> LedgerLine:
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


def passes(layout: Layout, block: Block, matmul: Matmul) -> Number:
    """How often a step multiplies by an expert's matrix: forward, backward, and again."""
    is_output = matmul is block.mlp.output
    again = weighs_results(layout) if is_output else layout.recomputed(matmul)
    return PASSES + again


def weighs_results(layout: Layout) -> bool:
    """Whether other software weighs the experts' results. The one expert of a token (Llama 4) has
    its weight on its input.
    """
    moe = layout.model.moe
    return moe is not None and moe.top_k > 1


def in_whole_tiles(weight: Weight, tile: int) -> float:
    """The widths of an expert's matrix in whole tiles, over its widths."""
    sizes = [one.size for one in weight.dimensions[1:]]
    return float(prod(whole(size, min(tile, size)) / size for size in sizes))
