"""What a forecast of goodput starts from: rates of failures, seconds of a recovery, cost of a save.

What the spec states comes first, then the chip, then the catalog's assumptions.
"""

from dataclasses import dataclass, replace
from math import exp, factorial, log2

from orchestrator.catalog.chips import Chip, FailureRates, Quantity
from orchestrator.catalog.published import RecoveryTime, recovery
from orchestrator.formatting import DAY_S
from orchestrator.goodput.losses import changed, exactly, total
from orchestrator.values.goodput import (
    SPARE_WAIT_S,
    EvaluationCost,
    GoodputInputs,
    SaveCost,
    Uncertain,
    heartbeat_interval_s,
    poll_interval_s,
    settling_s,
)
from orchestrator.values.run_options import FailureOptions, RunOptions
from orchestrator.values.spec import Resources

SPEC = "spec"
# A restore reads a checkpoint twice: for its sums, and for its weights.
READS = 2


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What can fail: of all pods together, and what the spec says of it."""

    chip: Chip
    chips: int
    hosts: int
    resources: Resources

    @property
    def pods(self) -> int:
        return self.resources.pods.max


@dataclass(frozen=True, kw_only=True)
class State:
    """What a save holds: its bytes, and those that one chip sends to its host."""

    bytes: int
    bytes_per_chip: float


@dataclass(frozen=True, kw_only=True)
class DailyFailures:
    """Failures in a day, by what they take: a whole slice, or a cable that is routed around."""

    slices: Uncertain
    cables: Uncertain
    known: bool
    assumed: bool
    sources: tuple[str, ...]


def goodput_inputs(
    machines: Machines, run: RunOptions, state: State, evaluation: EvaluationCost | None = None
) -> GoodputInputs:
    """The inputs of a run on these machines with this state."""
    resources = machines.resources
    daily, save = daily_failures(machines), save_cost(machines, state)
    failures = total((daily.slices, daily.cables))
    restart, restart_source = restart_s(resources.failures)
    restore = changed(save.storage_bytes_per_s, lambda rate: READS * state.bytes / rate)
    waits = recovery_of_slices(machines, daily, failures, (restart.value + restore.value))
    beat_s = heartbeat_interval_s(machines.hosts, run.hang_limit_s)
    rate_sources = daily.sources
    return GoodputInputs(
        failures_per_day=failures,
        detection_s=detection_s(beat_s, run.hang_limit_s),
        waiting_s=waits.waiting_s,
        restart_s=changed(restart, lambda s: s * waits.restarts),
        restore_s=changed(restore, lambda s: s * waits.restarts),
        starts=waits.restarts,
        missing_pods=waits.missing_pods,
        save=save,
        pods=machines.pods,
        spare=resources.pods.spare,
        every_steps=run.checkpoint.every,
        stated=resources.goodput,
        failures_known=daily.known,
        assumed=daily.assumed,
        sources={
            "failures_per_day": rate_sources,
            "detection_s": (recovery().node_loss_s.source, recovery().hang_share.source),
            "waiting_s": waits.sources,
            "restart_s": (restart_source,),
            "storage_bytes_per_s": (storage(resources.failures)[1],),
        },
        evaluation=evaluation,
    )


def nothing_fails(inputs: GoodputInputs) -> GoodputInputs:
    """The inputs of a rehearsal, which is too short to fail; a stated goodput stays."""
    never, free = exactly(0.0), replace(inputs.save, blocking_s=exactly(0.0), write_s=exactly(0.0))
    return replace(
        inputs,
        failures_per_day=never,
        restart_s=never,
        restore_s=never,
        save=free,
        failures_known=True,
        assumed=False,
    )


# --- failures


def daily_failures(machines: Machines) -> DailyFailures:
    """Failures of all pods in a day. Optical switches route around a cable; without them its slice
    is out.
    """
    chip, options = machines.chip, machines.resources.failures
    rates = chip.failures
    optical = chip.slices.cube is not None
    counts = (
        (machines.hosts, options.machines_per_day, rates and rates.machines_per_day),
        (machines.chips * chip.torus_axes, options.cables_per_day, rates and rates.cables_per_day),
        (
            machines.chips * recovery().switches_per_chip.value * optical,
            options.switches_per_day,
            rates and rates.switches_per_day,
        ),
    )
    parts = [_rate(count, own, listed or None, rates) for count, own, listed in counts]
    stated = [options.machines_per_day, options.cables_per_day, options.switches_per_day]
    cables = parts[1:] if optical else []
    return DailyFailures(
        slices=total(parts[:1] if optical else parts),
        cables=total(cables) if cables else exactly(0.0),
        known=rates is not None or any(one is not None for one in stated),
        assumed=rates is not None and rates.assumed and stated[0] is None,
        sources=_sources(rates, stated[0] is not None),
    )


def _rate(
    count: float, stated: float | None, listed: Quantity | None, rates: FailureRates | None
) -> Uncertain:
    if stated is not None:
        return exactly(count * stated)
    if listed is None or rates is None:
        return exactly(0.0)
    value = count * listed.value
    return Uncertain(value=value, low=value / rates.spread, high=value * rates.spread)


def _sources(rates: FailureRates | None, stated: bool) -> tuple[str, ...]:
    if stated:
        return (SPEC,)
    return (rates.machines_per_day.source,) if rates else ()


# --- the seconds of a recovery


def detection_s(heartbeat_s: float, hang_limit_s: float) -> Uncertain:
    """From a failure to the end of its attempt: a few failures show only when nothing goes on."""
    known, poll_s = recovery(), poll_interval_s(heartbeat_s) / 2
    hangs = _uncertain(known.hang_share)
    dies = changed(
        _uncertain(known.node_loss_s), lambda s: (1 - hangs.value) * (s + settling_s(heartbeat_s))
    )
    hung = changed(hangs, lambda share: share * hang_limit_s)
    return total((exactly(poll_s), dies, hung))


def restart_s(options: FailureOptions) -> tuple[Uncertain, str]:
    return _stated(options.restart_s, recovery().restart_s)


def storage(options: FailureOptions) -> tuple[Uncertain, str]:
    return _stated(options.storage_bytes_per_s, recovery().storage_bytes_per_s)


def _stated(stated: float | None, assumed: RecoveryTime) -> tuple[Uncertain, str]:
    if stated is not None:
        return exactly(stated), SPEC
    return _uncertain(assumed), assumed.source


def _uncertain(number: RecoveryTime) -> Uncertain:
    return Uncertain(value=number.value, low=number.low, high=number.high)


@dataclass(frozen=True, kw_only=True)
class SliceRecovery:
    """What a failure costs until the run has its slices again, on average over all failures.

    `restarts` are one, and one more where the run goes on with fewer pods for a while.
    """

    waiting_s: Uncertain
    missing_pods: Uncertain
    restarts: float
    sources: tuple[str, ...]


def recovery_of_slices(
    machines: Machines, daily: DailyFailures, failures: Uncertain, restart_s: float
) -> SliceRecovery:
    """A spare slice takes the place of one that is out. Without one the run waits; if it may go on
    with fewer pods it waits a minute, and takes the slice back after a save once it is whole.
    """
    known, pods = recovery(), machines.resources.pods
    repair, repair_source = _stated(machines.resources.failures.repair_s, known.repair_s)
    out = daily.slices.value / failures.value if failures.value else 0.0
    missing = out * no_spare(daily.slices.value * repair.value / DAY_S, pods.spare)
    reroute = changed(_uncertain(known.reroute_s), lambda s: s * (1 - out))
    if not missing or pods.min == pods.max or repair.value <= SPARE_WAIT_S:
        waiting, fewer, restarts = changed(repair, lambda s: s * missing), exactly(0.0), 1.0
    else:
        waiting, restarts = exactly(missing * SPARE_WAIT_S), 1.0 + missing
        fewer = changed(
            repair,
            lambda s: _share_out(
                daily.slices.value * missing / out / machines.pods,
                max(s - SPARE_WAIT_S - restart_s, 0.0),
            ),
        )
    return SliceRecovery(
        waiting_s=total((waiting, reroute)),
        missing_pods=fewer,
        restarts=restarts,
        sources=(repair_source, known.reroute_s.source),
    )


def _share_out(per_day: float, out_s: float) -> float:
    """The share of time that a pod is out which fails so often, but not while it is out."""
    fails = per_day * out_s / DAY_S
    return fails / (1 + fails)


def no_spare(others_out: float, spare: int) -> float:
    """The probability that all spare slices are out, while so many slices are out on average."""
    return 1 - sum(exp(-others_out) * others_out**n / factorial(n) for n in range(spare))


# --- saves


def save_cost(machines: Machines, state: State) -> SaveCost:
    """Of the chips that have a copy of a weight one sends it to its host, and that to storage."""
    chip, known = machines.chip, recovery()
    link = chip.host_link_bytes_per_s
    copy_s = state.bytes_per_chip / link.value if link else 0.0
    rate, _ = storage(machines.resources.failures)
    network = machines.chips / machines.pods * chip.dcn_bytes_per_s.value
    rate = changed(rate, lambda one: min(one, network))
    doublings = 1 + log2(machines.hosts)
    overhead = changed(_uncertain(known.save_overhead_s), lambda s: s * doublings)
    return SaveCost(
        bytes=state.bytes,
        host_bytes_per_chip=state.bytes_per_chip,
        host_link_bytes_per_s=link.value if link else None,
        storage_bytes_per_s=rate,
        blocking_s=total((exactly(copy_s), overhead)),
        write_s=changed(rate, lambda one: state.bytes / one),
    )
