"""Explain room: the book's bounds on sharding: when a step computes longer than it communicates."""

from collections.abc import Mapping

from orchestrator.explain.formatting import bound_by, power_of_two, short
from orchestrator.explain.inputs import AxisCounts
from orchestrator.explain.worksheet import Worksheet
from orchestrator.network.decoder import decoder
from orchestrator.types.explanation import Derivation, DerivationSection, Verdict
from orchestrator.types.spec import Model

TOKENS = "tokens a chip"
SIMPLIFIED = "Is FSDP + tensor compute-bound, simplified as in the book?"
MIXED = "alpha**2 / (M_X * M_Y * {F})"
# Weights and activations that share one axis take turns: the sum of both is least where they are
# equal, and then each is half of it.
MIXED_IN_TURN = "4 * alpha**2 / (M**2 * {F})"


def sequences_alone(sheet: Worksheet) -> DerivationSection:
    """Without splitting sequences there are no more ways than sequences."""
    idle = sheet.line("chips without a sequence", "idle", "max(chips - sequences, 0)", "chips")
    holds = sheet["idle"] == 0
    words = (
        f"yes, {short(sheet['sequences'] / sheet['chips'])} a chip"
        if holds
        else f"no: {sheet['sequences']:,.0f} sequences leave {sheet['idle']:,.0f} of"
        f" {sheet['chips']:,.0f} chips idle"
    )
    verdict = Verdict(question="Is there a sequence for every chip?", holds=holds, words=words)
    return DerivationSection(title="Pure FSDP, whole sequences", lines=(idle,), verdicts=(verdict,))


def weights_alone(sheet: Worksheet, rings: str, bytes_of_element: int) -> DerivationSection:
    """FSDP over sequences and positions on all axes."""
    lines = (
        sheet.line("bytes/s of an axis", "W", rings, "B/s"),
        intensity(sheet, bytes_of_element),
        sheet.line(TOKENS, "tokens", "B_pod / n", TOKENS),
        sheet.line("it takes", "fsdp_least", "alpha / M", TOKENS),
    )
    return DerivationSection(
        title="FSDP over batch and sequence, on every axis",
        lines=lines,
        verdicts=(bound(sheet, "Is pure FSDP compute-bound?", "fsdp_least"),),
    )


def intensity(sheet: Worksheet, bytes_of_element: int) -> Derivation:
    """FLOPs a byte; the book's formulas have two bytes an element in them."""
    formula = "C / W" if bytes_of_element == 2 else f"{bytes_of_element} / 2 * C / W"
    return sheet.line("intensity of an axis", "alpha", formula, "FLOP/B")


def bound(sheet: Worksheet, question: str, least: str) -> Verdict:
    """Tokens a chip against the least that are compute-bound."""
    times = sheet["tokens"] / sheet[least]
    tokens, takes = short(sheet["tokens"]), short(sheet[least])
    words = f"{bound_by(times)}: {tokens} tokens a chip, it takes {takes}"
    return Verdict(question=question, holds=times > 1, words=words)


def tensor_alone(sheet: Worksheet) -> DerivationSection:
    """Tensor parallelism has a limit that no batch moves."""
    axes = "M_Y" if "M_Y" in sheet.numbers else "M"
    limit = sheet.line("it takes Y below", "Y_most", f"{axes} * F / alpha", "ways")
    ways = sheet["Y_most"]
    words = (
        f"below {short(ways)} ways, whatever the batch: {power_of_two(ways)} as a power of two"
        if ways >= 2
        else f"not at all: it takes fewer than {short(ways)} ways"
    )
    verdict = Verdict(question="How far does tensor go?", holds=ways >= 2, words=words)
    return DerivationSection(title="Tensor parallelism", lines=(limit,), verdicts=(verdict,))


