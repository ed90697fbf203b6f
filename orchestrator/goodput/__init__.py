"""The share of time that trains: predicted from failures, saves and restarts. Arithmetic only."""

from orchestrator.goodput.inputs import Machines, State, goodput_inputs, nothing_fails
from orchestrator.goodput.losses import goodput_forecast, odds_below, over_share

__all__ = [
    "Machines",
    "State",
    "goodput_forecast",
    "goodput_inputs",
    "nothing_fails",
    "odds_below",
    "over_share",
]
