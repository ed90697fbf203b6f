"""Study room: which ledger line goes with where measured and predicted part. Pure."""

from collections.abc import Sequence

from orchestrator.types.plan import Plan
from orchestrator.types.study import StudyExplanation

FEWEST = 2  # trials: one gap is explained by every line
LEAST_SHARE = 0.5
MOST = 3


def explanations(parted: Sequence[tuple[Plan, float]]) -> tuple[StudyExplanation, ...]:
    """The lines whose growth over trials is most like that of the gaps, which are in seconds.

    They are lines of what is expected, to which the gaps are, or else of the roofline. Of each the
    multiple that leaves the least squares of the gaps; a line of which less than nothing would be
    needed explains none.
    """
    if len(parted) < FEWEST:
        return ()
    gaps = [gap_s for _, gap_s in parted]
    found = []
    for (name, resource), values in _lines([plan for plan, _ in parted]).items():
        times = sum(v * g for v, g in zip(values, gaps, strict=True)) / sum(v * v for v in values)
        left = sum((g - times * v) ** 2 for v, g in zip(values, gaps, strict=True))
        share = 1 - left / sum(g * g for g in gaps)
        if times > 0 and share >= LEAST_SHARE:
            found.append(StudyExplanation(line=name, resource=resource, times=times, share=share))
    return tuple(sorted(found, key=lambda one: -one.share)[:MOST])


def _lines(plans: Sequence[Plan]) -> dict[tuple[str, str], list[float]]:
    """Every ledger line with its seconds in each plan; 0 where a plan has none."""
    found: dict[tuple[str, str], list[float]] = {}
    known = all(plan.forecast.expected_time for plan in plans)
    for i, plan in enumerate(plans):
        for line in plan.forecast.expected_time if known else plan.forecast.time:
            values = found.setdefault((line.name, line.resource or ""), [0.0] * len(plans))
            values[i] += line.value
    return found
