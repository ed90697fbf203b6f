"""What the steps after warm-up took, and their spread. Pure."""

from collections.abc import Sequence
from statistics import fmean, median, quantiles

from orchestrator.types.plan import Plan
from orchestrator.types.report import Measurement, Spread
from orchestrator.types.run import Step


def measure(plan: Plan, steps: Sequence[Step]) -> Measurement | None:
    """The measurement of the steps after warm-up; the first step of an attempt does not count."""
    warm = [step for step in steps if step.startup is None]
    if not warm:
        return None
    step_s = spread([step.step_s for step in warm])
    mfu = _known([step.mfu for step in warm])
    flops = _known([step.model_flops_per_s_per_chip for step in warm])
    tokens_per_s = plan.batch.tokens / step_s.median
    return Measurement(
        steps=len(warm),
        step_s=step_s,
        mfu=spread(mfu) if mfu else None,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_chip=tokens_per_s / plan.chips,
        model_flops_per_s_per_chip=median(flops) if flops else None,
        mean_step_s=fmean(step.step_s for step in warm),
        mean_data_s=fmean(step.data_s for step in warm),
        mean_checkpoint_s=fmean(step.checkpoint_s for step in warm),
        device_s=median(step.step_s - step.data_s - step.checkpoint_s for step in warm),
    )


def peak_hbm_bytes(steps: Sequence[Step]) -> int | None:
    """The most memory that a device was seen to use; None where devices do not say."""
    return max((n for step in steps if (n := step.peak_hbm_bytes) is not None), default=None)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def spread(values: Sequence[float]) -> Spread:
    """Median, tenth and ninetieth percentile; all the same for a single value."""
    if len(values) == 1:
        return Spread(median=values[0], low=values[0], high=values[0])
    deciles = quantiles(values, n=10, method="inclusive")
    return Spread(median=median(values), low=deciles[0], high=deciles[-1])
