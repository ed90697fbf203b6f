"""The expected step on GPUs: the ledger's work at the rates that published runs of GPUs reach, with
constants by chip, type and software (docs/score-gpus.md).
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from math import exp
from typing import Any

import numpy as np

from orchestrator.catalog.chips import Chip
from orchestrator.catalog.published import SMALL_DOMAIN, GpuEfficiency
from orchestrator.network.mesh_axes import DCN_AXES, EXPERT_EXCHANGES, WEIGHT_EXCHANGES
from orchestrator.planning import flops
from orchestrator.planning import step_work as steps
from orchestrator.planning.layout import Number, Training
from orchestrator.planning.time import (
    IN_TICKS,
    NARROW_LINES,
    StepTime,
    device_peak,
    ledger_of_parts,
)
from orchestrator.values.codec import Value
from orchestrator.values.plan import ATTENTION_LINES, LedgerLine, LineKind

SOURCE = "published-gpu-runs"


class GpuWork(Value):
    """Seconds of a step by kind at peak rates, and counts. `routed_s` are products of experts,
    `wide_s` those in the type of activations; `rows_s` is one pass of experts' rows over HBM.
    `tokens_out_s` leave the domain on the way to experts. Per step and device, layers run
    `layers` times, mixtures `mixtures` times; `behind` says that another chunk of a pipeline can
    hide what a microbatch sends, `overlapped` how many seconds can hide `weights_s`, as a share of
    the device's own work.
    """

    linear_s: Number
    routed_s: Number
    wide_s: Number
    attention_s: Number
    hbm_s: Number
    passes_s: Number
    casts_s: Number
    rows_s: Number
    biases_s: Number
    tensor_s: Number
    waits: Number
    sequence_s: Number
    tokens_s: Number
    tokens_out_s: Number
    sends_s: Number
    weights_s: Number
    layers: Number
    mixtures: Number
    in_pieces: Number
    in_node: Number
    behind: Number
    overlapped: Number


def gpu_work(layout: Training, lines: list[LedgerLine]) -> GpuWork:
    """Return the work of a plan's ledger."""

    # Microbatches take longer where stages of a pipeline wait at the ends of a step.
    longer = 1 + layout.bubble

    def total(kinds: tuple[LineKind, ...], *, crossing: bool | None = None) -> Number:
        found = [line for line in lines if line.kind in kinds]
        if crossing is not None:
            found = [line for line in found if (line.resource in DCN_AXES) == crossing]
        return sum(line.value * (longer if line.kind in IN_TICKS else 1) for line in found)

    experts_s = longer * 3 * flops.experts_forward_flops(layout) / device_peak(layout)
    routed_s = total(("expert_padding", "expert_imbalance")) + experts_s
    hbm = layout.chip.hbm_bytes_per_s.value
    casts, logits = steps.quantization_bytes(layout), steps.logits_bytes(layout)
    hidden = np.where(layout.microbatches > 1, 1.0, LAST_MICROBATCH)
    layers = layout.microbatches * layout.stage_share * longer  # times the layers of the network
    return GpuWork(
        linear_s=total(NARROW_LINES) - routed_s,
        routed_s=routed_s,
        wide_s=total(("unembedding", "vocab_padding", "orthogonalization")),
        attention_s=total(ATTENTION_LINES),
        hbm_s=total(("weight_traffic", "optimizer_update", "activation_traffic")),
        passes_s=(longer * (steps.pass_bytes(layout) - casts - logits) + logits) / hbm,
        casts_s=longer * casts / hbm,
        rows_s=longer * row_bytes(layout) / hbm,
        biases_s=longer * bias_bytes(layout) / hbm,
        tensor_s=total(("activation_gather", "activation_scatter")),
        waits=0.0,
        sequence_s=total(("kv_gather", "kv_scatter")),
        tokens_s=total(EXPERT_EXCHANGES, crossing=False),
        tokens_out_s=total(EXPERT_EXCHANGES, crossing=True),
        sends_s=total(("stage_exchange",)),
        weights_s=total(WEIGHT_EXCHANGES),
        layers=layout.network.layers * layers,
        mixtures=layout.network.mixture_layers * layers,
        in_pieces=1.0,  # the trainer's rings: a hop runs beside the product of what came before
        in_node=float(waits_for_host(layout.chip)),
        behind=np.where(layout.chunks > 1, 1.0, 0.0),
        overlapped=hidden,
    )


# The share of a microbatch's time in which gradients can leave: backward, and the next
# forward that gathers weights.
LAST_MICROBATCH = 0.6


def row_bytes(layout: Training) -> Number:
    """Bytes of rows that go to experts and come back, forward and backward, each written once."""
    return steps.row_moves(layout) * layout.model.d_model * layout.compute_bytes


