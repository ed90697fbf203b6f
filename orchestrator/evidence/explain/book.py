"""The book's arithmetic: what training takes, and when a sharding is compute-bound, as data."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Quantity, Topology
from orchestrator.evidence.explain import formula
from orchestrator.evidence.explain.formula import DerivationSection, Formula, Verdict, Worksheet
from orchestrator.network.mlp import expert_d_ff
from orchestrator.planning.time import peak
from orchestrator.values.spec import Spec

MFU = 0.40  # the book's assumption
# In a mixture a token meets k experts, and all of them are gathered: F stands for two widths.
F_TOKEN, F_ALL = "F_tok", "F_all"
# The figures of a chip that the bounds need, by the book's letters and by one publisher.
_Rates = dict[str, Quantity]


@dataclass(frozen=True)
class AxisCounts:
    """Torus axes for weights and for `tensor`; an open one counts half, both use a `shared` one."""

    weights: float
    tensor: float
    shared: bool

    @property
    def total(self) -> float:
        return self.weights if self.shared else self.weights + self.tensor


def rates_of(chip: Chip, dtype: str) -> tuple[_Rates, _Rates]:
    """Return the book's figures, with the vendor's where the book gives nothing; the vendor's."""
    rates = {
        "C": (f"peak_{dtype}_flops_per_s", peak(chip, dtype)),
        "w": ("ici_link_bytes_per_s", chip.ici_link_bytes_per_s),
        "W_dcn": ("dcn_bytes_per_s", chip.dcn_bytes_per_s),
        "HBM": ("hbm_bytes", chip.hbm_bytes),
    }
    vendor = {symbol: rate for symbol, (_, rate) in rates.items()}
    return {symbol: chip.book.get(key, rate) for symbol, (key, rate) in rates.items()}, vendor


def axes_of(chip: Chip, topology: Topology) -> AxisCounts | None:
    """Return the first axis for `tensor`, the others for the weights; None without any axis."""
    lengths = zip(topology.shape, topology.wraps, strict=True)
    counts = [1.0 if wraps or chip.switched else 0.5 for length, wraps in lengths if length > 1]
    if not counts:
        return None
    if len(counts) == 1:
        return AxisCounts(counts[0], counts[0], shared=True)
    return AxisCounts(sum(counts[1:]), counts[0], shared=False)


