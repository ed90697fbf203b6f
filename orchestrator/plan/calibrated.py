"""Plan room: what a plan should take on ceilings that were measured, piece by piece.

Emulated devices share the cores of one machine. Nothing hides behind anything there: the cores do
all of it in turns, so the lines add up to the step that is expected.
"""

from dataclasses import replace
from itertools import pairwise
from math import exp, log

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Quantity
from orchestrator.errors import SpecError
from orchestrator.network.rematerialization import policy
from orchestrator.plan import benchmarks as wanted
from orchestrator.plan import flops
from orchestrator.plan.compute import BACKWARD_OVER_FORWARD
from orchestrator.plan.expected import beyond
from orchestrator.plan.forecast import cost, plain, plain_line, plain_phase, utilization
from orchestrator.plan.kernels import KernelCalls, pieces
from orchestrator.plan.layout import Layout
from orchestrator.plan.memory import phases
from orchestrator.plan.messages import Message, stride, ways
from orchestrator.plan.planner import plan_digest, too_long
from orchestrator.plan.time import peak
from orchestrator.plan.torus import NO_LINKS
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmarks, ChipProfile
from orchestrator.types.plan import Estimate, Forecast, LedgerLine, Plan
from orchestrator.types.spec import Batch, Experiment, Resources

CORES, EXCHANGES = "cores", "exchanges"
PRODUCTS = ("matmul forward", "matmul")
CALIBRATE = "orch calibrate measures it"
# Four of five steps took between these parts of what was expected (docs/calibrate.md).
FASTEST, SLOWEST = 0.8, 1.4
OVERHEAD = 0.1  # of a kernel's seconds at its smallest amount: still needed for less


def on_profile(plan: Plan, profile: ChipProfile) -> Plan:
    """The plan with its forecast on a profile, which it names: on another, it is another plan.

    Published runs have no part in it, so what they do not tell is no warning any more.
    """
    before = (*beyond(plan), *too_long(plan))
    made = replace(
        plan,
        chip_profile=codec.digest(profile),
        forecast=forecast(plan, profile),
        warnings=tuple(one for one in plan.warnings if one not in before),
    )
    return replace(made, digest=plan_digest(made), warnings=(*made.warnings, *too_long(made)))


def on_its_chips(plan: Plan, profile: ChipProfile) -> Plan:
    """The same for a profile of the very chips that the plan is for; of others, an error."""
    kind, kinds = profile.machine.device_kind, catalog.chip(plan.chip).device_kinds
    if kind not in kinds:
        raise SpecError(
            f"the profile is of {kind}, the plan of {plan.chip}, which JAX calls {kinds[0]}"
        )
    return on_profile(plan, profile)


def wishes(plan: Plan, profile: ChipProfile) -> Benchmarks:
    """What a machine's profile lacks for the forecast of a plan."""
    layout = _layout(plan, catalog.chip(plan.chip))
    return wanted.missing(wanted.wishes(plan, layout, shared=is_shared(profile)), profile)


def is_shared(profile: ChipProfile) -> bool:
    """Whether the devices are emulated: the cores of the machine work for all of them."""
    return profile.machine.platform == "cpu"


def forecast(plan: Plan, profile: ChipProfile) -> Forecast:
    """What the plan should take, from the seconds of its pieces and of its messages.

    `unoverlapped` is all lines. On emulated devices `lower` is the products and attention's half of
    the square at the best rate that was measured; on chips it stays what datasheets say, as MFU's
    peak does.
    """
    layout = _layout(plan, _chip(plan, profile))
    batch = Batch(sequences=plan.batch.sequences, length=plan.batch.length)
    experiment = Experiment(model=plan.model, tokens=plan.tokens, batch=batch)
    resources = Resources(chip=plan.chip, topology=plan.topology, goodput=plan.forecast.goodput)
    found = [*piece_lines(plan, layout, profile), *message_lines(plan, layout, profile)]
    lines = [plain_line(line) for line in found]
    per_device = peak(layout.chip, plan.precision.compute).value / layout.chip.devices
    shared = is_shared(profile)
    step_s = bounds(
        plain(least_flops(plan, layout) / per_device) if shared else plan.forecast.step_s.lower,
        sum(line.value for line in lines),
        in_turns=shared or plan.devices == 1,
    )
    ordered = tuple(sorted(lines, key=lambda line: -line.value))
    memory = tuple(plain_phase(phase) for phase in phases(layout))
    usable_bytes, peak_bytes = layout.chip.hbm_usable_bytes.value, max(p.bytes for p in memory)
    computing = sum(line.value for line in lines if line.resource == CORES)
    exchanging = step_s.unoverlapped - computing
    more, less = max(computing, exchanging), min(computing, exchanging)
    return Forecast(
        memory_bytes_per_device=peak_bytes,
        hbm_bytes_per_device=usable_bytes,
        fits=peak_bytes <= usable_bytes,
        memory=memory,
        time=ordered,
        step_s=step_s,
        bound=CORES if computing >= exchanging else EXCHANGES,
        bound_by=more / less - 1 if less else 0.0,
        **utilization(layout, experiment, step_s),
        **cost(layout, experiment, resources, step_s),
        expected_time=ordered if step_s.expected else (),
    )


def least_flops(plan: Plan, layout: Layout) -> float:
    """FLOPs that a device cannot do without: all that MFU counts, and products done again."""
    products = sum(one.amount * one.calls for one in pieces(layout) if one.kernel in PRODUCTS)
    forward = flops.attention_flops_per_token(plan.model, plan.batch.length) * plan.batch.tokens
    return products + (1 + BACKWARD_OVER_FORWARD) * forward / plan.devices


