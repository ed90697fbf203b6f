"""Which ledger lines grow over trials as the gap between measured and predicted does. Pure."""

from collections.abc import Sequence

from orchestrator.types.plan import Plan
from orchestrator.types.scaling import GapExplanation

MIN_TRIALS = 2  # every line explains a single gap
MIN_SHARE = 0.5
MAX_LINES = 3


def explain_gaps(gaps: Sequence[tuple[Plan, float]]) -> tuple[GapExplanation, ...]:
    """The lines that explain most of the gaps, which are in seconds, one for each plan.

    The lines are those of the expected step or, without one, of the lower bound. For each line the
    multiple is found that leaves the least squared gaps; a negative multiple explains nothing.
    """
    if len(gaps) < MIN_TRIALS:
        return ()
    gaps_s = [gap_s for _, gap_s in gaps]
    explanations = []
    for (line, resource), values in _lines([plan for plan, _ in gaps]).items():
        pairs = list(zip(values, gaps_s, strict=True))
        times = sum(value * gap_s for value, gap_s in pairs) / sum(v * v for v in values)
        left = sum((gap_s - times * value) ** 2 for value, gap_s in pairs)
        share = 1 - left / sum(gap_s * gap_s for gap_s in gaps_s)
        if times > 0 and share >= MIN_SHARE:
            explanations.append(
                GapExplanation(line=line, resource=resource, times=times, share=share)
            )
    return tuple(sorted(explanations, key=lambda one: -one.share)[:MAX_LINES])


def _lines(plans: Sequence[Plan]) -> dict[tuple[str, str], list[float]]:
    """Every ledger line with its seconds in each plan; 0 where a plan lacks it."""
    lines: dict[tuple[str, str], list[float]] = {}
    expected = all(plan.forecast.expected_time for plan in plans)
    for i, plan in enumerate(plans):
        for line in plan.forecast.expected_time if expected else plan.forecast.time:
            values = lines.setdefault((line.name, line.resource or ""), [0.0] * len(plans))
            values[i] += line.value
    return lines
