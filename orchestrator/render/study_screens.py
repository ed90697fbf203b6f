"""The screens of studies by their kind."""

from orchestrator.render.scaling_report_screen import scaling_report_screen, scaling_verdict
from orchestrator.render.scaling_screen import scaling_screen
from orchestrator.render.screen_parts import Screen, fit
from orchestrator.render.sweep_report_screen import sweep_report_screen, sweep_verdict
from orchestrator.render.sweep_screen import sweep_screen
from orchestrator.types.scaling import ScalingForecast, ScalingReport
from orchestrator.types.sweep import SweepForecast, SweepReport


def forecast_screen(forecast: ScalingForecast | SweepForecast, next_command: str = "") -> Screen:
    """Return the trials of a study as planned."""
    if isinstance(forecast, SweepForecast):
        return sweep_screen(forecast, next_command)
    return scaling_screen(forecast, next_command)


def study_report_screen(report: ScalingReport | SweepReport, next_command: str) -> Screen:
    """Return the trials of a study as measured."""
    if isinstance(report, SweepReport):
        return sweep_report_screen(report, next_command)
    return scaling_report_screen(report, next_command)


def verdict_text(report: ScalingReport | SweepReport) -> str:
    """Return a study's name and verdict, as lines."""
    if isinstance(report, SweepReport):
        return fit(f"{report.study}: {sweep_verdict(report)}\n")
    return fit(f"{report.study}: {scaling_verdict(report)}\n")
