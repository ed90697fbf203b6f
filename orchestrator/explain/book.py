"""The book's arithmetic: what training takes, and when a sharding is compute-bound.

Formulas are data. They use the symbols of `inputs` and of the formulas before them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.explain.derivation_inputs import AxisCounts, power_of_two
from orchestrator.explain.formula import Formula, Worksheet
from orchestrator.types.explanation import DerivationSection, QuestionCode, Verdict

TOKENS = "tokens a chip"
TIME = (
    Formula("chips", "chips", "pods * n", "chips"),
    Formula("one chip at its peak", "years", "flops / C / (365 * 86400)", "years"),
    Formula("all chips at this MFU", "days", "flops / (chips * C * mfu) / 86400", "days"),
    Formula("the same, as MFU counts", "days_mfu", "flops_mfu / (chips * C * mfu) / 86400", "days"),
)
# bf16 parameters, fp32 Adam without a master copy, checkpoints of what a layer makes.
MEMORY = (
    Formula("batch", "B", "sequences * S", "tokens"),
    Formula("batch of a pod", "B_pod", "B / pods", "tokens"),
    Formula("bf16 parameters", "b_par", "2 * P", "bytes"),
    Formula("fp32 Adam, no master copy", "b_adam", "8 * P", "bytes"),
    Formula("4 checkpoints [B, D] a layer", "b_act", "4 * 2 * B_pod * D * L", "bytes"),
    Formula("all of a pod", "b_all", "b_par + b_adam + b_act", "bytes"),
    Formula("chips that hold it", "few", "ceil(b_all / HBM)", "chips"),
    Formula("on each chip of the pod", "b_chip", "b_all / n", "bytes"),
    Formula("days on that few, by 6 P", "days_few", "days * n / few", "days"),
    Formula("by [B, F]: D + 2F a layer", "b_act_2F", "2 * B_pod * (D + 2 * F) * L", "bytes"),
    Formula("by [B, F]: 6F a layer", "b_act_6F", "2 * 6 * B_pod * F * L", "bytes"),
    Formula("all of a pod, by 6F", "b_all_6F", "b_par + b_adam + b_act_6F", "bytes"),
    Formula("chips that hold it", "few_6F", "ceil(b_all_6F / HBM)", "chips"),
    Formula("on each chip of the pod", "b_chip_6F", "b_all_6F / n", "bytes"),
)
IDLE = (Formula("chips without a sequence", "idle", "max(chips - sequences, 0)", "chips"),)
# Weights and activations that share one axis take turns: their sum is least where they are equal.
MIXED, MIXED_ON_ONE_AXIS = "alpha**2 / (M_X * M_Y * {F})", "4 * alpha**2 / (M**2 * {F})"
# What each scheme moves, forward + backward; the book's mixed row has 8 B D backward.
MLP_BYTES = (
    Formula("data parallel", "v_dp", "0 + 8 * D * F", "bytes"),
    Formula("FSDP", "v_fsdp", "4 * D * F + 8 * D * F", "bytes"),
    Formula("tensor", "v_tensor", "4 * B_pod * D + 4 * B_pod * D", "bytes"),
    Formula("FSDP + tensor, a chip's part", "v_mixed",
            "(4 + 8) * B_pod * D / X + (4 + 8) * D * F / Y", "bytes"),
)  # fmt: skip
FEWEST_CHIPS = Formula("chips that hold it, by [B, D]", "few", "ceil(b_all / HBM)", "chips")
BETWEEN_PODS = (Formula("it takes, a pod", "dcn_least", "C / W_dcn", "tokens"),)


# --- time and memory


def time(sheet: Worksheet) -> DerivationSection:
    """How long training takes if only arithmetic takes time."""
    return sheet.section("Time", TIME)


def memory(sheet: Worksheet) -> DerivationSection:
    return sheet.section("Memory, the book's way", MEMORY, fits)


def fits(sheet: Worksheet) -> Verdict:
    """Whether a pod holds its share, counted either way."""
    return Verdict(
        question="pod_holds_it",
        holds=sheet["few_6F"] <= sheet["n"],
        figures={"by_d": sheet["few"], "by_6f": sheet["few_6F"], "chips": sheet["n"]},
    )


# --- FSDP


def whole_sequences(sheet: Worksheet) -> DerivationSection:
    """Without splitting sequences there are no more ways than sequences."""
    return sheet.section("Pure FSDP, whole sequences", IDLE, a_sequence_for_every_chip)


def a_sequence_for_every_chip(sheet: Worksheet) -> Verdict:
    figures = {symbol: sheet[symbol] for symbol in ("sequences", "chips", "idle")}
    return Verdict(question="sequence_for_every_chip", holds=sheet["idle"] == 0, figures=figures)


def fsdp(sheet: Worksheet, axis_bytes_per_s: str, bytes_of_element: int) -> DerivationSection:
    """FSDP over sequences and positions. The book's formulas assume two bytes an element."""
    scale = "" if bytes_of_element == 2 else f"{bytes_of_element} / 2 * "
    formulas = (
        Formula("bytes/s of an axis", "W", axis_bytes_per_s, "B/s"),
        Formula("intensity of an axis", "alpha", f"{scale}C / W", "FLOP/B"),
        Formula(TOKENS, "tokens", "B_pod / n", TOKENS),
        Formula("it takes", "fsdp_least", "alpha / M", TOKENS),
    )
    verdict = compute_bound("fsdp_bound", "fsdp_least")
    return sheet.section("FSDP over batch and sequence, on every axis", formulas, verdict)


