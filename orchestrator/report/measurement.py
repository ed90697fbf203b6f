"""What the steps after warm-up took, and their spread. Pure."""

import numpy as np

from orchestrator.journal.step_table import Floats, StepTable
from orchestrator.types.plan import Plan
from orchestrator.types.report import Measurement, Spread


def measure(plan: Plan, steps: StepTable) -> Measurement | None:
    """The measurement of the steps after warm-up; the first step of an attempt does not count."""
    warm = steps.warm
    if not warm.any():
        return None
    taken_s, data_s, saving_s = steps.step_s[warm], steps.data_s[warm], steps.checkpoint_s[warm]
    step_s = spread(taken_s)
    mfu, flops = _known(steps.mfu[warm]), _known(steps.model_flops_per_s_per_chip[warm])
    tokens_per_s = plan.batch.tokens / step_s.median
    return Measurement(
        steps=len(taken_s),
        step_s=step_s,
        mfu=spread(mfu) if len(mfu) else None,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_chip=tokens_per_s / plan.chips,
        model_flops_per_s_per_chip=float(np.median(flops)) if len(flops) else None,
        mean_step_s=float(taken_s.mean()),
        mean_data_s=float(data_s.mean()),
        mean_checkpoint_s=float(saving_s.mean()),
        device_s=float(np.median(taken_s - data_s - saving_s)),
    )


def peak_hbm_bytes(steps: StepTable) -> int | None:
    """The most memory that a device was seen to use; None where devices do not say."""
    known = _known(steps.peak_hbm_bytes)
    return int(known.max()) if len(known) else None


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def spread(values: Floats) -> Spread:
    """Median, tenth and ninetieth percentile; all the same for a single value."""
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return Spread(median=float(middle), low=float(low), high=float(high))
