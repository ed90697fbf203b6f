"""Measured against predicted step time, and the parts of the difference. Pure.

On the measured profile of a machine with emulated devices nothing overlaps: there the sum of all
lines is the expected step.
"""

from orchestrator.types.plan import Forecast, Plan
from orchestrator.types.report import Gap, GapPart, Measurement, PredictionKind, Ratio, Suspect


def predicted_times(plan: Plan) -> dict[PredictionKind, float]:
    """The predicted seconds of a step."""
    step_s = plan.forecast.step_s
    times: dict[PredictionKind, float] = {"lower": step_s.lower}
    if step_s.expected is not None:
        times["expected"] = step_s.expected
    if step_s.unoverlapped != step_s.expected:
        times["unoverlapped"] = step_s.unoverlapped
    return times


def reference(plan: Plan) -> tuple[PredictionKind, float]:
    """The prediction that a measurement is compared with: the expected step or the lower bound."""
    times = predicted_times(plan)
    against: PredictionKind = "expected" if "expected" in times else "lower"
    return against, times[against]


def inside_interval(plan: Plan, measured: Measurement) -> bool | None:
    """Whether the median step is in the 80 % prediction interval; None without an interval."""
    low, high = plan.forecast.step_s.low, plan.forecast.step_s.high
    if low is None or high is None:
        return None
    return low <= measured.step_s.median <= high


def ratios(plan: Plan, measured: Measurement) -> tuple[Ratio, ...]:
    """The median step over each predicted one."""
    return tuple(
        Ratio(against=name, step_s=s, measured_over_predicted=measured.step_s.median / s)
        for name, s in predicted_times(plan).items()
    )


def gap(plan: Plan, measured: Measurement) -> Gap:
    """How much longer a step took than predicted, part by part."""
    against, predicted_s = reference(plan)
    forecast = plan.forecast
    usual_s, slow_s = device_times(measured)
    return Gap(
        against=against,
        s=measured.mean_step_s - predicted_s,
        parts=(
            GapPart(name="devices", s=usual_s - predicted_s),
            GapPart(name="slow steps", s=slow_s),
            GapPart(name="waiting for data", s=measured.mean_data_s),
            GapPart(name="saving", s=measured.mean_checkpoint_s),
        ),
        exposed=None if plan.chip_profile else exposed_share(forecast, measured.device_s),
        suspects=() if plan.chip_profile else suspects(forecast, measured.device_s),
    )


def device_times(measured: Measurement) -> tuple[float, float]:
    """The mean seconds of a step on the devices: the usual part, and what slow steps add.

    The usual part is the median, or the mean where that is smaller.
    """
    mean_s = measured.mean_step_s - measured.mean_data_s - measured.mean_checkpoint_s
    usual_s = min(measured.device_s, mean_s)
    return usual_s, mean_s - usual_s


def exposed_share(forecast: Forecast, device_s: float) -> float | None:
    """The share of the time that could overlap and did not; None where nothing can."""
    overlappable_s = forecast.step_s.unoverlapped - forecast.step_s.lower
    return (device_s - forecast.step_s.lower) / overlappable_s if overlappable_s > 0 else None


def busy_seconds(forecast: Forecast) -> dict[str, float]:
    """Seconds of each resource at its peak rate, the busiest first."""
    seconds: dict[str, float] = {}
    for line in forecast.time:
        name = line.resource or ""
        seconds[name] = seconds.get(name, 0.0) + line.value
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))


def suspects(forecast: Forecast, device_s: float) -> tuple[Suspect, ...]:
    """The resources, each as if it alone set the pace; the one that had to slow down least first.

    Latency keeps nothing busy and has no rate.
    """
    return tuple(
        Suspect(resource=name, busy_s=s, rate_if_alone=s / device_s)
        for name, s in busy_seconds(forecast).items()
        if name != "latency" and device_s > 0
    )
