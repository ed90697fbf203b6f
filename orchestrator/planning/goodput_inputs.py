"""What a forecast of goodput starts from: the spec's values, the chip's, then the catalog's."""

from math import exp, factorial, log2

from orchestrator.catalog.chips import Chip, FailureRates, Quantity
from orchestrator.catalog.published import RecoveryTime, recovery
from orchestrator.formatting import DAY_S
from orchestrator.goodput.losses import changed, exactly, total
from orchestrator.values import goodput
from orchestrator.values.spec import Resources, RunOptions

SPEC = "spec"
_READS = 2  # a restore reads a checkpoint twice: for its sums, and for its weights


def goodput_inputs(
    chip: Chip,
    hosts: int,
    chips: int,
    copy_chips: int,  # that hold one copy of the weights
    resources: Resources,
    run: RunOptions,
    *,
    state_bytes: int,  # of a save
    bytes_per_chip: float,  # that a chip sends to its host
    evaluation: goodput.EvaluationCost | None,
) -> goodput.GoodputInputs:
    """Return the inputs of a run on the hosts and chips of all pods."""
    options, known = resources.failures, recovery()
    # Failures of all pods in a day, by what they take: a whole slice, or a cable. Optical switches
    # route around a cable; without them its slice is out.
    rates, optical = chip.failures, chip.slices.cube is not None
    switches = chips * known.switches_per_chip.value * optical
    counts = (
        (hosts, options.machines_per_day, rates and rates.machines_per_day),
        (chips * chip.torus_axes, options.cables_per_day, rates and rates.cables_per_day),
        (switches, options.switches_per_day, rates and rates.switches_per_day),
    )
    parts = [_rate(count, own, listed or None, rates) for count, own, listed in counts]
    stated = [own for _, own, _ in counts]
    slices = total(parts[:1] if optical else parts)
    failures = total((slices, total(parts[1:]) if optical else exactly(0.0)))
    listed_source = (rates.machines_per_day.source,) if rates else ()
    storage, storage_source = _stated(options.storage_bytes_per_s, known.storage_bytes_per_s)
    # Storage takes no more than the network of one copy's chips gives.
    network = copy_chips * chip.dcn_bytes_per_s.value
    rate = changed(storage, lambda rate: min(rate, network))
    restart, restart_source = _stated(options.restart_s, known.restart_s)
    restore = changed(rate, lambda rate: _READS * state_bytes / rate)
    waiting, missing_pods, starts, repair_source = _slice_recovery(
        resources, slices.value, failures.value, restart.value + restore.value
    )
    return goodput.GoodputInputs(
        failures_per_day=failures,
        detection_s=_detection_s(hosts, run.hang_limit_s),
        waiting_s=waiting,
        restart_s=changed(restart, lambda s: s * starts),
        restore_s=changed(restore, lambda s: s * starts),
        starts=starts,
        missing_pods=missing_pods,
        save=_save_cost(chip, hosts, state_bytes, bytes_per_chip, rate),
        pods=resources.pods.max,
        spare=resources.pods.spare,
        every_steps=run.checkpoint.every,
        stated=resources.goodput,
        failures_known=rates is not None or any(rate is not None for rate in stated),
        assumed=rates is not None and rates.assumed and stated[0] is None,
        sources={
            "failures_per_day": listed_source if stated[0] is None else (SPEC,),
            "detection_s": (known.node_loss_s.source, known.hang_share.source),
            "waiting_s": (repair_source, known.reroute_s.source),
            "restart_s": (restart_source,),
            "storage_bytes_per_s": (storage_source,),
        },
        evaluation=evaluation,
    )


def _save_cost(
    chip: Chip, hosts: int, state_bytes: int, bytes_per_chip: float, rate: goodput.Uncertain
) -> goodput.SaveCost:
    # One chip of each replica group sends a weight to its host. Hosts agree in a tree, a level for
    # each doubling of their number.
    link, levels = chip.host_link_bytes_per_s, 1 + log2(hosts)
    overhead = changed(recovery().save_overhead_s, lambda s: s * levels)
    return goodput.SaveCost(
        bytes=state_bytes,
        host_bytes_per_chip=bytes_per_chip,
        host_link_bytes_per_s=link.value if link else None,
        storage_bytes_per_s=rate,
        blocking_s=total((exactly(bytes_per_chip / link.value if link else 0.0), overhead)),
        write_s=changed(rate, lambda rate: state_bytes / rate),
    )


def _rate(
    count: float, stated: float | None, listed: Quantity | None, rates: FailureRates | None
) -> goodput.Uncertain:
    if stated is not None:
        return exactly(count * stated)
    if listed is None or rates is None:
        return exactly(0.0)
    value = count * listed.value
    return goodput.Uncertain(value=value, low=value / rates.spread, high=value * rates.spread)


def _detection_s(hosts: int, hang_limit_s: float) -> goodput.Uncertain:
    """Return seconds from a failure to its attempt's end; a hang is seen after `hang_limit_s`."""
    known, heartbeat_s = recovery(), goodput.heartbeat_interval_s(hosts, hang_limit_s)
    poll_s, hangs = goodput.poll_interval_s(heartbeat_s) / 2, known.hang_share
    dies = changed(
        known.node_loss_s, lambda s: (1 - hangs.value) * (s + goodput.settling_s(heartbeat_s))
    )
    hung = changed(hangs, lambda share: share * hang_limit_s)
    return total((exactly(poll_s), dies, hung))


def _stated(stated: float | None, assumed: RecoveryTime) -> tuple[goodput.Uncertain, str]:
    return (assumed, assumed.source) if stated is None else (exactly(stated), SPEC)


def _slice_recovery(
    resources: Resources, slices_per_day: float, failures_per_day: float, restart_s: float
) -> tuple[goodput.Uncertain, goodput.Uncertain, float, str]:
    """Return the seconds from a failure until the run has its slices again, on average over all
    failures; the pods that it goes on without; the starts after a failure, which are one, and one
    more where the run goes on with fewer pods for a while; and the source of a repair's seconds. A
    spare slice takes the place of one that is out. Without one the run waits; if it may go on with
    fewer pods it waits a minute, and takes the slice back after a save once it is whole.
    """
    known, pods = recovery(), resources.pods
    repair, source = _stated(resources.failures.repair_s, known.repair_s)
    # The share of failures that take a slice, and of those that take one when no spare is left.
    out = slices_per_day / failures_per_day if failures_per_day else 0.0
    missing = out * _no_spare(slices_per_day * repair.value / DAY_S, pods.spare)
    reroute = changed(known.reroute_s, lambda s: s * (1 - out))
    if not missing or pods.min == pods.max or repair.value <= goodput.SPARE_WAIT_S:
        waiting = changed(repair, lambda s: s * missing)
        return total((waiting, reroute)), exactly(0.0), 1.0, source
    pod_failures_per_day = slices_per_day * missing / out / pods.max

    def share_out(repair_s: float) -> float:
        # The share of time that a pod is out, which does not fail again while it is out.
        fails = pod_failures_per_day * max(repair_s - goodput.SPARE_WAIT_S - restart_s, 0.0) / DAY_S
        return fails / (1 + fails)

    waiting = total((exactly(missing * goodput.SPARE_WAIT_S), reroute))
    return waiting, changed(repair, share_out), 1.0 + missing, source


def _no_spare(others_out: float, spare: int) -> float:
    """Return the chance that all spares are out; outages are Poisson's, on average `others_out`."""
    return 1 - sum(exp(-others_out) * others_out**n / factorial(n) for n in range(spare))
