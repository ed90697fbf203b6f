"""The sentences of an explanation: its answers, the differences of the plan, its summary."""

from typing import Any

from orchestrator.formatting import four_digits, lasting
from orchestrator.render.plan_text import likely
from orchestrator.types.explanation import ExplanationSummary, QuestionCode, Verdict

NO_PLAN = "no realizable plan"
QUESTIONS: dict[QuestionCode, str] = {
    "pod_holds_it": "Does a pod hold it?",
    "sequence_for_every_chip": "Is there a sequence for every chip?",
    "fsdp_bound": "Is pure FSDP compute-bound?",
    "tensor_reach": "How far does tensor go?",
    "mixed_bound": "Is FSDP + tensor compute-bound, simplified as in the book?",
    "mixed_bound_by_all_matmuls": "And with every matmul of a layer?",
    "mlp_bound": "And at these powers of two?",
    "dcn_bound": "Is data parallelism over DCN compute-bound?",
}


def summary_text(summary: ExplanationSummary) -> str:
    """Return the whole explanation in one line."""
    forecast = summary.forecast
    planned = f"planned {likely(forecast.days, lasting)}" if forecast else NO_PLAN
    return f"Answer: {by_hand(summary)}, {planned}."


def by_hand(summary: ExplanationSummary) -> str:
    """Return what the derivation says without a plan."""
    days = f"{lasting(summary.days)} at {assumed(summary.mfu)}"
    if summary.mixed_times is None:
        return days
    return f"{days}, FSDP + tensor {bound_by(summary.mixed_times)}"


def assumed(mfu: float) -> str:
    """Return an MFU with the digits that were stated."""
    return f"{mfu * 100:g} % MFU"


def bound_by(times: float) -> str:
    """Return what binds: `times` is what there is over what computing takes."""
    return f"compute-bound by {times:.3g} x" if times > 1 else f"comms-bound by {1 / times:.3g} x"


# --- answers


def answer_text(verdict: Verdict) -> str:
    """Return the answer to a section's question."""
    figures: dict[str, Any] = verdict.figures
    match verdict.question:
        case "pod_holds_it":
            return pod_holds_it(holds=verdict.holds, **figures)
        case "sequence_for_every_chip":
            return sequence_for_every_chip(**figures)
        case "tensor_reach":
            return tensor_reach(**figures)
        case "mlp_bound":
            return bound_by(figures["times"])
        case "dcn_bound":
            return tokens_bound("pod", **figures)
        case _:
            return mixed_bound(**figures)


def pod_holds_it(by_d: float, by_6f: float, chips: float, *, holds: bool) -> str:
    return (
        f"{'yes' if holds else 'no'}: it takes {by_d:,.0f} chips by [B, D] and {by_6f:,.0f} by 6F,"
        f" of {chips:,.0f}; the outputs of two of the three big matmuls are [B, F], so counting"
        " [B, D] alone is too little"
    )


def sequence_for_every_chip(sequences: float, chips: float, idle: float) -> str:
    if not idle:
        return f"yes, {four_digits(sequences / chips)} a chip"
    return f"no: {sequences:,.0f} sequences leave {idle:,.0f} of {chips:,.0f} chips idle"


def tensor_reach(below: float, power_of_two: int) -> str:
    if power_of_two < 2:
        return f"not at all: it takes fewer than {four_digits(below)} ways"
    ways = f"below {four_digits(below)} ways, whatever the batch"
    return f"{ways}: {power_of_two} as a power of two"


def mixed_bound(*, tensor_pays: bool = True, flips: bool = False, **figures: float) -> str:
    """Return the bound of FSDP, alone or with tensor."""
    answer = tokens_bound("chip", **figures)
    if not tensor_pays:
        answer = f"tensor does not pay, as X_opt exceeds the chips; pure FSDP is {answer}"
    return f"{answer}: the answer flips" if flips else answer


def tokens_bound(of: str, times: float, tokens: float, least: float) -> str:
    return f"{bound_by(times)}: {four_digits(tokens)} tokens a {of}, it takes {four_digits(least)}"