def compute_bound(
    question: QuestionCode, least: str, tokens: str = "tokens"
) -> Callable[[Worksheet], Verdict]:
    """Tokens against the least that are compute-bound."""

    def verdict(sheet: Worksheet) -> Verdict:
        times = sheet[tokens] / sheet[least]
        figures = {"times": times, "tokens": sheet[tokens], "least": sheet[least]}
        return Verdict(question=question, holds=times > 1, figures=figures)

    return verdict


# --- tensor parallelism, alone and with FSDP


def tensor(sheet: Worksheet, axes: AxisCounts) -> DerivationSection:
    """Tensor parallelism has a limit that no batch moves."""
    limit = f"{'M' if axes.shared else 'M_Y'} * F / alpha"
    formula = Formula("it takes Y below", "Y_most", limit, "ways")
    return sheet.section("Tensor parallelism", [formula], tensor_reach)


def tensor_reach(sheet: Worksheet) -> Verdict:
    ways = sheet["Y_most"]
    figures = {"below": ways, "power_of_two": power_of_two(ways) if ways >= 2 else 1}
    return Verdict(question="tensor_reach", holds=ways >= 2, figures=figures)


def mixed(sheet: Worksheet, axes: AxisCounts, head: str) -> DerivationSection:
    """FSDP and tensor together, by the book's two matmuls a layer and by all of them."""
    least, ratio = (MIXED_ON_ONE_AXIS, "1") if axes.shared else (MIXED, "M_X / M_Y")
    formulas = (
        Formula("it takes", "mixed_least", least.format(F="F"), TOKENS),
        Formula("a layer's matmuls", "P_lay", f"(P_mat - {head}) / L", "parameters"),
        Formula("F that stands for them all", "F_eff", "P_lay / (4 * D)", ""),
        Formula("it takes, with all matmuls", "mixed_least_eff", least.format(F="F_eff"), TOKENS),
        Formula("best FSDP ways", "X_opt", f"sqrt(B_pod / F * {ratio} * n)", "ways"),
        Formula("best tensor ways", "Y_opt", "n / X_opt", "ways"),
        Formula("as powers of two, FSDP", "X",
                "2**max(0, min(round(log2(X_opt)), floor(log2(n))))", "ways"),
        Formula("and tensor", "Y", "2**floor(log2(n / X))", "ways"),
        Formula("chips that these use", "used", "X * Y", "chips"),
    )  # fmt: skip
    return sheet.section("FSDP + tensor", formulas, mixed_by_the_book, mixed_by_all_matmuls)


def mixed_by_the_book(sheet: Worksheet) -> Verdict:
    return mixed_bound(sheet, "mixed_bound", "mixed_least")


def mixed_by_all_matmuls(sheet: Worksheet) -> Verdict:
    """The same for every matmul; `flips` says whether that overturns the answer."""
    verdict = mixed_bound(sheet, "mixed_bound_by_all_matmuls", "mixed_least_eff")
    flips = verdict.holds != mixed_by_the_book(sheet).holds
    return replace(verdict, figures={**verdict.figures, "flips": flips})


def mixed_bound(sheet: Worksheet, question: QuestionCode, least: str) -> Verdict:
    """`tensor_pays` says whether the best split has tensor ways."""
    verdict = compute_bound(question, deciding(sheet.numbers, least))(sheet)
    pays = tensor_pays(sheet.numbers)
    return replace(verdict, figures={**verdict.figures, "tensor_pays": pays})


def mixed_times(numbers: Mapping[str, float], least: str) -> float:
    """Tokens a chip over the least that are compute-bound."""
    return numbers["tokens"] / numbers[deciding(numbers, least)]


def deciding(numbers: Mapping[str, float], least: str) -> str:
    """The bound that decides: where tensor does not pay, that of pure FSDP."""
    return least if tensor_pays(numbers) else "fsdp_least"


def tensor_pays(numbers: Mapping[str, float]) -> bool:
    """Whether the best FSDP ways leave chips for tensor."""
    return numbers["X_opt"] <= numbers["n"]


def one_mlp(sheet: Worksheet, axes: AxisCounts) -> DerivationSection:
    """The forward pass of one MLP at those powers of two."""
    x_axes, y_axes = ("M", "M") if axes.shared else ("M_X", "M_Y")
    comms = "T_fsdp + T_tensor" if axes.shared else "max(T_fsdp, T_tensor)"
    formulas = (
        Formula("math", "T_math", "4 * B_pod * D * F / (X * Y * C)", "s"),
        Formula("weights", "T_fsdp", f"4 * D * F / (Y * W * {x_axes})", "s"),
        Formula("activations", "T_tensor", f"4 * B_pod * D / (X * W * {y_axes})", "s"),
        Formula("comms", "T_comms", comms, "s"),
        Formula("overlapped", "T_lower", "max(T_math, T_comms)", "s"),
        Formula("one after another", "T_upper", "T_math + T_fsdp + T_tensor", "s"),
    )
    return sheet.section("One MLP, forward, on X x Y", formulas, mlp_bound)


def mlp_bound(sheet: Worksheet) -> Verdict:
    times = sheet["T_math"] / sheet["T_comms"]
    return Verdict(question="mlp_bound", holds=times > 1, figures={"times": times})


def mlp_bytes(sheet: Worksheet) -> DerivationSection:
    return sheet.section("Bytes of one MLP, forward + backward", MLP_BYTES)


# --- between pods


def between_pods(sheet: Worksheet) -> DerivationSection:
    """Data parallelism over DCN: every chip of a pod brings its own share of the network."""
    verdict = compute_bound("dcn_bound", "dcn_least", tokens="B_pod")
    return sheet.section("Between pods", BETWEEN_PODS, verdict)
