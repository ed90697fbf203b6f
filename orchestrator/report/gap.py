"""Report room: measured against predicted, and where the difference is. Pure.

On the measured ceilings of a machine whose devices are emulated nothing hides behind anything:
there the sum of all lines is what is expected, and no bound.
"""

from orchestrator.types.plan import Forecast, Plan
from orchestrator.types.report import Gap, GapPart, Measurement, PredictionKind, Ratio, Suspect


def predictions(plan: Plan) -> dict[PredictionKind, float]:
    """The seconds of a step that were predicted, by what they are."""
    step_s = plan.forecast.step_s
    found: dict[PredictionKind, float] = {"lower": step_s.lower}
    if step_s.expected is not None:
        found["expected"] = step_s.expected
    if step_s.unoverlapped != step_s.expected:
        found["unoverlapped"] = step_s.unoverlapped
    return found


def is_inside(plan: Plan, found: Measurement) -> bool | None:
    """Whether the median step lies in the 80 % interval; None without an interval."""
    low, high = plan.forecast.step_s.low, plan.forecast.step_s.high
    if low is None or high is None:
        return None
    return low <= found.step_s.median <= high


def reference(plan: Plan) -> tuple[PredictionKind, float]:
    """What a measurement is held against: what is expected, or else the bound."""
    found = predictions(plan)
    against: PredictionKind = "expected" if "expected" in found else "lower"
    return against, found[against]


def ratios(plan: Plan, found: Measurement) -> tuple[Ratio, ...]:
    """The median step over each figure of the forecast."""
    return tuple(
        Ratio(against=name, step_s=s, measured_over_predicted=found.step_s.median / s)
        for name, s in predictions(plan).items()
    )


def gap(plan: Plan, found: Measurement) -> Gap:
    """What a step took beyond what was predicted, part by part."""
    against, predicted_s = reference(plan)
    forecast = plan.forecast
    usual_s, slow_s = on_devices(found)
    return Gap(
        against=against,
        s=found.mean_step_s - predicted_s,
        parts=(
            GapPart(name="devices", s=usual_s - predicted_s),
            GapPart(name="slow steps", s=slow_s),
            GapPart(name="waiting for data", s=found.mean_data_s),
            GapPart(name="saving", s=found.mean_checkpoint_s),
        ),
        exposed=None if plan.chip_profile else exposed(forecast, found.device_s),
        suspects=() if plan.chip_profile else suspects(forecast, found.device_s),
    )


def on_devices(found: Measurement) -> tuple[float, float]:
    """The mean seconds of a step on the devices: as many as a usual one takes, and what slow ones
    add. The usual is the median, or the mean where quick steps make that the smaller.
    """
    mean_s = found.mean_step_s - found.mean_data_s - found.mean_checkpoint_s
    usual_s = min(found.device_s, mean_s)
    return usual_s, mean_s - usual_s


def exposed(forecast: Forecast, device_s: float) -> float | None:
    """The share of what could be hidden that was not; None where there is nothing to hide."""
    hideable_s = forecast.step_s.unoverlapped - forecast.step_s.lower
    return (device_s - forecast.step_s.lower) / hideable_s if hideable_s > 0 else None


def busy(forecast: Forecast) -> dict[str, float]:
    """Seconds by resource, each at its peak rate, the busiest first."""
    seconds: dict[str, float] = {}
    for line in forecast.time:
        name = line.resource or ""
        seconds[name] = seconds.get(name, 0.0) + line.value
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))


def suspects(forecast: Forecast, device_s: float) -> tuple[Suspect, ...]:
    """Each resource as if it alone had set the pace: the likeliest, which needs to have been the
    least slow, first. Latency keeps nothing busy and has no rate.
    """
    return tuple(
        Suspect(resource=name, busy_s=s, rate_if_alone=s / device_s)
        for name, s in busy(forecast).items()
        if name != "latency" and device_s > 0
    )
