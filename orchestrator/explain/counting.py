"""Explain room: the book's first questions: parameters, FLOPs, time, memory."""

from orchestrator.explain.worksheet import Worksheet
from orchestrator.network.decoder import decoder
from orchestrator.plan import flops
from orchestrator.types.explanation import DerivationSection, Verdict
from orchestrator.types.spec import Model


def parameters(sheet: Worksheet, model: Model) -> DerivationSection:
    """Counted as the plan counts them."""
    network = decoder(model)
    block, unit, layers = network.block, "parameters", network.layers
    matrices = len(block.mlp.matmuls)
    width = "D * V" if model.tied else "2 * D * V"
    return DerivationSection(
        title="Parameters",
        lines=(
            sheet.line("FFW", "P_ffw", f"{matrices} * D * F * L", unit,
                       layers * block.mlp.matrix_elements),
            sheet.line("attention", "P_att", "2 * D * H * (N + K) * L", unit,
                       layers * block.attention.matrix_elements),
            sheet.line("vocabulary", "P_voc", width, unit,
                       network.table_parameters),
            sheet.line("norms", "P_norm", "(2 * L + 1) * D", unit, network.norm_parameters),
            sheet.line("all", "P", "P_ffw + P_att + P_voc + P_norm", unit,
                       network.parameters),
            sheet.line("multiplied by every token", "P_mat", "P_ffw + P_att + D * V", unit,
                       network.matmul_parameters),
        ),
    )  # fmt: skip


def compute(sheet: Worksheet, model: Model, length: int) -> DerivationSection:
    """The book's rule of thumb, and the definition that MFU is measured by here."""
    return DerivationSection(
        title="FLOPs",
        lines=(
            sheet.line("of a token, by 6 P", "f", "6 * P", "FLOP",
                       flops.simple_flops_per_token(model)),
            sheet.line("of a token, as MFU counts", "f_mfu", "6 * P_mat + 3 * 2 * S * N * H * L",
                       "FLOP", flops.model_flops_per_token(model, length)),
            sheet.line("of all tokens, by 6 P", "flops", "f * T", "FLOP"),
            sheet.line("of all tokens, as MFU counts", "flops_mfu", "f_mfu * T", "FLOP"),
        ),
    )  # fmt: skip


def duration(sheet: Worksheet) -> DerivationSection:
    """How long it takes if nothing but arithmetic does."""
    return DerivationSection(
        title="Time",
        lines=(
            sheet.line("chips", "chips", "pods * n", "chips"),
            sheet.line("one chip at its peak", "years", "flops / C / (365 * 86400)", "years"),
            sheet.line("all chips at this MFU", "days",
                       "flops / (chips * C * mfu) / 86400", "days"),
            sheet.line("the same, as MFU counts", "days_mfu",
                       "flops_mfu / (chips * C * mfu) / 86400", "days"),
        ),
    )  # fmt: skip


def memory(sheet: Worksheet) -> DerivationSection:
    """bf16 parameters, fp32 Adam without a master copy, checkpoints of what a layer makes."""
    batch = sheet.line("batch", "B", "sequences * S", "tokens")
    per_pod = sheet.line("batch of a pod", "B_pod", "B / pods", "tokens")
    return DerivationSection(
        title="Memory, the book's way",
        lines=(
            batch,
            per_pod,
            sheet.line("bf16 parameters", "b_par", "2 * P", "bytes"),
            sheet.line("fp32 Adam, no master copy", "b_adam", "8 * P", "bytes"),
            sheet.line("4 checkpoints [B, D] a layer", "b_act", "4 * 2 * B_pod * D * L", "bytes"),
            sheet.line("all of a pod", "b_all", "b_par + b_adam + b_act", "bytes"),
            sheet.line("chips that hold it", "few", "ceil(b_all / HBM)", "chips"),
            sheet.line("on each chip of the pod", "b_chip", "b_all / n", "bytes"),
            sheet.line("days on that few, by 6 P", "days_few", "days * n / few", "days"),
            sheet.line("by [B, F]: D + 2F a layer", "b_act_2F",
                       "2 * B_pod * (D + 2 * F) * L", "bytes"),
            sheet.line("by [B, F]: 6F a layer", "b_act_6F",
                       "2 * 6 * B_pod * F * L", "bytes"),
            sheet.line("all of a pod, by 6F", "b_all_6F", "b_par + b_adam + b_act_6F", "bytes"),
            sheet.line("chips that hold it", "few_6F", "ceil(b_all_6F / HBM)", "chips"),
            sheet.line("on each chip of the pod", "b_chip_6F", "b_all_6F / n", "bytes"),
        ),
        verdicts=(fits(sheet),),
    )  # fmt: skip


def fits(sheet: Worksheet) -> Verdict:
    """Whether a pod holds its share, counted either way."""
    holds = sheet["few_6F"] <= sheet["n"]
    least, most = (f"{sheet[symbol]:,.0f}" for symbol in ("few", "few_6F"))
    return Verdict(
        question="Does a pod hold it?",
        holds=holds,
        words=f"{'yes' if holds else 'no'}: it takes {least} chips by [B, D] and {most} by 6F, of"
        f" {sheet['n']:,.0f}; the outputs of two of the three big matmuls are [B, F], so counting"
        " [B, D] alone is too little",
    )
