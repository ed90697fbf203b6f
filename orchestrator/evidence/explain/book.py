"""The book's arithmetic: what training takes, and when a sharding is compute-bound.

Formulas are data. They use the symbols of `inputs` and of the formulas before them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Quantity, Topology
from orchestrator.evidence.explain.formula import (
    DerivationSection,
    Formula,
    Input,
    QuestionCode,
    Verdict,
    Worksheet,
)
from orchestrator.network.mlp import expert_d_ff
from orchestrator.planning.time import peak
from orchestrator.values.model import Model
from orchestrator.values.spec import Spec

# What a derivation starts from: the model, the batch, the slices and the rates.


MFU = 0.40  # the book's assumption


@dataclass(frozen=True)
class Rates:
    """The figures of a chip that the bounds need, by one publisher."""

    peak_flops_per_s: Quantity
    link_bytes_per_s: Quantity
    dcn_bytes_per_s: Quantity
    hbm_bytes: Quantity


@dataclass(frozen=True)
class AxisCounts:
    """Torus axes for the weights and for `tensor`; an axis that is no ring counts half.

    `shared` means one axis, or one switch, that both use in turn.
    """

    weights: float
    tensor: float
    shared: bool

    @property
    def total(self) -> float:
        return self.weights if self.shared else self.weights + self.tensor


def book_rates(chip: Chip, dtype: str) -> Rates:
    """The book's figures, or the vendor's if the book has none."""
    vendor = vendor_rates(chip, dtype)
    return Rates(
        chip.book.get(f"peak_{dtype}_flops_per_s", vendor.peak_flops_per_s),
        chip.book.get("ici_link_bytes_per_s", vendor.link_bytes_per_s),
        chip.book.get("dcn_bytes_per_s", vendor.dcn_bytes_per_s),
        chip.book.get("hbm_bytes", vendor.hbm_bytes),
    )


def vendor_rates(chip: Chip, dtype: str) -> Rates:
    return Rates(peak(chip, dtype), chip.ici_link_bytes_per_s, chip.dcn_bytes_per_s, chip.hbm_bytes)


def axes_of(chip: Chip, topology: Topology) -> AxisCounts | None:
    """The first axis is for `tensor`, the others for the weights; None without any axis."""
    lengths = zip(topology.shape, topology.wraps, strict=True)
    counts = [1.0 if wraps or chip.switched else 0.5 for length, wraps in lengths if length > 1]
    if not counts:
        return None
    if len(counts) == 1:
        return AxisCounts(counts[0], counts[0], shared=True)
    return AxisCounts(sum(counts[1:]), counts[0], shared=False)


def all_inputs(
    spec: Spec, chip: Chip, topology: Topology, rates: Rates, mfu: float
) -> tuple[Input, ...]:
    """All symbols that a derivation starts from."""
    experiment, pods = spec.experiment, spec.resources.pods.max
    request = (
        Input(symbol="S", value=experiment.batch.length, meaning="tokens of a sequence"),
        Input(symbol="sequences", value=experiment.batch.sequences, meaning="of a batch"),
        Input(symbol="T", value=experiment.tokens, meaning="tokens to train on"),
        Input(symbol="n", value=topology.chips, meaning=f"chips of a pod, {topology}"),
        Input(symbol="pods", value=pods, meaning="slices, joined by DCN"),
        Input(symbol="mfu", value=mfu, meaning="model FLOPs utilization, assumed"),
    )
    axes = axis_inputs(axes_of(chip, topology), chip.slices.source)
    return (*shape_of(experiment.model), *request, *figures_of(chip, rates), *axes)


def shape_of(model: Model) -> tuple[Input, ...]:
    """The model's dimensions by the book's letters."""
    source = source_of(model)
    letters = (
        ("L", model.layers, "layers"),
        ("D", model.d_model, "d_model"),
        ("F", model.d_ff, "d_ff"),
        ("N", model.heads, "heads"),
        ("K", model.kv_heads, "kv heads"),
        ("H", model.head_dim, "head dim"),
        ("V", model.vocab, "vocabulary"),
        ("S_win", model.window, "positions in a window"),
        *latent_sizes(model),
        *expert_sizes(model),
    )
    return tuple(
        Input(symbol=symbol, value=value, meaning=meaning, source=source)
        for symbol, value, meaning in letters
        if value is not None
    )


def latent_sizes(model: Model) -> list[tuple[str, int | None, str]]:
    """Those of latent attention."""
    latent = model.latent
    if latent is None:
        return []
    return [
        ("R_q", latent.query_rank, "latent of queries"),
        ("R_kv", latent.kv_rank, "latent of keys and values"),
        ("H_nope", latent.nope_dim, "head dim without positions"),
        ("H_rope", latent.rope_dim, "head dim that RoPE turns"),
        ("H_v", latent.value_dim, "head dim of values"),
    ]


def expert_sizes(model: Model) -> list[tuple[str, int | None, str]]:
    """Those of a mixture of experts."""
    moe = model.moe
    if moe is None:
        return []
    width = expert_d_ff(model, moe)
    return [
        ("E", moe.experts, "experts"),
        ("k", moe.top_k, "experts of a token"),
        ("F_exp", width, "d_ff of an expert"),
        ("F_shared", moe.shared_experts * width or None, "d_ff of shared experts"),
    ]


def source_of(model: Model) -> str | None:
    """The source of a model's shape, if it is one of the catalog's."""
    listed = model.name in catalog.models() and catalog.model(model.name) == model
    return catalog.model_source(model.name) if listed else None


def figures_of(chip: Chip, rates: Rates) -> tuple[Input, ...]:
    link = "all links" if chip.switched else "one link"
    return (
        figure("C", rates.peak_flops_per_s, "peak FLOP/s of a chip"),
        figure("w", rates.link_bytes_per_s, f"bytes/s of {link}, one way"),
        figure("W_dcn", rates.dcn_bytes_per_s, "bytes/s of DCN a chip"),
        figure("HBM", rates.hbm_bytes, "bytes of a chip"),
    )


def figure(symbol: str, quantity: Quantity, meaning: str) -> Input:
    return Input(symbol=symbol, value=quantity.value, meaning=meaning, source=quantity.source)


def axis_inputs(axes: AxisCounts | None, source: str) -> tuple[Input, ...]:
    """The torus axes as the bounds count them."""
    if axes is None:
        return ()
    half = ", one that is no ring as half" if axes.total % 1 or axes.tensor < 1 else ""
    meanings = [("M", axes.total, f"axes{half}")]
    if not axes.shared:
        meanings += [
            ("M_X", axes.weights, "of them for the weights"),
            ("M_Y", axes.tensor, "of them for tensor"),
        ]
    return tuple(
        Input(symbol=symbol, value=value, meaning=meaning, source=source)
        for symbol, value, meaning in meanings
    )


def power_of_two(limit: float) -> int:
    """The largest one that is no more than the limit, which is at least one."""
    return 1 << (int(limit).bit_length() - 1)


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
