"""Report room: measured against predicted, and where the difference is. Pure."""

from orchestrator.stations.plan import Forecast
from orchestrator.stations.report import Against, Gap, Measured, Part, Ratio, Suspect


def ratios(forecast: Forecast, found: Measured) -> tuple[Ratio, ...]:
    """The median step over each figure of the forecast."""
    predicted: dict[Against, float] = {
        "lower": forecast.step_s.lower,
        "unoverlapped": forecast.step_s.unoverlapped,
    }
    return tuple(
        Ratio(against=name, step_s=s, measured_over_predicted=found.step_s.median / s)
        for name, s in predicted.items()
    )


def gap(forecast: Forecast, found: Measured) -> Gap:
    """What a step took beyond its lower bound, part by part."""
    predicted_s = forecast.step_s.lower
    busy_s = found.mean_step_s - found.mean_data_s - found.mean_checkpoint_s
    return Gap(
        against="lower",
        s=found.mean_step_s - predicted_s,
        parts=(
            Part(name="devices", s=found.device_s - predicted_s),
            Part(name="slow steps", s=busy_s - found.device_s),
            Part(name="waiting for data", s=found.mean_data_s),
            Part(name="saving", s=found.mean_checkpoint_s),
        ),
        exposed=exposed(forecast, found.device_s),
        suspects=suspects(forecast, found.device_s),
    )


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
