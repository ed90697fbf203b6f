"""Predicted shares of effective time against published ones; recoveries against the campaign."""

from dataclasses import replace
from typing import Any

from orchestrator.catalog.goodput_runs import (
    CampaignFault,
    GoodputRun,
    Wait,
    campaign,
    goodput_runs,
)
from orchestrator.catalog.recovery_times import recovery
from orchestrator.formatting import DAY_S
from orchestrator.goodput.renewal import Rhythm
from orchestrator.goodput.uncertainty import with_causes
from orchestrator.types.goodput import Uncertain
from orchestrator.types.recovery import heartbeat_interval_s, poll_interval_s, settling_s
from orchestrator.types.score import GoodputScore, RecoveryScore

CAUSES = ("failures_per_day", "recovery_s", "blocking_s", "write_s")


def goodput_scores() -> tuple[GoodputScore, ...]:
    """Each published run from its own rates."""
    return tuple(map(_scored, goodput_runs()))


def _scored(run: GoodputRun) -> GoodputScore:
    interval_s = run.interval_s or rhythm_of(run).best_interval_s()
    share = rhythm_of(run).share(interval_s)
    ends = (
        (at(run, name, "low", interval_s), at(run, name, "high", interval_s)) for name in CAUSES
    )
    predicted = with_causes(share, ends, 1.0)
    return GoodputScore(
        id=run.id,
        source=run.source,
        predicted=predicted,
        reported=run.reported,
        reported_is=run.reported_is,
        note=run.note,
    )


def at(run: GoodputRun, name: str, end: str, interval_s: float) -> float:
    """The share with one number at an end of its interval."""
    number: Uncertain = getattr(run, name)
    moved: dict[str, Any] = {name: replace(number, value=getattr(number, end))}
    return rhythm_of(replace(run, **moved)).share(interval_s)


def rhythm_of(run: GoodputRun) -> Rhythm:
    return Rhythm(
        between_failures_s=DAY_S / run.failures_per_day.value,
        recovery_s=run.recovery_s.value,
        blocking_s=run.blocking_s.value,
        write_s=run.write_s.value,
    )


# --- the campaign of faults


def recovery_scores() -> tuple[RecoveryScore, ...]:
    """Each kind of fault: what the driver's constants say it costs, and what it did."""
    return tuple(
        RecoveryScore(
            id=fault.id,
            faults=fault.faults,
            predicted_s=recovers_s(fault),
            recorded_s=fault.recorded_s,
        )
        for fault in campaign().faults
    )


def recovers_s(fault: CampaignFault) -> float:
    """Seconds from a fault until a step is done again, on two ranks."""
    known = campaign()
    beat_s = heartbeat_interval_s(2, known.hang_limit_s)
    waits: dict[Wait, float] = {
        "poll": poll_interval_s(beat_s),
        "settling": settling_s(beat_s),
        "hang": known.hang_limit_s,
        "node_loss": recovery().node_loss_s.low,
    }
    return known.restart_s + sum(waits[name] for name in fault.waits)