def bounds(lower_s: float, sum_s: float, *, in_turns: bool) -> Estimate:
    """What is done in turns takes the sum; of what several chips hide, nothing is known."""
    sum_s = max(sum_s, lower_s)
    if not in_turns:
        return Estimate(lower=lower_s, unoverlapped=sum_s)
    return Estimate(
        lower=lower_s,
        unoverlapped=sum_s,
        expected=sum_s,
        low=max(sum_s * FASTEST, lower_s),
        high=sum_s * SLOWEST,
    )


def piece_lines(plan: Plan, layout: Layout, profile: ChipProfile) -> list[LedgerLine]:
    """What each device computes alone. Of shared cores each device waits for its turn."""
    shared = is_shared(profile)
    return [_piece_line(piece, plan.devices, profile, shared=shared) for piece in pieces(layout)]


def _piece_line(
    piece: KernelCalls, devices: int, profile: ChipProfile, *, shared: bool
) -> LedgerLine:
    timed_on = wanted.at_once(devices, shared=shared)
    times = wanted.kernel_times(profile, piece, timed_on)
    if not times:
        raise SpecError(f"the profile has no {piece.kernel} in {piece.dtype}: {CALIBRATE}")
    once_s = interpolated([(time.amount, time.seconds) for time in times], piece.amount)
    turns = devices / timed_on if shared else 1.0
    return LedgerLine(
        kind=piece.kind,
        name=piece.name,
        value=piece.calls * once_s * turns,
        unit="s",
        formula="calls x once x turns",
        inputs={"calls": piece.calls, "amount": piece.amount, "once": once_s, "turns": turns},
        resource=CORES,
    )


def message_lines(plan: Plan, layout: Layout, profile: ChipProfile) -> list[LedgerLine]:
    """What devices send each other; all messages of one name on one line."""
    by_name: dict[str, list[Message]] = {}
    for message in wanted.all_messages(plan, layout):
        by_name.setdefault(message.name, []).append(message)
    return [_message_line(name, sent, plan, layout, profile) for name, sent in by_name.items()]


def _message_line(
    name: str, sent: list[Message], plan: Plan, layout: Layout, profile: ChipProfile
) -> LedgerLine:
    seconds = [one.calls * _exchange_s(one, plan, layout, profile) for one in sent]
    calls = sum(one.calls for one in sent)
    moved = sum(one.calls * one.bytes for one in sent)
    return LedgerLine(
        kind=sent[0].line,
        name=name,
        value=sum(seconds),
        unit="s",
        formula="calls x once",
        inputs={"calls": calls, "bytes": moved, "once": sum(seconds) / calls},
        resource=EXCHANGES,
    )


def _exchange_s(message: Message, plan: Plan, layout: Layout, profile: ChipProfile) -> float:
    """One message, by the seconds of others of its kind, type and group."""
    size, apart = ways(layout, message.axes), stride(layout, message.axes)
    key = message.kind, message.dtype, plan.hosts, plan.devices, size, apart, message.together
    times = wanted.exchange_times(profile, key)
    if not times:
        raise SpecError(f"the profile has no {message.kind} of {size} devices: {CALIBRATE}")
    return between_sizes([(time.bytes, time.seconds) for time in times], message.bytes)


def between_sizes(points: list[tuple[int, float]], size_bytes: float) -> float:
    """Seconds of a size: straight between the two beside it, and on from the last two."""
    smaller = sum(known <= size_bytes for known, _ in points[1:-1])
    (small, small_s), (large, large_s) = points[smaller : smaller + 2]
    slope = max(large_s - small_s, 0.0) / (large - small)
    return small_s + slope * max(size_bytes - small, 0.0)


def interpolated(points: list[tuple[float, float]], amount: float) -> float:
    """Seconds of an amount: straight between points in logarithms, beyond them in proportion."""
    smallest, smallest_s = points[0]
    if amount <= smallest:
        return smallest_s * max(amount / smallest, OVERHEAD)
    for (low, low_s), (high, high_s) in pairwise(points):
        if amount <= high:
            share = log(amount / low) / log(high / low)
            return exp(log(low_s) + share * log(high_s / low_s))
    largest, largest_s = points[-1]
    return largest_s * amount / largest


def peak_flops_per_s(profile: ChipProfile, dtype: str) -> float:
    """The best rate at which the machine multiplied, with all its cores."""
    rates = [
        time.amount * time.devices / time.least_s
        for time in profile.kernels
        if time.kernel in PRODUCTS and time.dtype == dtype
    ]
    if not rates:
        raise SpecError(f"the profile has no matmul in {dtype}: {CALIBRATE}")
    return max(rates)


def _chip(plan: Plan, profile: ChipProfile) -> Chip:
    """The chip itself; where devices are emulated, one's share of what was measured."""
    chip, dtype = catalog.chip(plan.chip), plan.precision.compute
    if not is_shared(profile):
        return chip
    name = f"profile {codec.short(codec.digest(profile))}"
    rate = Quantity(value=peak_flops_per_s(profile, dtype) / plan.chips, source=name)
    memory_bytes = profile.machine.memory_bytes / plan.devices
    return replace(
        chip,
        peak_flops_per_s={dtype: rate},
        hbm_usable_bytes=Quantity(value=memory_bytes, source=name),
        dollars_per_hour=None,
    )


def _layout(plan: Plan, chip: Chip) -> Layout:
    """The plan's layout, on no torus."""
    batch = plan.batch
    return Layout(
        chip=chip,
        model=plan.model,
        precision=plan.precision,
        remat=policy(plan.remat),
        length=batch.length,
        sequences=batch.sequences,
        microbatches=batch.microbatches,
        links=NO_LINKS,
        **plan.mesh,
    )
