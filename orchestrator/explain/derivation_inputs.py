"""What a derivation starts from: the model, the batch, the slices and the rates."""

from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Quantity, Topology
from orchestrator.network.mixture import expert_d_ff
from orchestrator.plan.time import peak
from orchestrator.types.explanation import Input
from orchestrator.types.model import Model
from orchestrator.types.spec import Spec

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