def mixed(sheet: Worksheet, model: Model, axes: AxisCounts) -> DerivationSection:
    """FSDP and tensor together, by the book's two matmuls a layer and by all of them."""
    form = MIXED_IN_TURN if axes.shared else MIXED
    ratio = "1" if axes.shared else "M_X / M_Y"
    layer = decoder(model).block.matrix_elements
    lines = (
        sheet.line("it takes", "mixed_least", form.format(F="F"), TOKENS),
        sheet.line("a layer's matmuls", "P_lay", "(P_mat - D * V) / L", "parameters", layer),
        sheet.line("F that stands for them all", "F_eff", "P_lay / (4 * D)", ""),
        sheet.line("it takes, with all matmuls", "mixed_least_eff", form.format(F="F_eff"), TOKENS),
        sheet.line("best FSDP ways", "X_opt", f"sqrt(B_pod / F * {ratio} * n)", "ways"),
        sheet.line("best tensor ways", "Y_opt", "n / X_opt", "ways"),
        sheet.line("as powers of two, FSDP", "X",
                   "2**max(0, min(round(log2(X_opt)), floor(log2(n))))", "ways"),
        sheet.line("and tensor", "Y", "2**floor(log2(n / X))", "ways"),
        sheet.line("chips that these use", "used", "X * Y", "chips"),
    )  # fmt: skip
    by_f = mixed_bound(sheet, SIMPLIFIED, "mixed_least")
    by_all = mixed_bound(sheet, "And with every matmul of a layer?", "mixed_least_eff")
    return DerivationSection(
        title="FSDP + tensor", lines=lines, verdicts=(by_f, flipped(by_f, by_all))
    )


def mixed_times(numbers: Mapping[str, float], least: str) -> float:
    """Tokens a chip over the least that are compute-bound. Where the best X is more than there are
    chips, tensor does not pay, and pure FSDP decides.
    """
    if numbers["X_opt"] > numbers["n"]:
        least = "fsdp_least"
    return numbers["tokens"] / numbers[least]


def mixed_bound(sheet: Worksheet, question: str, least: str) -> Verdict:
    if sheet["X_opt"] <= sheet["n"]:
        return bound(sheet, question, least)
    pure = bound(sheet, question, "fsdp_least")
    words = f"tensor does not pay, as X_opt exceeds the chips; pure FSDP is {pure.words}"
    return Verdict(question=question, holds=pure.holds, words=words)


def flipped(first: Verdict, second: Verdict) -> Verdict:
    """The second answer, saying so where it overturns the first."""
    if first.holds == second.holds:
        return second
    return Verdict(
        question=second.question, holds=second.holds, words=f"{second.words}: the answer flips"
    )


def one_layer(sheet: Worksheet, axes: AxisCounts) -> DerivationSection:
    """The forward pass of one MLP at those powers of two: what takes how long."""
    x_axes, y_axes = ("M", "M") if axes.shared else ("M_X", "M_Y")
    comms = "T_fsdp + T_tensor" if axes.shared else "max(T_fsdp, T_tensor)"
    lines = (
        sheet.line("math", "T_math", "4 * B_pod * D * F / (X * Y * C)", "s"),
        sheet.line("weights", "T_fsdp", f"4 * D * F / (Y * W * {x_axes})", "s"),
        sheet.line("activations", "T_tensor", f"4 * B_pod * D / (X * W * {y_axes})", "s"),
        sheet.line("comms", "T_comms", comms, "s"),
        sheet.line("overlapped", "T_lower", "max(T_math, T_comms)", "s"),
        sheet.line("one after another", "T_upper", "T_math + T_fsdp + T_tensor", "s"),
    )
    times = sheet["T_math"] / sheet["T_comms"]
    verdict = Verdict(
        question="And at these powers of two?", holds=times > 1, words=bound_by(times)
    )
    return DerivationSection(title="One MLP, forward, on X x Y", lines=lines, verdicts=(verdict,))


def bytes_of_a_layer(sheet: Worksheet) -> DerivationSection:
    """What each scheme moves, forward + backward; the book's mixed row has 8 B D backward."""
    lines = (
        sheet.line("data parallel", "v_dp", "0 + 8 * D * F", "bytes"),
        sheet.line("FSDP", "v_fsdp", "4 * D * F + 8 * D * F", "bytes"),
        sheet.line("tensor", "v_tensor", "4 * B_pod * D + 4 * B_pod * D", "bytes"),
        sheet.line("FSDP + tensor, a chip's part", "v_mixed",
                   "(4 + 8) * B_pod * D / X + (4 + 8) * D * F / Y", "bytes"),
    )  # fmt: skip
    return DerivationSection(title="Bytes of one MLP, forward + backward", lines=lines)


def between_pods(sheet: Worksheet) -> DerivationSection:
    """Data parallel over DCN: every chip of a pod brings its own share of the network."""
    least = sheet.line("it takes, a pod", "dcn_least", "C / W_dcn", "tokens")
    times = sheet["B_pod"] / sheet["dcn_least"]
    tokens, takes = short(sheet["B_pod"]), short(sheet["dcn_least"])
    verdict = Verdict(
        question="Is data parallelism over DCN compute-bound?",
        holds=times > 1,
        words=f"{bound_by(times)}: {tokens} tokens a pod, it takes {takes}",
    )
    return DerivationSection(title="Between pods", lines=(least,), verdicts=(verdict,))
