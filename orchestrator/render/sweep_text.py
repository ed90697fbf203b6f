"""Say why a trial of a sweep was stopped."""

from orchestrator.formatting import count, counted
from orchestrator.types.sweep import TrialStop


def loss_text(loss: float) -> str:
    return f"{loss:#.4g}"


def stop_text(stop: TrialStop) -> str:
    """Return the reason in one sentence without its dot."""
    at = f"after step {count(stop.step)}"
    if stop.loss is None or stop.limit is None:
        return f"stopped by the sweep: the loss is not finite {at}"
    loss, limit = loss_text(stop.loss), loss_text(stop.limit)
    others = counted(stop.others, "other trial")
    than = {
        "diverged": f"more than {limit}: it diverged",
        "worse_than_median": f"worse than {limit}, the median of {others}",
        "not_among_best": f"worse than {limit}, the last of the best of {others}",
    }[stop.code]
    return f"stopped by the sweep: a loss of {loss} {at} is {than}"


def short_stop(stop: TrialStop) -> str:
    """Return the state of a stopped trial in a cell."""
    why = "diverged" if stop.code in ("diverged", "not_finite") else "stopped"
    return f"{why} at {count(stop.step)}"
