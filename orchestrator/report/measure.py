"""Report room: what steps took after warm-up, and its spread. Pure."""

from collections.abc import Sequence
from statistics import fmean, median, quantiles

from orchestrator.types.plan import Plan
from orchestrator.types.report import Measurement, Spread
from orchestrator.types.run import Step


def measured(plan: Plan, steps: Sequence[Step]) -> Measurement | None:
    """The steps after warm-up: the first of an attempt carries its opening, and does not count."""
    warm = [step for step in steps if step.opening is None]
    if not warm:
        return None
    step_s = spread([step.step_s for step in warm])
    mfu = _known([step.mfu for step in warm])
    rates = [step.model_flops_per_s_per_chip for step in warm]
    tokens_per_s = plan.batch.tokens / step_s.median
    return Measurement(
        steps=len(warm),
        step_s=step_s,
        mfu=spread(mfu) if mfu else None,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_chip=tokens_per_s / plan.chips,
        model_flops_per_s_per_chip=median(told) if (told := _known(rates)) else None,
        mean_step_s=fmean(step.step_s for step in warm),
        mean_data_s=fmean(step.data_s for step in warm),
        mean_checkpoint_s=fmean(step.checkpoint_s for step in warm),
        device_s=median(step.step_s - step.data_s - step.checkpoint_s for step in warm),
    )


def peak_hbm_bytes(steps: Sequence[Step]) -> int | None:
    """The most that a device was seen to hold; None where devices did not say."""
    return max(
        (one.peak_hbm_bytes for one in steps if one.peak_hbm_bytes is not None), default=None
    )


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def spread(values: Sequence[float]) -> Spread:
    """Median, tenth and ninetieth percentile; of one value, all the same."""
    if len(values) == 1:
        return Spread(median=values[0], low=values[0], high=values[0])
    deciles = quantiles(values, n=10, method="inclusive")
    return Spread(median=median(values), low=deciles[0], high=deciles[-1])
