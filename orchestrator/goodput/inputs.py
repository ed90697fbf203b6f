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
_READS = 2  # a restore reads a checkpoint twice: for its sums, and for its weights


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


def goodput_inputs(
    machines: Machines, run: RunOptions, state: State, evaluation: EvaluationCost | None = None
) -> GoodputInputs:
    """Return the inputs of a run on these machines with this state."""
    resources, known = machines.resources, recovery()
    daily, save = _daily_failures(machines), _save_cost(machines, state)
    failures = total((daily.slices, daily.cables))
    restart, restart_source = _stated(resources.failures.restart_s, known.restart_s)
    restore = changed(save.storage_bytes_per_s, lambda rate: _READS * state.bytes / rate)
    waits = _slice_recovery(machines, daily, failures, restart.value + restore.value)
    return GoodputInputs(
        failures_per_day=failures,
        detection_s=_detection_s(machines.hosts, run.hang_limit_s),
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
            "failures_per_day": daily.sources,
            "detection_s": (known.node_loss_s.source, known.hang_share.source),
            "waiting_s": waits.sources,
            "restart_s": (restart_source,),
            "storage_bytes_per_s": (_storage(resources.failures)[1],),
        },
        evaluation=evaluation,
    )


def nothing_fails(inputs: GoodputInputs) -> GoodputInputs:
    """Return the inputs of a rehearsal, which is too short to fail; a stated goodput stays."""
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


@dataclass(frozen=True, kw_only=True)
class _DailyFailures:
    """Failures in a day, by what they take: a whole slice, or a cable that is routed around."""

    slices: Uncertain
    cables: Uncertain
    known: bool
    assumed: bool
    sources: tuple[str, ...]


def _daily_failures(machines: Machines) -> _DailyFailures:
    """Return the failures of all pods in a day. Optical switches route around a cable; without them
    its slice is out.
    """
    chip, options = machines.chip, machines.resources.failures
    rates, optical = chip.failures, chip.slices.cube is not None
    switches = machines.chips * recovery().switches_per_chip.value * optical
    counts = (
        (machines.hosts, options.machines_per_day, rates and rates.machines_per_day),
        (machines.chips * chip.torus_axes, options.cables_per_day, rates and rates.cables_per_day),
        (switches, options.switches_per_day, rates and rates.switches_per_day),
    )
    parts = [_rate(count, own, listed or None, rates) for count, own, listed in counts]
    stated = [own for _, own, _ in counts]
    cables = parts[1:] if optical else []
    sources = (rates.machines_per_day.source,) if rates else ()
    return _DailyFailures(
        slices=total(parts[:1] if optical else parts),
        cables=total(cables) if cables else exactly(0.0),
        known=rates is not None or any(rate is not None for rate in stated),
        assumed=rates is not None and rates.assumed and stated[0] is None,
        sources=sources if stated[0] is None else (SPEC,),
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


# --- the seconds of a recovery


def _detection_s(hosts: int, hang_limit_s: float) -> Uncertain:
    """Return the seconds from a failure to the end of its attempt. In a few failures nothing dies:
    they are detected when no step ends for `hang_limit_s`.
    """
    known, heartbeat_s = recovery(), heartbeat_interval_s(hosts, hang_limit_s)
    poll_s, hangs = poll_interval_s(heartbeat_s) / 2, known.hang_share
    dies = changed(known.node_loss_s, lambda s: (1 - hangs.value) * (s + settling_s(heartbeat_s)))
    hung = changed(hangs, lambda share: share * hang_limit_s)
    return total((exactly(poll_s), dies, hung))


def _storage(options: FailureOptions) -> tuple[Uncertain, str]:
    return _stated(options.storage_bytes_per_s, recovery().storage_bytes_per_s)


def _stated(stated: float | None, assumed: RecoveryTime) -> tuple[Uncertain, str]:
    """Return what the spec states, or the catalog's assumption, with its source."""
    return (assumed, assumed.source) if stated is None else (exactly(stated), SPEC)


@dataclass(frozen=True, kw_only=True)
class _SliceRecovery:
    """Seconds from a failure until the run has its slices again, on average over all failures.

    `restarts` are one, and one more where the run goes on with fewer pods for a while.
    """

    waiting_s: Uncertain
    missing_pods: Uncertain
    restarts: float
    sources: tuple[str, ...]


def _slice_recovery(
    machines: Machines, daily: _DailyFailures, failures: Uncertain, restart_s: float
) -> _SliceRecovery:
    """A spare slice takes the place of one that is out. Without one the run waits; if it may go on
    with fewer pods it waits a minute, and takes the slice back after a save once it is whole.
    """
    known, pods = recovery(), machines.resources.pods
    repair, repair_source = _stated(machines.resources.failures.repair_s, known.repair_s)
    # The share of failures that take a slice, and of those that take one when no spare is left.
    out = daily.slices.value / failures.value if failures.value else 0.0
    missing = out * _no_spare(daily.slices.value * repair.value / DAY_S, pods.spare)
    reroute = changed(known.reroute_s, lambda s: s * (1 - out))
    if not missing or pods.min == pods.max or repair.value <= SPARE_WAIT_S:
        waiting, fewer, restarts = changed(repair, lambda s: s * missing), exactly(0.0), 1.0
    else:
        waiting, restarts = exactly(missing * SPARE_WAIT_S), 1.0 + missing
        pod_failures_per_day = daily.slices.value * missing / out / machines.pods

        def share_out(repair_s: float) -> float:
            # The share of time that a pod is out, which does not fail again while it is out.
            fails = pod_failures_per_day * max(repair_s - SPARE_WAIT_S - restart_s, 0.0) / DAY_S
            return fails / (1 + fails)

        fewer = changed(repair, share_out)
    return _SliceRecovery(
        waiting_s=total((waiting, reroute)),
        missing_pods=fewer,
        restarts=restarts,
        sources=(repair_source, known.reroute_s.source),
    )


def _no_spare(others_out: float, spare: int) -> float:
    """Return the probability that all spare slices are out, while `others_out` are out on average:
    their number is Poisson's.
    """
    return 1 - sum(exp(-others_out) * others_out**n / factorial(n) for n in range(spare))


# --- saves


def _save_cost(machines: Machines, state: State) -> SaveCost:
    """Return the cost of a save: one chip of each replica group sends a weight to its host."""
    chip, link = machines.chip, machines.chip.host_link_bytes_per_s
    copy_s = state.bytes_per_chip / link.value if link else 0.0
    # Storage takes no more than the network of a pod gives.
    network = machines.chips / machines.pods * chip.dcn_bytes_per_s.value
    rate = changed(_storage(machines.resources.failures)[0], lambda rate: min(rate, network))
    # Hosts agree in a tree, a level for each doubling of their number.
    levels = 1 + log2(machines.hosts)
    overhead = changed(recovery().save_overhead_s, lambda s: s * levels)
    return SaveCost(
        bytes=state.bytes,
        host_bytes_per_chip=state.bytes_per_chip,
        host_link_bytes_per_s=link.value if link else None,
        storage_bytes_per_s=rate,
        blocking_s=total((exactly(copy_s), overhead)),
        write_s=changed(rate, lambda rate: state.bytes / rate),
    )
