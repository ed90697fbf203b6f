"""How each source counts FLOPs, and the step time that its TFLOP/s or MFU mean."""

import re
from dataclasses import dataclass
from typing import Literal

from orchestrator.network.decoder import decoder
from orchestrator.plan import flops
from orchestrator.score.cells import Unscorable
from orchestrator.score.published_runs import PublishedRun

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