def all_inputs(
    spec: Spec, chip: Chip, topology: Topology, rates: _Rates, mfu: float
) -> tuple[formula.Input, ...]:
    """Return all symbols that a derivation starts from, by the book's letters."""
    experiment, model = spec.experiment, spec.experiment.model
    is_listed = model.name in catalog.models() and catalog.model(model.name) == model
    of_model = catalog.model_source(model.name) if is_listed else None
    shape: list[tuple[str, int | None, str]] = [
        ("L", model.layers, "layers"),
        ("D", model.d_model, "d_model"),
        ("F", model.d_ff, "d_ff"),
        ("N", model.heads, "heads"),
        ("K", model.kv_heads, "kv heads"),
        ("H", model.head_dim, "head dim"),
        ("V", model.vocab, "vocabulary"),
        ("S_win", model.window, "positions in a window"),
        ("K_g", model.global_kv_heads, "kv heads of global layers"),
        ("H_g", model.global_head_dim, "head dim of global layers"),
        ("S_max", model.learned_positions, "learned positions"),
    ]
    if latent := model.latent:
        shape += [
            ("R_q", latent.query_rank, "latent of queries"),
            ("R_kv", latent.kv_rank, "latent of keys and values"),
            ("H_nope", latent.nope_dim, "head dim without positions"),
            ("H_rope", latent.rope_dim, "head dim that RoPE turns"),
            ("H_v", latent.value_dim, "head dim of values"),
        ]
    if moe := model.moe:
        width = expert_d_ff(model, moe)
        shape += [
            ("E", moe.experts, "experts"),
            ("k", moe.top_k, "experts of a token"),
            ("F_exp", width, "d_ff of an expert"),
            ("F_shared", moe.shared_experts * width or None, "d_ff of shared experts"),
        ]
    link = "all links" if chip.switched else "one link"
    meanings = {
        "C": "peak FLOP/s of a chip",
        "w": f"bytes/s of {link}, one way",
        "W_dcn": "bytes/s of DCN a chip",
        "HBM": "bytes of a chip",
    }
    rows: list[tuple[str, float, str, str | None]] = [
        *((symbol, size, meaning, of_model) for symbol, size, meaning in shape if size is not None),
        ("S", experiment.batch.length, "tokens of a sequence", None),
        ("sequences", experiment.batch.sequences, "of a batch", None),
        ("T", experiment.tokens, "tokens to train on", None),
        ("n", topology.chips, f"chips of a pod, {topology}", None),
        ("pods", spec.resources.pods.max, "slices, joined by DCN", None),
        ("mfu", mfu, "model FLOPs utilization, assumed", None),
        *((symbol, rate.value, meanings[symbol], rate.source) for symbol, rate in rates.items()),
    ]
    if axes := axes_of(chip, topology):
        half = ", one that is no ring as half" if axes.total % 1 or axes.tensor < 1 else ""
        rows.append(("M", axes.total, f"axes{half}", chip.slices.source))
        if not axes.shared:
            rows.append(("M_X", axes.weights, "of them for the weights", chip.slices.source))
            rows.append(("M_Y", axes.tensor, "of them for tensor", chip.slices.source))
    return tuple(
        formula.Input(symbol=symbol, value=value, meaning=meaning, source=source)
        for symbol, value, meaning, source in rows
    )


def power_of_two(limit: float) -> int:
    """Return the largest power of two up to `limit`, which is at least one."""
    return 1 << (int(limit).bit_length() - 1)