def bias_bytes(layout: Training) -> Number:
    """Bytes of what experts with biases make, each read and written forward and backward."""
    moe, network = layout.model.moe, layout.network
    if moe is None or not moe.biases:
        return 0.0
    width = 2 * (moe.d_ff or layout.model.d_ff) + layout.model.d_model
    rows = layout.step_tokens * moe.top_k * network.mixture_layers * layout.stage_share
    return 2 * steps.FORWARD_AND_BACKWARD * rows * width * layout.compute_bytes


def waits_for_host(chip: Chip) -> bool:
    """Whether a mixture's small kernels take less time than their launches: on Blackwell in nodes
    of eight, whose software has no dispatcher for a large domain.
    """
    fast = chip.xla_gpu is not None and chip.xla_gpu.compute_capability.startswith("10")
    return fast and chip.pod_chips.value <= SMALL_DOMAIN


# The name of each part, and how it follows from the work and what is known, times `software`.
_PARTS: dict[LineKind, tuple[str, str]] = {
    "matmul": (
        "matmuls",
        "(linear_s / matmul + routed_s * mixtures / (matmul * routed) + wide_s / wide)",
    ),
    "attention": ("attention", "attention_s / attention"),
    "weight_traffic": ("weights and optimizer", "hbm_s"),
    "elementwise": ("between matmuls", "(passes_s * passes + casts_s * casts)"),
    "row_moves": (
        "rows of experts",
        "mixtures * (rows_s * rows + biases_s * biases + mixture_layers * mixture_s)",
    ),
    "expert_exchange": (
        "tokens to experts",
        "(tokens_s * tokens * mixtures + tokens_out_s * tokens_out)",
    ),
    "exposed_tensor": ("exposed tensor", "(tensor_s * tensor + waits * wait_s + sends_s * sends)"),
    "kv_gather": ("keys and values", "sequence_s * sequence"),
    "layers": ("kernels of layers", "layers * layer_s"),
    "exposed_gathers": (
        "exposed weights and gradients",
        "max(weights_s * weights, weights_s - hidden_s)",
    ),
    "outside_layers": ("outside of layers", "step_s"),
}
_COMPILED = {kind: compile(formula, kind, "eval") for kind, (_, formula) in _PARTS.items()}
# Behind all other parts weights and gradients can travel.
_NOT_HIDING: tuple[LineKind, ...] = ("exposed_gathers", "outside_layers")


def _priced(
    work: GpuWork, known: GpuEfficiency
) -> tuple[dict[LineKind, Number], dict[str, Number]]:
    """Return the seconds of each part of a step, with what the software adds in its share, and
    every number of the formulas by its name in them.
    """
    shared = known.shared
    numbers: dict[str, Any] = {
        **shared,
        **{each.name: getattr(work, each.name) for each in fields(GpuWork)},
        **{name: getattr(known, name) for name in ("matmul", "wide", "attention", "mixtures")},
        "software": known.software,
        "mixture_layers": work.mixtures,
        "tokens_out": np.where(work.behind > 0, shared["tokens_behind"], shared["tokens_out"]),
        "tensor": np.where(work.in_pieces > 0, shared["tensor_in_pieces"], shared["tensor"]),
        "mixture_s": np.where(
            work.in_node > 0, shared["node_mixture_layer_s"], shared["mixture_layer_s"]
        ),
        "max": np.maximum,
    }

    def seconds(kind: LineKind) -> Number:
        return eval(_COMPILED[kind], {"__builtins__": {}}, numbers)

    parts = {kind: seconds(kind) for kind in _PARTS if kind not in _NOT_HIDING}
    numbers["hidden_s"] = sum(parts.values()) * work.overlapped
    parts |= {kind: seconds(kind) for kind in _NOT_HIDING}
    return {kind: part_s * known.software for kind, part_s in parts.items()}, numbers


def step_parts(work: GpuWork, known: GpuEfficiency) -> dict[LineKind, Number]:
    return _priced(work, known)[0]


def expected_s(
    layout: Training, lines: list[LedgerLine], time: StepTime, known: GpuEfficiency
) -> Number:
    parts = step_parts(gpu_work(layout, lines), known)
    return np.maximum(sum(parts.values()), time.lower_s)


def expected_lines(
    layout: Training, lines: list[LedgerLine], time: StepTime, known: GpuEfficiency
) -> tuple[LedgerLine, ...]:
    """Return the expected step as a ledger, for one layout."""
    parts, numbers = _priced(gpu_work(layout, lines), known)
    formulas = {}
    for kind, (name, own) in _PARTS.items():
        formula = f"software * {own}"
        names = [found for found in re.findall(r"[a-z_]+", formula) if found != "max"]
        formulas[kind] = name, formula, {each: numbers[each] for each in names}
    return ledger_of_parts(parts, formulas, time.lower_s, SOURCE)


def interval(
    expected: float, lower: float, spread: float, outside: Iterable[float] = ()
) -> tuple[float, float]:
    """Return the 80 % interval, wider by how far the plan lies outside the runs on any axis."""
    factor = exp(spread * (1 + max(outside, default=0.0)))
    return max(expected / factor, lower), expected * factor
