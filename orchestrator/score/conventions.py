"""Score room: the FLOPs that each source counts, and the step time that its figure then means."""

import re
from dataclasses import dataclass
from typing import Literal

from orchestrator.network.decoder import decoder
from orchestrator.plan import flops
from orchestrator.score.runs import LeftOut, PublishedRun

# A row whose own count differs by more from what its columns give is not the model of its columns.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Convention:
    """Which parameters a source multiplies by six, and how much of the square it counts."""

    pattern: str
    parameters: Literal["all", "matmul"]
    attention: Literal["none", "full", "causal", "causal in windows"]


# In the order in which they are tried: MaxText alone has counted in five ways.
CONVENTIONS = (
    Convention(r"maxtext2023a|6\*?N\*tok; no attention", "all", "none"),
    Convention(r"maxtext2023b", "all", "full"),
    Convention(r"maxtext2023c", "all", "causal"),
    Convention(r"maxtext2024", "matmul", "full"),
    Convention(r"maxtext2025", "matmul", "causal in windows"),
    Convention(r"PaLM|6N \+ 12LHQT", "all", "full"),
    Convention(r"levanter", "matmul", "full"),
)
OURS = Convention("", "matmul", "causal in windows")


def convention(run: PublishedRun) -> Convention:
    """How the row's source counts FLOPs."""
    known = known_convention(run)
    if known:
        return known
    raise LeftOut(f"nobody says what FLOPs {run.convention or 'its source'!r} counts")


def known_convention(run: PublishedRun) -> Convention | None:
    return next((c for c in CONVENTIONS if re.search(c.pattern, run.convention)), None)


def attention_share(run: PublishedRun, local: float) -> float:
    """Attention of all layers over that of as many that see everything with the columns' heads."""
    window = run.window
    if window is None:
        return 1.0
    wider = (window.whole_head_dim or run.model.head_dim) / run.model.head_dim
    return window.whole * wider + (1 - window.whole) * local


def seen_share(run: PublishedRun) -> float:
    """Pairs of positions that windows leave, over the causal half."""
    if run.window is None:
        return 1.0
    seen = min(run.window.tokens, run.length)
    return attention_share(run, (2 * seen - seen * seen / run.length) / run.length)


def whole_layers_parameters(run: PublishedRun) -> float:
    """What layers that see everything have beyond the columns' heads; the mean over all layers."""
    model, window = run.model, run.window
    if window is None:
        return 0.0
    head = window.whole_head_dim or model.head_dim
    keys = window.whole_kv_heads or model.kv_heads
    queries = model.heads * (head - model.head_dim)
    key_values = keys * head - model.kv_heads * model.head_dim
    return window.whole * 2 * model.d_model * (queries + key_values)


def counted_flops_per_token(run: PublishedRun, counted: Convention) -> float:
    """A token's FLOPs, forward and backward, as the source counts them."""
    model = run.model
    network = decoder(model)
    counted_by_all = network.parameters - network.norm_parameters  # no source counts norms
    weights = {"all": counted_by_all, "matmul": network.matmul_parameters}
    more = model.layers * whole_layers_parameters(run)
    return 6.0 * (weights[counted.parameters] + more) + attention_flops_per_token(run, counted)


def attention_flops_per_token(run: PublishedRun, counted: Convention) -> float:
    causal = 3.0 * flops.attention_flops_per_token(run.model, run.length)
    shares = {
        "none": 0.0,
        "full": 2.0,
        "causal": 1.0,
        "causal in windows": seen_share(run),
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
        raise LeftOut("no step time, no TFLOP/s, no MFU")
    tokens = run.sequences * run.length
    return tokens * counted_flops_per_token(run, convention(run)) / (rate * run.chips)


def check_count(run: PublishedRun) -> None:
    """A row that states both its seconds and its FLOP/s states its FLOPs: are they its columns'?"""
    known = known_convention(run)
    if known is None or run.step_s is None or run.flops_per_chip_s is None:
        return
    tokens = run.sequences * run.length
    stated = run.step_s * run.flops_per_chip_s * run.chips / tokens
    ours = counted_flops_per_token(run, known)
    if abs(ours / stated - 1) > TOLERANCE:
        raise LeftOut(
            f"its columns do not describe its model: {ours / 1e9:,.1f} GFLOP a token by its own"
            f" convention, its source counted {stated / 1e9:,.1f}"
        )
