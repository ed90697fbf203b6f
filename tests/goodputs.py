"""Forecasts of goodput to build plans with."""

from orchestrator.goodput.losses import exactly, goodput_forecast
from orchestrator.values.goodput import GoodputInputs, SaveCost

NEVER = exactly(0.0)
NO_FAILURES = GoodputInputs(
    failures_per_day=NEVER,
    detection_s=NEVER,
    waiting_s=NEVER,
    restart_s=NEVER,
    restore_s=NEVER,
    missing_pods=NEVER,
    save=SaveCost(
        bytes=0,
        host_bytes_per_chip=0.0,
        host_link_bytes_per_s=None,
        storage_bytes_per_s=exactly(1.0),
        blocking_s=NEVER,
        write_s=NEVER,
    ),
    pods=1,
    spare=0,
    every_steps=200,
    stated=None,
    failures_known=True,
    assumed=False,
    sources={},
)
NO_LOSS = goodput_forecast(NO_FAILURES, 1.0, 100)
