"""A run's figures among Ray's own Prometheus metrics, which `dashboards/grafana.json` shows."""

import sys
import threading
import time
from collections.abc import Iterator

from ray.util.metrics import Gauge

from orchestrator.errors import OrchError
from orchestrator.evidence.report import RunReader, RunReading
from orchestrator.journal.run_journal import Journal

_EVERY_S = 10.0
# Ray puts `ray_` before each name. The tag `host` is empty but for `orch_host_times`.
NAMES = {
    "orch_step": "Steps done",
    "orch_steps": "Steps of the whole run",
    "orch_loss": "Loss of the newest step",
    "orch_step_seconds": "Median time of the last steps",
    "orch_step_seconds_expected": "Expected time of a step",
    "orch_step_seconds_low": "Low end of the 80 % interval of the expected time",
    "orch_step_seconds_high": "High end of the 80 % interval of the expected time",
    "orch_mfu": "Median MFU of the last steps",
    "orch_mfu_expected": "Expected MFU",
    "orch_mfu_roofline": "MFU at the lower bound of the step time",
    "orch_tokens_per_second": "Tokens per second of all chips, at the median step",
    "orch_goodput": "Share of the time that went into steps that count",
    "orch_gap_seconds": "Mean step less the predicted one",
    "orch_slowdowns": "Slowdowns that go on",
    "orch_slowdown_lost_seconds": "Seconds that all slowdowns have cost",
    "orch_host_times": "Own time of a host over that of the others",
    "orch_days_left": "Days until the run ends",
    "orch_dollars_left": "Dollars until the run ends",
}


def publish(journal: Journal) -> None:
    """Publish the figures of a run from now on, in the background."""
    threading.Thread(target=_go_on, args=(journal,), name="metrics", daemon=True).start()


def _go_on(journal: Journal) -> None:
    reader = RunReader(journal)
    gauges = {name: Gauge(name, about, ("run", "host")) for name, about in NAMES.items()}
    while True:
        try:
            for name, host, value in figures(reader.read()):
                gauges[name].set(value, {"run": journal.key, "host": host})
        except OrchError as error:  # the storage does not answer: the next look may succeed
            print(f"no metrics for now: {error}", file=sys.stderr, flush=True)
        time.sleep(_EVERY_S)


def figures(reading: RunReading) -> Iterator[tuple[str, str, float]]:
    """Yield the name, the host and the value of each figure that is known."""
    run, report = reading.run, reading.report
    measured, recent, outlook = report.measured, run.recent, report.outlook
    # A forecast for chips says nothing about the devices of a rehearsal.
    step_s, mfu = report.forecast.step_s, report.forecast.mfu
    has_forecast = report.not_compared is None
    slow = report.slowdowns
    named: dict[str, float | None] = {
        "orch_step": run.steps_done,
        "orch_steps": run.steps,
        "orch_loss": report.last_loss,
        "orch_step_seconds": recent.step_s if recent else None,
        "orch_step_seconds_expected": step_s.likeliest if has_forecast else None,
        "orch_step_seconds_low": step_s.low if has_forecast else None,
        "orch_step_seconds_high": step_s.high if has_forecast else None,
        "orch_mfu": recent.mfu if recent else None,
        "orch_mfu_expected": mfu.expected if has_forecast else None,
        "orch_mfu_roofline": mfu.lower if has_forecast else None,
        "orch_tokens_per_second": measured.tokens_per_s if measured else None,
        "orch_goodput": report.goodput.goodput if report.goodput else None,
        "orch_gap_seconds": report.gap.s if report.gap else None,
        "orch_slowdowns": sum(each.last_step is None for each in slow),
        "orch_slowdown_lost_seconds": sum(each.lost_s for each in slow),
        "orch_days_left": outlook.days_left.value if outlook else None,
        "orch_dollars_left": (
            outlook.dollars_left.value if outlook and outlook.dollars_left else None
        ),
    }
    yield from ((name, "", float(value)) for name, value in named.items() if value is not None)
    for row in reading.hosts.rows if reading.hosts else ():
        yield "orch_host_times", row.name, row.times[-1]