_TOKENS = "tokens a chip"
_TIME = (
    Formula("chips", "chips", "pods * n", "chips"),
    Formula("one chip at its peak", "years", "flops / C / (365 * 86400)", "years"),
    Formula("all chips at this MFU", "days", "flops / (chips * C * mfu) / 86400", "days"),
    Formula("the same, as MFU counts", "days_mfu", "flops_mfu / (chips * C * mfu) / 86400", "days"),
)
# bf16 parameters, fp32 Adam without a master copy, checkpoints of what a layer makes.
_MEMORY = (
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
# Weights and activations that share one axis take turns: their sum is least where they are equal.
_MIXED, _MIXED_ON_ONE_AXIS = "alpha**2 / (M_X * M_Y * {F})", "4 * alpha**2 / (M**2 * {F})"
_MIXED_QUESTIONS: dict[formula.QuestionCode, str] = {
    "mixed_bound": "mixed_least",
    "mixed_bound_by_all_matmuls": "mixed_least_eff",
}
# Bytes that each scheme moves, forward + backward; the book's mixed row has 8 B D backward.
_MIXED_BYTES = "(4 + 8) * B_pod * D / X + (4 + 8) * D * F / Y"
_MLP_BYTES = (
    Formula("data parallel", "v_dp", "0 + 8 * D * F", "bytes"),
    Formula("FSDP", "v_fsdp", "4 * D * F + 8 * D * F", "bytes"),
    Formula("tensor", "v_tensor", "4 * B_pod * D + 4 * B_pod * D", "bytes"),
    Formula("FSDP + tensor, a chip's part", "v_mixed", _MIXED_BYTES, "bytes"),
)
FEWEST_CHIPS = Formula("chips that hold it, by [B, D]", "few", "ceil(b_all / HBM)", "chips")


def needs(sheet: Worksheet) -> Iterator[DerivationSection]:
    """Yield time, memory and sequences: what training needs, however it is sharded."""
    # How long training takes if only arithmetic takes time.
    yield sheet.section("Time", _TIME)
    width = F_TOKEN if F_TOKEN in sheet.numbers else "F"
    fits = sheet.section("Memory, the book's way", _with_width(_MEMORY, width))
    if sheet["few"] > sheet["n"]:  # a pod has no such few chips
        fits = replace(fits, lines=tuple(line for line in fits.lines if line.symbol != "days_few"))
    figures = {"by_d": sheet["few"], "by_6f": sheet["few_6F"], "chips": sheet["n"]}
    yield _answer(fits, "pod_holds_it", sheet["few_6F"] <= sheet["n"], figures)
    # Without splitting sequences there are no more ways than sequences.
    idle = Formula("chips without a sequence", "idle", "max(chips - sequences, 0)", "chips")
    whole = sheet.section("Pure FSDP, whole sequences", [idle])
    figures = {symbol: sheet[symbol] for symbol in ("sequences", "chips", "idle")}
    yield _answer(whole, "sequence_for_every_chip", not sheet["idle"], figures)


def _answer(
    section: DerivationSection, question: formula.QuestionCode, holds: bool,
    figures: Mapping[str, float],
) -> DerivationSection:  # fmt: skip
    return replace(
        section, verdicts=(Verdict(question=question, holds=holds, figures={**figures}),)
    )


def bounds(
    sheet: Worksheet, axes: AxisCounts, axis_bytes_per_s: str, bytes_of_element: int, head: str
) -> Iterator[DerivationSection]:
    """Yield FSDP, tensor, and both, at two bytes per element. `head` is the unembedding's size."""
    scale = "" if bytes_of_element == 2 else f"{bytes_of_element} / 2 * "
    is_mixture = F_ALL in sheet.numbers
    token, every = (F_TOKEN, F_ALL) if is_mixture else ("F", "F")
    gathered = f" * {F_ALL} / {F_TOKEN}" if is_mixture else ""
    formulas = [
        Formula("bytes/s of an axis", "W", axis_bytes_per_s, "B/s"),
        Formula("intensity of an axis", "alpha", f"{scale}C / W", "FLOP/B"),
        Formula(_TOKENS, "tokens", "B_pod / n", _TOKENS),
        Formula("it takes", "fsdp_least", f"alpha / M{gathered}", _TOKENS),
    ]
    section = sheet.section("FSDP over batch and sequence, on every axis", formulas)
    yield replace(section, verdicts=(_compute_bound(sheet, "fsdp_bound", "fsdp_least"),))

    # Tensor parallelism has a limit that no batch moves.
    limit = f"{'M' if axes.shared else 'M_Y'} * {token} / alpha"
    reach = Formula("it takes Y below", "Y_most", limit, "ways")
    section = sheet.section("Tensor parallelism", [reach])
    ways = sheet["Y_most"]
    figures = {"below": ways, "power_of_two": power_of_two(ways) if ways >= 2 else 1}
    yield _answer(section, "tensor_reach", ways >= 2, figures)

    # Both together, by the book's two matmuls of a layer and by all of them.
    least, ratio = (_MIXED_ON_ONE_AXIS, "1") if axes.shared else (_MIXED, "M_X / M_Y")
    by_f, by_all = "F", "F_eff"
    if is_mixture:
        by_f, by_all = f"{token}**2 / {every}", "F_eff**2 / F_all_eff"
    all_gathered = Formula("and for all gathered", "F_all_eff", "(P_ffw + P_att) / (4 * D * L)", "")
    formulas = [
        Formula("it takes", "mixed_least", least.format(F=by_f), _TOKENS),
        Formula("a layer's matmuls", "P_lay", f"(P_mat - {head}) / L", "parameters"),
        Formula("F that stands for them all", "F_eff", "P_lay / (4 * D)", ""),
        *([all_gathered] if is_mixture else []),
        Formula("it takes, with all matmuls", "mixed_least_eff", least.format(F=by_all), _TOKENS),
        Formula("best FSDP ways", "X_opt", f"sqrt(B_pod / {every} * {ratio} * n)", "ways"),
        Formula("best tensor ways", "Y_opt", "n / X_opt", "ways"),
        Formula("as powers of two, FSDP", "X",
                "2**max(0, min(round(log2(X_opt)), floor(log2(n))))", "ways"),
        Formula("and tensor", "Y", "2**floor(log2(n / X))", "ways"),
        Formula("chips that these use", "used", "X * Y", "chips"),
    ]  # fmt: skip
    section = sheet.section("FSDP + tensor", formulas)
    simple, whole = (
        _compute_bound(sheet, question, _deciding(sheet.numbers, symbol))
        for question, symbol in _MIXED_QUESTIONS.items()
    )
    simple.figures["tensor_pays"] = whole.figures["tensor_pays"] = tensor_pays(sheet.numbers)
    whole.figures["flips"] = whole.holds != simple.holds
    yield replace(section, verdicts=(simple, whole))


def _compute_bound(
    sheet: Worksheet, question: formula.QuestionCode, least: str, tokens: str = "tokens"
) -> Verdict:
    times = sheet[tokens] / sheet[least]
    figures = {"times": times, "tokens": sheet[tokens], "least": sheet[least]}
    return Verdict(question=question, holds=times > 1, figures=figures)


def mixed_times(numbers: Mapping[str, float], least: str) -> float:
    return numbers["tokens"] / numbers[_deciding(numbers, least)]


def _deciding(numbers: Mapping[str, float], least: str) -> str:
    """Return the bound that decides: where tensor does not pay, that of pure FSDP."""
    return least if tensor_pays(numbers) else "fsdp_least"


def tensor_pays(numbers: Mapping[str, float]) -> bool:
    """Whether the best FSDP ways leave chips for tensor."""
    return numbers["X_opt"] <= numbers["n"]


def mlps(sheet: Worksheet, axes: AxisCounts) -> Iterator[DerivationSection]:
    """Yield the forward pass of one MLP at the powers of two, and the bytes it moves."""
    x_axes, y_axes = ("M", "M") if axes.shared else ("M_X", "M_Y")
    comms = "T_fsdp + T_tensor" if axes.shared else "max(T_fsdp, T_tensor)"
    token, every = (F_TOKEN, F_ALL) if F_ALL in sheet.numbers else ("F", "F")
    formulas = (
        Formula("math", "T_math", f"4 * B_pod * D * {token} / (X * Y * C)", "s"),
        Formula("weights", "T_fsdp", f"4 * D * {every} / (Y * W * {x_axes})", "s"),
        Formula("activations", "T_tensor", f"4 * B_pod * D / (X * W * {y_axes})", "s"),
        Formula("comms", "T_comms", comms, "s"),
        Formula("overlapped", "T_lower", "max(T_math, T_comms)", "s"),
        Formula("one after another", "T_upper", "T_math + T_fsdp + T_tensor", "s"),
    )
    section = sheet.section("One MLP, forward, on X x Y", formulas)
    times = sheet["T_math"] / sheet["T_comms"]
    yield _answer(section, "mlp_bound", times > 1, {"times": times})
    moved = _with_width(_MLP_BYTES, every)
    yield sheet.section("Bytes of one MLP, forward + backward", moved)


def _with_width(formulas: Iterable[Formula], width: str) -> list[Formula]:
    return [replace(each, text=re.sub(r"\bF\b", width, each.text)) for each in formulas]


def between_pods(sheet: Worksheet) -> DerivationSection:
    """Return data parallelism over DCN: every chip of a pod brings its own share of the network."""
    least = Formula("it takes, a pod", "dcn_least", "C / W_dcn", "tokens")
    section = sheet.section("Between pods", [least])
    bound = _compute_bound(sheet, "dcn_bound", "dcn_least", tokens="B_pod")
    return replace(section, verdicts=(bound,))
